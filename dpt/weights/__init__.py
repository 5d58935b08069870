"""Checkpoints in. Each format is one file whose reader gives a spec and a state dict.

Nothing here builds a model, and no file is ever allowed to run code.
"""

from dpt.weights.encoder import load_encoder_weights
from dpt.weights.files import read_tensors
from dpt.weights.native import read_native

__all__ = ["load_encoder_weights", "read_native", "read_tensors"]
