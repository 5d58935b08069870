"""Folders of transformers' ``eomt`` and ``eomt_dinov3`` (Kerssies et al. 2025), EoMT over DINOv2 or
DINOv3: semantic, instance or panoptic.

This project adds two keys to the config: ``head``, the head's name here, and ``thing_ids``, the
classes that are things. Without them, a model whose image processor splits images is semantic; one
with 80 classes is of COCO's objects; one with 133 is of COCO's panoptic classes, of which the first
80 are things; any other is panoptic, and all its classes are things. Images are padded to the
square of ``image_size``, or of a semantic model split into windows of it, as transformers does.
"""

import fnmatch
from pathlib import Path

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import base, names, transformers
from dpt.weights.files import CheckpointFiles

KEYS: transformers.Keys = {  # our argument, their key and its default
    "embed_dim": ("hidden_size", 1024),
    "num_blocks": ("num_hidden_layers", 24),
    "num_heads": ("num_attention_heads", 16),
    "norm_eps": ("layer_norm_eps", 1e-6),
    "image_size": ("image_size", 640),
    "patch_size": ("patch_size", 16),
    "in_channels": ("num_channels", 3),
    "layer_scale": ("layerscale_value", 1.0),
    "drop_path": ("drop_path_rate", 0.0),
    "num_register_tokens": ("num_register_tokens", 4),
    "num_later_blocks": ("num_blocks", 4),
}
BLOCK, LAYER = "encoder.blocks.{i}", "layers.{i}"
COCO_THINGS, COCO_PANOPTIC = 80, 133
WITHOUT_BATCH = ("query.weight", "embeddings.position_embeddings.weight")
"""Their tensors (N, D) that are (1, N, D) here."""
GATED = (f"{LAYER}.mlp", "{gate,up}_proj", "down_proj")
OLDER_GATED = (f"{LAYER}.mlp", "weights_in", "weights_out")
"""The same of folders that transformers before 5.20 wrote."""
FAMILIES = {
    "eomt": transformers.Family(
        [
            ("encoder.pos_embed", "embeddings.position_embeddings.weight"),
            ("encoder.patch_embed.proj.*", "embeddings.patch_embeddings.projection.*"),
            (f"{BLOCK}.attn.proj.*", f"{LAYER}.attention.out_proj.*"),
            (f"{BLOCK}.mlp.*", f"{LAYER}.mlp.*"),
            *transformers.dinov3_rows("", LAYER, "layernorm"),
        ],
        {**KEYS, "mlp_ratio": ("mlp_ratio", 4), "swiglu": ("use_swiglu_ffn", False)},
        {"cls_position": False, "position_resize": "bicubic_antialias"},
        gated=GATED,
    ),
    "eomt_dinov3": transformers.Family(
        transformers.dinov3_rows("", LAYER, "layernorm"),
        {
            **KEYS,
            **{k: transformers.DINOV3_KEYS[k] for k in ("qkv_bias", "key_bias", "rope_theta")},
            "mlp_ratio": ("intermediate_size", 4096),
        },
        {"position": "rope"},
        {"use_gated_mlp": False},
    ),
}
"""The encoders of EoMT, by ``model_type``."""
CLASSES = {"eomt": "Eomt", "eomt_dinov3": "EomtDinov3"}


def eomt_names(name: str, encoder: Plain, gated: tuple[str, str, str] = GATED) -> names.Table:
    """Returns the rows of a model whose head is called ``name``."""
    head = f"heads.{name}"
    return [
        *names.gated_rows(encoder, *gated),
        *FAMILIES[_model_type(encoder)].table,
        (f"{head}.queries", "query.weight"),
        (f"{head}.classify.*", "class_predictor.*"),
        (f"{head}.mask_mlp.0.*", "mask_head.fc1.*"),
        (f"{head}.mask_mlp.2.*", "mask_head.fc2.*"),
        (f"{head}.mask_mlp.4.*", "mask_head.fc3.*"),
        (f"{head}.upscale.{{n}}.norm.*", "upscale_block.block.{n}.layernorm2d.*"),
        (f"{head}.upscale.{{n}}.*", "upscale_block.block.{n}.*"),
        (f"{head}.mask_shares", "attn_mask_probs"),
    ]


