"""ONNX in half precision (float16): what stays in float32, and how its rounding is seen on a CPU.

float16 ends at 65504 and has steps of 0.25 above 256. In DINOv2 ViT-S/14 the logits of attention
reach 312, so that a rounded logit would change a probability by 13 %; a norm squares its input. So
norms, softmax and what leads to it from the product of queries and keys stay in float32.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dpt.exporting import files
from dpt.files import require

FLOAT32 = (
    *("Softmax", "LogSoftmax", "Attention", "Exp"),
    *("LayerNormalization", "RMSNormalization", "GroupNormalization", "InstanceNormalization"),
    *("ReduceMean", "ReduceL2", "ReduceSum", "Pow", "Sqrt", "Reciprocal"),  # norms in parts
)
_SOURCES = ("MatMul", "Gemm", "Conv", "Einsum", *FLOAT32)


def to_half(model: Any) -> Any:
    """Returns an ONNX model in float16 but for what the module names; inputs and outputs keep their
    types."""
    tools = require("onnxruntime.transformers.float16", "--half", extra="onnx")
    sorting = require("onnxruntime.transformers.onnx_model", "--half", extra="onnx")
    stored = {tensor.name for tensor in model.graph.initializer}
    nodes = model.graph.node
    squares = [n.name for n in nodes if n.op_type == "Mul" and n.input[0] == n.input[1]]
    converted = tools.convert_float_to_float16(
        model,
        keep_io_types=True,
        op_block_list=[*tools.DEFAULT_OP_BLOCK_LIST, *FLOAT32],
        node_block_list=squares + _leading_to(model.graph, ("Softmax", "Sqrt")),
    )
    _join(converted.graph)
    for value in [v for v in converted.graph.value_info if v.name in stored]:
        converted.graph.value_info.remove(value)  # the types of some weights are wrong there
    sorting.OnnxModel.graph_topological_sort(converted.graph)
    return converted


def _join(graph: Any) -> None:
    """Lets operations in float32 pass values on without a cast to float16 and back."""
    # the converter names the casts that it adds so
    rounded = {n.output[0]: n.input[0] for n in graph.node if n.name.endswith("_to_fp16_node")}
    widened = {n.output[0]: n.input[0] for n in graph.node if n.name.endswith("_to_fp32_node")}
    exact = {name: rounded[half] for name, half in widened.items() if half in rounded}
    for node in graph.node:
        for i, name in enumerate(node.input):
            node.input[i] = exact.get(name, name)


def _leading_to(graph: Any, kinds: tuple[str, ...]) -> list[str]:
    """Returns the names of the nodes before those of ``kinds``, back to the nearest layer."""
    names: list[str] = []
    values: set[str] = set()
    for node in reversed(graph.node):  # what uses a value comes before what makes it
        is_before = not values.isdisjoint(node.output)
        if is_before:
            names.append(node.name)
        if node.op_type in kinds or (is_before and node.op_type not in _SOURCES):
            values.update(node.input)
    return names


def half_session(path: Path) -> files.Session:
    """Opens an ``.onnx`` file with every value of float16 rounded as it says.

    On a CPU, ONNX Runtime computes most operations of float16 in float32 and rounds only where such
    a chain ends, by which an overflow would not be seen.
    """
    onnx = require("onnx", f"{path}: ONNX Runtime", extra="onnx")
    float16, float32 = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    model = onnx.load(path)
    values = model.graph.value_info
    halves = {value.name for value in values if value.type.tensor_type.elem_type == float16}
    for tensor in model.graph.initializer:
        if tensor.data_type == float16:
            weights = onnx.numpy_helper.to_array(tensor).astype("float32")
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights, tensor.name))
    nodes, cast = [], partial(onnx.helper.make_node, "Cast")
    for node in model.graph.node:
        nodes.append(node)
        for i, name in enumerate(node.output):
            if name in halves:
                node.output[i] = f"{name}.exact"
                nodes.append(cast([f"{name}.exact"], [f"{name}.half"], to=float16))
                nodes.append(cast([f"{name}.half"], [name], to=float32))
    del model.graph.node[:], values[:]
    model.graph.node.extend(nodes)
    with TemporaryDirectory(dir=path.parent) as folder:
        onnx.save(model, Path(folder, "rounded.onnx"))
        return files.onnx_session(Path(folder, "rounded.onnx"))
