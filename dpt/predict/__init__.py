"""From pictures to depth and labels at their own size: one by one, or by folders."""

from dpt.predict.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
