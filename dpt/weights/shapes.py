"""Settings that follow from the shapes of a file's tensors, and from the keys of its config."""

import math
from collections.abc import Mapping

from dpt.nn.vit import gated_width
from dpt.validation import Plain
from dpt.weights.names import Tensors

Keys = Mapping[str, tuple[str, object]]
"""For each of our options, the key in another format's config and the default there."""


class Shapes:
    """Shapes of the tensors of a file, for readers; one that is missing is a ValueError.

    Args:
        tensors: by the file's names.
        family: of the model, for messages.
    """

    def __init__(self, tensors: Tensors, family: str) -> None:
        self.tensors, self.family = tensors, family

    def __call__(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise ValueError(f"looks like {self.family}, but {name} is missing")
        return tuple(self.tensors[name].shape)

    def count(self, prefix: str) -> int:
        """Returns the number of items under ``prefix``, such as ``pretrained.blocks.``."""
        return len({n[len(prefix) :].split(".")[0] for n in self.tensors if n.startswith(prefix)})

    def vit(self, prefix: str) -> Plain:
        """Returns the options of our ViT for one under ``prefix``, with timm's or DINOv2's names.

        Assumed, not derived from shapes: 64 channels per head, a LayerNorm eps of 1e-6, and 16
        pixels for a hybrid's patches.
        """
        slots, dim = self(f"{prefix}pos_embed")[1:]
        if dim % 64:
            raise ValueError(f"{dim} channels; {self.family} has 64 a head")
        hybrid = any(k.startswith(f"{prefix}patch_embed.backbone.") for k in self.tensors)
        patch = 16 if hybrid else self(f"{prefix}patch_embed.proj.weight")[-1]
        block = f"{prefix}blocks.0."
        gated = f"{block}mlp.w12.weight" in self.tensors
        mlp_ratio = self(f"{block}mlp.{'w12' if gated else 'fc1'}.weight")[0] / dim
        if gated:
            mlp_ratio = 4.0 if mlp_ratio * dim == 2 * gated_width(4 * dim) else 0.75 * mlp_ratio
        registers = f"{prefix}register_tokens"
        return {
            "image_size": [math.isqrt(slots - 1) * patch] * 2,
            "patch_size": patch,
            "embed_dim": dim,
            "num_blocks": self.count(f"{prefix}blocks."),
            "num_heads": dim // 64,
            "mlp_ratio": mlp_ratio,
            "swiglu": gated,
            "qkv_bias": f"{block}attn.qkv.bias" in self.tensors,
            "norm_eps": 1e-6,
            "num_register_tokens": self(registers)[1] if registers in self.tensors else 0,
        }


def quarter_ends(num_blocks: int) -> list[int]:
    """Returns the zero-based indices of the last block of each quarter of an encoder."""
    return [num_blocks * (i + 1) // 4 - 1 for i in range(4)]


def read_keys(keys: Keys, config: Plain) -> Plain:
    """Returns our options for another format's config."""
    return {ours: config.get(key, default) for ours, (key, default) in keys.items()}


def write_keys(keys: Keys, options: Plain) -> Plain:
    """Returns another format's config for our options."""
    return {key: options[ours] for ours, (key, _) in keys.items()}
