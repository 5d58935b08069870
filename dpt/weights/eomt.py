"""Folders of transformers' ``eomt`` (Kerssies et al. 2025): semantic, instance or panoptic.

This project adds two keys to the config: ``head``, the head's name here, and ``thing_ids``, the
classes that are things. Without them, a model whose image processor splits images is semantic; one
with 80 classes is of COCO's objects; one with 133 is of COCO's panoptic classes, of which the first
80 are things; any other is panoptic, and all its classes are things. transformers takes only
squares of ``image_size``; here position embeddings are resized for other sizes.
"""

import fnmatch
from pathlib import Path

from dpt.model_config import model_dict
from dpt.weights.files import Source
from dpt.weights.format import (
    Checkpoint,
    Config,
    Format,
    Keys,
    Table,
    Tensors,
    from_theirs,
    read_keys,
    to_theirs,
    write_keys,
)
from dpt.weights.transformers import PILLOW, RESAMPLE, read_names, read_pixels, write_names

KEYS: Keys = {  # our argument, their key and its default
    "embed_dim": ("hidden_size", 1024),
    "num_blocks": ("num_hidden_layers", 24),
    "num_heads": ("num_attention_heads", 16),
    "mlp_ratio": ("mlp_ratio", 4),
    "norm_eps": ("layer_norm_eps", 1e-6),
    "image_size": ("image_size", 640),
    "patch_size": ("patch_size", 16),
    "in_channels": ("num_channels", 3),
    "layer_scale": ("layerscale_value", 1.0),
    "drop_path": ("drop_path_rate", 0.0),
    "num_register_tokens": ("num_register_tokens", 4),
    "swiglu": ("use_swiglu_ffn", False),
    "num_later_blocks": ("num_blocks", 4),
}
BLOCK, LAYER = "encoder.blocks.{i}", "layers.{i}"
COCO_THINGS, COCO_PANOPTIC = 80, 133
WITHOUT_BATCH = ("query.weight", "embeddings.position_embeddings.weight")
"""Their tensors (N, D) that are (1, N, D) here."""


def table(name: str, *, swiglu: bool) -> Table:
    """Rows of a model whose head is called ``name``."""
    head = f"heads.{name}"
    gated = [
        (f"{BLOCK}.mlp.fc1.*", f"{LAYER}.mlp.{{gate,up}}_proj.*"),
        (f"{BLOCK}.mlp.fc2.*", f"{LAYER}.mlp.down_proj.*"),
    ]
    return [
        *(gated if swiglu else []),
        ("encoder.cls_token", "embeddings.cls_token"),
        ("encoder.reg_token", "embeddings.register_tokens"),
        ("encoder.pos_embed", "embeddings.position_embeddings.weight"),
        ("encoder.patch_embed.proj.*", "embeddings.patch_embeddings.projection.*"),
        ("encoder.norm.*", "layernorm.*"),
        (f"{BLOCK}.norm{{k}}.*", f"{LAYER}.norm{{k}}.*"),
        (f"{BLOCK}.attn.qkv.*", f"{LAYER}.attention.{{q,k,v}}_proj.*"),
        (f"{BLOCK}.attn.proj.*", f"{LAYER}.attention.out_proj.*"),
        (f"{BLOCK}.mlp.*", f"{LAYER}.mlp.*"),
        (f"{BLOCK}.ls{{k}}.gamma", f"{LAYER}.layer_scale{{k}}.lambda1"),
        (f"{head}.queries", "query.weight"),
        (f"{head}.classify.*", "class_predictor.*"),
        (f"{head}.mask_mlp.0.*", "mask_head.fc1.*"),
        (f"{head}.mask_mlp.2.*", "mask_head.fc2.*"),
        (f"{head}.mask_mlp.4.*", "mask_head.fc3.*"),
        (f"{head}.upscale.{{n}}.norm.*", "upscale_block.block.{n}.layernorm2d.*"),
        (f"{head}.upscale.{{n}}.*", "upscale_block.block.{n}.*"),
        (f"{head}.mask_shares", "attn_mask_probs"),
    ]


