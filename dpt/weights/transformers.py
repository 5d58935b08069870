"""Folders of transformers' ``dpt``, over its own ViT, a hybrid or a backbone.

Backbones are DINOv2 without registers, BEiT and SwinV2: over Swin and registers, transformers' dpt
itself fails. SwinV2 runs on timm's blocks with ``pad_windows="before_shift"``, as in transformers.
We pad an image before the network, transformers pads maps inside of it: outputs are equal if the
image's sides are multiples of the deepest stride, 32.

The encoders, image processors and class names of transformers' other dense models are here too.
Tensor names are those on disk, which are stable; those in memory change.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import torch

from dpt.model_config import model_dict
from dpt.validation import Plain, PlainMapping
from dpt.weights import base, names, official
from dpt.weights.files import CheckpointFiles

Keys = Mapping[str, tuple[str, object]]
"""For each of our options, the key in another format's config and the default there."""

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
) -> names.Table:
    """Returns the rows of an encoder: ``first``, which it alone has, then those of all encoders.

    ``inner`` holds the queries, keys and values of a layer's attention.
    """
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


def dinov3_rows(theirs: str, layer: str, norm: str) -> names.Table:
    """Returns the rows of DINOv3's ViT but for its MLPs; ``theirs`` is a prefix of all names."""
    layer = f"{theirs}{layer}"
    return [
        ("encoder.cls_token", f"{theirs}embeddings.cls_token"),
        ("encoder.reg_token", f"{theirs}embeddings.register_tokens"),
        ("encoder.patch_embed.proj.*", f"{theirs}embeddings.patch_embeddings.*"),
        ("encoder.norm.*", f"{theirs}{norm}.*"),
        (f"{BLOCK}.norm{{k}}.*", f"{layer}.norm{{k}}.*"),
        (f"{BLOCK}.attn.q_bias", f"{layer}.attention.q_proj.bias"),
        (f"{BLOCK}.attn.v_bias", f"{layer}.attention.v_proj.bias"),
        (f"{BLOCK}.attn.qkv.*", f"{layer}.attention.{{q,k,v}}_proj.*"),
        (f"{BLOCK}.attn.proj.*", f"{layer}.attention.o_proj.*"),
        (f"{BLOCK}.ls{{k}}.gamma", f"{layer}.layer_scale{{k}}.lambda1"),
        (f"{BLOCK}.mlp.fc1.*", f"{layer}.mlp.up_proj.*"),
        (f"{BLOCK}.mlp.fc2.*", f"{layer}.mlp.down_proj.*"),
    ]


