"""The table of runtimes, those that run exported files, and the choice of the fastest."""

import logging
import statistics
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from dpt.exporting.cache import cached_export
from dpt.exporting.description import Description
from dpt.exporting.sessions import OnnxSession, OpenVinoSession, Session
from dpt.files import required_file
from dpt.model import DPT
from dpt.predict.runtime import Precision, Runtime, TorchRuntime, pick_device, with_confidences
from dpt.types.outputs import OutputSpec, array_specs
from dpt.types.preprocessing import Calibration, Preprocessing

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
            self._about = Description.read(self._session.metadata, path)
            if (
                precision == "bf16"
                and self._about.normalises
                and not self._about.preprocessing.is_rgb
            ):
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

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        size = (images.shape[-2], images.shape[-1])
        if self._about.size not in (None, size):
            expected, found = ("x".join(map(str, pair)) for pair in (self._about.size, size))
            raise ValueError(
                f"the exported file takes inputs of {expected} pixels alone, not {found}: export "
                "the model without --size"
            )
        return dict(self._session(self._input(images)))

    def __call__(self, images: Tensor) -> Mapping[str, Tensor]:
        return with_confidences(self.tensors(images), self._about.outputs)

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
"""By name: classes with the arguments of :class:`dpt.predict.runtime.TorchRuntime`."""
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

    def tensors(self, images: Tensor) -> dict[str, Tensor]:
        return self._best(images).tensors(images)

    def __call__(self, images: Tensor) -> Mapping[str, Tensor]:
        return self._best(images)(images)

    def _best(self, images: Tensor) -> Runtime:
        if self._chosen is None:
            seconds = {k: _seconds(partial(r, images)) for k, r in self._candidates.items()}
            fastest = min(seconds, key=lambda name: seconds[name])
            size = "x".join(str(side) for side in images.shape)
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
