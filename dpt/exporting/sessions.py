"""Exported files as functions, run on the CPU by other libraries with PyTorch's threads."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dpt.files import reason, require

log = logging.getLogger("dpt")

Run = Callable[[Tensor], Mapping[str, Tensor]]  # the graph's input to its outputs by name


class Session(Protocol):
    """An open file. A call maps the graph's input to its outputs by name."""

    metadata: Mapping[str, str]

    def __call__(self, images: Tensor) -> Mapping[str, Tensor]: ...


class OnnxSession:
    """An ``.onnx`` file in ONNX Runtime."""

    def __init__(self, path: Path) -> None:
        onnxruntime = require("onnxruntime", f"{path}: ONNX Runtime", extra="onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        # spinning threads would slow down other timings
        options.add_session_config_entry("session.force_spinning_stop", "1")
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=providers)
        except Exception as error:  # onnxruntime's own types
            fault = f"{path.name}: ONNX Runtime refuses the file ({reason(error)})"
            raise ValueError(f"{fault}: export it with another --opset") from error
        self.metadata: Mapping[str, str] = self._session.get_modelmeta().custom_metadata_map
        self._names = [output.name for output in self._session.get_outputs()]

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        values = self._session.run(None, {"images": images.contiguous().numpy()})
        pairs = zip(self._names, values, strict=True)
        return {name: torch.from_numpy(value) for name, value in pairs}


class OpenVinoSession:
    """An ``.onnx`` or ``.xml`` file in OpenVINO, in fp32, or with ``bf16`` where the CPU has it."""

    def __init__(self, path: Path, *, bf16: bool = False) -> None:
        openvino = require("openvino", f"{path}: OpenVINO", extra="openvino")
        settings = {
            "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "NUM_STREAMS": 1,
        }
        core = openvino.Core()
        try:
            model = core.read_model(path)
            if bf16:
                _end_in_fp32(model)
            compiled = core.compile_model(model, "CPU", settings)
        except Exception as error:  # openvino's own types
            fault = f"{path.name}: OpenVINO refuses the file ({reason(error)})"
            raise ValueError(f"{fault}: export it anew") from error
        has_metadata = model.has_rt_info(["framework"])
        stated = model.get_rt_info(["framework"]).value if has_metadata else {}
        self.metadata: Mapping[str, str] = {key: str(v) for key, v in stated.items()}
        if bf16 and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            log.warning("precision=bf16: this CPU has no bf16 instructions, OpenVINO takes fp32")
        self._names = [output.get_any_name() for output in compiled.outputs]
        self._request = compiled.create_infer_request()

    def __call__(self, images: Tensor) -> dict[str, Tensor]:
        values = self._request.infer([images.contiguous().numpy()]).values()
        pairs = zip(self._names, values, strict=True)
        return {name: torch.from_numpy(value) for name, value in pairs}


def _end_in_fp32(model: Any) -> None:
    """Makes OpenVINO's bf16 leave the outputs of layers in fp32 that an exponential or a quotient
    turns into depth.

    OpenVINO rounds the output of a layer to bf16 unless it joins the next operation to the layer.
    These it cannot join, and depth would have steps of 0.4 %. Limits that change no value it can.
    """
    opset = require("openvino.opset13", "precision=bf16", extra="openvino")
    largest = torch.finfo(torch.float32).max
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind in ("Exp", "Einsum"):  # depth of the activation exp, and of bins
            layer = node.input_value(0) if kind == "Exp" else node.output(0)
            followers = layer.get_target_inputs()
            limited = opset.clamp(layer, -largest, largest).output(0)
            for follower in followers:
                follower.replace_source_output(limited)


def run_of(path: Path) -> Run:
    """Returns an exported file as a function: run by torch, ONNX Runtime or OpenVINO."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    return OpenVinoSession(path) if path.suffix == ".xml" else OnnxSession(path)