class Family(NamedTuple):
    """An encoder of transformers, and how it becomes ours.

    Attributes:
        table: rows of its tensors.
        keys: our options that its config holds.
        fixed: our other options.
        needed: the only supported values of its config; a missing key counts as having them,
            unless the value is True.
        gated: names of a gated MLP and its two layers.
    """

    table: names.Table
    keys: Keys
    fixed: Plain
    needed: PlainMapping = MappingProxyType({})
    gated: tuple[str, str, str] = (f"{LAYER}.mlp", "weights_in", "weights_out")


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
VIT_TABLE = _rows(theirs="dpt")
VIT_KEYS: Keys = {
    **KEYS,
    "image_size": ("image_size", 384),
    "qkv_bias": ("qkv_bias", True),
    "out_indices": ("backbone_out_indices", [2, 5, 8, 11]),
}
VIT = Family(VIT_TABLE, VIT_KEYS, {"position_resize": "bilinear"})
HYBRID = Family(
    [
        (CNN + "stem.conv.*", BIT_CNN + "embedder.convolution.*"),
        (CNN + "stem.norm.*", BIT_CNN + "embedder.norm.*"),
        (CNN + "stages.{s}.blocks.*", BIT_CNN + "encoder.stages.{s}.layers.*"),
        ("encoder.patch_embed.proj.*", "dpt.embeddings.projection.*"),
        *VIT_TABLE,
    ],
    VIT_KEYS,
    {**VIT.fixed, "weight_standardization": "sqrt"},
)
DINOV2_TABLE = _rows(
    ("encoder.norm.*", "backbone.layernorm.*"),
    (f"{BLOCK}.norm{{k}}.*", f"{LAYER}.norm{{k}}.*"),
    (f"{BLOCK}.mlp.*", f"{LAYER}.mlp.*"),
    (f"{BLOCK}.ls{{k}}.gamma", f"{LAYER}.layer_scale{{k}}.lambda1"),
)
DINOV2_KEYS: Keys = {
    **KEYS,
    "mlp_ratio": ("mlp_ratio", 4),
    "norm_eps": ("layer_norm_eps", 1e-6),
    "qkv_bias": ("qkv_bias", True),
    "layer_scale": ("layerscale_value", 1.0),
    "swiglu": ("use_swiglu_ffn", False),
    "final_norm": ("apply_layernorm", True),
}
DINOV3_KEYS: Keys = {
    **KEYS,
    "embed_dim": ("hidden_size", 384),
    "num_heads": ("num_attention_heads", 6),
    "mlp_ratio": ("intermediate_size", 1536),
    "norm_eps": ("layer_norm_eps", 1e-5),
    "qkv_bias": ("query_bias", True),
    "key_bias": ("key_bias", False),
    "rope_theta": ("rope_theta", 100.0),
    "layer_scale": ("layerscale_value", 1.0),
    "swiglu": ("use_gated_mlp", False),
    "num_register_tokens": ("num_register_tokens", 0),
}
BACKBONES = {
    "dinov2": Family(
        DINOV2_TABLE,
        {**DINOV2_KEYS, "patch_size": ("patch_size", 14)},
        {"position_resize": "bicubic", "num_register_tokens": 0},
    ),
    "dinov2_with_registers": Family(
        DINOV2_TABLE,
        {**DINOV2_KEYS, "num_register_tokens": ("num_register_tokens", 4)},
        {"position_resize": "bicubic_antialias"},
    ),
    "dinov3_vit": Family(
        dinov3_rows("backbone.", "layer.{i}", "norm"),
        {**DINOV3_KEYS, "final_norm": ("apply_layernorm", True)},
        {"position": "rope"},
        gated=("backbone.layer.{i}.mlp", "{gate,up}_proj", "down_proj"),
    ),
    "beit": Family(
        _rows(
            (
                f"{BLOCK}.attn.{BIASES}_table",
                f"{LAYER}.attention.attention.{BIASES}.{BIASES}_table",
            ),
            (f"{BLOCK}.ls{{k}}.gamma", f"{LAYER}.lambda_{{k}}"),
        ),
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
        _rows(
            # timm merges patches at the start of a stage, transformers at the end of the previous
            ("encoder.model.layers.{s}.downsample.*", "backbone.encoder.layers.{s-1}.downsample.*"),
            (f"encoder.model.{SWIN_BLOCK}.attn.logit_scale", f"{SELF}.logit_scale"),
            (
                f"encoder.model.{SWIN_BLOCK}.attn.cpb_mlp.*",
                f"{SELF}.continuous_position_bias_mlp.*",
            ),
            ours="encoder.model",
            block=SWIN_BLOCK,
            layer=SWIN_BLOCK,
            inner="self",
        ),
        {
            "image_size": ("image_size", 224),
            "in_channels": ("num_channels", 3),
            "patch_size": ("patch_size", 4),
            "embed_dim": ("embed_dim", 96),
            "depths": ("depths", [2, 2, 6, 2]),
            "num_heads": ("num_heads", [3, 6, 12, 24]),
            "window_size": ("window_size", 7),
            "pretrained_window_sizes": ("pretrained_window_sizes", [0, 0, 0, 0]),
            "mlp_ratio": ("mlp_ratio", 4.0),
            "qkv_bias": ("qkv_bias", True),
        },
        {"kind": "timm", "name": "swinv2_tiny_window8_256", "pad_windows": "before_shift"},
        {"use_absolute_embeddings": False, "layer_norm_eps": 1e-5},
    ),
}
"""Encoders that a ``backbone_config`` may describe, by ``model_type``."""


def find_family(encoder: Plain) -> tuple[str | None, Family]:
    """Returns the ``model_type`` of the ``backbone_config`` of our encoder, and its family.

    The ``model_type`` is None for the ViT and the hybrid of ``dpt`` itself.
    """
    kind: str = encoder["kind"]
    if kind == "hybrid":
        return None, HYBRID
    if encoder.get("position") == "rope":
        return "dinov3_vit", BACKBONES["dinov3_vit"]
    if kind == "vit" and encoder.get("layer_scale") is None:
        return None, VIT
    model_type = {"vit": "dinov2", "timm": "swinv2"}.get(kind, kind)
    return model_type, BACKBONES[model_type]


