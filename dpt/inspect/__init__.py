"""What happens inside a model: attention, tokens and read-out as arrays, and as a picture sheet.

    maps = cls_attention(model, images)      # a list of (B, heads, h, w), one a block

The functions take images as the model does and give NumPy arrays, float32. The model should be in
evaluation mode, as :meth:`dpt.DPT.from_pretrained` gives it.
"""

from dpt.inspect.attention import attention_maps, cls_attention, patch_attention
from dpt.inspect.sheet import inspection_sheet
from dpt.inspect.tokens import feature_norms, readout_contribution, token_pca

__all__ = [
    "attention_maps",
    "cls_attention",
    "feature_norms",
    "inspection_sheet",
    "patch_attention",
    "readout_contribution",
    "token_pca",
]
