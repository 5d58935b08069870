"""Depth (metric, relative, up to scale) and surface normals."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpt.data.base import Dataset
from dpt.depthmath import focal_ratio, masked_mean, masked_median, normalize, valid_range
from dpt.files import few
from dpt.losses import depth as depth_losses
from dpt.metrics.depth import DepthMetrics, NormalMetrics
from dpt.metrics.protocols import Protocol
from dpt.metrics.rules.all_rules import RuleMetrics
from dpt.objectives.base import Objective, nearest, take
from dpt.plugins import register
from dpt.process import log
from dpt.types import outputs as types
from dpt.types.samples import IGNORE_INDEX, Batch, Sample
from dpt.validation import Metres, NonNegative, Plain, PlainMapping, Positive
from dpt.viz import depth_panel

SKY = "sky"  # the name of a class
SkySource = Literal["labels", "invalid"]
_WITHOUT_METRES = "data.depth_kind=inverse has no metres"
_LOSSES: dict[types.DepthKind, type[nn.Module]] = {
    "metric": depth_losses.SILogLoss,
    "relative": depth_losses.ScaleShiftInvariantLoss,
    "up_to_scale": depth_losses.ScaleInvariantLoss,
}


@register("auto")
def default_loss(*, depth: types.DepthKind) -> nn.Module:
    """Returns SILog for metric depth, the loss without shift or scale for relative depth."""
    return _LOSSES[depth]()


class DepthObjective(Objective):
    """Trains depth (B, H, W) and scores it in metres.

    Args:
        kind: ``metric`` predictions are scored as they are; ``relative`` ones after a least-squares
            fit of scale and shift to each image's inverse depth; ``up_to_scale`` ones after a fit
            of their median.
        max_depth: in metres; bounds the head's output. Pixels beyond are not scored, nor trained on
            if the kind is ``metric``.
        min_depth: in metres; likewise for nearer pixels.
        loss: called with prediction, target and valid, each (B, H, W); None for the kind's default.
        canonical_focal: of metric depth: the network predicts metres for a camera of this focal
            length in pixels, and ``Batch["K"]`` makes them metres of the image's camera; images
            without a camera are neither trained on nor scored. None: metres without cameras.
        sky_from: what the head's sky is trained by: ``labels``, the class ``sky_class``; or
            ``invalid``, pixels without depth of images that have some measured. None: it is not
            trained.
        sky_class: id of the class; None for the one that the data names "sky".
        log_variance: the head also predicts how uncertain its depth is. It is trained by
            :class:`dpt.losses.LogVarianceLoss` beside ``loss``, and scored by its area under the
            sparsification error (``ause``), in ``dpt evaluate`` beside that of the disagreement
            with the prediction for the mirrored image (``ause_flip``).
        unit: of the data's depth, for pictures.
    """

    head = "depth"
    target = "depth"
    has_rules = True
    metrics: DepthMetrics

    def __init__(
        self,
        *,
        kind: types.DepthKind = "metric",
        max_depth: Metres,
        min_depth: Metres = 1e-3,
        loss: nn.Module | None = None,
        log_variance: bool = False,
        weight: NonNegative = 1.0,
        canonical_focal: Positive | None = None,
        sky: Literal["none", "sigmoid", "relu"] = "none",
        sky_from: SkySource | None = None,
        sky_class: int | None = None,
        unit: str = "m",
    ) -> None:
        super().__init__(weight=weight)
        self.unit = unit
        self.kind, self.max_depth, self.min_depth = kind, max_depth, min_depth
        self.canonical_focal = canonical_focal
        self.sky, self.sky_from, self.sky_class = sky, sky_from, sky_class
        self.more_targets = ("labels",) if sky_from == "labels" else ()
        self.has_warned = False
        self.variance_loss = depth_losses.LogVarianceLoss(kind=kind) if log_variance else None
        if canonical_focal is not None:
            if kind != "metric":
                raise ValueError(f"canonical_focal={canonical_focal} needs kind=metric, not {kind}")
            self.head_settings = {"activation": "exp", "max_depth": None}
        elif kind == "metric":
            self.head_settings = {"activation": "sigmoid"}
        self.loss = loss or default_loss(depth=kind)
        loss_types = [type(module) for module in self.loss.modules()]
        for loss_kind, loss_type in _LOSSES.items():
            if loss_kind != kind and loss_type in loss_types:
                raise ValueError(f"{loss_type.__name__} needs task.kind={loss_kind}, not {kind}")
        self.metrics = DepthMetrics(
            prediction_kind=kind,
            min_depth=min_depth,
            max_depth=max_depth,
            uncertainties=["ause"] if log_variance else [],
        )

    @classmethod
    def from_data(cls, data: Dataset, settings: PlainMapping) -> Plain:
        of_data: Plain = {"unit": data.info.depth_unit}
        _require_cameras(data, settings.get("canonical_focal"))
        if not data.info.has_metres:
            _require_relative(settings)
        if settings.get("max_depth") is None:
            of_data["max_depth"] = data.info.max_depth
        if settings.get("sky", "none") != "none" and settings.get("sky_from") is None:
            log.warning("task.sky=%s: nothing trains it without task.sky_from", settings["sky"])
        if settings.get("sky_from") == "labels":
            names = data.info.class_names if "labels" in data.info.targets else ()
            if not names or (settings.get("sky_class") is None and SKY not in names):
                fault = f"no class is called {SKY} ({few(names) or 'no class masks'})"
                raise ValueError(
                    f"sky_from=labels: {fault}: set task.sky_class or sky_from=invalid"
                )
            if settings.get("sky_class") is None:
                of_data["sky_class"] = names.index(SKY)
        return of_data

    @classmethod
    def from_output(cls, output: types.OutputSpec, data: Dataset, protocol: Protocol) -> Self:
        kind = output.depth_kind
        limit = data.info.max_depth or math.inf
        if not data.info.has_metres:
            _require_inverse_fit(protocol, kind)
        max_depth = protocol.max_depth or limit
        if max_depth > limit:
            text = "protocol.max_depth=%g m, but the data ends at data.max_depth=%g m"
            log.warning(text, max_depth, limit)
        _require_cameras(data, output.canonical_focal)
        has_variance = any(spec.kind == "log_variance" for spec in output.extra)
        objective = cls(
            kind=kind,
            max_depth=max_depth,
            canonical_focal=output.canonical_focal,
            log_variance=has_variance,
            unit=data.info.depth_unit,
        )
        objective.compares_mirrored = has_variance
        protocol = replace(protocol, max_depth=max_depth)
        uncertainties = ["ause", "ause_flip"] if has_variance else []
        metrics = RuleMetrics if protocol.rules else partial(DepthMetrics, all_pooled=True)
        objective.metrics = metrics(protocol, prediction_kind=kind, uncertainties=uncertainties)
        return objective

    @property
    def notes(self) -> Plain:
        return self.metrics.protocol.depth_notes()

    def remarks(self, samples: Sequence[Sample]) -> Iterator[str]:
        missing = [s.get("name", "") for s in samples if "depth" in s and "K" not in s]
        if self.canonical_focal is not None and missing:
            count = f"{len(missing)} of the {len(samples)} training images that were read"
            yield f"{count} have no camera, so that their metres are not trained: {few(missing)}"

    def freeze_untrained(self, head: nn.Module) -> None:
        is_trained = {"sky": self.sky_from, "log_variance": self.variance_loss}
        for name, parameter in head.named_parameters():
            if any(m is None and name.startswith(f"branches.{k}.") for k, m in is_trained.items()):
                parameter.requires_grad_(False)

    def add_outputs(
        self, head: nn.Module, output: types.HeadOutput, batch: Batch
    ) -> types.HeadOutput:
        """Makes canonical depth metres of the cameras; images without one keep their values."""
        if self.canonical_focal is None:
            return output
        ratio = self._focal_ratio(batch).nan_to_num(nan=1.0).to(output.tensor.device)
        return output.with_tensor(output.tensor * ratio[:, None, None])

    def _focal_ratio(self, batch: Batch) -> Tensor:
        """Returns by what canonical depth becomes metres (B,); NaN without a camera."""
        if "K" not in batch:
            return torch.full((len(batch["index"]),), torch.nan)
        assert self.canonical_focal is not None
        return focal_ratio(batch["K"], self.canonical_focal)

    def with_camera(self, valid: Tensor, batch: Batch) -> Tensor:
        """Returns ``valid`` (B, H, W), all False for an image whose metres need a camera."""
        if self.canonical_focal is None:
            return valid
        return valid & self._focal_ratio(batch).isfinite().to(valid.device)[:, None, None]

    def losses(self, output: types.HeadOutput, batch: Batch) -> dict[str, Tensor]:
        depth, valid = batch["depth"], self.within_range(batch["depth"], batch["valid"])
        valid = self.with_camera(valid, batch)
        if "mixed" in batch:
            rows, kept = batch["mixed"].unlabelled[:, None, None], batch["mixed"].kept
            if self.kind != "metric" or self.canonical_focal is not None:
                valid = valid & ~(rows & kept)  # measured, at another scale or by another camera
            if self.kind == "metric":
                is_pseudo = valid & rows & ~kept
                valid = valid & ~self.worst_pixels(output.tensor, depth, is_pseudo)
        terms = {"loss_depth": self.weight * self.loss(output.tensor, depth, valid)}
        if self.sky_from is not None:
            terms["loss_sky"] = self.weight * self._sky_loss(output.prediction, batch)
        if self.variance_loss is not None:
            assert isinstance(output.prediction, types.DepthMaps)
            loss = self.variance_loss(output.tensor, output.prediction.log_variance, depth, valid)
            terms["loss_depth_variance"] = self.weight * loss
        return terms

    def uncertainties(self, output: types.HeadOutput, size: Sequence[int]) -> tuple[Tensor, ...]:
        """Returns the log-variance, and the disagreement with the mirrored image if it is known."""
        prediction = output.prediction
        if not isinstance(prediction, types.DepthMaps) or prediction.log_variance is None:
            return ()  # such as of baselines
        maps = [prediction.log_variance]
        if output.auxiliary is not None:
            maps.append(self._disagreement(output.tensor, output.auxiliary))
        return tuple(self.predict(values, size) for values in maps)

    def _disagreement(self, first: Tensor, second: Tensor) -> Tensor:
        """Returns the difference of two predictions (B, H, W) as LogVarianceLoss measures it."""
        everywhere = torch.ones_like(first, dtype=torch.bool)
        if self.kind == "relative":
            return (normalize(first, everywhere) - normalize(second, everywhere)).abs()
        difference = first.clamp(min=1e-3).log() - second.clamp(min=1e-3).log()
        if self.kind == "up_to_scale":
            difference = difference - masked_median(difference, everywhere)[:, None, None]
        return difference.abs()

    def _sky_loss(self, prediction: types.HeadPrediction, batch: Batch) -> Tensor:
        """Returns the cross-entropy of the sky; of a head with ``sky=relu``, whose values are no
        probabilities, the squared error."""
        if not isinstance(prediction, types.DepthMaps) or prediction.sky is None:
            raise ValueError(f"sky_from={self.sky_from}: the head has no sky: set task.sky=sigmoid")
        is_sky = ~batch["valid"]
        counted = batch["valid"].flatten(1).any(dim=1)[:, None, None].expand_as(is_sky)
        if "inside" in batch:
            counted = counted & batch["inside"]
        if "mixed" in batch:  # depth is pasted, or a teacher's
            counted = counted & ~batch["mixed"].unlabelled[:, None, None]
        if self.sky_from == "labels":
            assert self.sky_class is not None
            is_sky = batch["labels"] == self.sky_class
            counted = batch["labels"] != IGNORE_INDEX
        if self.sky == "relu":
            error = (prediction.sky - is_sky.float()).square()
        else:
            right = torch.where(is_sky, prediction.sky, 1 - prediction.sky)
            error = -right.clamp(min=1e-6).log()
        return masked_mean(error, counted).mean()

    @torch.no_grad()
    def worst_pixels(self, prediction: Tensor, depth: Tensor, is_pseudo: Tensor) -> Tensor:
        """Returns the tenth of each image's pseudo labels with the largest errors, bool (B, H, W).

        These labels of metric depth are likely to be wrong (Yang et al. 2024, Depth Anything
        V2, section 5). The loss of relative depth leaves out its largest residuals itself.
        """
        ratio = prediction.float().clamp(min=1e-3) / depth.clamp(min=1e-3)
        error = torch.where(is_pseudo, ratio.log().abs(), torch.nan).flatten(1)
        limit = error.nanquantile(0.9, dim=1, keepdim=True)
        return (error > limit).view_as(is_pseudo)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, fraction: float
    ) -> dict[str, Tensor]:
        return {"depth": teacher.float(), "valid": teacher > 0}

    def within_range(self, depth: Tensor, valid: Tensor) -> Tensor:
        """Returns ``valid`` (B, H, W) without depths that a metric head cannot reach."""
        if self.kind != "metric":
            return valid_range(depth, valid, min_depth=0.0, max_depth=math.inf)
        return valid_range(depth, valid, min_depth=self.min_depth, max_depth=self.max_depth)

    def teacher_mismatch(self, output: types.OutputSpec) -> str | None:
        kind = output.depth_kind
        order: Sequence[types.DepthKind] = ("metric", "up_to_scale", "relative")  # each knows less
        if order.index(kind) > order.index(self.kind):
            return f"its {types.DEPTH_UNITS[kind]} is not {self.kind}: set task.kind={kind}"
        return None

    def usable(self, teacher: Tensor, batch: Batch) -> Tensor:
        return torch.where(self.with_camera(teacher > 0, batch), teacher, torch.nan)

    def distil(self, output: types.HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's depth in place of measured depth."""
        valid = self.within_range(teacher, teacher > 0)
        loss: Tensor = self.loss(output.tensor, teacher, valid)
        return self.weight * loss

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        depth, valid = super().ground_truth(batch, k)
        return depth, self.with_camera(valid, take(batch, [k]))

    def update(self, output: types.HeadOutput, batch: Batch) -> None:
        needs_camera = self.canonical_focal is not None and not self.has_warned
        if needs_camera and (is_missing := self._focal_ratio(batch).isnan()).any():
            self.has_warned = True
            name = batch["name"][int(is_missing.int().argmax())]
            log.warning("depth of images without a camera, such as %s, is not scored", name)
        super().update(output, batch)

    def panel(
        self, image: np.ndarray, output: types.HeadOutput, labels: Batch, spec: types.OutputSpec
    ) -> np.ndarray:
        """Returns pictures of depth as it is scored, aligned and on the pixels that count; what is
        predicted as sky is black."""
        depth, valid = self.ground_truth(labels, 0)
        prediction = self.predict(output.prediction, depth.shape[-2:])
        metres, counted = self.metrics.in_metres(prediction, depth, valid)
        if isinstance(output.prediction, types.DepthMaps) and output.prediction.sky is not None:
            sky = self.predict(output.prediction.sky, depth.shape[-2:])
            metres[sky >= spec.extra_named("sky").threshold] = torch.nan
        return depth_panel(
            image,
            depth[0].numpy(force=True),
            counted[0].numpy(force=True),
            metres[0].numpy(force=True),
            unit=self.unit,
        )

    def baselines(self, samples: Iterable[Batch], size: tuple[int, int]) -> dict[str, Tensor]:
        """Returns the median in place of the mean."""
        maps = torch.cat([nearest(self.masked_target(labels), size) for labels in samples])
        overall, per_position = maps.nanmedian(), maps.nanmedian(dim=0, keepdim=True).values
        per_position = torch.where(per_position.isnan(), overall, per_position)
        if self.kind == "relative":  # the predictors are nearer where they are larger
            overall, per_position = overall.reciprocal(), per_position.reciprocal()
        return {"constant": overall.expand_as(per_position), "per position": per_position}


