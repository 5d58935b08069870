"""Runtimes beside one another and beside transformers: ``python tests/benchmarks runtimes CKPT``.

All run one image in turn in one process, and the seconds are CPU time: with one thread it does not
depend on what else the machine does. ``--int8`` names files of ``dpt export --int8``. transformers'
DPT has the sizes of the checkpoint (of dpt_small, dpt_base, dpt_large) and random weights. Outputs
are compared with those of PyTorch in fp32: mean difference over mean value, or pixels of another
class.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from benchmarks.contenders import make_ours, transformers
from benchmarks.timing import markdown, median_ratio, take_turns
from torch import Tensor, nn

import dpt
from dpt.exporting.files import onnx_session
from dpt.exporting.int8 import compare_outputs
from dpt.exporting.runtimes import make_runtime
from dpt.types.outputs import tensor_specs
from dpt.types.samples import Inputs

Run = Callable[[Tensor], object]


def peers(name: str, size: tuple[int, int], folder: Path) -> dict[str, Run]:
    """Returns transformers' DPT of the sizes of a named model, in PyTorch and ONNX Runtime."""
    theirs = transformers(make_ours(name, "depth", size), "depth").model.eval()
    path = folder / "theirs.onnx"
    example = torch.zeros(1, 3, *size)
    torch.onnx.export(theirs, (example,), path, dynamo=True, input_names=["images"], verbose=False)
    runs: dict[str, Run] = {"transformers, ONNX Runtime": onnx_session(path)}
    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        copy = partial(_plain, theirs, dtype)
        runs[f"transformers, {precision}"] = copy()
    theirs.to(memory_format=torch.channels_last)
    runs["transformers, autocast"] = partial(_autocast, theirs)
    return runs


def _plain(model: nn.Module, dtype: torch.dtype) -> Run:
    from copy import deepcopy

    cast = deepcopy(model).to(dtype).to(memory_format=torch.channels_last)
    return lambda images: cast(images.to(dtype))


def _autocast(model: nn.Module, images: Tensor) -> object:
    with torch.autocast("cpu", torch.bfloat16):
        return model(images)


def run(arguments: list[str]) -> None:
    """Prints milliseconds, ratios to OpenVINO in bf16, and differences, a row for each runtime."""
    parser = argparse.ArgumentParser(prog="python tests/benchmarks runtimes", description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--image", required=True, help="a picture")
    parser.add_argument("--size", default=[384, 384], nargs=2, type=int, metavar=("H", "W"))
    parser.add_argument("--int8", default=[], nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--rounds", default=7, type=int)
    options = parser.parse_args(arguments)
    size = (options.size[0], options.size[1])
    model = dpt.DPT.from_pretrained(options.checkpoint)
    predictor = dpt.Predictor(model)
    pixels = torch.from_numpy(predictor.prepare(options.image).input)[None].permute(0, 3, 1, 2)
    images = model.preprocessing.normalize(pixels)
    images = nn.functional.interpolate(images, size=size, mode="bilinear")
    ours = {
        f"{name}, {precision}": make_runtime(name, model, precision=precision, upsample_logits=True)
        for name, precision in (
            *(("openvino", "bf16"), ("openvino", "fp32"), ("onnx", "fp32")),
            *(("torch", "fp32"), ("torch", "bf16")),
        )
    }
    ours |= {file.name: make_runtime(None, file) for file in options.int8}
    runs: dict[str, Run] = {
        name: lambda images, runtime=runtime: runtime.tensors(Inputs(images))
        for name, runtime in ours.items()
    }
    with TemporaryDirectory() as folder, torch.inference_mode():
        if model.config.name in ("dpt_small", "dpt_base", "dpt_large"):
            runs |= peers(model.config.name, size, Path(folder))
        turns = {name: lambda _, run=run: run(images) for name, run in runs.items()}
        seconds = take_turns(turns, options.rounds, clock=time.process_time)
        expected = [(images, ours["torch, fp32"].tensors(Inputs(images)))]
        specs = tensor_specs(model.outputs)
        rows = []
        for name, values in seconds.items():
            losses = compare_outputs(ours[name].tensors, expected, specs) if name in ours else {}
            ratio = median_ratio(values, seconds["openvino, bf16"])
            shown = ", ".join(f"{loss:.2%}" for loss in losses.values())
            rows.append([name, f"{1e3 * statistics.median(values):.4g}", f"{ratio:.2f}", shown])
    print(markdown(["", "ms", "time / openvino, bf16", "difference to fp32"], rows))
