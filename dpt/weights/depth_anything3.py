"""Depth Anything 3, mono and metric: the folder of its Hub repositories.

Both have one network over DINOv2 (Lin et al. 2025): its tensors in ``model.safetensors``, and in
``config.json`` the name of its configuration (``da3mono-large``, ``da3metric-large``), by which the
two are told apart. Mono predicts depth up to scale. Metric predicts metres for a focal length of
300 pixels of the network's input. Both predict sky where the second map is 0.3 and more.

- Sizes come from shapes, as of Depth Anything V2, with 64 channels per head. The LayerNorms of the
  blocks have an epsilon of 1e-6, the last one of 1e-5.
- Away from the native grid position embeddings are resized by DINOv2's scale factor.
- Images are resized twice: to a longest side of 504 pixels, then to multiples of 14.
- Its code runs the encoder in half precision and the rest in fp32. Here the precision is chosen for
  both; the last layer and exp are always in fp32.
"""

import re
from pathlib import Path

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights.base import Format, StoredModel
from dpt.weights.depth_anything import DECODER
from dpt.weights.dinov2 import IMAGENET, gated_table, spread_blocks
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import Table, Tensors, to_theirs
from dpt.weights.shapes import Shapes

BACKBONE = "model.backbone.pretrained."
HEAD = "model.head."
SCRATCH = f"{HEAD}scratch."
MONO, METRIC = "da3mono-large", "da3metric-large"
KIND = re.compile(r"da3[-_]?(mono|metric)")  # also in the path of a copy of the Hub
FOCAL = 300.0  # of metric models
TABLE = [
    ("encoder.*", f"{BACKBONE}*"),
    ("decoder.reassemble.{n}.project.*", f"{HEAD}projects.{{n}}.*"),
    ("decoder.reassemble.{n}.resample.conv.*", f"{HEAD}resize_layers.{{n}}.*"),
    ("decoder.layer_rn.{n}.*", f"{SCRATCH}layer{{n+1}}_rn.*"),
    ("decoder.fusion.{n}.project.*", f"{SCRATCH}refinenet{{n+1}}.out_conv.*"),
    ("decoder.fusion.{n}.rcu{k}.*", f"{SCRATCH}refinenet{{n+1}}.resConfUnit{{k}}.*"),
    ("heads.depth.conv1.*", f"{SCRATCH}output_conv1.*"),
    ("heads.depth.conv2.*", f"{SCRATCH}output_conv2.0.*"),
    ("heads.depth.conv3.*", f"{SCRATCH}output_conv2.2.*"),
    ("heads.depth.branches.sky.conv2.*", f"{SCRATCH}sky_output_conv2.0.*"),
    ("heads.depth.branches.sky.conv3.*", f"{SCRATCH}sky_output_conv2.2.*"),
]


class DepthAnything3(Format):
    name = "depth_anything_3"
    encoders = ("vit",)
    heads = ("depth",)

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.has_prefixes(BACKBONE, SCRATCH)

    def read(self, files: CheckpointFiles) -> StoredModel:
        if f"{BACKBONE}camera_token" in files.tensors or files.has_prefixes("model.cam_dec."):
            raise ValueError(f"a model of several views, not read: only {MONO} and {METRIC} are")
        name = str(files.config.get("model_name", "/".join(files.path.parts[-3:])))
        kinds = {*KIND.findall(name.lower())}
        if len(kinds) != 1:
            raise ValueError(
                f"model_name={files.config.get('model_name')!r} in config.json is neither {MONO} "
                f"nor {METRIC}, and tensors do not tell metres from relative depth: set it"
            )
        shapes = Shapes(files.tensors, "Depth Anything 3")
        config = _read_config(shapes, is_metric=kinds == {"metric"})
        return StoredModel(config, files.tensors, _table(config), [f"{BACKBONE}mask_token"])

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        head = config["heads"]["depth"]
        model_name = METRIC if head["kind"] == "metric" else MONO
        config["encoder"]["layer_scale"] = 1.0  # gains are in the tensors
        return CheckpointFiles(path, to_theirs(tensors, _table(config)), {"model_name": model_name})


def _table(config: Plain) -> Table:
    return [*gated_table(config["encoder"], BACKBONE), *TABLE]


def _read_config(shapes: Shapes, *, is_metric: bool) -> Plain:
    encoder = shapes.vit(BACKBONE)
    kind: Plain = {"kind": "up_to_scale"}
    if is_metric:
        kind = {"kind": "metric", "activation": "exp", "canonical_focal": FOCAL}
    return model_dict(
        "dpt_large",
        heads={
            "depth": {
                **kind,
                "hidden_channels": shapes(f"{SCRATCH}output_conv2.0.weight")[0],
                "sky": "relu",
            }
        },
        encoder={
            **encoder,
            "final_norm": True,
            "final_norm_eps": 1e-5,
            "layer_scale": 1.0,
            "out_indices": spread_blocks(encoder["num_blocks"]),
            "position_resize": "dinov2",
        },
        decoder={
            **DECODER,
            "reassemble_channels": [shapes(f"{HEAD}projects.{i}.weight")[0] for i in range(4)],
            "fusion_channels": shapes(f"{SCRATCH}layer1_rn.weight")[0],
        },
        preprocessing={
            **IMAGENET,
            "image_size": [504, 504],
            "resize": "longest_side",
            "multiple_of": encoder["patch_size"],
            "interpolation": "cubic_area_twice",
            "output_interpolation": "bilinear",
        },
    )
