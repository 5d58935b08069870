"""Random DPTs over BEiT, Swin and SwinV2: transformers' ``dpt`` folders and MiDaS 3.1's files.

No released MiDaS 3.1 file was available. The peer is written from the public key table and recipe
over today's timm, but for BEiT's tables over other grids, which are resized as MiDaS does it.
``to_old_names`` brings its tensors to the names of timm 0.6.12, which MiDaS 3.1 pins, as that
release saves them.
"""

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_official import Pretrained, Scratch, depth_layers
from peers_transformers import Transformers
from timm.models.beit import Beit
from timm.models.swin_transformer import SwinTransformer
from timm.models.swin_transformer_v2 import SwinTransformerV2
from torch import nn

from dpt.weights import official

BEIT = {
    "model_type": "beit",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "image_size": 64,
    "patch_size": 16,
    "use_relative_position_bias": True,
    "reshape_hidden_states": False,
    "out_indices": [1, 2, 3, 4],
}
SWINV2 = {
    "model_type": "swinv2",
    "embed_dim": 16,
    "depths": [2, 2, 2, 2],
    "num_heads": [1, 2, 4, 8],
    "image_size": 96,
    "window_size": 6,
    "pretrained_window_sizes": [3, 3, 3, 2],
    "out_indices": [1, 2, 3, 4],
}
PYRAMID = {"neck_hidden_sizes": [16, 32, 64, 128]}


class Midas31(nn.Module):
    """MiDaS 3.1 in small: BEiT at any grid, a Swin at its own size."""

    def __init__(self, family, channels=(8, 12, 16, 24), fusion=16, **trunk):
        super().__init__()
        self.is_beit, self.options = family == "BEiT", trunk
        if self.is_beit:
            self.pretrained = Pretrained(Beit(**trunk), trunk["embed_dim"], channels)
        else:
            self.pretrained = nn.Module()
            swin = SwinTransformerV2 if family == "SwinV2" else SwinTransformer
            self.pretrained.model = swin(**trunk)
            channels = [trunk["embed_dim"] * 2**n for n in range(4)]
        self.scratch = Scratch(channels, fusion)
        self.scratch.output_conv = depth_layers(fusion)

    def levels(self, images):
        only = {"intermediates_only": True}
        if not self.is_beit:
            return self.pretrained.model.forward_intermediates(images, **only)
        vit, size = self.pretrained.model, images.shape[-2:]
        grid = tuple(side // 16 for side in size)
        if grid != vit.patch_embed.grid_size:
            vit = self.resized(size, grid)
        tokens = vit.forward_intermediates(
            images, output_fmt="NLC", return_prefix_tokens=True, **only
        )
        return [
            getattr(self.pretrained, f"act_postprocess{n}")(torch.cat((cls, patches), 1), grid)
            for n, (patches, cls) in enumerate(tokens, start=1)
        ]

    def resized(self, size, grid):
        """Returns timm's BEiT for another size, with tables of biases resized as MiDaS does."""
        state = self.pretrained.model.state_dict()
        for name in [name for name in state if name.endswith("relative_position_bias_table")]:
            table, old = state[name], 2 * self.options["img_size"] // 16 - 1
            maps = table[:-3].T.reshape(1, -1, old, old)
            maps = F.interpolate(maps, [2 * side - 1 for side in grid], mode="bilinear")
            state[name] = torch.cat((maps.flatten(2)[0].T, table[-3:]))
        vit = Beit(**{**self.options, "img_size": size}).to(table).eval()
        vit.load_state_dict(state)
        return vit

    def forward(self, images):
        return self.scratch.output_conv(self.scratch.fuse(self.levels(images)))[:, 0]


def to_old_names(state, theirs):
    """Tensors as timm 0.6.12 names and keeps them: patches merged behind a stage, more buffers."""

    def behind(match):
        return f"layers.{int(match[1]) - 1}.downsample."

    old = {re.sub(r"layers\.(\d)\.downsample\.", behind, k): v for k, v in state.items()}
    old = {k.replace("head.fc.", "head."): v for k, v in old.items()}
    for name, buffer in theirs.named_buffers():
        if name.endswith((".relative_position_index", ".attn_mask")):
            old[name] = buffer
    return old


@dataclass(frozen=True)
class Midas(Case):
    file: str = "midas.pt"

    def make(self):
        theirs = jolt(Midas31(self.model.split(",")[0], **self.options), gain=0.7)
        nn.init.constant_(theirs.scratch.output_conv[4].bias, 2.0)
        return theirs

    def save(self, theirs, folder):
        torch.save(to_old_names(theirs.state_dict(), theirs), folder / self.file)
        return folder / self.file


SWIN_OPTIONS = {
    "img_size": 96,
    "embed_dim": 16,
    "depths": (2, 2, 2, 2),
    "num_heads": (1, 2, 4, 8),
    "window_size": 6,
}
official.RELEASED += [(16, 1, 6, 96, None), (16, 1, 6, 96, [3, 3, 3, 2])]  # in small
BIASES = {"use_abs_pos_emb": False, "use_rel_pos_bias": True}
BEIT_SIZES = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0}
BEIT_OPTIONS = {**BEIT_SIZES, **BIASES, "init_values": 0.1}

SIZES = ((64, 64), (96, 96), (64, 96), (48, 80))
PYRAMID_SIZES = ((96, 96), (128, 128), (64, 96), (160, 224))
ODD = ((80, 80), (48, 48), (80, 112))
NO_GAINS = {**BEIT, "image_size": 80, "layer_scale_init_value": 0.0}
WINDOWS = {"pretrained_window_sizes": (3, 3, 3, 2)}
CASES = [
    Transformers("transformers", "depth", "BEiT", SIZES, {"backbone": BEIT}),
    Transformers("transformers", "depth", "BEiT, odd grid, no gains", ODD, {"backbone": NO_GAINS}),
    Transformers("transformers", "depth", "SwinV2", PYRAMID_SIZES, {"backbone": SWINV2, **PYRAMID}),
    Midas("MiDaS 3.1", "depth", "BEiT", SIZES, BEIT_OPTIONS),
    Midas("MiDaS 3.1", "depth", "Swin", PYRAMID_SIZES[:1], SWIN_OPTIONS),
    Midas("MiDaS 3.1", "depth", "SwinV2", PYRAMID_SIZES[:1], {**SWIN_OPTIONS, **WINDOWS}),
]