class NormalsObjective(Objective):
    """Trains and scores unit normals (B, 3, H, W) in the camera's frame, see ``Sample.normals``.

    Args:
        loss: called with prediction and target (B, 3, H, W) and valid (B, H, W); None for
            :class:`dpt.losses.AngularLoss`.
    """

    head = "normals"
    target = "normals"

    def __init__(self, *, loss: nn.Module | None = None, weight: NonNegative = 1.0) -> None:
        super().__init__(weight=weight)
        self.loss = loss or depth_losses.AngularLoss()
        self.metrics = NormalMetrics()

    def losses(self, output: types.HeadOutput, batch: Batch) -> dict[str, Tensor]:
        normals = batch["normals"]
        loss = self.loss(output.tensor, normals, normals.any(dim=1))
        return {"loss_normals": self.weight * loss}

    def distil(self, output: types.HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the loss, with the teacher's normals in place of true ones."""
        everywhere = torch.ones_like(teacher[:, 0], dtype=torch.bool)
        loss: Tensor = self.loss(output.tensor, teacher, everywhere)
        return self.weight * loss

    def ground_truth(self, batch: Batch, k: int) -> tuple[Tensor, ...]:
        normals = batch["normals"][k][None]
        return normals, normals.any(dim=1)

    def predict(self, prediction: types.HeadPrediction, size: Sequence[int]) -> Tensor:
        """Returns the normals at ``size``, again of unit length."""
        return F.normalize(super().predict(prediction, size), dim=1)


def _require_relative(settings: PlainMapping) -> None:
    """Raises ValueError if settings of the task need metres, which the data lack."""
    kind, limit = settings.get("kind", "metric"), settings.get("max_depth")
    if kind != "relative":
        raise ValueError(f"task.kind={kind}: {_WITHOUT_METRES}: set task.kind=relative")
    if limit is not None:
        raise ValueError(f"task.max_depth={limit}: {_WITHOUT_METRES}: leave it out")


def _require_inverse_fit(protocol: Protocol, kind: types.DepthKind) -> None:
    """Raises ValueError if a protocol needs more than inverse depth up to scale and shift."""
    metric = {"max_depth": protocol.max_depth, "rules": protocol.rules}
    if names := [f"protocol.{key}" for key, value in metric.items() if value]:
        raise ValueError(f"{few(names)}: {_WITHOUT_METRES}: leave it out")
    is_relative = kind == "relative"
    alignment = protocol.alignment or ("scale_shift" if is_relative else "none")
    if alignment != "scale_shift" or not (is_relative or protocol.space == "inverse_depth"):
        remedy = "set protocol.alignment=scale_shift protocol.space=inverse_depth"
        raise ValueError(f"{kind} depth, alignment={alignment}: {_WITHOUT_METRES}: {remedy}")


def _require_cameras(data: Dataset, canonical_focal: float | None) -> None:
    if canonical_focal is not None and "K" not in data.info.targets:
        fault = f"canonical_focal={canonical_focal:g} needs cameras, and this data has none"
        raise ValueError(f"{fault}: data=folder takes data.fov and data.intrinsics")
