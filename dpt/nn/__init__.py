"""The model in plain PyTorch: no files, no Lightning."""

from importlib import import_module
from pkgutil import iter_modules

from dpt.nn.base import (
    ENCODERS,
    HEADS,
    DecoderConfig,
    Encoder,
    EncoderConfig,
    Features,
    FusedMap,
    Head,
    HeadConfig,
    register_encoder,
    register_head,
)
from dpt.nn.beit import Beit, BeitConfig
from dpt.nn.dpt import Network
from dpt.nn.encoders import (
    CnnVisionTransformer,
    HybridConfig,
    StemConfig,
    TimmConfig,
    TimmEncoder,
)
from dpt.nn.fusion import Decoder, Fusion, ResidualConvUnit
from dpt.nn.heads import (
    ClassificationHeadConfig,
    DepthHead,
    DepthHeadConfig,
    InpaintingHead,
    LinearSegmentationHead,
    RegressionHeadConfig,
    SegmentationHead,
    SegmentationHeadConfig,
    TokenHead,
)
from dpt.nn.masks import EoMTHead, MaskHead
from dpt.nn.positions import resize_positions, sincos_1d, sincos_2d
from dpt.nn.queries import CrossAttention, DecoderLayer, TokenDecoder
from dpt.nn.reassemble import Assemble, Project, Read, Reassemble, Resample
from dpt.nn.vit import VisionTransformer, ViTConfig

for _module in iter_modules(__path__):  # each adds its encoders and heads to ENCODERS and HEADS
    import_module(f"{__name__}.{_module.name}")