class Eomt(base.Format):
    """transformers' ``EomtForUniversalSegmentation`` and its sibling over DINOv3, image processor
    included."""

    name = "eomt"
    encoders = ("vit",)
    heads = ("segmentation", "panoptic", "instance")
    free = base.Format.free | {
        "decoder.*": None,  # there is none
        "encoder.position_resize": "outputs differ away from the encoder's image_size",
        **dict.fromkeys(
            f"heads.*.{k}" for k in ("auxiliary", "upsample", "num_layers", "masked_attention")
        ),
        "heads.*.threshold": "it is an argument of the image processor's post_process methods",
        "heads.*.overlap": "it is an argument of the image processor's post_process methods",
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") in FAMILIES

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        name, head = _read_head(files)
        flat = {**(files.config.get("rope_parameters") or {}), **files.config}
        encoder = transformers.read_encoder(FAMILIES[flat["model_type"]], flat)
        encoder["out_indices"] = [encoder["num_blocks"] - 1 - encoder["num_later_blocks"]]
        size = files.config.get("image_size", KEYS["image_size"][1])
        statistics = names.IMAGENET["mean"], names.IMAGENET["std"]
        shortest = (files.processor.get("size") or {}).get("shortest_edge", size)
        config = model_dict(
            "eomt_large",
            heads={name: head},
            encoder=encoder,
            preprocessing={
                **transformers.read_pixels(files.processor, *statistics, 2),
                "image_size": [shortest, shortest],
                "resize": "windows" if name == "segmentation" else "pad",
                "output_interpolation": "bilinear_scores",
            },
        )
        tensors = {k: v[None] if k in WITHOUT_BATCH else v for k, v in files.tensors.items()}
        gated = OLDER_GATED if "layers.0.mlp.weights_in.weight" in tensors else GATED
        return base.StoredModel(config, tensors, eomt_names(name, encoder, gated), ["criterion.*"])

    def _files(self, config: Plain, tensors: names.Tensors, path: Path) -> CheckpointFiles:
        encoder, preprocessing = config["encoder"], config["preprocessing"]
        ((name, head),) = config["heads"].items()
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1 + encoder["num_later_blocks"]
        model_type = _model_type(encoder)
        if model_type == "eomt_dinov3":
            encoder["cls_position"] = False  # it has no position embeddings
        theirs = {
            "architectures": [f"{CLASSES[model_type]}ForUniversalSegmentation"],
            "model_type": model_type,
            "head": name,
            **transformers.write_encoder(FAMILIES[model_type], encoder),
            "num_upscale_blocks": len(fnmatch.filter(tensors, f"heads.{name}.upscale.*.norm.bias")),
            "num_queries": head["num_queries"],
            **transformers.write_names(head),
        }
        if "rope_theta" in theirs:
            theta = theirs.pop("rope_theta")
            theirs["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
        if "things" in head:
            theirs["thing_ids"] = [i for i, is_thing in enumerate(head["things"]) if is_thing]
        is_split, side = name == "segmentation", preprocessing["image_size"][0]
        processor = {  # the one that comes closest to ours
            "image_processor_type": "EomtImageProcessor",
            "size": {"shortest_edge": side, "longest_edge": None if is_split else side},
            **transformers.write_pixels(preprocessing),
            "do_split_image": is_split,
            "do_pad": not is_split,
        }
        renamed = names.to_theirs(tensors, eomt_names(name, encoder))
        renamed = {k: v[0] if k in WITHOUT_BATCH else v for k, v in renamed.items()}
        return CheckpointFiles(path, renamed, theirs, processor)


def _model_type(encoder: Plain) -> str:
    return "eomt_dinov3" if encoder.get("position") == "rope" else "eomt"


def _read_head(files: CheckpointFiles) -> tuple[str, Plain]:
    """Returns the name and the options of the head."""
    config = files.config
    num_classes = len(config.get("id2label") or ()) or int(config.get("num_labels", 2))
    head: Plain = {
        "num_classes": num_classes,
        "num_queries": config.get("num_queries", 200),
        "class_names": transformers.read_names(config),
    }
    default = "instance" if num_classes == COCO_THINGS else "panoptic"
    if files.processor.get("do_split_image"):
        default = "segmentation"
    name = config.get("head", default)
    if name == "segmentation":
        return name, {**head, "kind": "masks"}
    usual = range(COCO_THINGS if num_classes == COCO_PANOPTIC else num_classes)
    things = config.get("thing_ids", usual)
    return name, {**head, "things": [i in things for i in range(num_classes)]}
