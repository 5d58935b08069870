"""From pictures to depth and labels at their own size: in Python and, by folders, from the shell."""

from dpt.predict.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
