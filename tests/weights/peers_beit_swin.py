"""Random DPTs over BEiT, Swin and SwinV2: transformers' ``dpt`` folders and MiDaS 3.1's files.

No released MiDaS 3.1 file was available. The peer is written from the public key table and recipe
over today's timm, but for BEiT's attention over other grids, which is MiDaS's own. ``to_old_names``
brings its tensors to the names of timm 0.6.12, which MiDaS 3.1 pins, as that release saves them.
"""

import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_official import Readout, Refine, resamplers
from peers_transformers import Output
from torch import nn

from dpt.weights import official

CONFIG = {"neck_hidden_sizes": [8, 12, 16, 24], "fusion_hidden_size": 16}
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
    "num_heads": [1, 2, 2, 4],
    "image_size": 96,
    "window_size": 6,
    "pretrained_window_sizes": [3, 3, 3, 2],
    "out_indices": [1, 2, 3, 4],
}
PYRAMID = {"neck_hidden_sizes": [16, 32, 64, 128]}


def jolt_saved(model: nn.Module, *, gain: float = 1.0) -> nn.Module:
    """Random tensors, but for those that no file holds: they follow from the architecture."""
    saved = model.state_dict().keys()
    fixed = {k: v.clone() for k, v in model.named_buffers() if k not in saved}
    jolt(model, gain=gain)
    with torch.no_grad():
        for name, tensor in model.named_buffers():
            if name in fixed:
                tensor.copy_(fixed[name])
    return model


def make_transformers(backbone, **options):
    from transformers import AutoConfig, DPTConfig, DPTForDepthEstimation

    config = DPTConfig(backbone_config=AutoConfig.for_model(**backbone), **{**CONFIG, **options})
    theirs = jolt_saved(DPTForDepthEstimation(config))
    nn.init.constant_(theirs.head.head[4].bias, 2.0)  # away from zeros behind the last ReLU
    return theirs


class Transformers(Case):
    def make(self):
        return Output(make_transformers(**self.options))

    def save(self, theirs, folder):
        theirs.model.save_pretrained(folder)
        return folder


class BeitTrunk(nn.Module):
    """timm's BEiT over any grid, as MiDaS has it: its table of biases is resized."""

    def __init__(self, side, **options):
        super().__init__()
        from timm.models.beit import Beit

        self.model = Beit(
            img_size=16 * side, use_abs_pos_emb=False, use_rel_pos_bias=True, **options
        )
        self.side = side

    def position_bias(self, table, grid):
        from timm.models.beit import gen_relative_position_index

        old, (h, w) = 2 * self.side - 1, grid
        cells = table[:-3].T.reshape(1, -1, old, old)
        cells = F.interpolate(cells, size=(2 * h - 1, 2 * w - 1), mode="bilinear")
        table = torch.cat((cells.flatten(2)[0].T, table[-3:]))
        return table[gen_relative_position_index(grid)].permute(2, 0, 1)

    def forward(self, images):
        vit, levels = self.model, []
        x = vit.patch_embed.proj(images)
        grid = (x.shape[-2], x.shape[-1])
        x = torch.cat((vit.cls_token.expand(len(x), -1, -1), x.flatten(2).mT), 1)
        for block in vit.blocks:
            attn, y = block.attn, block.norm1(x)
            bias = torch.cat((attn.q_bias, torch.zeros_like(attn.q_bias), attn.v_bias))
            qkv = F.linear(y, attn.qkv.weight, bias).unflatten(2, (3, attn.num_heads, -1))
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            scores = q * attn.scale @ k.mT
            scores = scores + self.position_bias(attn.relative_position_bias_table, grid)
            y = attn.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
            x = x + (y if block.gamma_1 is None else block.gamma_1 * y)
            y = block.mlp(block.norm2(x))
            x = x + (y if block.gamma_2 is None else block.gamma_2 * y)
            levels.append(x)
        return levels, grid


