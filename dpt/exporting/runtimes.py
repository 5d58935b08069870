"""Runtimes: what computes a model's outputs. PyTorch is one; others run exported files."""

import os
import stat
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

import dpt
from dpt.depthmath import at_least_float32
from dpt.exporting import files
from dpt.exporting.export import export
from dpt.files import read_text, reason, required_file, write_bytes
from dpt.functional import EMULATED, has_bf16, without_autocast
from dpt.model import DPT
from dpt.process import log
from dpt.types.outputs import OutputSpec, array_specs, confidence, tensor_specs, tensors_of
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.types.samples import Inputs
from dpt.validation import validate
from dpt.weights.files import writing
from dpt.weights.formats import fingerprint

Precision = Literal["fp32", "bf16", "fp16"]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Runtime(ABC):
    """What a predictor needs of a model, in whatever way its outputs are computed.

    Attributes:
        predictions: the declaration of each prediction of the model.
        device: of images and outputs.
        takes_prompts: whether sparse depth is a further input.
    """

    preprocessing: Preprocessing
    calibration: Calibration | None
    predictions: Mapping[str, OutputSpec]
    device: torch.device
    takes_prompts: bool = False

    @cached_property
    def outputs(self) -> Mapping[str, OutputSpec]:
        """The declaration of each array of a :class:`dpt.Prediction`."""
        return array_specs(self.predictions)

    @abstractmethod
    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the tensors (B, ...) for float32 inputs, by the names of
        :func:`dpt.types.outputs.tensor_specs`. Logits may be smaller than the images."""

    def __call__(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns :meth:`tensors` with confidences in place of log-variances."""
        tensors = self.tensors(inputs)
        for name, spec in tensor_specs(self.predictions).items():
            if spec.kind == "log_variance":
                tensors[spec.array.name] = confidence(at_least_float32(tensors.pop(name)))
        return tensors


class TorchRuntime(Runtime):
    """A model in PyTorch, with faster layers and weights of the given precision."""

    def __init__(
        self,
        model: DPT,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        upsample_logits: bool = False,
    ) -> None:
        self.device = pick_device(device)
        self._dtype = _DTYPES[validate(Precision, precision, "precision")]
        kind = self.device.type
        if self._dtype is torch.float16 and kind == "cpu":
            raise ValueError("precision=fp16 is for GPUs: choose bf16 or fp32 on a CPU")
        if self._dtype is torch.bfloat16 and kind in ("cpu", "cuda") and not has_bf16(kind):
            log.warning("precision=bf16: %s", EMULATED)
        self.preprocessing = model.preprocessing
        self.predictions = model.outputs
        self.calibration = model.calibration
        self.takes_prompts = model.takes_prompts
        self._upsample_logits = upsample_logits
        self._model = model.optimize_for_inference(compiled=False).to(self.device, self._dtype)

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        # prompts stay as they are: bf16 would round 30.06 m to 30 m
        call = partial(self._model, inputs.images.to(self._dtype), prompts=inputs.prompts)
        with without_autocast(self.device):  # the weights have the precision
            if self._upsample_logits:
                predictions = call()
            else:
                outputs = call(raw=True)
                predictions = {name: output.prediction for name, output in outputs.items()}
        return tensors_of(predictions, self._model.outputs)


def with_bf16_weights(model: DPT, device: torch.device) -> TorchRuntime | None:
    """Returns a copy of a model that predicts in bf16, at the images' size; None, with a warning,
    for a model of a user's own parts that cannot, as it mixes types that autocast would convert."""
    runtime = TorchRuntime(model, device=device, precision="bf16", upsample_logits=True)
    rule = model.preprocessing
    try:
        runtime.tensors(Inputs(torch.zeros(1, len(rule.mean), *rule.image_size, device=device)))
    except RuntimeError as error:
        log.warning("validation in autocast, not with bf16 weights: %s", reason(error))
        return None
    return runtime


