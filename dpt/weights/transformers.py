"""Reads and writes folders of transformers' ``dpt``, over its own ViT, a hybrid or a backbone.

Backbones, given by ``backbone_config``, are DINOv2, BEiT and SwinV2; over Swin, transformers' dpt
itself fails. Tensor names are those on disk, which are stable; those in memory change.

SwinV2 runs on timm's blocks with ``pad_windows="before_shift"``, as in transformers. We pad an
image before the network, transformers pads maps inside of it: outputs are equal if the image's
sides are multiples of the deepest stride, 32.
"""

from pathlib import Path
from typing import NamedTuple

import torch

from dpt.model_config import model_dict
from dpt.weights.files import Source
from dpt.weights.format import (
    Checkpoint,
    Config,
    Format,
    Keys,
    Shapes,
    Table,
    Tensors,
    from_theirs,
    read_keys,
    to_theirs,
    write_keys,
)
from dpt.weights.official import restandardize

RESAMPLE = {2: "bilinear_antialias", 3: "cubic_antialias", 4: "area"}  # by Pillow's constant
PILLOW = {"bilinear": 2, "cubic": 3, "area": 4}

BLOCK, LAYER = "encoder.blocks.{i}", "backbone.encoder.layer.{i}"
SWIN_BLOCK, SELF = "layers.{s}.blocks.{b}", "backbone.encoder.layers.{s}.blocks.{b}.attention.self"
CNN, BIT_CNN = "encoder.patch_embed.backbone.", "dpt.embeddings.backbone.bit."
BIASES = "relative_position_bias"


def _rows(
    *first: tuple[str, str],
    ours: str = "encoder",
    block: str = "blocks.{i}",
    theirs: str = "backbone",
    layer: str = "layer.{i}",
    inner: str = "attention",
) -> Table:
    """Rows of an encoder: ``first``, its own, then the common ones; ``inner`` holds q, k and v."""
    block, layer = f"{ours}.{block}", f"{theirs}.encoder.{layer}"
    return [
        *first,
        (f"{ours}.cls_token", f"{theirs}.embeddings.cls_token"),
        (f"{ours}.reg_token", f"{theirs}.embeddings.register_tokens"),
        (f"{ours}.pos_embed", f"{theirs}.embeddings.position_embeddings"),
        (f"{ours}.patch_embed.proj.*", f"{theirs}.embeddings.patch_embeddings.projection.*"),
        (f"{ours}.patch_embed.norm.*", f"{theirs}.embeddings.norm.*"),
        (f"{block}.attn.qkv.*", f"{layer}.attention.{inner}.{{query,key,value}}.*"),
        (f"{block}.attn.q_bias", f"{layer}.attention.{inner}.query.bias"),
        (f"{block}.attn.v_bias", f"{layer}.attention.{inner}.value.bias"),
        (f"{block}.attn.proj.*", f"{layer}.attention.output.dense.*"),
        (f"{block}.norm1.*", f"{layer}.layernorm_before.*"),
        (f"{block}.norm2.*", f"{layer}.layernorm_after.*"),
        (f"{block}.mlp.fc1.*", f"{layer}.intermediate.dense.*"),
        (f"{block}.mlp.fc2.*", f"{layer}.output.dense.*"),
    ]