def encoder_table(encoder: Plain) -> names.Table:
    """Returns the rows of our encoder's tensors."""
    family = find_family(encoder)[1]
    return [*names.gated_rows(encoder, *family.gated), *family.table]


def read_encoder(family: Family, config: Plain) -> Plain:
    """Returns our encoder's options for an encoder of transformers.

    Raises:
        ValueError: it is not supported.
    """
    # of DINOv3's gated MLPs too; the others' are silu whatever the key holds
    activation = "silu" if config.get("use_gated_mlp") else "gelu"
    for key, value in {"hidden_act": activation, **family.needed}.items():
        actual = config.get(key, None if value is True else value)
        if actual != value:
            raise ValueError(f"an encoder with {key}={actual!r}, not supported (only {value!r})")
    encoder = {**family.fixed, **read_keys(family.keys, config)}
    size = encoder["image_size"]
    encoder["image_size"] = size = [size, size] if isinstance(size, int) else list(size)
    if family.keys["mlp_ratio"][0] == "intermediate_size":
        # the key holds the hidden width, which is two thirds of ours in gated MLPs
        encoder["mlp_ratio"] *= 1.5 if encoder.get("swiglu") else 1
        encoder["mlp_ratio"] /= encoder["embed_dim"]
    if encoder.get("kind") == "beit":
        encoder["layer_scale"] = encoder["layer_scale"] or None
    if "kind" in encoder:
        multiple = encoder["patch_size"] * 2 ** (len(encoder.get("depths", [0])) - 1)
        if size[0] != size[1] or size[0] % multiple:
            raise ValueError(f"image_size={size}: only squares of multiples of {multiple} are read")
    if encoder.get("kind") == "timm":
        encoder["img_size"] = encoder.pop("image_size")
    encoder.setdefault("out_indices", _levels(config, encoder.get("num_blocks", 4)))
    return encoder


def _levels(config: Plain, last: int) -> list[int]:
    """Returns the zero-based levels of a backbone, which counts from 1; 0 is the "stem"."""
    names = [name.removeprefix("stage") for name in config.get("out_features") or ()]
    stages = config.get("out_indices") or [0 if n == "stem" else int(n) for n in names]
    return [stage - 1 for stage in stages or [last]]


def read_backbone(config: Plain, *allowed: str) -> Plain:
    """Reads a ``backbone_config`` by :func:`read_encoder`; its ``model_type`` must be allowed."""
    model_type = config.get("model_type")
    if model_type not in allowed:
        only = ", ".join(allowed)
        raise ValueError(f"over a {model_type!r} backbone, which is not supported; only {only}")
    return read_encoder(BACKBONES[model_type], config)


def write_encoder(family: Family, encoder: Plain) -> Plain:
    """Returns transformers' config of our encoder, whose ``image_size`` must be square."""
    config = write_keys(family.keys, encoder)
    # DINOv2's blocks always have gains, BEiT's only if the value is not 0
    for key, without_gains in (("layerscale_value", 1.0), ("layer_scale_init_value", 0.0)):
        if key in config:
            config[key] = encoder["layer_scale"] or without_gains
    config["image_size"] = encoder["image_size"][0]
    if "mlp_ratio" in config:
        config["mlp_ratio"] = int(encoder["mlp_ratio"])
    else:
        config["intermediate_size"] = int(encoder["embed_dim"] * encoder["mlp_ratio"])
    if "query_bias" in config:
        config["value_bias"] = encoder["qkv_bias"]
        config["key_bias"] &= encoder["qkv_bias"]
    return config


def write_backbone(model_type: str, encoder: Plain) -> Plain:
    """Returns transformers' ``backbone_config`` of our encoder."""
    family = BACKBONES[model_type]
    return {
        "model_type": model_type,
        **write_encoder(family, encoder),
        **{k: v for k, v in family.needed.items() if v is True},
        "reshape_hidden_states": False,
        "out_indices": [i + 1 for i in encoder["out_indices"]],
    }


def read_keys(keys: Keys, config: Plain) -> Plain:
    """Returns our options for another format's config."""
    return {ours: config.get(key, default) for ours, (key, default) in keys.items()}


def write_keys(keys: Keys, options: Plain) -> Plain:
    """Returns another format's config for our options."""
    return {key: options[ours] for ours, (key, _) in keys.items()}


# --- Image processors and class names

_RESAMPLE = {2: "bilinear_antialias", 3: "cubic_antialias", 4: "area"}  # by Pillow's constant
_PILLOW = {"bilinear": 2, "cubic": 3, "area": 4}