def pick_device(name: str | torch.device | None) -> torch.device:
    """Returns the device of that name, or a GPU if there is one; ValueError if the device cannot be
    used."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a meta tensor holds no value
    except (RuntimeError, AssertionError, ImportError) as error:
        raise ValueError(f"device={str(name)!r} cannot be used ({reason(error)})") from None
    return device


class FileRuntime(Runtime):
    """A model in an exported file, run on the CPU by another library.

    Args:
        name: ``onnx`` (ONNX Runtime) or ``openvino``.
        model: an exported file; or a model, which is exported to a cache.
        device: None or ``cpu``.
        precision: ``fp32``, or ``bf16`` in OpenVINO.
        upsample_logits: has no effect: outputs of a file have the size of its input.

    Raises:
        ValueError: the library is absent, or cannot run the model as asked.
    """

    def __init__(
        self,
        name: str,
        model: DPT | Path,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        upsample_logits: bool = False,
    ) -> None:
        self.device = torch.device("cpu") if device is None else pick_device(device)
        fault = ""
        if self.device.type != "cpu":
            fault = f"runs on the CPU here, not on {self.device}"
        elif precision not in (("fp32", "bf16") if name == "openvino" else ("fp32",)):
            fault = f"has no precision={precision}"
        elif isinstance(model, DPT) and model.takes_prompts:
            fault = "takes no sparse depth, as this model does"
        if fault:
            raise ValueError(f"runtime={name}: {fault}: use runtime=torch")
        path = cached_export(model) if isinstance(model, DPT) else model
        required_file(path, remedy="check the path")
        if name == "openvino":
            self._session = files.openvino_session(path, bf16=precision == "bf16")
        else:
            self._session = files.onnx_session(path)
        self._about = files.Description.read(self._session.metadata, path)
        self.preprocessing = self._about.preprocessing
        if precision == "bf16" and self._about.normalises and not self.preprocessing.is_rgb:
            fault = f"precision=bf16 would round the bands that {path} normalises"
            raise ValueError(f"{fault}: export it without --with-preprocessing, or take fp32")
        self.calibration = self._about.calibration
        self.predictions = self._about.outputs

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        images, size = inputs.images, self._about.input_size
        if size not in (None, tuple(images.shape[-2:])):
            fault = f"the exported file takes inputs of (H, W) = {size} alone"
            raise ValueError(f"{fault}, not {tuple(images.shape[-2:])}: export it without --size")
        if not self._about.normalises:
            return self._session(images.float())
        rule = self.preprocessing
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (rule.mean, rule.std))
        values = (images * std + mean).permute(0, 2, 3, 1)
        return self._session((255 * values).round().clamp(0, 255).byte() if rule.is_rgb else values)


RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "torch": TorchRuntime,
    "onnx": partial(FileRuntime, "onnx"),
    "openvino": partial(FileRuntime, "openvino"),
}
"""By name: what takes the arguments of :class:`dpt.exporting.runtimes.TorchRuntime`."""
FILES = {".onnx": "onnx", ".xml": "openvino"}
"""The runtime of exported files by their suffix, if none is named."""


def make_runtime(name: str | None, model: DPT | Path, **settings: Any) -> Runtime:
    """Returns the runtime ``name`` of a model or an exported file; ValueError if it cannot run.

    Args:
        name: None is ``torch`` for a model.
        settings: ``device``, ``precision`` and ``upsample_logits``, see :class:`TorchRuntime`.
    """
    name = name or (FILES[model.suffix] if isinstance(model, Path) else "torch")
    possible = [known for known in RUNTIMES if known != "torch" or isinstance(model, DPT)]
    if name not in possible:
        raise ValueError(f"runtime={name}: choose from {', '.join(possible)}")
    return RUNTIMES[name](model, **settings)


def is_exported(model: str | Path) -> bool:
    """Whether a path is that of an exported file that a runtime can run."""
    return Path(model).suffix in FILES


def cached_export(model: DPT) -> Path:
    """Returns the ONNX file of a model, which is written if it is not in the cache, or differs from
    what this version of the program wrote.

    Raises:
        ValueError: somebody else may have written the file.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = (root if root.is_absolute() else Path.home() / ".cache") / "dpt/exported"
    folder = cache / f"{fingerprint(model.config.to_dict(), model.state_dict())}-{dpt.__version__}"
    path, code = folder / "model.onnx", folder / "code.txt"
    with writing(path):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    is_own = sys.platform == "win32" or status.st_uid == os.getuid()
    if not is_own or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise ValueError(f"{folder}: is a link, or others can write there: remove it")
    is_there = path.is_file() and code.is_file()
    if not is_there or read_text(code) != files.fingerprint_of(path):
        log.info("%s: the model is exported for this runtime, once", path)
        export(model, path)
        write_bytes(code, files.fingerprint_of(path).encode())
    return path
