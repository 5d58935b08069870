"""The model in plain PyTorch: no files, no Lightning.

The modules of encoders and heads, all imported here, enter their kinds into ENCODERS and HEADS.
"""

from dpt.nn.base import (
    ENCODERS,
    HEADS,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    Features,
    Head,
    HeadConfig,
    register_encoder,
    register_head,
)
from dpt.nn.beit import Beit, BeitConfig
from dpt.nn.encoders import TimmConfig, TimmEncoder
from dpt.nn.fusion import Decoder
from dpt.nn.heads import dense, image, queries
from dpt.nn.network import Network
from dpt.nn.vit import VisionTransformer, ViTConfig