def read_pixels(processor: Plain, mean: list[float], std: list[float], resample: int) -> Plain:
    """Returns our ``mean``, ``std`` and ``interpolation``; the arguments are the defaults."""
    mean, std = processor.get("image_mean", mean), processor.get("image_std", std)
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    factor = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1
    gain = 255 * factor  # the largest pixel value before normalisation
    resample = processor.get("resample", resample)
    return {
        "mean": [m / gain for m in mean],
        "std": [s / gain for s in std],
        "interpolation": _RESAMPLE.get(resample, resample),
    }


def write_pixels(preprocessing: Plain) -> Plain:
    """Returns the keys of an image processor that :func:`read_pixels` reads; it scales pixels by
    1/255 and normalises them by default."""
    return {
        "resample": _PILLOW[preprocessing["interpolation"].partition("_")[0]],
        "image_mean": list(preprocessing["mean"]),
        "image_std": list(preprocessing["std"]),
    }


def read_dpt_processor(processor: Plain, encoder: Plain) -> Plain:
    """Returns our preprocessing for a ``DPTImageProcessor``.

    Sets ``encoder["padding"]`` if the processor pads.
    """
    size = processor.get("size", 384)
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    rule = "minimal" if processor.get("keep_aspect_ratio", False) else "stretch"
    if processor.get("do_pad"):
        encoder["padding"] = "center"
    return {
        **read_pixels(processor, [0.5] * 3, [0.5] * 3, 3),
        "image_size": [size, size] if isinstance(size, int) else size,
        "resize": rule if processor.get("do_resize", True) else "none",
        "multiple_of": processor.get("ensure_multiple_of") or 1,
    }


def write_dpt_processor(config: Plain) -> Plain:
    """Returns the ``DPTImageProcessor`` that comes closest to our preprocessing."""
    encoder, preprocessing = config["encoder"], config["preprocessing"]
    size, rule = preprocessing["image_size"], preprocessing["resize"]
    if find_family(encoder)[0] is None:  # transformers' own ViT takes only square images
        size, rule = encoder["image_size"], "stretch"
    return {
        "image_processor_type": "DPTImageProcessor",
        "do_resize": rule != "none",
        "size": {"height": size[0], "width": size[1]},
        "keep_aspect_ratio": rule in ("minimal", "lower_bound", "upper_bound"),
        "ensure_multiple_of": preprocessing["multiple_of"],
        **write_pixels(preprocessing),
        "do_pad": encoder["padding"] == "center",
        "size_divisor": encoder["patch_size"],
    }


def read_names(config: Plain) -> list[str]:
    """Returns the class names in a config; none if they are transformers' placeholders."""
    labels = config.get("id2label") or {}
    names = [labels[k] for k in sorted(labels, key=int)]
    return [] if all(str(n).startswith("LABEL_") for n in names) else names


def write_names(head: Plain) -> Plain:
    """Returns the keys of a config that hold the class names of ``head``."""
    names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}


# --- The format

DECODER: Keys = {
    "readout": ("readout_type", "project"),
    "scales": ("reassemble_factors", [4, 2, 1, 0.5]),
    "reassemble_channels": ("neck_hidden_sizes", [96, 192, 384, 768]),
    "fusion_channels": ("fusion_hidden_size", 256),
    "batch_norm": ("use_batch_norm_in_fusion_residual", False),
    "unit_bias": ("use_bias_in_fusion_residual", None),
    "output_project": ("add_projection", False),
}
HEAD_TABLE = [
    ("decoder.output_project.*", "head.projection.*"),
    ("heads.depth.conv1.*", "head.head.0.*"),
    ("heads.depth.conv2.*", "head.head.2.*"),
    ("heads.depth.conv3.*", "head.head.4.*"),
    ("heads.segmentation.layers.*", "head.head.*"),
    ("heads.segmentation.auxiliary_layers.*", "auxiliary_head.head.*"),
]
DEEPEST_UNIT = "neck.fusion_stage.layers.0.residual_layer"
MASK_TOKEN = "backbone.embeddings.mask_token"
BIT = {  # config of the hybrid's CNN
    "model_type": "bit",
    "global_padding": "same",
    "layer_type": "bottleneck",
    "depths": [3, 4, 9],
    "out_features": ["stage1", "stage2", "stage3"],
    "embedding_dynamic_padding": True,
}


