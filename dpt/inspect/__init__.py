"""Attention, tokens and readout of a model, as arrays and as one picture.

    maps = cls_attention(model, images)      # a list of (B, heads, h, w), one for each block

The functions take float images (B, 3, H, W), normalised, pad them as the model does, and return
float32 NumPy arrays. The model should be in evaluation mode.
"""

from dpt.inspect.attention import attention_maps, cls_attention, patch_attention
from dpt.inspect.sheet import inspection_sheet
from dpt.inspect.tokens import feature_norms, readout_contribution, token_pca