VIT_TABLE = _rows(theirs="dpt")
HYBRID_TABLE = [
    (CNN + "stem.conv.*", BIT_CNN + "embedder.convolution.*"),
    (CNN + "stem.norm.*", BIT_CNN + "embedder.norm.*"),
    (CNN + "stages.{s}.blocks.*", BIT_CNN + "encoder.stages.{s}.layers.*"),
    ("encoder.patch_embed.proj.*", "dpt.embeddings.projection.*"),
    *VIT_TABLE,
]
DINOV2_TABLE = _rows(
    ("encoder.norm.*", "backbone.layernorm.*"),
    (f"{BLOCK}.norm{{k}}.*", f"{LAYER}.norm{{k}}.*"),
    (f"{BLOCK}.mlp.*", f"{LAYER}.mlp.*"),
    (f"{BLOCK}.ls{{k}}.gamma", f"{LAYER}.layer_scale{{k}}.lambda1"),
)
GATED = [
    (f"{BLOCK}.mlp.fc1.*", f"{LAYER}.mlp.weights_in.*"),
    (f"{BLOCK}.mlp.fc2.*", f"{LAYER}.mlp.weights_out.*"),
]
BEIT_TABLE = _rows(
    (f"{BLOCK}.attn.{BIASES}_table", f"{LAYER}.attention.attention.{BIASES}.{BIASES}_table"),
    (f"{BLOCK}.ls{{k}}.gamma", f"{LAYER}.lambda_{{k}}"),
)
SWINV2_TABLE = _rows(
    # timm merges patches at the start of a stage, transformers at the end of the one before
    ("encoder.model.layers.{s}.downsample.*", "backbone.encoder.layers.{s-1}.downsample.*"),
    (f"encoder.model.{SWIN_BLOCK}.attn.logit_scale", f"{SELF}.logit_scale"),
    (f"encoder.model.{SWIN_BLOCK}.attn.cpb_mlp.*", f"{SELF}.continuous_position_bias_mlp.*"),
    ours="encoder.model",
    block=SWIN_BLOCK,
    layer=SWIN_BLOCK,
    inner="self",
)
HEAD_TABLE = [
    ("decoder.output_project.*", "head.projection.*"),
    ("heads.depth.conv1.*", "head.head.0.*"),
    ("heads.depth.conv2.*", "head.head.2.*"),
    ("heads.depth.conv3.*", "head.head.4.*"),
    ("heads.segmentation.layers.*", "head.head.*"),
    ("heads.segmentation.auxiliary_layers.*", "auxiliary_head.head.*"),
]
DEEPEST_UNIT = "neck.fusion_stage.layers.0.residual_layer"
MASK_TOKEN, REGISTERS = "backbone.embeddings.mask_token", "backbone.embeddings.register_tokens"


def neck_table(levels: int = 4) -> Table:
    """Rows of the decoder; transformers counts fusion blocks from the deepest level."""
    stage = "neck.reassemble_stage"
    fusion = f"neck.fusion_stage.layers.{{{levels - 1}-n}}"
    return [
        ("decoder.reassemble.{n}.read.linear.*", f"{stage}.readout_projects.{{n}}.0.*"),
        ("decoder.reassemble.{n}.project.*", f"{stage}.layers.{{n}}.projection.*"),
        ("decoder.reassemble.{n}.resample.conv.*", f"{stage}.layers.{{n}}.resize.*"),
        ("decoder.layer_rn.*", "neck.convs.*"),
        ("decoder.fusion.{n}.project.*", f"{fusion}.projection.*"),
        ("decoder.fusion.{n}.rcu{k}.conv{j}.*", f"{fusion}.residual_layer{{k}}.convolution{{j}}.*"),
        ("decoder.fusion.{n}.rcu{k}.bn{j}.*", f"{fusion}.residual_layer{{k}}.batch_norm{{j}}.*"),
    ]


# Encoders


class Family(NamedTuple):
    """An encoder of transformers, and how it becomes ours."""

    table: Table
    keys: Keys  # our options that its config holds
    fixed: Config  # our other options
    needed: Config  # the only supported values; a missing key has them, unless that is True