def neck_table(levels: int = 4) -> names.Table:
    """Returns the rows of the decoder; transformers counts fusion blocks from the deepest level."""
    stage, fusion = "neck.reassemble_stage", f"neck.fusion_stage.layers.{{{levels - 1}-n}}"
    return [
        ("decoder.reassemble.{n}.read.linear.*", f"{stage}.readout_projects.{{n}}.0.*"),
        ("decoder.reassemble.{n}.project.*", f"{stage}.layers.{{n}}.projection.*"),
        ("decoder.reassemble.{n}.resample.conv.*", f"{stage}.layers.{{n}}.resize.*"),
        ("decoder.layer_rn.*", "neck.convs.*"),
        ("decoder.fusion.{n}.project.*", f"{fusion}.projection.*"),
        ("decoder.fusion.{n}.rcu{k}.conv{j}.*", f"{fusion}.residual_layer{{k}}.convolution{{j}}.*"),
        ("decoder.fusion.{n}.rcu{k}.bn{j}.*", f"{fusion}.residual_layer{{k}}.batch_norm{{j}}.*"),
    ]


def never_run(encoder: Plain) -> list[str]:
    """Returns patterns for names of tensors on disk that no prediction uses."""
    last = encoder["out_indices"][-1]
    count = encoder.get("num_blocks") or len(encoder["depths"])
    return [
        *(f"{DEEPEST_UNIT}1.*", MASK_TOKEN),
        *("dpt.pooler.*", "dpt.layernorm.*", "backbone.layernorm.*", "backbone.beit.layernorm.*"),
        # buffers that older versions saved
        *("backbone.*.relative_position_index", "backbone.*.relative_coords_table"),
        *(f"*.encoder.layer.{i}.*" for i in range(last + 1, count)),
        *(f"backbone.encoder.layers.{i}.*" for i in range(last + 1, count)),
        f"backbone.encoder.layers.{last}.downsample.*",  # before a stage that is not used
    ]


class Transformers(base.Format):
    """Folders of ``config.json``, ``preprocessor_config.json`` and weights."""

    name = "transformers"
    encoders = ("vit", "hybrid", "beit")
    free = base.Format.free | {
        "decoder.align": "outputs are equal where both sides are multiples of two patches",
        "encoder.weight_standardization": "the weights of the CNN are scaled for it",
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") == "dpt"

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        encoder, decoder = _read_encoder_and_decoder(files.config)
        name, head = _read_head(files, decoder)
        config = model_dict(
            "dpt_hybrid" if files.config.get("is_hybrid") else "dpt_base",
            heads={name: {**head, "upsample": "double"}},
            encoder=encoder,
            decoder={**decoder, "align": "resize_lateral"},
            preprocessing={
                **read_dpt_processor(files.processor, encoder),
                # of its image processor's post_process methods
                "output_interpolation": "bicubic" if name == "depth" else "bilinear",
            },
        )
        return base.StoredModel(config, files.tensors, _table(config), never_run(config["encoder"]))

    def _files(self, config: Plain, tensors: names.Tensors, path: Path) -> CheckpointFiles:
        encoder, (head,) = config["encoder"], config["heads"].values()
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        _check_writable(config)
        if encoder["patch_size"] == 16:  # its heads upsample twofold, here to the image's size
            head["upsample"] = "double"
        if encoder.get("weight_standardization") == "official":
            tensors = official.restandardize(tensors, "sqrt")
        theirs = names.to_theirs(tensors, _table(config), DEEPEST_UNIT)
        dim, model_type = encoder["embed_dim"], find_family(encoder)[0]
        norm = "backbone.layernorm" if model_type else "dpt.layernorm"
        if model_type != "beit" and f"{norm}.weight" not in theirs:
            # its models hold these and never use them
            theirs |= {f"{norm}.weight": torch.ones(dim), f"{norm}.bias": torch.zeros(dim)}
        return CheckpointFiles(path, theirs, _write_config(config), write_dpt_processor(config))


def _table(config: Plain) -> names.Table:
    neck = neck_table(len(config["decoder"]["reassemble_channels"]))
    return [*encoder_table(config["encoder"]), *neck, *HEAD_TABLE]


def _read_encoder_and_decoder(config: Plain) -> tuple[Plain, Plain]:
    decoder = read_keys(DECODER, config)
    levels = len(decoder["reassemble_channels"])
    if config.get("is_hybrid"):  # the first two levels are stages of the CNN
        encoder = read_encoder(HYBRID, config)
        encoder["out_indices"] = encoder["out_indices"][2:]
        decoder["reassemble_channels"] = [None, None, *decoder["reassemble_channels"][2:]]
        decoder["scales"] = [1, 1, *decoder["scales"][2:]]  # whatever its config says
    elif config.get("backbone_config") is not None:
        encoder = read_backbone(config["backbone_config"], "dinov2", "beit", "swinv2")
    else:
        encoder = read_encoder(VIT, config)
    # the activation is that of the readout, also over a backbone
    readable: dict[str, list[object]] = {"hidden_act": ["gelu"], "head_in_index": [-1, levels - 1]}
    for key, values in readable.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"{key}={config[key]!r}: only {values[0]!r} is read")
    decoder["scales"] = decoder["scales"][:levels]
    if encoder.get("kind") == "timm":  # the maps of a pyramid go straight to the fusion
        decoder |= {"reassemble_channels": [None] * levels, "scales": [1] * levels}
        decoder["readout"] = "ignore"
    if decoder["unit_bias"] is None:
        decoder["unit_bias"] = not decoder["batch_norm"]
    return encoder, decoder


