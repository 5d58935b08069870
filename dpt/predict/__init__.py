"""Predictions for images of any size, at their own size: from Python, or for folders and videos."""

from dpt.predict.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