KEYS: Keys = {
    "embed_dim": ("hidden_size", 768),
    "num_blocks": ("num_hidden_layers", 12),
    "num_heads": ("num_attention_heads", 12),
    "mlp_ratio": ("intermediate_size", 3072),
    "norm_eps": ("layer_norm_eps", 1e-12),
    "image_size": ("image_size", 224),
    "patch_size": ("patch_size", 16),
    "in_channels": ("num_channels", 3),
}
VIT_KEYS = {
    **KEYS,
    "image_size": ("image_size", 384),
    "qkv_bias": ("qkv_bias", True),
    "out_indices": ("backbone_out_indices", [2, 5, 8, 11]),
}
REGISTER_KEYS = {
    **KEYS,
    "mlp_ratio": ("mlp_ratio", 4),
    "norm_eps": ("layer_norm_eps", 1e-6),
    "qkv_bias": ("qkv_bias", True),
    "layer_scale": ("layerscale_value", 1.0),
    "swiglu": ("use_swiglu_ffn", False),
    "final_norm": ("apply_layernorm", True),
    "num_register_tokens": ("num_register_tokens", 4),
}
DINOV2_KEYS = {k: v for k, v in REGISTER_KEYS.items() if k != "num_register_tokens"}
SWINV2_KEYS: Keys = {
    "image_size": ("image_size", 224),
    "in_chans": ("num_channels", 3),
    "patch_size": ("patch_size", 4),
    "embed_dim": ("embed_dim", 96),
    "depths": ("depths", [2, 2, 6, 2]),
    "num_heads": ("num_heads", [3, 6, 12, 24]),
    "window_size": ("window_size", 7),
    "pretrained_window_sizes": ("pretrained_window_sizes", [0, 0, 0, 0]),
    "mlp_ratio": ("mlp_ratio", 4.0),
    "qkv_bias": ("qkv_bias", True),
}
VIT = Family(VIT_TABLE, VIT_KEYS, {"position_resize": "bilinear"}, {})
HYBRID = Family(HYBRID_TABLE, VIT_KEYS, {**VIT.fixed, "weight_standardization": "sqrt"}, {})
BACKBONES = {
    # transformers' dpt takes register tokens for patches and fails: none are written
    "dinov2": Family(
        DINOV2_TABLE,
        {**DINOV2_KEYS, "patch_size": ("patch_size", 14)},
        {"position_resize": "bicubic", "num_register_tokens": 0},
        {},
    ),
    "dinov2_with_registers": Family(
        DINOV2_TABLE, REGISTER_KEYS, {"position_resize": "bicubic_antialias"}, {}
    ),
    "beit": Family(
        BEIT_TABLE,
        {**KEYS, "layer_scale": ("layer_scale_init_value", 0.1)},
        {"kind": "beit", "position": "none", "position_resize": "bilinear", "qkv_bias": True},
        {
            "use_relative_position_bias": True,
            "use_shared_relative_position_bias": False,
            "use_absolute_position_embeddings": False,
            "add_fpn": False,
        },
    ),
    "swinv2": Family(
        SWINV2_TABLE,
        SWINV2_KEYS,
        {"kind": "timm", "name": "swinv2_tiny_window8_256", "pad_windows": "before_shift"},
        {"use_absolute_embeddings": False, "layer_norm_eps": 1e-5},
    ),
}
"""Encoders that a ``backbone_config`` may describe, by ``model_type``."""

BIT = {  # config of the hybrid's CNN
    "model_type": "bit",
    "global_padding": "same",
    "layer_type": "bottleneck",
    "depths": [3, 4, 9],
    "out_features": ["stage1", "stage2", "stage3"],
    "embedding_dynamic_padding": True,
}


def read_encoder(family: Family, config: Config) -> Config:
    """Our encoder's options for an encoder of transformers; ValueError if it is not supported."""
    needed = {"hidden_act": "gelu", **family.needed}
    for key, value in needed.items():
        if (found := config.get(key, None if value is True else value)) != value:
            raise ValueError(f"an encoder with {key}={found!r}, not supported (only {value!r})")
    encoder = {**family.fixed, **read_keys(family.keys, config)}
    size, patch = encoder["image_size"], encoder["patch_size"]
    encoder["image_size"] = size = [size, size] if isinstance(size, int) else list(size)
    if family.keys["mlp_ratio"][0] == "intermediate_size":
        encoder["mlp_ratio"] /= encoder["embed_dim"]  # the key holds the hidden width
    if encoder.get("kind") == "beit":
        encoder["layer_scale"] = encoder["layer_scale"] or None
    if "kind" in encoder:
        multiple = patch * 2 ** (len(encoder["depths"]) - 1) if "depths" in encoder else patch
        if size[0] != size[1] or size[0] % multiple:
            raise ValueError(f"image_size={size}: only squares of multiples of {multiple} are read")
    if encoder.get("kind") == "timm":
        encoder["img_size"] = encoder.pop("image_size")
    if "out_indices" not in encoder:  # a backbone counts from 1; 0 is the "stem"
        names = [f.removeprefix("stage") for f in config.get("out_features") or ()]
        stages = config.get("out_indices") or [0 if n == "stem" else int(n) for n in names]
        encoder["out_indices"] = [s - 1 for s in stages]
    return encoder


