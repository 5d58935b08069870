"""Runtimes: what computes a model's outputs. PyTorch is one; others run exported files."""

import logging
import os
import shutil
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Protocol, get_args

import torch
from torch import Tensor

import dpt
from dpt.depthmath import at_least_float32
from dpt.exporting.export import Graph, compare, export
from dpt.exporting.files import Description
from dpt.exporting.sessions import OnnxSession, OpenVinoSession, Session
from dpt.files import reason, require, required_file
from dpt.functional import EMULATED, has_bf16, without_autocast
from dpt.model import DPT
from dpt.types.outputs import OutputSpec, array_specs, confidence, tensor_specs, tensors_of
from dpt.types.preprocessing import Calibration, Preprocessing
from dpt.types.samples import Inputs
from dpt.weights.files import writing
from dpt.weights.formats import fingerprint

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

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        """Returns the tensors (B, ...) for float32 inputs, by the names of
        :func:`dpt.types.outputs.tensor_specs`. Logits may be smaller than the images."""

    def __call__(self, inputs: Inputs) -> Mapping[str, Tensor]:
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

    def __call__(self, inputs: Inputs) -> Mapping[str, Tensor]:
        return with_confidences(self.tensors(inputs), self._model.outputs)


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


log = logging.getLogger("dpt")

REPEATS = 5  # of the timing for ``auto``


class FileRuntime:
    """A model in an exported file, run on the CPU by another library.

    Args:
        model: an exported file; or a model, which is exported to a cache.
        device: None or ``cpu``.
        precision: one of :attr:`precisions`.
        upsample_logits: has no effect: outputs of a file have the size of its input.

    Raises:
        ValueError: the library is absent, or cannot run the model as asked.
    """

    name: ClassVar[str]
    precisions: ClassVar[tuple[Precision, ...]] = ("fp32",)
    takes_prompts = False

    def __init__(
        self,
        model: DPT | Path,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "fp32",
        upsample_logits: bool = False,
    ) -> None:
        self.device = torch.device("cpu") if device is None else pick_device(device)
        try:
            if self.device.type != "cpu":
                raise ValueError(f"runs on the CPU here, not on {self.device}: use runtime=torch")
            if precision not in self.precisions:
                raise ValueError(f"has no precision={precision}, but {', '.join(self.precisions)}")
            if isinstance(model, DPT) and model.takes_prompts:
                raise ValueError("takes no sparse depth, as this model does: use runtime=torch")
            path = cached_export(model) if isinstance(model, DPT) else model
            self._session = self._open(required_file(path, remedy="check the path"), precision)
            self._about = about = Description.read(self._session.metadata, path)
            if precision == "bf16" and about.normalises and not about.preprocessing.is_rgb:
                fault = f"precision=bf16 would round the bands that {path} normalises"
                raise ValueError(f"{fault}: export it without --with-preprocessing, or take fp32")
        except ValueError as error:
            raise ValueError(f"runtime={self.name}: {error}") from error
        self.preprocessing: Preprocessing = self._about.preprocessing
        self.calibration: Calibration | None = self._about.calibration
        self.outputs: Mapping[str, OutputSpec] = array_specs(self._about.outputs)

    @staticmethod
    @abstractmethod
    def _open(path: Path, precision: Precision) -> Session:
        """Opens the file by the library."""

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        images = inputs.images
        size = (images.shape[-2], images.shape[-1])
        if self._about.size not in (None, size):
            expected, found = ("x".join(map(str, pair)) for pair in (self._about.size, size))
            raise ValueError(
                f"the exported file takes inputs of {expected} pixels alone, not {found}: export "
                "the model without --size"
            )
        return dict(self._session(self._input(images)))

    def __call__(self, inputs: Inputs) -> Mapping[str, Tensor]:
        return with_confidences(self.tensors(inputs), self._about.outputs)

    def _input(self, images: Tensor) -> Tensor:
        """Returns the file's input for normalised images."""
        if not self._about.normalises:
            return images.float()
        rule = self.preprocessing
        mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (rule.mean, rule.std))
        values = (images * std + mean).permute(0, 2, 3, 1)
        return (255 * values).round().clamp(0, 255).byte() if rule.is_rgb else values


class OnnxRuntime(FileRuntime):
    """An ``.onnx`` file in ONNX Runtime."""

    name = "onnx"

    @staticmethod
    def _open(path: Path, precision: Precision) -> Session:
        return OnnxSession(path)


class OpenVinoRuntime(FileRuntime):
    """An ``.onnx`` or ``.xml`` file in OpenVINO."""

    name = "openvino"
    precisions = ("fp32", "bf16")

    @staticmethod
    def _open(path: Path, precision: Precision) -> Session:
        return OpenVinoSession(path, bf16=precision == "bf16")