class Eomt(Format):
    """transformers' ``EomtForUniversalSegmentation``, image processor included."""

    name = "eomt"
    encoders = ("vit",)
    heads = ("segmentation", "panoptic", "instance")
    free = Format.free | {
        "decoder.*": None,  # there is none
        "encoder.position_resize": "outputs differ away from the encoder's image_size",
        **dict.fromkeys(
            f"heads.*.{k}" for k in ("auxiliary", "upsample", "num_layers", "masked_attention")
        ),
        "heads.*.threshold": "it is an argument of the image processor's post_process methods",
        "heads.*.overlap": "it is an argument of the image processor's post_process methods",
    }

    def recognises(self, source: Source) -> bool:
        return source.config.get("model_type") == "eomt"

    def read(self, source: Source) -> Checkpoint:
        theirs = source.config
        encoder = read_keys(KEYS, theirs)
        if theirs.get("hidden_act", "gelu") != "gelu":
            raise ValueError(f"hidden_act={theirs['hidden_act']!r}: only 'gelu' is supported")
        size, later = encoder["image_size"], encoder["num_later_blocks"]
        encoder |= {
            "image_size": [size, size] if isinstance(size, int) else list(size),
            "out_indices": [encoder["num_blocks"] - 1 - later],
            "cls_position": False,
            "position_resize": "bicubic_antialias",
        }
        count = len(theirs.get("id2label") or ()) or int(theirs.get("num_labels", 2))
        things = theirs.get("thing_ids", range(COCO_THINGS if count == COCO_PANOPTIC else count))
        head: Config = {
            "num_classes": count,
            "num_queries": theirs.get("num_queries", 200),
            "class_names": read_names(theirs),
        }
        processor = source.processor
        usual = "instance" if count == COCO_THINGS else "panoptic"
        name = theirs.get("head", "segmentation" if processor.get("do_split_image") else usual)
        if name == "segmentation":
            head["kind"] = "masks"
        else:
            head["things"] = [i in things for i in range(count)]
        shortest = (processor.get("size") or {}).get("shortest_edge", size)
        resample = processor.get("resample", 2)
        config = model_dict(
            "eomt_large",
            heads={name: head},
            encoder=encoder,
            preprocessing={  # without the padding to a square
                **read_pixels(processor, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                "image_size": [shortest, shortest],
                "resize": "lower_bound" if name == "segmentation" else "upper_bound",
                "interpolation": RESAMPLE.get(resample, resample),
                "output_interpolation": "bilinear",
            },
        )
        tensors = {k: v[None] if k in WITHOUT_BATCH else v for k, v in source.tensors.items()}
        rows = table(name, swiglu=encoder["swiglu"])
        return from_theirs(config, tensors, rows, ("criterion.*",))

    def _write(self, config: Config, tensors: Tensors, path: Path) -> Source:
        encoder, preprocessing = config["encoder"], config["preprocessing"]
        ((name, head),) = config["heads"].items()
        height, width = encoder["image_size"]
        if height != width:
            raise ValueError(f"encoder.image_size={[height, width]}: only squares")
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1 + encoder["num_later_blocks"]
        theirs = {
            "architectures": ["EomtForUniversalSegmentation"],
            "model_type": "eomt",
            "head": name,
            "hidden_act": "gelu",
            **write_keys(KEYS, encoder),
            "image_size": height,
            "mlp_ratio": int(encoder["mlp_ratio"]),
            "num_upscale_blocks": len(fnmatch.filter(tensors, f"heads.{name}.upscale.*.norm.bias")),
            "num_queries": head["num_queries"],
            **write_names(head),
            "dtype": str(tensors["encoder.cls_token"].dtype).removeprefix("torch."),
        }
        if "things" in head:
            theirs["thing_ids"] = [i for i, thing in enumerate(head["things"]) if thing]
        split, side = name == "segmentation", preprocessing["image_size"][0]
        processor = {  # the one that comes closest to ours
            "image_processor_type": "EomtImageProcessor",
            "do_resize": True,
            "size": {"shortest_edge": side, "longest_edge": None if split else side},
            "resample": PILLOW[preprocessing["interpolation"].partition("_")[0]],
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(preprocessing["mean"]),
            "image_std": list(preprocessing["std"]),
            "do_split_image": split,
            "do_pad": not split,
        }
        found = to_theirs(tensors, table(name, swiglu=encoder["swiglu"]), "-")
        found = {k: v[0] if k in WITHOUT_BATCH else v for k, v in found.items()}
        return Source(path, theirs, processor, found)