def read_backbone(config: Config, *allowed: str) -> Config:
    """:func:`read_encoder` for a ``backbone_config``, whose ``model_type`` must be allowed."""
    model_type = config.get("model_type")
    if model_type not in allowed:
        only = ", ".join(allowed)
        raise ValueError(f"over a {model_type!r} backbone, which is not supported; only {only}")
    return read_encoder(BACKBONES[model_type], config)


def write_encoder(family: Family, encoder: Config) -> Config:
    """Transformers' config of our encoder, whose ``image_size`` must be square."""
    config = write_keys(family.keys, encoder)
    config["image_size"] = encoder["image_size"][0]
    if "mlp_ratio" in config:
        config["mlp_ratio"] = int(encoder["mlp_ratio"])
    else:
        config["intermediate_size"] = round(encoder["embed_dim"] * encoder["mlp_ratio"])
    if "layer_scale_init_value" in config:
        config["layer_scale_init_value"] = encoder["layer_scale"] or 0.0
    return config


def write_backbone(model_type: str, encoder: Config) -> Config:
    """Transformers' ``backbone_config`` of our encoder."""
    stages = [i + 1 for i in encoder["out_indices"]]
    family = BACKBONES[model_type]
    return {
        "model_type": model_type,
        **write_encoder(family, encoder),
        **{k: v for k, v in family.needed.items() if v is True},
        "reshape_hidden_states": False,
        "out_indices": stages,
        "out_features": [f"stage{i}" for i in stages],
    }


# The format

DECODER: Keys = {  # our argument, their key and its default
    "readout": ("readout_type", "project"),
    "scales": ("reassemble_factors", [4, 2, 1, 0.5]),
    "reassemble_channels": ("neck_hidden_sizes", [96, 192, 384, 768]),
    "fusion_channels": ("fusion_hidden_size", 256),
    "batch_norm": ("use_batch_norm_in_fusion_residual", False),
    "unit_bias": ("use_bias_in_fusion_residual", None),
    "output_project": ("add_projection", False),
}


class Transformers(Format):
    """Folders of ``config.json``, ``preprocessor_config.json`` and weights."""

    name = "transformers"
    encoders = ("vit", "hybrid", "beit")
    free = Format.free | {
        "decoder.align": "outputs are equal where both sides are multiples of two patches",
        "encoder.weight_standardization": "the weights of the CNN are scaled for it",
    }

    def recognises(self, source: Source) -> bool:
        return source.config.get("model_type") == "dpt"

    def read(self, source: Source) -> Checkpoint:
        config = _config(source)
        return from_theirs(config, source.tensors, _table(config), unused(config))

    def _write(self, config: Config, tensors: Tensors, path: Path) -> Source:
        encoder, decoder = config["encoder"], config["decoder"]
        ((name, head),) = config["heads"].items()
        model_type, _ = _family(encoder)
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        if count := encoder["num_register_tokens"]:
            raise ValueError(f"num_register_tokens={count}: its dpt takes them for patches")
        if name == "segmentation" and model_type:
            raise ValueError("its dpt has no segmentation over a DINOv2 or BEiT encoder")
        if None in decoder["reassemble_channels"] and encoder["kind"] != "hybrid":
            raise ValueError("its dpt has a projection on every level")
        if encoder["kind"] == "hybrid" and decoder["readout"] != "project":
            raise ValueError("its hybrid has decoder.readout='project'")
        if decoder["output_project"] and decoder["fusion_channels"] != 256:
            raise ValueError("its metric depth has decoder.fusion_channels=256")
        if encoder["patch_size"] == 16:  # its heads upsample twofold, here to the image's size
            head["upsample"] = "double"
        if encoder.get("weight_standardization") == "official":
            tensors = restandardize(tensors, "sqrt")
        theirs_config = _write_config(config, tensors["encoder.cls_token"].dtype)
        theirs = to_theirs(tensors, _table(config), DEEPEST_UNIT)
        dim, norm = encoder["embed_dim"], "backbone.layernorm" if model_type else "dpt.layernorm"
        if model_type != "beit" and f"{norm}.weight" not in theirs:
            # its models hold these and the following, and never use them
            theirs |= {f"{norm}.weight": torch.ones(dim), f"{norm}.bias": torch.zeros(dim)}
        if model_type == "dinov2_with_registers":
            theirs |= {REGISTERS: torch.zeros(1, 0, dim), MASK_TOKEN: torch.zeros(1, dim)}
        return Source(path, theirs_config, write_processor(config), theirs)


