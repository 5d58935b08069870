"""What a teacher needs of an objective; heads of a user's own can be taught by the defaults."""

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from dpt.types.outputs import HeadOutput, OutputSpec
from dpt.types.samples import Batch


class Student(nn.Module):
    """The part of an objective that :mod:`dpt.objectives.teacher` calls.

    Attributes:
        weight: factor of the loss.
        takes_pseudo_labels: whether :meth:`pseudo_labels` gives any.
    """

    head: ClassVar[str]
    weight: float
    takes_pseudo_labels: ClassVar[bool] = False

    def teacher_mismatch(self, output: OutputSpec) -> str | None:
        """Returns why a teacher with this output cannot be used; None if it can."""
        return None

    def usable(self, teacher: Tensor, batch: Batch) -> Tensor:
        """Returns a teacher's prediction with NaN where the student cannot be compared with it."""
        return teacher

    def distil(self, output: HeadOutput, teacher: Tensor, temperature: float) -> Tensor:
        """Returns the distance from a teacher, a weighted scalar; the mean absolute one by default.

        Args:
            output: of the student, in training mode.
            teacher: its prediction; dense logits have the head's size, ``depth`` is never inverse.
            temperature: divides class logits before their softmax.
        """
        if output.tensor.shape != teacher.shape:  # PyTorch would broadcast some
            shapes = f"{list(teacher.shape)}, and the trained model {list(output.tensor.shape)}"
            raise ValueError(f"task.teacher cannot teach {self.head}: it gives {shapes}")
        return self.weight * F.l1_loss(output.tensor, teacher)

    def pseudo_labels(
        self, teacher: Tensor, size: tuple[int, int], *, fraction: float
    ) -> dict[str, Tensor]:
        """Returns the entries of a batch that a teacher's prediction gives.

        Args:
            teacher: as in :meth:`distil`.
            size: (H, W) of maps.
            fraction: of each class's pixels that are used, the most certain ones.
        """
        return {}
