"""Models in ONNX Runtime, as contenders: exported from the weights that the others run with."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from benchmarks.rivals import Contender, our_contender, transformers_contender
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from dpt.export.files import check_target, run_of, write
from dpt.export.graph import Graph, trace
from dpt.model import DPT
from dpt.types import OutputSpec

OUTPUT = {"depth": "predicted_depth", "segmentation": "logits"}
"""What transformers calls them."""


def our_onnx_contender(ours: DPT, task: str) -> Contender:
    """What ``dpt export --size`` makes of ours."""
    graph = Graph.of(ours, tasks=[task], with_preprocessing=False).for_inference()
    height, width = ours.config.to_dict()["encoder"]["image_size"]
    program = trace(graph, (2, height, width), free_size=False)
    return _in_runtime(our_contender(ours, task), program, task)


def transformers_onnx_contender(ours: DPT, task: str) -> Contender:
    """transformers' model by the same exporter, with the same freedom: any number of images."""
    from torch.fx.experimental import _config

    rival = transformers_contender(ours, task)

    class Output(nn.Module):
        """Its one output, for an exporter that takes no dictionary."""

        def __init__(self) -> None:
            super().__init__()
            self.model = rival.model

        def forward(self, images: Tensor) -> Tensor:
            return self.model(images)[OUTPUT[task]]

    example = torch.zeros(2, 3, *ours.config.to_dict()["encoder"]["image_size"])
    # torch makes this module's `patch` at run time
    with torch.no_grad(), _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        program = torch.export.export(
            Output().eval(), (example,), dynamic_shapes=({0: Dim.DYNAMIC},), strict=False
        )
    return _in_runtime(rival, program, task)


def _in_runtime(contender: Contender, program: ExportedProgram, task: str) -> Contender:
    """The contender, but what it predicts comes from ONNX Runtime; it does not train."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        check_target(path, opset=None)
        write(program, path, axes={0: "batch"}, outputs={task: OutputSpec(task, "map")},
              metadata={}, opset=None)  # fmt: skip
        run = run_of(path)

    def predict(images: Tensor) -> Tensor:
        if images.dtype is not torch.float32 or images.device.type != "cpu":
            raise ValueError("ONNX Runtime is compared in fp32 on the CPU: --dtype fp32")
        out = run(images)[task]
        return out if task == "depth" else out.argmax(1)

    name = f"{contender.name}, ONNX Runtime"
    return Contender(name, contender.model, predict, loss=None, plain=contender.predict)