def _family(encoder: Config) -> tuple[str | None, Family]:
    """``model_type`` of the ``backbone_config``, None for dpt's own ViT and hybrid; the family."""
    kind: str = encoder["kind"]
    if kind == "vit" and encoder.get("layer_scale") is not None:
        registers = encoder["position_resize"] == "bicubic_antialias"
        kind = "dinov2_with_registers" if registers else "dinov2"
    elif kind in ("vit", "hybrid"):
        return None, VIT if kind == "vit" else HYBRID
    kind = {"timm": "swinv2"}.get(kind, kind)
    return kind, BACKBONES[kind]


def encoder_table(config: Config) -> Table:
    """Rows of the encoder of a model."""
    gated = GATED if config["encoder"].get("swiglu") else []
    return [*gated, *_family(config["encoder"])[1].table]


def _table(config: Config) -> Table:
    neck = neck_table(len(config["decoder"]["reassemble_channels"]))
    return [*encoder_table(config), *neck, *HEAD_TABLE]


def unused(config: Config) -> list[str]:
    """Patterns for names of tensors on disk that no prediction uses."""
    encoder = config["encoder"]
    last = encoder["out_indices"][-1]
    count = encoder.get("num_blocks") or len(encoder["depths"])
    return [
        *(f"{DEEPEST_UNIT}1.*", MASK_TOKEN, REGISTERS),
        *("dpt.pooler.*", "dpt.layernorm.*", "backbone.layernorm.*", "backbone.beit.layernorm.*"),
        # buffers that older versions saved
        *("backbone.*.relative_position_index", "backbone.*.relative_coords_table"),
        *(f"*.encoder.layer.{i}.*" for i in range(last + 1, count)),
        *(f"backbone.encoder.layers.{i}.*" for i in range(last + 1, count)),
        f"backbone.encoder.layers.{last}.downsample.*",  # before a stage that is not used
    ]


def _config(source: Source) -> Config:
    config, backbone = source.config, source.config.get("backbone_config")
    decoder = read_keys(DECODER, config)
    levels = len(decoder["reassemble_channels"])
    hybrid = config.get("is_hybrid", False)
    if hybrid:  # the first two levels are stages of the CNN
        encoder = read_encoder(HYBRID, config)
        encoder["out_indices"] = encoder["out_indices"][2:]
        decoder["reassemble_channels"] = [None, None, *decoder["reassemble_channels"][2:]]
    elif backbone is not None:
        encoder = read_backbone(backbone, *BACKBONES)
    else:
        encoder = read_encoder(VIT, config)
    if config.get("head_in_index", -1) not in (-1, levels - 1):
        raise ValueError(f"head_in_index={config['head_in_index']}: only -1 is read")
    decoder["scales"] = decoder["scales"][:levels]
    if encoder.get("kind") == "timm":  # the maps of a pyramid go straight to the fusion
        decoder |= {"reassemble_channels": [None] * levels, "scales": [1] * levels}
        decoder["readout"] = "ignore"
    if decoder["unit_bias"] is None:
        decoder["unit_bias"] = not decoder["batch_norm"]
    architectures = str(config.get("architectures"))
    name, head = "depth", Config(kind="relative")
    if "Segmentation" in architectures or (
        "Depth" not in architectures and "head.head.1.running_mean" in source.tensors
    ):
        decoder["output_project"] = False
        shapes = Shapes(source.tensors, "transformers' dpt")
        name = "segmentation"
        head = {
            "num_classes": shapes("head.head.4.weight")[0],
            "class_names": read_names(config),
            "dropout": config.get("semantic_classifier_dropout", 0.1),
            "auxiliary": config.get("use_auxiliary_head", True),
        }
    elif decoder["output_project"]:  # only DINOv2's depth heads have it: metres
        head = {"kind": "metric", "activation": "relu"}
    return model_dict(
        "dpt_hybrid" if hybrid else "dpt_base",
        heads={name: {**head, "upsample": "double"}},
        encoder=encoder,
        decoder={**decoder, "align": "resize_lateral"},
        preprocessing={
            **read_processor(source, encoder),
            # of its image processor's post_process methods
            "output_interpolation": "bicubic" if name == "depth" else "bilinear",
        },
    )


