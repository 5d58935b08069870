"""Checkpoints in and out. A format is one file; its reader gives a spec and a state dict.

Nothing here runs a model, and no file is ever allowed to run code. ``dpt.weights.formats`` is the
front door, ``dpt.weights.convert`` writes what it read in another format.
"""

from dpt.weights.encoder import load_encoder_weights
from dpt.weights.files import read_tensors
from dpt.weights.native import read_native
from dpt.weights.transfer import load_model_weights

__all__ = ["load_encoder_weights", "load_model_weights", "read_native", "read_tensors"]