class Midas31(nn.Module):
    """MiDaS 3.1 in small: BEiT at any grid, a Swin at its own size."""

    def __init__(self, family, channels=(8, 12, 16, 24), fusion=16, **trunk):
        super().__init__()
        from timm.models.swin_transformer import SwinTransformer
        from timm.models.swin_transformer_v2 import SwinTransformerV2

        self.pretrained, self.scratch = nn.Module(), nn.Module()
        self.beit = family == "BEiT"
        if self.beit:
            self._over = [BeitTrunk(**trunk)]  # in a list: its tensors are saved as timm's own
            self.pretrained.model = self._over[0].model
            dim = trunk["embed_dim"]
            resample = resamplers(channels)
            for n in range(4):
                project = nn.Conv2d(dim, channels[n], 1)
                between = (nn.Identity(), nn.Identity())  # transpose, unflatten
                step = nn.Sequential(Readout(dim), *between, project, resample[n])
                setattr(self.pretrained, f"act_postprocess{n + 1}", step)
        else:
            swin = SwinTransformerV2 if family == "SwinV2" else SwinTransformer
            self.pretrained.model = swin(**trunk)
            channels = [trunk["embed_dim"] * 2**n for n in range(4)]
        for n in range(4):
            rn = nn.Conv2d(channels[n], fusion, 3, padding=1, bias=False)
            setattr(self.scratch, f"layer{n + 1}_rn", rn)
            setattr(self.scratch, f"refinenet{n + 1}", Refine(fusion))
        self.scratch.output_conv = nn.Sequential(
            nn.Conv2d(fusion, fusion // 2, 3, padding=1),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            nn.Conv2d(fusion // 2, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 1, 1),
            nn.ReLU(),
        )

    def levels(self, images):
        if not self.beit:
            return self.pretrained.model.forward_intermediates(images, intermediates_only=True)
        levels, grid = self._over[0](images)
        steps = [getattr(self.pretrained, f"act_postprocess{n + 1}") for n in range(4)]
        return [
            step[3:](step[0](x).mT.unflatten(2, grid))
            for step, x in zip(steps, levels, strict=True)
        ]

    def forward(self, images):
        scratch, levels = self.scratch, self.levels(images)
        laterals = [getattr(scratch, f"layer{n + 1}_rn")(x) for n, x in enumerate(levels)]
        sizes = [None, *(x.shape[-2:] for x in laterals)]
        path = scratch.refinenet4(laterals[3], size=sizes[3])
        for n in (3, 2, 1):
            path = getattr(scratch, f"refinenet{n}")(path, laterals[n - 1], size=sizes[n - 1])
        return scratch.output_conv(path)[:, 0]


def to_old_names(state, theirs):
    """Tensors as timm 0.6.12 names and keeps them: patches merged behind a stage, more buffers."""
    from timm.models.beit import gen_relative_position_index

    def behind(match):
        return f"layers.{int(match[1]) - 1}.downsample."

    old = {re.sub(r"layers\.(\d)\.downsample\.", behind, k): v for k, v in state.items()}
    old = {k.replace("head.fc.", "head."): v for k, v in old.items()}
    for name, module in theirs.named_modules():
        if name.endswith(".attn") and "relative_position_bias_table" in dict(
            module.named_parameters()
        ):
            index = module.relative_position_index
            old[f"{name}.relative_position_index"] = (
                gen_relative_position_index(module.window_size) if theirs.beit else index
            )
        if dict(module.named_buffers(recurse=False)).get("attn_mask") is not None:
            old[f"{name}.attn_mask"] = module.attn_mask
    return old


@dataclass(frozen=True)
class Midas(Case):
    file: str = "midas.pt"

    def make(self):
        theirs = jolt_saved(Midas31(self.model.split(",")[0], **self.options), gain=0.7)
        nn.init.constant_(theirs.scratch.output_conv[4].bias, 2.0)
        return theirs

    def save(self, theirs, folder):
        torch.save(to_old_names(theirs.state_dict(), theirs), folder / self.file)
        return folder / self.file


SWIN_OPTIONS = {
    "img_size": 96,
    "embed_dim": 16,
    "depths": (2, 2, 2, 2),
    "num_heads": (1, 2, 2, 4),
    "window_size": 6,
}
STAND_IN = {  # a released SwinV2 in small: its windows before fine-tuning are in no file
    **{k: list(v) if isinstance(v, tuple) else v for k, v in SWIN_OPTIONS.items()},
    "img_size": [96, 96],
    "pretrained_window_sizes": [3, 3, 3, 2],
}
official.RELEASED.append(STAND_IN)
BEIT_OPTIONS = {"side": 4, "embed_dim": 48, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0}

SIZES = ((64, 64), (96, 96), (64, 96), (48, 80))
PYRAMID_SIZES = ((96, 96), (128, 128), (64, 96), (160, 224))
ODD = ((80, 80), (48, 48), (80, 112))
NO_GAINS = {**BEIT, "image_size": 80, "layer_scale_init_value": 0.0}
WINDOWS = {"pretrained_window_sizes": (3, 3, 3, 2)}
CASES = [
    Transformers("transformers", "depth", "BEiT", SIZES, {"backbone": BEIT}),
    Transformers("transformers", "depth", "BEiT, odd grid, no gains", ODD, {"backbone": NO_GAINS}),
    Transformers("transformers", "depth", "SwinV2", PYRAMID_SIZES, {"backbone": SWINV2, **PYRAMID}),
    Midas("MiDaS 3.1", "depth", "BEiT", SIZES, {**BEIT_OPTIONS, "init_values": 0.1}),
    Midas("MiDaS 3.1", "depth", "Swin", PYRAMID_SIZES[:1], SWIN_OPTIONS),
    Midas("MiDaS 3.1", "depth", "SwinV2", PYRAMID_SIZES[:1], {**SWIN_OPTIONS, **WINDOWS}),
]