def _write_config(full: Config, dtype: torch.dtype) -> Config:
    """``config.json`` for our complete configuration."""
    encoder, decoder = full["encoder"], full["decoder"]
    ((name, head),) = full["heads"].items()
    model_type, family = _family(encoder)
    hybrid = encoder["kind"] == "hybrid"
    task = "DepthEstimation" if name == "depth" else "SemanticSegmentation"
    config: Config = {
        "architectures": [f"DPTFor{task}"],
        "model_type": "dpt",
        "hidden_act": "gelu",
        "is_hybrid": hybrid,
        "head_in_index": -1,
        **write_keys(DECODER, decoder),
        # transformers takes scales from 1 on as strides, which must be int
        "reassemble_factors": [int(s) if s >= 1 else s for s in decoder["scales"]],
        "dtype": str(dtype).removeprefix("torch."),
    }
    if name == "segmentation":
        config |= {
            **write_names(head),
            "use_auxiliary_head": head["auxiliary"],
            "semantic_classifier_dropout": head["dropout"],
        }
    if model_type:
        backbone = write_backbone(model_type, encoder)
        mask = {"use_mask_token": False} if model_type == "dinov2" else {}
        return {**config, "backbone_config": {**backbone, **mask}}
    config |= write_encoder(family, encoder)
    if hybrid:
        grid = encoder["image_size"][0] // encoder["patch_size"]
        config |= {
            "neck_hidden_sizes": [256, 512, *decoder["reassemble_channels"][2:]],
            "backbone_out_indices": [0, 1, *encoder["out_indices"]],
            "backbone_featmap_shape": [1, 1024, grid, grid],
            "neck_ignore_stages": [0, 1],
            "backbone_config": BIT,
        }
    return config


def read_names(config: Config) -> list[str]:
    """The class names in a config; none if they are transformers' placeholders."""
    labels = config.get("id2label") or {}
    names = [labels[k] for k in sorted(labels, key=int)]
    return [] if all(str(n).startswith("LABEL_") for n in names) else names


def write_names(head: Config) -> Config:
    """The keys of a config that hold the class names of ``head``."""
    names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


def read_pixels(processor: Config, mean: list[float], std: list[float]) -> Config:
    """Our ``mean`` and ``std`` for an image processor; the arguments are its defaults."""
    mean, std = processor.get("image_mean", mean), processor.get("image_std", std)
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    factor = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1
    gain = 255 * factor  # the largest pixel value before normalisation
    return {"mean": [m / gain for m in mean], "std": [s / gain for s in std]}


def read_processor(source: Source, encoder: Config) -> Config:
    """Our preprocessing for a folder's image processor; sets ``encoder["padding"]`` if it pads."""
    p = source.processor
    size = p.get("size", 384)
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    resample = p.get("resample", 3)
    rule = "minimal" if p.get("keep_aspect_ratio", False) else "stretch"
    if p.get("do_pad"):
        encoder["padding"] = "center"
    return {
        **read_pixels(p, [0.5] * 3, [0.5] * 3),
        "image_size": [size, size] if isinstance(size, int) else size,
        "resize": rule if p.get("do_resize", True) else "none",
        "multiple_of": p.get("ensure_multiple_of") or 1,
        "interpolation": RESAMPLE.get(resample, resample),
    }


def write_processor(config: Config) -> Config:
    """``preprocessor_config.json`` of the image processor that comes closest to ours."""
    encoder, p = config["encoder"], config["preprocessing"]
    size, rule = p["image_size"], p["resize"]
    if not _family(encoder)[0]:  # transformers' own ViT takes only square images
        size, rule = encoder["image_size"], "stretch"
    pad = encoder["padding"] == "center"
    return {
        "image_processor_type": "DPTImageProcessor",
        "do_resize": rule != "none",
        "size": {"height": size[0], "width": size[1]},
        "keep_aspect_ratio": rule in ("minimal", "lower_bound", "upper_bound"),
        "ensure_multiple_of": p["multiple_of"],
        "resample": PILLOW[p["interpolation"].partition("_")[0]],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p["mean"]),
        "image_std": list(p["std"]),
        "do_pad": pad,
        **({"size_divisor": encoder["patch_size"]} if pad else {}),
    }
