"""Fusion (Ranftl et al. 2021, section 3.2 and figure 1, right) and the decoder built from it."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from dpt.functional import norm_relu_conv2d, resize, upsample, upsample_conv2d
from dpt.nn.base import DecoderConfig, Encoder, FusedMap
from dpt.nn.prompts import PromptLayer
from dpt.nn.reassemble import Reassemble
from dpt.types.outputs import Tokens


class ResidualConvUnit(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))) of x (B, C, h, w); with ``batch_norm``, BN after each conv.

    The ReLU is not in place: the skip connection carries x, not ReLU(x).
    """

    def __init__(self, channels: int, *, batch_norm: bool, bias: bool) -> None:
        super().__init__()
        conv = partial(nn.Conv2d, channels, channels, kernel_size=3, padding=1, bias=bias)

        def norm() -> nn.Module:
            return nn.BatchNorm2d(channels) if batch_norm else nn.Identity()

        self.conv1, self.bn1 = conv(), norm()
        self.conv2, self.bn2 = conv(), norm()

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(F.relu(x))
        return x + self.bn2(norm_relu_conv2d(self.bn1, self.conv2, y))

    def prepare_for_inference(self) -> None:
        """Fuses each BN into the convolution before it."""
        if isinstance(self.bn1, nn.BatchNorm2d) and isinstance(self.bn2, nn.BatchNorm2d):
            self.conv1 = fuse_conv_bn_eval(self.conv1, self.bn1)
            self.conv2 = fuse_conv_bn_eval(self.conv2, self.bn2)
            self.bn1 = self.bn2 = nn.Identity()


class Fusion(nn.Module):
    """Adds a level's map to the output of the deeper level, refines the sum and projects it.

    The decoder upsamples after the projection, not before as in the paper: a 1×1 convolution
    commutes with interpolation. Official DPT has no unit for the lateral of the ``deepest`` block.
    """

    def __init__(
        self, channels: int, *, batch_norm: bool, unit_bias: bool, deepest: bool = False
    ) -> None:
        super().__init__()
        unit = partial(ResidualConvUnit, channels, batch_norm=batch_norm, bias=unit_bias)
        self.rcu1 = None if deepest else unit()
        self.rcu2 = unit()
        self.project = nn.Conv2d(channels, channels, kernel_size=1)

    def forward(
        self, lateral: Tensor, above: Tensor | None, prompt: Tensor | None = None
    ) -> Tensor:
        """Fuses maps (B, C, h, w); ``above`` is the deeper level's, None in the deepest block.

        ``prompt`` are the features of sparse depth, if there is any.
        """
        x = lateral if self.rcu1 is None else self.rcu1(lateral)
        x = x if above is None else above + x
        x = x if prompt is None else x + prompt
        return self.project(self.rcu2(x))


class Decoder(nn.Module):
    """Reassembles each level's tokens into a map, then fuses the maps from deep to shallow.

    Every ``auto`` of ``config`` must be replaced, see :meth:`DecoderConfig.resolve`. ``has_metres``
    tells whether a head that reads the decoder predicts depth in metres, which prompts correct.
    """

    def __init__(self, config: DecoderConfig, encoder: Encoder, *, has_metres: bool = True) -> None:
        super().__init__()
        assert config.scales != "auto"
        channels, scales, embed_dims = config.reassemble_channels, config.scales, encoder.embed_dims
        count, width = len(embed_dims), config.fusion_channels
        if not len(channels) == len(scales) == count >= 2:
            fault = f"reassemble_channels={list(channels)}, scales={list(scales)}: must be as many"
            raise ValueError(f"{fault} as model.encoder.out_indices, two at least ({count})")
        self.config = config
        levels = zip(embed_dims, encoder.num_prefix_tokens, channels, scales, strict=True)
        conv = partial(nn.Conv2d, out_channels=width, kernel_size=3, padding=1)
        self.reassemble = nn.ModuleList(
            Reassemble(
                dim=dim,
                num_prefix_tokens=prefix,
                readout=config.readout if prefix else "ignore",
                channels=c,
                scale=s,
                norm=config.reassemble_norm,
            )
            for dim, prefix, c, s in levels
        )
        self.layer_rn = nn.ModuleList(
            conv(c or dim, bias=False) for dim, c in zip(embed_dims, channels, strict=True)
        )
        self.fusion = nn.ModuleList(
            Fusion(
                width,
                batch_norm=bool(config.batch_norm),
                unit_bias=bool(config.unit_bias),
                deepest=i == count - 1 and not config.deepest_unit,
            )
            for i in range(count)
        )
        self.output_project = conv(width, bias=True) if config.output_project else None
        # last: the modules above draw the same initial weights without it
        self.prompt_layers, self.prompt_gate = nn.ModuleList(), None
        if config.prompts:
            self.prompt_layers.extend(PromptLayer(width) for _ in range(count))
            self.prompt_gate = nn.Conv2d(width, 1, kernel_size=1, bias=False)
            nn.init.zeros_(self.prompt_gate.weight)
            # DDP waits for gradients of what is not frozen
            self.prompt_gate.requires_grad_(has_metres)

    def fuse(self, tokens: Tokens, prompts: Tensor | None = None) -> list[FusedMap]:
        """Returns the output of every fusion block, deepest first; the last is the feature map.

        ``prompts`` are sparse depth (B, H, W) in metres, see :class:`PromptLayer`.
        """
        levels = zip(self.layer_rn, self.reassemble, tokens.levels, tokens.grids, strict=True)
        laterals = [conv(reassemble(*level)) for conv, reassemble, *level in levels]
        maps: list[FusedMap] = []
        above: Tensor | None = None
        for i in reversed(range(len(laterals))):
            lateral = laterals[i]
            if self.config.align == "resize_lateral" and above is not None:
                lateral = resize(lateral, (above.shape[-2], above.shape[-1]))
            size = (2 * lateral.shape[-2], 2 * lateral.shape[-1])
            if i and self.config.align == "to_lateral":  # differs from `size` on odd grids only
                size = (laterals[i - 1].shape[-2], laterals[i - 1].shape[-1])
            prompt = None
            if prompts is not None and self.prompt_layers:
                prompt = self.prompt_layers[i](prompts, (lateral.shape[-2], lateral.shape[-1]))
            fused = self.fusion[i](lateral, above, prompt)
            maps.append(FusedMap(fused, size))
            above = upsample(fused, size) if i else None
        if self.output_project is not None:
            projected = upsample_conv2d(*maps[-1], self.output_project)
            maps[-1] = FusedMap(F.relu(projected), size)
        return maps

    def forward(self, tokens: Tokens) -> Tensor:
        """Returns the map (B, fusion_channels, 8·grid_h, 8·grid_w): H/2 × W/2 at patch size 16."""
        return upsample(*self.fuse(tokens)[-1])
