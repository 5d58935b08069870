"""Teachers: models whose predictions are targets besides the labels, or in their place."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

from dpt.config.objects import keys_of
from dpt.depthmath import inverse_depth
from dpt.model import DPT
from dpt.objectives.base import Objective
from dpt.types import Batch
from dpt.validation import Share, validate

log = logging.getLogger("dpt")


class Teacher:
    """The base class of teachers, which does nothing."""

    def update(self, model: nn.Module) -> None:
        """Called once per optimiser step, before the weights change."""

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        """``batch`` with labels for images that have none; ``progress`` is the share of the run."""
        return batch

    def losses(self, outputs: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        """Weighted scalar terms by name; ``outputs`` are of the trained model for ``images``, uint8
        (B, 3, H, W)."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        pass

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # averaged weights of the task need no second copy


class FrozenTeacher(Teacher):
    """Distillation: a trained model, and the loss terms it adds for each head that it has too.

    It is not an ``nn.Module``, so that checkpoints, optimisers and averaged weights leave it out.

    Args:
        model: gets the training images, normalised by its own preprocessing.
        objectives: of the trained model; those whose head the teacher lacks get no term.
        weight: factor of the terms.
        temperature: of class probabilities.
    """

    def __init__(
        self,
        *,
        model: DPT,
        objectives: Mapping[str, Objective],
        weight: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        if weight < 0 or temperature <= 0:
            raise ValueError(
                f"task.teacher_weight={weight} must be at least 0, and "
                f"task.teacher_temperature={temperature} above 0"
            )
        heads = model.config.to_dict()["heads"]
        self.objectives = [o for o in objectives.values() if o.head in heads]
        if not self.objectives:
            wanted = " or ".join(o.head for o in objectives.values())
            raise ValueError(f"task.teacher predicts {', '.join(heads)}, but not {wanted}")
        for objective in self.objectives:
            if reason := objective.teacher_mismatch(model.outputs[objective.head]):
                raise ValueError(f"task.teacher cannot be used for {objective.head}: {reason}")
        self.model = model.eval().requires_grad_(False)
        self.weight = weight
        self.temperature = temperature

    def losses(self, outputs: Mapping[str, Tensor], images: Tensor) -> dict[str, Tensor]:
        targets = predict(self.model, images)
        terms = {}
        for objective in self.objectives:
            distance = objective.distil(outputs, targets, temperature=self.temperature)
            terms[f"teacher_{objective.head}"] = self.weight * distance
        return terms


class MovingAverageTeacher(Teacher):
    """The base class of teachers that are an average of the model, by a rule such as ``ema``'s."""

    def __init__(self, model: DPT, rule: Callable[[Any, Any, Any], Any]) -> None:
        average: Any = AveragedModel(model, avg_fn=rule, use_buffers=True)
        self.average = average.eval()

    def update(self, model: nn.Module) -> None:
        self.average.to(next(model.parameters()).device).update_parameters(model)
        buffers = [b for b in self.average.module.buffers() if b.is_floating_point()]
        if buffers and dist.is_initialized():  # each rank's BatchNorm has seen its own images
            vector = parameters_to_vector(buffers)
            dist.broadcast(vector, 0)
            vector_to_parameters(vector, buffers)

    def state_dict(self) -> dict[str, Tensor]:
        return self.average.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.average.load_state_dict(state)


class SelfTeacher(MovingAverageTeacher):
    """DINO: the average of the trained model gives targets for the model's views.

    ``decay`` rises to 1 by a cosine over the run (Caron et al. 2021, section 3.1).
    """

    def __init__(
        self, *, model: DPT, objectives: Mapping[str, Objective], decay: float = 0.9
    ) -> None:
        if "dino" not in {objective.head for objective in objectives.values()}:
            raise ValueError("task.teacher=self is for task=dino: leave it out")
        super().__init__(model, self.rule)
        for head in self.average.module.heads.values():
            head.train()  # else it would give no projection
        self.decay, self.progress = decay, 0.0

    def rule(self, mean: Tensor, value: Tensor, updates: Tensor) -> Tensor:
        share = (1 - self.decay) * (1 + math.cos(math.pi * self.progress)) / 2
        return mean + share * (value - mean)  # lerp refuses whole numbers, BatchNorm's counters

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        self.progress, views = progress, batch["views"]
        outputs = predict(self.average.module, views.flatten(0, 1))
        return {**batch, "teacher": outputs["dino_auxiliary"].unflatten(0, views.shape[:2])}


class PseudoLabelTeacher(MovingAverageTeacher):
    """Semi-supervised: a moving average of the trained model labels the images without labels.

    The average sees an image as it is, the trained model its strongly changed copy (FixMatch, Sohn
    et al. 2020) with half of the classes of an image with labels pasted on it (DACS, Tranheden et
    al. 2021). Without the pasted classes, rare ones would disappear from the labels, because the
    average learns them last.

    Args:
        decay: of the average, see :func:`ema`.
        share: share of each predicted class's pixels that become labels, the most certain ones
            (Zou et al. 2018, section 4).
        start: share of the run after which the average labels images.
    """

    def __init__(
        self,
        *,
        model: DPT,
        objectives: Mapping[str, Objective],
        decay: float = 0.996,
        share: float = 0.7,
        start: float = 0.3,
    ) -> None:
        super().__init__(model, ema(decay))
        self.objectives = list(objectives.values())
        self.share, self.start = share, start

    def add_labels(self, batch: Batch, *, progress: float) -> Batch:
        if "weak" not in batch or progress < self.start:
            return batch
        rows, images = batch["unlabelled"], batch["weak"]
        outputs = predict(self.average.module, images[rows])
        size = (images.shape[-2], images.shape[-1])
        found: dict[str, Tensor] = {}
        for objective in self.objectives:
            found |= objective.pseudo_labels(outputs, size, share=self.share)
        inputs, (places,) = cast(dict[str, Any], batch), rows.nonzero(as_tuple=True)
        for key, values in found.items():  # labels of pasted parts are known; padding has none
            values = torch.where(batch["kept"][rows], inputs[key][rows], values)
            found[key] = inputs[key].index_put((places,), values)
        return cast(Batch, inputs | found)


@torch.no_grad()
def predict(model: DPT, images: Tensor) -> dict[str, Tensor]:
    """Outputs for uint8 images (B, 3, H, W); inverse depth is returned as depth."""
    model = model.to(images.device)
    inputs = model.preprocessing.normalize(images).to(next(model.parameters()).dtype)
    outputs = model(inputs, upsample_logits=False)
    for name, spec in model.outputs.items():
        if spec.is_inverse_depth:
            outputs[name] = inverse_depth(outputs[name], outputs[name] > 0)
    return outputs


def ema(decay: float) -> Callable[[Any, Any, Any], Any]:
    """For ``AveragedModel``: after n updates the decay is min(decay, (1 + n) / (10 + n)), as in
    TensorFlow, so that the initial weights have little influence in short runs."""

    def average(mean: Tensor, value: Tensor, updates: Tensor) -> Tensor:
        rate = ((1 + updates) / (10 + updates)).clamp(max=decay)
        return rate * mean + (1 - rate) * value

    return average


def make_teacher(
    task: Mapping[str, Any],
    objectives: Mapping[str, Objective],
    model: DPT,
    overrides: Iterable[str] = (),
) -> Teacher:
    """The teacher that ``task.teacher`` names.

    Raises:
        ValueError: a setting is out of range, or ``overrides``, the arguments of the command line,
            name one that this teacher does not take.
    """
    path = task.get("teacher")
    own = {"ema": ("decay", "share", "start"), "self": ("decay",), None: ()}
    names = own.get(path, ("weight", "temperature"))
    taken = {f"task.teacher_{name}" for name in names}
    for key in sorted(keys_of(overrides) - taken):
        if key.startswith("task.teacher_"):
            raise ValueError(
                f"{key} has no effect with task.teacher={path or 'null'}: leave it out"
            )
    if path is None:
        return Teacher()
    kind: Any = Share if path in own else float
    found = {name: task[f"teacher_{name}"] for name in names if f"teacher_{name}" in task}
    options = {k: validate(kind, v, f"task.teacher_{k}") for k, v in found.items()}
    if path == "ema":
        return PseudoLabelTeacher(model=model, objectives=objectives, **options)
    if path == "self":
        return SelfTeacher(model=model, objectives=objectives, **options)
    teacher = FrozenTeacher(model=DPT.from_pretrained(path), objectives=objectives, **options)
    heads = ", ".join(o.head for o in teacher.objectives)
    log.info("teacher: %s (%s), for %s", path, teacher.model.config.name, heads)
    return teacher
