"""Checkpoints: one module for each family, listed in ``formats``. No code in a file is executed."""

from dpt.weights.transfer import load_encoder_weights, load_model_weights

__all__ = ["load_encoder_weights", "load_model_weights"]
