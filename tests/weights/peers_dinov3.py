"""DINOv3's depther of the authors, in small from its key table."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from peer_cases import Case, jolt
from peers_dinov2 import ConvModule, FusionBlock
from peers_official import depth_layers, resamplers
from torch import nn

DIM, HEADS, BLOCKS = 64, 2, 8
BACKBONE = {
    "hidden_size": DIM,
    "num_hidden_layers": 6,
    "num_attention_heads": HEADS,
    "intermediate_size": 96,
    "image_size": 64,
    "num_register_tokens": 4,
    "key_bias": True,
    "layer_norm_eps": 1e-6,
    "out_indices": [1, 3, 4, 6],
    "return_class_token": True,
    "apply_layernorm": True,
}


def exact_rotation(module, arguments, output):
    """In float64 transformers' own coordinates are float32: a hook computes them anew."""
    (images,) = arguments
    if images.dtype != torch.float64:
        return None
    patch = module.config.patch_size
    rows, columns = (
        (torch.arange(side // patch).double() + 0.5) / (side // patch) * 2 - 1
        for side in images.shape[-2:]
    )
    rope = getattr(module.config, "rope_parameters", vars(module.config))
    theta = rope["rope_theta"]
    width = module.config.hidden_size // module.config.num_attention_heads // 4
    inv_freq = 1 / theta ** (torch.arange(width).double() / width)
    coords = torch.cartesian_prod(rows, columns)
    angles = (2 * math.pi * coords[:, :, None] * inv_freq).flatten(1).tile(2)
    return angles.cos(), angles.sin()


class Rope(nn.Module):
    """Holds the periods, as the released files do."""

    def __init__(self) -> None:
        super().__init__()
        count = DIM // HEADS // 4
        self.register_buffer("periods", 100.0 ** (torch.arange(count) / count))

    def forward(self, h: int, w: int) -> tuple[torch.Tensor, torch.Tensor]:
        exact = self.periods.dtype
        periods = 100.0 ** (torch.arange(len(self.periods)).to(exact) / len(self.periods))
        y, x = ((torch.arange(n).to(exact) + 0.5) / n * 2 - 1 for n in (h, w))
        angles = 2 * math.pi * torch.cartesian_prod(y, x)[:, :, None] / periods
        angles = angles.flatten(1).tile(2)
        return angles.sin(), angles.cos()


class HubAttention(nn.Module):
    def __init__(self, *, bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM, bias=bias)
        self.proj = nn.Linear(DIM, DIM)
        if bias:
            self.qkv.register_buffer("bias_mask", torch.ones(3 * DIM))

    def forward(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        bias = None if self.qkv.bias is None else self.qkv.bias * self.qkv.bias_mask
        qkv = F.linear(x, self.qkv.weight, bias).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = (self.turn(t, *rope) for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def turn(x: torch.Tensor, sin: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        prefix, patches = x.split((x.shape[-2] - len(sin), len(sin)), -2)
        first, second = patches.chunk(2, -1)
        return torch.cat((prefix, patches * cos + torch.cat((-second, first), -1) * sin), -2)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(DIM, 96), nn.Linear(DIM, 96), nn.Linear(96, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(DIM, 96), nn.Linear(96, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class HubBlock(nn.Module):
    def __init__(self, *, gated: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(DIM, eps=1e-5) for _ in range(2))
        self.attn = HubAttention(bias=not gated)  # the 7B model has neither
        self.mlp = Gated() if gated else Mlp()
        self.ls1, self.ls2 = nn.Module(), nn.Module()
        for gain in (self.ls1, self.ls2):
            gain.gamma = nn.Parameter(torch.ones(DIM))

    def forward(self, x: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = x + self.ls1.gamma * self.attn(self.norm1(x), rope)
        return x + self.ls2.gamma * self.mlp(self.norm2(x))


class HubViT(nn.Module):
    def __init__(self, *, gated: bool) -> None:
        super().__init__()
        self.patch_embed, self.rope_embed = nn.Module(), Rope()
        self.patch_embed.proj = nn.Conv2d(3, DIM, 16, 16)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, DIM))
        self.storage_tokens = nn.Parameter(torch.zeros(1, 4, DIM))
        self.mask_token = nn.Parameter(torch.zeros(1, DIM))
        self.blocks = nn.ModuleList(HubBlock(gated=gated) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM, eps=1e-5)

    def forward(self, images: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        patches = self.patch_embed.proj(images)
        h, w = patches.shape[-2:]
        prefix = [t.expand(len(images), -1, -1) for t in (self.cls_token, self.storage_tokens)]
        x, levels = torch.cat((*prefix, patches.flatten(2).mT), 1), []
        for i, block in enumerate(self.blocks):
            x = block(x, self.rope_embed(h, w))
            if i % 2:
                normed = self.norm(x)
                levels.append((normed[:, 5:].mT.unflatten(2, (h, w)), normed[:, 0]))
        return levels


class HubHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        channels, fusion = (16, 20, 24, 32), 16
        self.reassemble_blocks = blocks = nn.Module()
        blocks.projects = nn.ModuleList(ConvModule(DIM, c, 1) for c in channels)
        blocks.resize_layers = nn.ModuleList(resamplers(channels))
        blocks.batchnorm_layers = nn.ModuleList(nn.BatchNorm2d(DIM) for _ in channels)
        self.convs = nn.ModuleList(ConvModule(c, fusion, 3, bias=False) for c in channels)
        self.fusion_blocks = nn.ModuleList(
            FusionBlock(fusion, deepest=m == 0, bias=False) for m in range(4)
        )
        self.project = ConvModule(fusion, fusion, 3)
        self.conv_depth = nn.Module()
        self.conv_depth.head = depth_layers(fusion)[:4].append(nn.Conv2d(32, 256, 1))

    def forward(self, levels: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        blocks, laterals = self.reassemble_blocks, []
        for n, (x, _) in enumerate(levels):
            x = blocks.batchnorm_layers[n](x)
            laterals.append(self.convs[n].conv(blocks.resize_layers[n](blocks.projects[n](x))))
        x = self.fusion_blocks[0](laterals[3])
        for m in (1, 2, 3):
            x = self.fusion_blocks[m](x, laterals[3 - m])
        return self.conv_depth.head(F.relu(self.project(x)))


class HubDepther(nn.Module):
    """At sizes off the grid its code returns the padded map; this one crops it."""

    def __init__(self, *, gated: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Module()
        self.encoder.backbone = HubViT(gated=gated)
        self.decoder = HubHead()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        height, width = images.shape[-2:]
        rows, columns = -height % 16, -width % 16
        top, left = rows // 2, columns // 2
        images = F.pad(images, (left, columns - left, top, rows - top))
        logits = self.decoder(self.encoder.backbone(images)).relu()
        t = torch.linspace(0, 1, 256, dtype=images.dtype)
        bins = 0.001 + t * (100 - 0.001)
        weights = logits + 0.1
        weights = weights / weights.sum(1, keepdim=True)
        depth = torch.einsum("bkhw,k->bhw", weights, bins)[:, None]
        depth = F.interpolate(depth, size=images.shape[-2:], mode="bilinear", align_corners=False)
        return depth[:, 0, top : top + height, left : left + width]


@dataclass(frozen=True)
class Hub(Case):
    """A random depther, saved whole and read by us."""

    def make(self):
        theirs = jolt(HubDepther(**self.options))
        for name, mask in theirs.named_buffers():
            if name.endswith("bias_mask"):
                mask.fill_(1)[DIM : 2 * DIM] = 0
        return theirs

    def save(self, theirs, folder):
        torch.save(theirs.state_dict(), folder / "depther.pth")
        return folder / "depther.pth"


SIZES = ((64, 64), (48, 48), (48, 80))  # native, an odd grid, and not square
GATED = {"use_gated_mlp": True, "hidden_act": "silu", "query_bias": False, "value_bias": False}
CASES = [
    Hub("dinov3", "depth", "hub, SYNTHMIX", (*SIZES, (50, 77))),
    Hub("dinov3", "depth", "hub, SYNTHMIX, SwiGLU (7B)", SIZES[:1], {"gated": True}),
]
