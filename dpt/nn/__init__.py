"""The model in plain PyTorch: no files, no Lightning."""

from dpt.nn.beit import Beit
from dpt.nn.dpt import DPT, pad_to_multiple
from dpt.nn.encoders import HybridVisionTransformer, TimmEncoder
from dpt.nn.enlarge import Enlarged, convolve, resize
from dpt.nn.fusion import Decoder, Fusion, ResidualConvUnit
from dpt.nn.heads import (
    ClassificationHead,
    DenseHead,
    DepthHead,
    RegressionHead,
    SegmentationHead,
    TokenHead,
)
from dpt.nn.inpainting import InpaintingHead
from dpt.nn.linear import LinearSegmentationHead
from dpt.nn.positions import resize_positions, sincos_1d, sincos_2d
from dpt.nn.reassemble import Assemble, Project, Read, Reassemble, Resample
from dpt.nn.vit import VisionTransformer

__all__ = [
    "DPT",
    "Assemble",
    "Beit",
    "ClassificationHead",
    "Decoder",
    "DenseHead",
    "DepthHead",
    "Enlarged",
    "Fusion",
    "HybridVisionTransformer",
    "InpaintingHead",
    "LinearSegmentationHead",
    "Project",
    "Read",
    "Reassemble",
    "RegressionHead",
    "Resample",
    "ResidualConvUnit",
    "SegmentationHead",
    "TimmEncoder",
    "TokenHead",
    "VisionTransformer",
    "convolve",
    "pad_to_multiple",
    "resize",
    "resize_positions",
    "sincos_1d",
    "sincos_2d",
]
