"""Reading and writing of checkpoints: one module per family of files, listed in ``formats``.

A reader turns a file into a model configuration and a state dict with our names. Nothing here runs
a model, and no code in a file is ever executed.
"""

from dpt.weights.encoders import load_encoder_weights, load_model_weights

__all__ = ["load_encoder_weights", "load_model_weights"]
