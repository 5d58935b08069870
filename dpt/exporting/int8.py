"""Quantisation of an exported file to 8-bit integers, after training.

It is static: the range of each tensor is that of calibration images. Weights have a scale for each
channel. Layers whose rounding costs too much stay in float:

1. Products with the probabilities of attention stay in float: with N tokens, most probabilities are
   near 1 / N, and 8 bits over 0..1 round those below 1 / 510 to 0.
2. All other layers are quantised (:data:`KINDS`), and the loss is measured: the difference of the
   outputs for every fourth image, which does not calibrate.
3. If it is larger than allowed, the layers are sorted by their noise, which is the relative error
   of their inputs when these are rounded to 8 bits, and the noisiest 2, 4, 8, ..., up to half of
   all, stay in float too, until the loss is small enough.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from dpt.exporting import files
from dpt.exporting.export import export
from dpt.exporting.targets import target_of
from dpt.files import few, require
from dpt.model import DPT
from dpt.process import log
from dpt.types.outputs import OutputSpec, tensor_specs

KINDS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
CHECKED = 4  # every fourth image measures the loss


@dataclass(frozen=True)
class Int8Export:
    """What was written, and what it costs.

    Attributes:
        differences: of each output to that in fp32: the fraction of pixels of another class, or the
            mean difference over the mean value.
        kept: the layers that stay in float, of ``layers``.
    """

    path: Path
    differences: Mapping[str, float]
    kept: tuple[str, ...]
    layers: int

    def __str__(self) -> str:
        size = sum(file.stat().st_size for file in files.parts_of(self.path)) / 1e6
        differences = ", ".join(f"{loss:.2%} ({name})" for name, loss in self.differences.items())
        kept = f", {len(self.kept)} in float ({few(self.kept)})" if self.kept else ""
        return (
            f"{self.path}: {size:.1f} MB, int8 in {self.layers - len(self.kept)} of {self.layers} "
            f"layers{kept}\n  difference to fp32  {differences}"
        )


def export_int8(
    model: DPT, path: Path, images: Sequence[Tensor], *, max_loss: float = 0.01, **options: Any
) -> Int8Export:
    """Writes ``model`` to ``path`` in int8, see the module.

    Args:
        path: ``.onnx`` (by ONNX Runtime) or ``.xml`` (by OpenVINO's NNCF).
        images: inputs of the file, (1, ...) each, of at least 2 images.
        max_loss: largest difference of an output.
        **options: of :func:`dpt.exporting.export`.

    Raises:
        ValueError: the loss is larger with half of the layers in float, or as of ``export``.
    """
    target_of(path)
    if path.suffix not in (".onnx", ".xml") or len(images) < 2:
        raise ValueError(f"{path}: int8 is for .onnx and .xml, from 2 images of --calibrate on")
    quantize = _quantize_onnx if path.suffix == ".onnx" else _quantize_openvino
    calibrating = [image for i, image in enumerate(images) if i % CHECKED]
    with files.folder_beside(path) as folder, TemporaryDirectory(dir=folder.parent) as scratch:
        source, target = Path(scratch, "float.onnx"), folder / path.name
        export(model, source, **options)
        outputs = files.onnx_session(source)
        expected = [(image, outputs(image)) for image in images[::CHECKED]]
        specs = tensor_specs(model.outputs)
        noises = noise_of_layers(source, calibrating[0])
        choices = _choices(noises)
        for number, kept in enumerate(choices, start=1):
            log.info("%s: round %d of at most %d", path, number, len(choices))
            quantize(source, target, calibrating, kept)
            losses = compare_outputs(target_of(target).open(target), expected, specs)
            worst = max(losses, key=lambda name: losses[name])
            log.info("%d layers in float: %s loses %.2f %%", len(kept), worst, 100 * losses[worst])
            if losses[worst] <= max_loss:
                return Int8Export(path, losses, kept, len(noises))
        fault = f"in int8, {worst} loses {losses[worst]:.1%} even with half of the layers in float"
        raise ValueError(f"{path} was not written: {fault}: set --max-loss, or calibrate with more")


def _choices(noises: Mapping[str, float]) -> list[tuple[str, ...]]:
    """Returns which layers stay in float: those of infinite noise, and of the others none, then the
    noisiest, up to half of all."""
    by_noise = sorted(noises, key=lambda name: noises[name], reverse=True)
    always = [*noises.values()].count(inf)
    counts = [0]
    while 2 * counts[-1] <= len(by_noise) - always:
        counts.append(2 * counts[-1] or 2)
    return [tuple(by_noise[: always + count]) for count in counts[:-1]]


def compare_outputs(
    run: files.Run,
    expected: Sequence[tuple[Tensor, Mapping[str, Tensor]]],
    specs: Mapping[str, OutputSpec],
) -> dict[str, float]:
    """Returns the differences of outputs as :class:`Int8Export` has them, means over images."""
    totals: dict[str, float] = {}
    for image, outputs in expected:
        actual = run(image)
        for name, value in outputs.items():
            if specs[name].kind == "logits":
                off = (actual[name].argmax(1) != value.argmax(1)).float().mean()
            else:
                off = (actual[name] - value).abs().mean() / value.abs().mean().clamp(min=1e-30)
            totals[name] = totals.get(name, 0.0) + float(off) / len(expected)
    return totals


def noise_of_layers(path: Path, image: Tensor) -> dict[str, float]:
    """Returns the noise of each layer of an ONNX file for an image, by the name of its node; of
    those that take the probabilities of attention it is infinite."""
    onnx = require("onnx", "int8", extra="onnx")
    model = onnx.load(path)
    layers = _inputs_of_layers(model.graph)
    given = {value.name for value in (*model.graph.input, *model.graph.output)}
    inner = {name for names in layers.values() for name in names} - given
    model.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, sorted(inner)))
    with TemporaryDirectory(dir=path.parent) as folder:
        onnx.save(model, Path(folder, "all.onnx"), save_as_external_data=True)
        values = {"images": image, **files.onnx_session(Path(folder, "all.onnx"))(image)}
    noises = {name: _noise(values[name].float()) for names in layers.values() for name in names}
    noises |= {node.output[0]: inf for node in model.graph.node if node.op_type == "Softmax"}
    return {layer: max(noises[name] for name in names) for layer, names in layers.items()}


def _inputs_of_layers(graph: Any) -> dict[str, list[str]]:
    """Returns the inputs of each layer that are no weights, by the name of its node."""
    weights = {tensor.name for tensor in graph.initializer}
    return {
        node.name: [name for name in node.input[:2] if name not in weights]
        for node in graph.node
        if node.op_type in KINDS
    }


def _noise(values: Tensor) -> float:
    """Returns the relative error of values that are rounded to 256 steps over their range."""
    step = (values.max().clamp(min=0) - values.min().clamp(max=0)) / 255
    if step == 0:
        return 0.0
    error = values - step * (values / step).round()
    return float(error.norm() / values.norm())


def _quantize_onnx(
    source: Path, target: Path, images: Sequence[Tensor], kept: Sequence[str]
) -> None:
    with files.quiet(f"{target.name}: ONNX Runtime cannot quantise this model"):
        tools = require("onnxruntime.quantization", "int8", extra="onnx")
        inputs = iter([{"images": image.numpy()} for image in images])
        tools.quantize_static(
            source,
            target,
            SimpleNamespace(get_next=lambda: next(inputs, None)),
            quant_format=tools.QuantFormat.QDQ,
            op_types_to_quantize=list(KINDS),
            per_channel=True,
            activation_type=tools.QuantType.QUInt8,
            weight_type=tools.QuantType.QInt8,
            nodes_to_exclude=list(kept),
        )


def _quantize_openvino(
    source: Path, target: Path, images: Sequence[Tensor], kept: Sequence[str]
) -> None:
    os.environ.setdefault("NNCF_CI", "1")  # otherwise it reports its use to a server
    with files.quiet(f"{target.name}: NNCF cannot quantise this model"):
        openvino = require("openvino", "int8", extra="openvino")
        nncf = require("nncf", "int8", extra="openvino")
        alphas = nncf.AdvancedSmoothQuantParameters(matmul=0.5)
        quantized = nncf.quantize(
            openvino.Core().read_model(source),
            nncf.Dataset([image.numpy() for image in images]),
            preset=nncf.QuantizationPreset.MIXED,
            subset_size=len(images),
            model_type=nncf.ModelType.TRANSFORMER,  # SmoothQuant: a few channels are far larger
            advanced_parameters=nncf.AdvancedQuantizationParameters(smooth_quant_alphas=alphas),
            ignored_scope=nncf.IgnoredScope(names=list(kept), validate=False),
        )
        openvino.save_model(quantized, target, compress_to_fp16=False)