RUNTIMES: dict[str, Callable[..., Runtime]] = {
    "torch": TorchRuntime,
    "onnx": OnnxRuntime,
    "openvino": OpenVinoRuntime,
}
"""By name: classes with the arguments of :class:`dpt.exporting.runtimes.TorchRuntime`."""
FILES = {".onnx": "onnx", ".xml": "openvino"}
"""The runtime of exported files by their suffix, if none is named."""


class AutoRuntime:
    """The fastest of several runtimes of one model, chosen at the size of the first images."""

    def __init__(self, candidates: Mapping[str, Runtime]) -> None:
        self._candidates = candidates
        self._chosen: Runtime | None = None
        first = next(iter(candidates.values()))
        self.preprocessing, self.calibration = first.preprocessing, first.calibration
        self.outputs, self.device = first.outputs, first.device
        self.takes_prompts = first.takes_prompts

    def tensors(self, inputs: Inputs) -> dict[str, Tensor]:
        return self._best(inputs).tensors(inputs)

    def __call__(self, inputs: Inputs) -> Mapping[str, Tensor]:
        return self._best(inputs)(inputs)

    def _best(self, inputs: Inputs) -> Runtime:
        if self._chosen is None:
            seconds = {k: _seconds(partial(r, inputs)) for k, r in self._candidates.items()}
            fastest = min(seconds, key=lambda name: seconds[name])
            size = "x".join(str(side) for side in inputs.images.shape)
            times = ", ".join(f"{name} {1e3 * s:.4g} ms" for name, s in seconds.items())
            log.info("runtime=auto: %s for %s: %s", times, size, fastest)
            self._chosen = self._candidates[fastest]
            self._candidates = {}  # frees the others
        return self._chosen


def _seconds(run: Callable[[], object]) -> float:
    """Returns the median time of a run after one that does not count."""
    times = []
    for _ in range(1 + REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def make_runtime(
    name: str | None,
    model: DPT | Path,
    *,
    device: str | torch.device | None = None,
    precision: Precision = "fp32",
    upsample_logits: bool = False,
) -> Runtime:
    """Returns the runtime ``name`` of a model or an exported file; ValueError if it cannot run.

    None is ``torch`` for a model. ``auto`` is the fastest that is installed.
    """
    name = name or (FILES[model.suffix] if isinstance(model, Path) else "torch")
    if name not in (*RUNTIMES, "auto"):
        raise ValueError(f"runtime={name}: choose from {', '.join(RUNTIMES)} or auto")

    def make(chosen: str) -> Runtime:
        if chosen == "torch" and isinstance(model, Path):
            raise ValueError(f"runtime=torch: cannot run {model}: give the checkpoint, or another")
        options = {"precision": precision, "upsample_logits": upsample_logits}
        return RUNTIMES[chosen](model, device=device, **options)

    if name != "auto":
        return make(name)
    candidates: dict[str, Runtime] = {}
    for candidate in RUNTIMES:
        try:
            candidates[candidate] = make(candidate)
        except ValueError as error:
            log.info("runtime=auto: without %s (%s)", candidate, error)
    if not candidates:
        raise ValueError(f"runtime=auto: none can run {model}, see the lines above")
    return AutoRuntime(candidates)


def is_exported(model: str | Path) -> bool:
    """Whether a path is that of an exported file that a runtime can run."""
    return Path(model).suffix in FILES


log = logging.getLogger("dpt")

MOST_FILES = 8  # the least recently used are deleted


def cached_export(model: DPT) -> Path:
    """Returns the ONNX file of a model, which is written if it is not in the cache.

    A file that is there is compared with the model at one small size.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dpt" / "exported"
    folder = cache / f"{fingerprint(model.config.to_dict(), model.state_dict())}-{dpt.__version__}"
    path = folder / "model.onnx"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        kept = sorted((f for f in cache.iterdir() if f.is_dir()), key=lambda f: f.stat().st_mtime)
        for old in kept[:-MOST_FILES]:
            shutil.rmtree(old, ignore_errors=True)
    if path.is_file() and _is_current(model, path):
        return path
    require("onnxscript", "export to ONNX", extra="onnx")
    log.info("%s: the model is exported for this runtime, once", path)
    return export(model, path).path


def _is_current(model: DPT, path: Path) -> bool:
    """Whether the file agrees with the model, also after a change of the code."""
    graph, step = Graph.of(model, tasks=(), with_preprocessing=False), model.encoder.pad_multiple
    try:
        compare(graph, OnnxSession(path), [(1, 3 * step, 4 * step)])
    except ValueError:
        return False
    return True
