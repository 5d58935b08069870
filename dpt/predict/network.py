"""The model set up for prediction: pictures in, maps at the network's own size out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.model import DPT
from dpt.nn.enlarge import upsample
from dpt.nn.tta import augmented
from dpt.rowwise import enlarged_argmax

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Maps:
    """What the network says of one picture, float32 on its device; None where it has no such head.

    Attributes:
        size: (h, w) of the picture as the network saw it.
        depth: (1, h, w), metres or relative inverse depth.
        logits: (1, K, h', w') of the segmentation, to be enlarged.
        class_logits: (1, C) of the picture.
        value: (1,) of the picture.
    """

    size: tuple[int, int]
    depth: Tensor | None = None
    logits: Tensor | None = None
    class_logits: Tensor | None = None
    value: Tensor | None = None

    def depth_at(self, size: tuple[int, int]) -> Tensor:
        """Depth (H, W), enlarged as evaluation enlarges it."""
        assert self.depth is not None
        return upsample(self.depth[None], size)[0, 0]

    def labels_at(self, size: tuple[int, int]) -> Tensor:
        """Class ids (H, W) as evaluation finds them, a band of rows at a time."""
        assert self.logits is not None
        logits = upsample(self.logits, self.size)
        return enlarged_argmax(logits, size, dtype=label_dtype(logits.shape[1]))[0]


def label_dtype(num_classes: int) -> torch.dtype:
    """The smallest type that holds every class id."""
    return torch.uint8 if num_classes <= 256 else torch.int32


class Network:
    """A copy of the model for prediction alone, with test-time augmentation.

    Args:
        model: what to predict with; it is not changed.
        device: where; None takes a GPU where there is one.
        precision: of weights and arithmetic; outputs are float32 all the same.
        flip: average with the prediction for the mirror image.
        scales: factors of the network's input size to average over.
    """

    def __init__(
        self,
        model: DPT,
        *,
        device: str | torch.device | None,
        precision: Precision,
        flip: bool,
        scales: Sequence[float],
    ) -> None:
        if precision not in _DTYPES:
            raise ValueError(f"precision={precision!r}: choose from {get_args(Precision)}")
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales={list(scales)}: must be factors above 0, as 0.75 1 1.25")
        self.device = _device(device)
        self.dtype = _DTYPES[precision]
        if self.dtype is torch.float16 and self.device.type == "cpu":
            raise ValueError("precision=fp16 is for GPUs: choose bf16 or fp32 on a CPU")
        self.preprocessing = model.preprocessing
        fast = model.optimize_for_inference(compiled=False).to(self.device, self.dtype)
        if flip or tuple(scales) != (1.0,):
            multiple = self.preprocessing.multiple_of
            self.forward = augmented(fast, flip=flip, scales=scales, multiple_of=multiple)
        else:
            self.forward = partial(fast, enlarge_logits=False)

    @torch.inference_mode()
    def __call__(self, pictures: Sequence[np.ndarray]) -> list[Maps]:
        """Maps of pictures of one size, uint8 (h, w, 3) RGB, in one pass."""
        stacked = torch.from_numpy(np.stack(pictures)).to(self.device).permute(0, 3, 1, 2)
        images = self.preprocessing.normalize(stacked).to(self.dtype)
        outputs = {k: at_least_float32(v) for k, v in self.forward(images).items()}
        names = {
            "depth": outputs.get("depth"),
            "logits": outputs.get("segmentation"),
            "class_logits": outputs.get("classification"),
            "value": outputs.get("regression"),
        }
        # kept with their batch axis: without it tensors forget that classes lie beside each other,
        # and are enlarged at a fraction of the speed
        found = {k: v for k, v in names.items() if v is not None}
        size = pictures[0].shape[0], pictures[0].shape[1]
        return [
            Maps(size, **{k: v[i : i + 1] for k, v in found.items()}) for i in range(len(pictures))
        ]


def _device(name: str | torch.device | None) -> torch.device:
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(name)!r} cannot be used here ({reason})") from None
    return device
