"""How much the predictions of a model for several views of an image disagree.

Shapes: V views, K classes, (h, w) the network's input.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import torch
from torch import Tensor

from dpt.depthmath import align_median, align_scale_shift, median_mad
from dpt.model import DPT
from dpt.nn.heads.queries import semantic_scores
from dpt.nn.tta import mirror, multi_scale
from dpt.predict.predictor import Predictor
from dpt.types.outputs import OutputSpec, tensor_specs
from dpt.types.samples import Inputs

VIEWS = ((1.0, False), (1.0, True), (0.75, False), (0.75, True))
"""Scale of the network's input, and whether the image is mirrored."""


class Ranker:
    """Scores images by how much a model's predictions for :data:`VIEWS` of each disagree.

    Attributes:
        outputs: the outputs that are compared, those with classes or depth of pixels.

    Raises:
        ValueError: the model has no such output.
    """

    def __init__(self, model: DPT, *, device: str | None = None) -> None:
        kinds = ("logits", "masks", "depth")
        self.outputs = {n: s for n, s in model.outputs.items() if s.dense and s.kind in kinds}
        if not self.outputs:
            names = ", ".join(model.outputs)
            raise ValueError(f"the model predicts {names}, no classes or depth of pixels")
        self._specs = tensor_specs(model.outputs)
        self._predictor = Predictor(model, device=device)

    @torch.inference_mode()
    def scores(self, path: Path) -> list[float]:
        """Returns the score of an image by each of the outputs.

        Raises:
            ValueError: the image cannot be read, or the model gives NaN or infinity.
        """
        predictor = self._predictor
        image = torch.from_numpy(predictor.prepare(path).input).to(predictor.runtime.device)
        inputs = Inputs(predictor.preprocessing.normalize(image.permute(2, 0, 1)[None]))
        views = [self._view(inputs, scale, is_mirrored) for scale, is_mirrored in VIEWS]
        if not all(value.isfinite().all() for view in views for value in view.values()):
            raise ValueError(f"{path}: the model's predictions hold NaN or infinity")
        return [float(_score(views, spec)) for spec in self.outputs.values()]

    def _view(self, inputs: Inputs, scale: float, is_mirrored: bool) -> dict[str, Tensor]:
        """Returns the tensors for a view at the size of the images; logits as log-probabilities."""
        values = multi_scale(
            self._predictor.runtime.tensors,
            self._specs,
            inputs.mirrored() if is_mirrored else inputs,
            scales=[scale],
            multiple_of=self._predictor.preprocessing.multiple_of,
        )
        if not is_mirrored:
            return values
        return {name: mirror(value, self._specs[name]) for name, value in values.items()}


def _score(views: Sequence[Mapping[str, Tensor]], spec: OutputSpec) -> Tensor:
    if spec.kind == "depth":
        return depth_disagreement(torch.cat([view[spec.name] for view in views]), spec)
    if spec.kind == "logits":
        return class_disagreement(torch.cat([view[spec.name].exp() for view in views]))
    masks, classes = spec.tensors
    scores = torch.cat([semantic_scores(view[masks], view[classes]).exp() for view in views])
    nothing = (1 - scores.sum(1, keepdim=True)).clamp_min(0)
    every_score = torch.cat([scores, nothing], dim=1)
    return class_disagreement(every_score / every_score.sum(1, keepdim=True))


def class_disagreement(probabilities: Tensor) -> Tensor:
    """Returns the total variation distance of two views' probabilities, 0 to 1: the mean over the
    pixels and the pairs of views.

    It ranks images better than the entropy of the mean probabilities, see the guide's measurements.

    Args:
        probabilities: (V, K, h, w).
    """
    pairs = [(one - other).abs().sum(0) for one, other in combinations(probabilities, 2)]
    return torch.stack(pairs).mean() / 2


def depth_disagreement(depth: Tensor, spec: OutputSpec) -> Tensor:
    """Returns how much the views' depth differs from that of the first view.

    Metric depth is aligned by the median, and the differences are relative. Relative depth is
    aligned in scale and shift, and the differences are in units of its mean deviation from its
    median.

    Args:
        depth: (V, h, w).
    """
    first, others = depth[:1].expand_as(depth[1:]), depth[1:]
    valid = torch.ones_like(first, dtype=torch.bool)
    if spec.is_inverse_depth:
        scale, shift = align_scale_shift(others, first, valid)
        aligned = scale[:, None, None] * others + shift[:, None, None]
        unit = median_mad(first, valid)[1][:, None, None]
    else:
        aligned = align_median(others, first, valid)[:, None, None] * others
        unit = first.clamp_min(1e-6)
    return ((aligned - first).abs() / unit).mean()
