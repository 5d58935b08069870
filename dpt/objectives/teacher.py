"""Teachers: models whose predictions are targets besides the labels, or in their place."""

import math
from collections.abc import Callable, Mapping
from typing import ClassVar, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from dpt.depthmath import at_least_float32, focal_ratio
from dpt.model import DPT
from dpt.objectives.base import Objective, prompts_of
from dpt.plugins import register
from dpt.process import log
from dpt.types.outputs import EmbeddingOutput, HeadOutput
from dpt.types.samples import Batch
from dpt.validation import NonNegative, Positive, Share

AverageRule = Callable[[Tensor, Tensor, Tensor | int], Tensor]
"""From the mean so far, the new value and the number of updates to the new mean."""


@register("none")
class Teacher:
    """The base class of teachers, which does nothing.

    The group ``task/teacher`` chooses one; :meth:`setup` is called once, before the first step.
    """

    uses_unlabelled: ClassVar[bool] = False
    """Whether images without labels have an effect."""
    labels_images: ClassVar[bool] = False
    """Whether ``add_labels`` gives labels to images that have none, from their weak views."""
    needs_whole_weights: ClassVar[bool] = False
    """Whether it reads the weights of the trained model, which FSDP shards."""

    def setup(self, model: DPT, objectives: Mapping[str, Objective]) -> None:
        """Receives the trained model and its objectives; ValueError if it cannot teach these."""

    def update(self, model: nn.Module) -> None:
        """Follows the trained model, once per optimiser step before the weights change."""

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        """Returns ``batch`` with labels for images that have none.

        ``progress`` is the completed fraction of the run.
        """
        return batch

    def losses(self, outputs: Mapping[str, HeadOutput], batch: Batch) -> dict[str, Tensor]:
        """Returns weighted scalar terms by name.

        ``outputs`` are those of the trained model for the images of ``batch``.
        """
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # averaged weights of the task need no second copy


@register("trained")
class FrozenTeacher(Teacher):
    """Distillation: a trained model, and the loss terms it adds for each head that it has too.

    It is not an ``nn.Module``, so that checkpoints, optimisers and averaged weights leave it out.
    It gets the training images, normalised by its own preprocessing.

    Args:
        path: checkpoint of any known format, see :meth:`dpt.DPT.from_pretrained`.
        weight: factor of the terms.
        temperature: of class probabilities.
    """

    uses_unlabelled = True

    def __init__(
        self, *, path: str, weight: NonNegative = 1.0, temperature: Positive = 1.0
    ) -> None:
        self.path, self.weight, self.temperature = path, weight, temperature

    def setup(self, model: DPT, objectives: Mapping[str, Objective]) -> None:
        self.model = DPT.from_pretrained(self.path).eval().requires_grad_(False)
        heads = self.model.config.to_dict()["heads"]
        self.objectives = [o for o in objectives.values() if o.head in heads]
        if not self.objectives:
            learned = " or ".join(o.head for o in objectives.values())
            raise ValueError(f"{self.path} predicts {', '.join(heads)}, but not {learned}")
        for objective in self.objectives:
            reason = objective.teacher_mismatch(self.model.outputs[objective.head])
            if reason:
                raise ValueError(f"{self.path} cannot teach {objective.head}: {reason}")
        taught = ", ".join(o.head for o in self.objectives)
        log.info("teacher: %s (%s), for %s", self.path, self.model.config.name, taught)

    def losses(self, outputs: Mapping[str, HeadOutput], batch: Batch) -> dict[str, Tensor]:
        prompts = prompts_of(batch, self.model.outputs) if self.model.takes_prompts else None
        targets = predict(self.model, batch["image"], batch.get("K"), prompts)
        terms = {}
        for objective in self.objectives:
            name = objective.head
            target = objective.usable(targets[name].tensor, batch)
            distance = objective.distil(outputs[name], target, temperature=self.temperature)
            terms[f"teacher_{name}"] = self.weight * distance
        return terms


class MovingAverageTeacher(Teacher):
    """The base class of teachers that are an average of the model, by :attr:`rule`."""

    needs_whole_weights = True
    rule: AverageRule

    def setup(self, model: DPT, objectives: Mapping[str, Objective]) -> None:
        self.average = AveragedModel(model, avg_fn=self.rule, use_buffers=True)
        self.average.eval()

    @property
    def model(self) -> DPT:
        return cast(DPT, self.average.module)

    def update(self, model: nn.Module) -> None:
        self.average.to(next(model.parameters()).device)
        self.average.update_parameters(model)
        buffers = [b for b in self.model.buffers() if b.is_floating_point()]
        if buffers and dist.is_initialized():  # each rank's BatchNorm has seen its own images
            vector = parameters_to_vector(buffers)
            dist.broadcast(vector, 0)
            vector_to_parameters(vector, buffers)

    def state_dict(self) -> dict[str, Tensor]:
        return self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.average.load_state_dict(state)


