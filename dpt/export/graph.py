"""What is exported: a model that only predicts, with or without normalisation, as one graph."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import dpt
from dpt.model import DPT
from dpt.nn import DenseHead
from dpt.nn.inference import optimized
from dpt.types import Preprocessing

Shape = tuple[int, int, int]
"""Of an input: number of images, height, width."""


class Graph(nn.Module):
    """Images to a tensor a head, as :meth:`dpt.nn.DPT.forward` in evaluation.

    Args:
        model: predicts in its own precision; outputs are float32.
        preprocessing: take uint8 RGB images (B, H, W, 3) and normalise them so; None takes what
            the model takes, normalised float32 (B, 3, H, W).
    """

    model: Any

    def __init__(self, model: nn.Module, *, preprocessing: Preprocessing | None) -> None:
        super().__init__()
        self.model = model
        self.preprocessing = preprocessing

    @classmethod
    def of(cls, model: DPT, *, tasks: Sequence[str], with_preprocessing: bool) -> Graph:
        """A copy of ``model`` in float32 on the CPU, with the heads of ``tasks`` alone.

        Raises:
            ValueError: the model has no such head, or is an optimised copy.
        """
        if model.predicts_only:
            raise ValueError("an optimised copy is not exported: give the model it was made of")
        if unknown := sorted(set(tasks) - set(model.heads)):
            raise ValueError(f"no head {', '.join(unknown)}: this model has {list(model.heads)}")
        copy = deepcopy(model).cpu().float().eval().requires_grad_(False)
        for name in [name for name in copy.heads if tasks and name not in tasks]:
            del copy.heads[name]
        dense = any(isinstance(head, DenseHead) for head in copy.heads.values())
        if not dense and copy.decoder is not None and copy.decoder.align != "double":
            copy.decoder = None  # nobody reads it, and the padding does not depend on it
        return cls(copy, preprocessing=model.preprocessing if with_preprocessing else None)

    def for_inference(self, *, half: bool) -> Graph:
        """The same by fewer operations: BN folded, no auxiliary head; in float16 if asked."""
        model: Any = optimized(self.model, compiled=False)
        model.to(memory_format=torch.contiguous_format)  # the runtime chooses its own
        return Graph(model.half() if half else model, preprocessing=self.preprocessing).eval()

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        if self.preprocessing is not None:
            images = self.preprocessing.normalize(images.permute(0, 3, 1, 2))
        dtype = next(self.model.parameters()).dtype
        return {name: out.float() for name, out in self.model(images.to(dtype)).items()}

    @property
    def axes(self) -> dict[int, str]:
        """Those axes of the input that may be free."""
        first = 2 if self.preprocessing is None else 1
        return {0: "batch", first: "height", first + 1: "width"}

    def example(self, shape: Shape) -> Tensor:
        """Noise that :meth:`forward` takes, the same for the same shape."""
        batch, height, width = shape
        random = torch.Generator().manual_seed(0)
        if self.preprocessing is None:
            return torch.randn(batch, 3, height, width, generator=random)
        size = (batch, height, width, 3)
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=random)


def trace(graph: Graph, shape: Shape, *, free_size: bool) -> ExportedProgram:
    """The graph by torch.export, for any number of images and, if asked, of any size.

    Args:
        shape: of the images that it is traced with.

    Raises:
        ValueError: torch cannot trace the model so.
    """
    from torch.fx.experimental import _config

    if free_size and any(hasattr(module, "window_size") for module in graph.modules()):
        raise ValueError(
            "attention in windows (timm's Swin and BEiT) goes by the size of its maps, and is not "
            "traced for free sizes: fix the size, with --size H W"
        )
    free = {i: Dim.DYNAMIC for i, name in graph.axes.items() if free_size or name == "batch"}
    try:
        # sizes of one are like any other, as torch.onnx has it
        # torch makes this module's `patch` at run time
        with torch.no_grad(), _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
            program = torch.export.export(
                graph, (graph.example(shape),), dynamic_shapes=(free,), strict=False
            )
    except Exception as error:  # of torch's many kinds
        reason = str(error).strip().partition("\n")[0][:200]
        remedy = "; fix the size, with --size H W" if free_size else ""
        raise ValueError(f"this model cannot be traced: {reason}{remedy}") from error
    # What is left are questions about the layout of memory ("is it contiguous?"), for which the
    # file would refuse other sizes when loaded; it is compared with the model at several instead.
    if hasattr(program, "_guards_code"):
        program._guards_code = []
    return program


def describe(model: DPT, graph: Graph, *, size: tuple[int, int] | None) -> dict[str, str]:
    """What a user of the file must know, by name; lists and objects are JSON."""
    rule, spec = model.preprocessing, model.spec
    if graph.preprocessing is None:
        form = "float32 (batch, 3, height, width): RGB / 255, less mean, over std"
    else:
        form = "uint8 (batch, height, width, 3): RGB, normalised inside"
    facts: dict[str, Any] = {
        "dpt_version": dpt.__version__,
        "model": spec["name"],
        "tasks": list(graph.model.heads),
        "input": form,
        "input_size": list(size) if size else "any",
        "resize": f"before the input: {rule.resize} image_size, {rule.interpolation}",
        "image_size": list(rule.image_size),
        "multiple_of": rule.multiple_of,
        "mean": list(rule.mean),
        "std": list(rule.std),
    }
    if "depth" in graph.model.heads:
        head = graph.model.heads["depth"]
        facts["depth_unit"] = "m" if head.kind == "metric" else "relative inverse depth"
        if head.kind == "metric" and head.max_depth is not None:
            facts["max_depth"] = head.max_depth
        if spec.get("calibration"):
            facts["calibration"] = spec["calibration"]
    if spec.get("class_names"):
        facts["class_names"] = list(spec["class_names"])
    return {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
