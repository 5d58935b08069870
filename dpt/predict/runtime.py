"""Runtimes: what computes a model's outputs. PyTorch is one."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor

from dpt.depthmath import at_least_float32
from dpt.files import reason
from dpt.functional import EMULATED, has_bf16, without_autocast
from dpt.model import DPT
from dpt.nn.tta import prompted
from dpt.types.outputs import OutputSpec, array_specs, confidence, tensor_specs, tensors_of
from dpt.types.preprocessing import Calibration, Preprocessing

log = logging.getLogger("dpt")

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Runtime(Protocol):
    """What a predictor needs of a model, in whatever way its outputs are computed."""

    preprocessing: Preprocessing
    calibration: Calibration | None
    outputs: Mapping[str, OutputSpec]
    device: torch.device  # of images and outputs
    takes_prompts: bool  # whether sparse depth is a further input

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        """Returns the tensors (B, ...) for normalised images, float32 (B, 3, h, w), by the names of
        :func:`dpt.types.outputs.tensor_specs`. A fourth channel holds prompts, see
        :func:`dpt.nn.tta.prompted`. Logits may be smaller than the images."""

    def __call__(self, images: Tensor) -> Mapping[str, Tensor]:
        """Returns :meth:`tensors` with confidences in place of log-variances."""


class TorchRuntime:
    """A model in PyTorch, with faster layers and weights of the given precision."""

    def __init__(
        self,
        model: DPT,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        upsample_logits: bool = False,
    ) -> None:
        if precision not in _DTYPES:
            raise ValueError(f"precision={precision!r}: choose from {get_args(Precision)}")
        self.device, self._dtype = pick_device(device), _DTYPES[precision]
        kind = self.device.type
        if self._dtype is torch.float16 and kind == "cpu":
            raise ValueError("precision=fp16 is for GPUs: choose bf16 or fp32 on a CPU")
        if self._dtype is torch.bfloat16 and kind in ("cpu", "cuda") and not has_bf16(kind):
            log.warning("precision=bf16: %s", EMULATED)
        self.preprocessing = model.preprocessing
        self.outputs: Mapping[str, OutputSpec] = array_specs(model.outputs)
        self.calibration: Calibration | None = model.calibration
        self.takes_prompts = model.takes_prompts
        self._upsample_logits = upsample_logits
        self._model = model.optimize_for_inference(compiled=False).to(self.device, self._dtype)

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        channels = len(self.preprocessing.mean)
        call = partial(prompted, self._model, images, channels=channels, dtype=self._dtype)
        with without_autocast(self.device):  # the weights have the precision
            if self._upsample_logits:
                predictions = call()
            else:
                outputs = call(raw=True)
                predictions = {name: output.prediction for name, output in outputs.items()}
        return tensors_of(predictions, self._model.outputs)

    def __call__(self, images: Tensor) -> Mapping[str, Tensor]:
        return with_confidences(self.tensors(images), self._model.outputs)


def with_bf16_weights(model: DPT, device: torch.device) -> TorchRuntime | None:
    """Returns a copy of a model that predicts in bf16, at the images' size; None, with a warning,
    for a model of a user's own parts that cannot, as it mixes types that autocast would convert."""
    runtime = TorchRuntime(model, device=device, precision="bf16", upsample_logits=True)
    rule = model.preprocessing
    try:
        runtime.tensors(torch.zeros(1, len(rule.mean), *rule.image_size, device=device))
    except RuntimeError as error:
        log.warning("validation in autocast, not with bf16 weights: %s", reason(error))
        return None
    return runtime


def with_confidences(
    tensors: dict[str, Tensor], outputs: Mapping[str, OutputSpec]
) -> dict[str, Tensor]:
    """Returns tensors of a model's predictions with confidences in place of log-variances."""
    for name, spec in tensor_specs(outputs).items():
        if spec.kind == "log_variance":
            tensors[spec.array.name] = confidence(at_least_float32(tensors.pop(name)))
    return tensors


def pick_device(name: str | torch.device | None) -> torch.device:
    """Returns the device of that name, or a GPU if there is one; ValueError if the device cannot be
    used."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a meta tensor holds no value
    except (RuntimeError, AssertionError, ImportError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device={str(name)!r} cannot be used here ({reason})") from None
    return device