def _read_head(files: CheckpointFiles, decoder: Plain) -> tuple[str, Plain]:
    """Returns the name and the options of the head; segmentation has no ``output_project``."""
    config, architectures = files.config, str(files.config.get("architectures"))
    if "Segmentation" in architectures or (
        "Depth" not in architectures and "head.head.1.running_mean" in files.tensors
    ):
        decoder["output_project"] = False
        shapes = names.Shapes(files.tensors, "transformers' dpt")
        return "segmentation", {
            "num_classes": shapes("head.head.4.weight")[0],
            "class_names": read_names(config),
            "dropout": config.get("semantic_classifier_dropout", 0.1),
            "auxiliary": config.get("use_auxiliary_head", True),
        }
    if decoder["output_project"]:  # only DINOv2's depth heads have it: metres
        return "depth", {"kind": "metric", "activation": "relu"}
    return "depth", {"kind": "relative"}


def _check_writable(config: Plain) -> None:
    """Raises a ValueError for what transformers' dpt would compute in another way."""
    encoder, decoder = config["encoder"], config["decoder"]
    is_hybrid, channels = encoder["kind"] == "hybrid", decoder["fusion_channels"]
    faults = []
    if "segmentation" in config["heads"] and find_family(encoder)[0] is not None:
        faults.append("its dpt has no segmentation over a DINOv2 or BEiT encoder")
    if None in decoder["reassemble_channels"] and not is_hybrid:
        faults.append("its dpt has a projection on every level")
    if is_hybrid and decoder["readout"] != "project":
        faults.append("its hybrid has decoder.readout='project'")
    if decoder["output_project"] and channels != 256:
        faults.append("its metric depth has decoder.fusion_channels=256")
    if faults:
        raise ValueError("; ".join(faults))


def _write_config(config: Plain) -> Plain:
    """Returns ``config.json`` for our complete configuration."""
    encoder, decoder = config["encoder"], config["decoder"]
    ((name, head),) = config["heads"].items()
    model_type, family = find_family(encoder)
    is_hybrid = encoder["kind"] == "hybrid"
    task = "DepthEstimation" if name == "depth" else "SemanticSegmentation"
    theirs: Plain = {
        "architectures": [f"DPTFor{task}"],
        "model_type": "dpt",
        "is_hybrid": is_hybrid,
        **write_keys(DECODER, decoder),
        # transformers takes scales from 1 on as strides, which must be int
        "reassemble_factors": [int(s) if s >= 1 else s for s in decoder["scales"]],
    }
    if name == "segmentation":
        theirs |= {
            **write_names(head),
            "use_auxiliary_head": head["auxiliary"],
            "semantic_classifier_dropout": head["dropout"],
        }
    if model_type is not None:
        mask = {"use_mask_token": False} if model_type == "dinov2" else {}
        return {**theirs, "backbone_config": write_backbone(model_type, encoder) | mask}
    theirs |= write_encoder(family, encoder)
    if is_hybrid:
        grid = encoder["image_size"][0] // encoder["patch_size"]
        theirs |= {
            "neck_hidden_sizes": [256, 512, *decoder["reassemble_channels"][2:]],
            "backbone_out_indices": [0, 1, *encoder["out_indices"]],
            "backbone_featmap_shape": [1, 1024, grid, grid],
            "neck_ignore_stages": [0, 1],
            "backbone_config": BIT,
        }
    return theirs