@register("self")
class SelfTeacher(MovingAverageTeacher):
    """DINO: the average of the trained model gives targets for the model's views.

    ``decay`` rises to 1 by a cosine over the run (Caron et al. 2021, section 3.1).
    """

    def __init__(self, *, decay: Share = 0.9) -> None:
        self.decay, self.progress = decay, 0.0

    def setup(self, model: DPT, objectives: Mapping[str, Objective]) -> None:
        if "dino" not in {objective.head for objective in objectives.values()}:
            raise ValueError("task/teacher=self is for task=dino: leave it out")
        super().setup(model, objectives)
        for head in self.model.heads.values():
            head.train()  # in evaluation it gives no projection

    def rule(self, mean: Tensor, value: Tensor, updates: Tensor | int) -> Tensor:
        rate = (1 - self.decay) * (1 + math.cos(math.pi * self.progress)) / 2
        return mean + rate * (value - mean)  # lerp refuses whole numbers, BatchNorm's counters

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        self.progress, views = progress, batch["views"].large
        output = predict(self.model, views.flatten(0, 1))["dino"]
        assert isinstance(output, EmbeddingOutput)
        return {**batch, "teacher": output}


@register("ema")
class PseudoLabelTeacher(MovingAverageTeacher):
    """Semi-supervised: a moving average of the trained model labels the images without labels.

    The average sees an image as it is, the trained model its strongly changed copy (FixMatch, Sohn
    et al. 2020) with half of the classes of an image with labels pasted on it (DACS, Tranheden et
    al. 2021). Without the pasted classes, rare ones would disappear from the labels, because the
    average learns them last. FixMatch keeps predictions above a confidence and divides by the
    number of all; here a fraction is kept, however uncertain it is, and the loss is the mean over
    what is kept.

    Args:
        decay: of the average, see :func:`ema`.
        share: fraction of each predicted class's pixels that become labels, the most certain ones
            (Zou et al. 2018, section 4).
        start: fraction of the run after which the average labels images.
    """

    uses_unlabelled = True
    labels_images = True

    def __init__(self, *, decay: Share = 0.996, share: Share = 0.7, start: Share = 0.3) -> None:
        self.rule, self.share, self.start = ema(decay), share, start

    def setup(self, model: DPT, objectives: Mapping[str, Objective]) -> None:
        super().setup(model, objectives)
        self.objectives = list(objectives.values())

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        if "mixed" not in batch or progress < self.start:
            return batch
        weak, rows, kept = batch["mixed"]
        outputs = predict(self.model, weak[rows], batch["K"][rows] if "K" in batch else None)
        size = (weak.shape[-2], weak.shape[-1])
        labels: dict[str, Tensor] = {}
        for objective in self.objectives:
            prediction = outputs[objective.head].tensor
            labels |= objective.pseudo_labels(prediction, size, fraction=self.share)
        entries, (positions,) = cast(dict[str, Tensor], batch), rows.nonzero(as_tuple=True)
        for key, values in labels.items():  # pasted parts have labels; padding has none
            values = torch.where(kept[rows], entries[key][rows], values)
            labels[key] = entries[key].index_put((positions,), values)
        return cast(Batch, entries | labels)


@torch.no_grad()
def predict(
    model: DPT, images: Tensor, K: Tensor | None = None, prompts: Tensor | None = None
) -> dict[str, HeadOutput]:
    """Returns the outputs for uint8 images (B, 3, H, W); inverse depth is returned as depth.

    Canonical depth is returned in metres of the cameras ``K`` (B, 3, 3), NaN without a camera.
    ``prompts`` are sparse depth (B, H, W) as the model takes it.
    """
    model = model.to(images.device)
    inputs = model.preprocessing.normalize(images).to(next(model.parameters()).dtype)
    outputs: dict[str, HeadOutput] = model(inputs, raw=True, prompts=prompts)
    for name, spec in model.outputs.items():
        if spec.is_inverse_depth:
            # 0 is infinitely far, such as the sky, and taught like other predictions
            prediction = at_least_float32(outputs[name].tensor).clamp(min=1e-8)
            outputs[name].prediction = prediction.reciprocal()
        elif spec.canonical_focal is not None:
            if K is None:
                K = images.new_full((len(images), 3, 3), torch.nan, dtype=torch.float32)
            ratio = focal_ratio(K, spec.canonical_focal)
            outputs[name].prediction = outputs[name].tensor * ratio[:, None, None]
    return outputs


def ema(decay: float) -> AverageRule:
    """Returns a rule whose decay after n updates is min(decay, (1 + n) / (10 + n)).

    As in TensorFlow, the initial weights have little influence in short runs.
    """

    def average(mean: Tensor, value: Tensor, updates: Tensor | int) -> Tensor:
        rate = torch.as_tensor((1 + updates) / (10 + updates)).clamp(max=decay)
        return mean + (1 - rate) * (value - mean)  # exact for frozen weights

    return average
