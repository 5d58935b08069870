"""Folders of transformers' ``dpt``, over its own ViT, a hybrid or a backbone.

Backbones are DINOv2, BEiT and SwinV2; over Swin, transformers' dpt itself fails. SwinV2 runs on
timm's blocks with ``pad_windows="before_shift"``, as in transformers. We pad an image before the
network, transformers pads maps inside of it: outputs are equal if the image's sides are multiples
of the deepest stride, 32.
"""

from pathlib import Path

import torch

from dpt.model_config import model_dict
from dpt.validation import Plain
from dpt.weights import transformers_config as configs
from dpt.weights.base import Format, StoredModel
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import Shapes, Table, Tensors, to_theirs
from dpt.weights.official import restandardize
from dpt.weights.transformers_config import Keys

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
MASK_TOKEN, REGISTERS = "backbone.embeddings.mask_token", "backbone.embeddings.register_tokens"
BIT = {  # config of the hybrid's CNN
    "model_type": "bit",
    "global_padding": "same",
    "layer_type": "bottleneck",
    "depths": [3, 4, 9],
    "out_features": ["stage1", "stage2", "stage3"],
    "embedding_dynamic_padding": True,
}


def neck_table(levels: int = 4) -> Table:
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
        *(f"{DEEPEST_UNIT}1.*", MASK_TOKEN, REGISTERS),
        *("dpt.pooler.*", "dpt.layernorm.*", "backbone.layernorm.*", "backbone.beit.layernorm.*"),
        # buffers that older versions saved
        *("backbone.*.relative_position_index", "backbone.*.relative_coords_table"),
        *(f"*.encoder.layer.{i}.*" for i in range(last + 1, count)),
        *(f"backbone.encoder.layers.{i}.*" for i in range(last + 1, count)),
        f"backbone.encoder.layers.{last}.downsample.*",  # before a stage that is not used
    ]


class Transformers(Format):
    """Folders of ``config.json``, ``preprocessor_config.json`` and weights."""

    name = "transformers"
    encoders = ("vit", "hybrid", "beit")
    free = Format.free | {
        "decoder.align": "outputs are equal where both sides are multiples of two patches",
        "encoder.weight_standardization": "the weights of the CNN are scaled for it",
    }

    def recognises(self, files: CheckpointFiles) -> bool:
        return files.config.get("model_type") == "dpt"

    def read(self, files: CheckpointFiles) -> StoredModel:
        encoder, decoder = _read_encoder_and_decoder(files.config)
        name, head = _read_head(files, decoder)
        config = model_dict(
            "dpt_hybrid" if files.config.get("is_hybrid") else "dpt_base",
            heads={name: {**head, "upsample": "double"}},
            encoder=encoder,
            decoder={**decoder, "align": "resize_lateral"},
            preprocessing={
                **configs.read_dpt_processor(files.processor, encoder),
                # of its image processor's post_process methods
                "output_interpolation": "bicubic" if name == "depth" else "bilinear",
            },
        )
        return StoredModel(config, files.tensors, _table(config), never_run(config["encoder"]))

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        encoder, (head,) = config["encoder"], config["heads"].values()
        encoder["num_blocks"] = encoder["out_indices"][-1] + 1  # later ones are not built
        _check_writable(config)
        if encoder["patch_size"] == 16:  # its heads upsample twofold, here to the image's size
            head["upsample"] = "double"
        if encoder.get("weight_standardization") == "official":
            tensors = restandardize(tensors, "sqrt")
        theirs = to_theirs(tensors, _table(config), DEEPEST_UNIT)
        dim, model_type = encoder["embed_dim"], configs.find_family(encoder)[0]
        norm = "backbone.layernorm" if model_type else "dpt.layernorm"
        if model_type != "beit" and f"{norm}.weight" not in theirs:
            # its models hold these and the following, and never use them
            theirs |= {f"{norm}.weight": torch.ones(dim), f"{norm}.bias": torch.zeros(dim)}
        if model_type == "dinov2_with_registers":
            theirs |= {REGISTERS: torch.zeros(1, 0, dim), MASK_TOKEN: torch.zeros(1, dim)}
        dtype = str(tensors["encoder.cls_token"].dtype).removeprefix("torch.")
        theirs_config = {**_write_config(config), "dtype": dtype}
        # transformers' own ViT takes only square images
        processor = configs.write_dpt_processor(config, only_square=model_type is None)
        return CheckpointFiles(path, theirs, theirs_config, processor)


def _table(config: Plain) -> Table:
    neck = neck_table(len(config["decoder"]["reassemble_channels"]))
    return [*configs.encoder_table(config["encoder"]), *neck, *HEAD_TABLE]


def _read_encoder_and_decoder(config: Plain) -> tuple[Plain, Plain]:
    decoder = configs.read_keys(DECODER, config)
    levels = len(decoder["reassemble_channels"])
    if config.get("is_hybrid"):  # the first two levels are stages of the CNN
        encoder = configs.read_encoder(configs.HYBRID, config)
        encoder["out_indices"] = encoder["out_indices"][2:]
        decoder["reassemble_channels"] = [None, None, *decoder["reassemble_channels"][2:]]
        decoder["scales"] = [1, 1, *decoder["scales"][2:]]  # whatever its config says
    elif config.get("backbone_config") is not None:
        encoder = configs.read_backbone(config["backbone_config"], *configs.DPT_BACKBONES)
    else:
        encoder = configs.read_encoder(configs.VIT, config)
    if config.get("hidden_act", "gelu") != "gelu":  # of the readout, also over a backbone
        raise ValueError(f"hidden_act={config['hidden_act']!r}: only 'gelu' is read")
    if config.get("head_in_index", -1) not in (-1, levels - 1):
        raise ValueError(f"head_in_index={config['head_in_index']}: only -1 is read")
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
        shapes = Shapes(files.tensors, "transformers' dpt")
        return "segmentation", {
            "num_classes": shapes("head.head.4.weight")[0],
            "class_names": configs.read_names(config),
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
    if registers := encoder["num_register_tokens"]:
        faults.append(f"num_register_tokens={registers}: its dpt takes them for patches")
    if "segmentation" in config["heads"] and configs.find_family(encoder)[0] is not None:
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
    model_type, family = configs.find_family(encoder)
    is_hybrid = encoder["kind"] == "hybrid"
    task = "DepthEstimation" if name == "depth" else "SemanticSegmentation"
    theirs: Plain = {
        "architectures": [f"DPTFor{task}"],
        "model_type": "dpt",
        "hidden_act": "gelu",
        "is_hybrid": is_hybrid,
        "head_in_index": -1,
        **configs.write_keys(DECODER, decoder),
        # transformers takes scales from 1 on as strides, which must be int
        "reassemble_factors": [int(s) if s >= 1 else s for s in decoder["scales"]],
    }
    if name == "segmentation":
        theirs |= {
            **configs.write_names(head),
            "use_auxiliary_head": head["auxiliary"],
            "semantic_classifier_dropout": head["dropout"],
        }
    if model_type is not None:
        theirs["backbone_config"] = configs.write_backbone(model_type, encoder)
        if model_type == "dinov2":
            theirs["backbone_config"]["use_mask_token"] = False
        return theirs
    theirs |= configs.write_encoder(family, encoder)
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
