"""The loss of surface normals."""

from torch import Tensor, nn

from dpt.depthmath import angle_between, masked_mean


class AngularLoss(nn.Module):
    """The mean angle between predicted and true normals, in radians.

    It is the mean over the batch of one number per image, which is 0 for an image without known
    normals. Do et al. 2020 ("Surface normal estimation of tilted images via spatial rectifier",
    section 3) truncate the same loss where the arccosine has no gradient; the arctangent of
    :func:`dpt.depthmath.angle_between` needs no truncation.
    """

    def forward(self, prediction: Tensor, target: Tensor, valid: Tensor) -> Tensor:
        """Returns the loss.

        Args:
            prediction: float (B, 3, H, W), of any length above 0.
            target: float (B, 3, H, W), of length 1 where valid.
            valid: bool (B, H, W).
        """
        if prediction.shape != target.shape or target[:, 0].shape != valid.shape:
            shapes = [tuple(t.shape) for t in (prediction, target, valid)]
            raise ValueError(f"normals must be (B, 3, H, W) and valid (B, H, W), got {shapes}")
        return masked_mean(angle_between(prediction, target), valid).mean()
