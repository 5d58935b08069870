"""Bringing a ViT's tensors to another ViT: names, prefix tokens, grid of codes, patch size.

The common names are timm's, which are ours. Rules of names: DINOv2's hub says ``register_tokens``,
``mlp.w12`` and ``mlp.w3``, DINOv3's ``storage_tokens``; dense checkpoints hold a ViT under
``pretrained.model.`` (official DPT), ``pretrained.`` (Depth Anything), ``backbone.`` (DINOv2's
training and heads), ``encoder.model.`` (segmentation_models.pytorch).
"""

from __future__ import annotations

import math
import re
from contextlib import redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpt.nn import Beit
from dpt.nn.beit import offsets, resize_table
from dpt.nn.positions import ResizePolicy, resize_positions

Grid = tuple[int, int]
State = dict[str, Tensor]
EMBED = "patch_embed.proj.weight"
PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")
"""In this order they stand before the patches, in timm and in ours."""

GAIN = re.compile(r"^blocks\.\d+\.ls[12]\.gamma$")

MERGING = re.compile(r"^layers\.(\d)(?=\.downsample\.)")

RENAMED = [
    (re.compile(r"^blocks\.\d+\.(\d+\.)"), r"blocks.\1"),  # DINOv2 trained in chunks of blocks
    (re.compile(r"^(?:register|storage)_tokens$"), "reg_token"),
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),  # BEiT
]


def strip_prefix(state: State) -> State:
    """The ViT's tensors alone, where a file holds it under a prefix; of several, the teacher's."""
    prefixes = [k.removesuffix(EMBED) for k in state if k.endswith(EMBED)]
    if not prefixes or "" in prefixes:
        return state
    prefix = min(prefixes, key=lambda p: ("teacher" not in p, len(p)))
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def to_timm_names(state: State, target: nn.Module, path: str | Path) -> State:
    """The tensors of ``state`` as ``target`` calls them.

    Raises:
        ValueError: blocks of another kind than those of our ViT.
    """
    wanted = target.state_dict().keys()
    merged = "layers.0.downsample.reduction.weight"  # Swin, as its authors and timm 0.6 have it
    if merged in state and merged not in wanted:
        state = {MERGING.sub(lambda m: f"layers.{int(m[1]) + 1}", k): v for k, v in state.items()}
    if hasattr(target, "position_resize"):  # our own
        strange = [k for k in state if k.startswith(("storage_tokens", "rope_embed.", "rope."))]
        if not isinstance(target, Beit):
            beit = (".gamma_1", ".relative_position_bias_table")
            strange += [k for k in state if k.endswith(beit)]
        if strange:
            raise ValueError(
                f"{path}: holds {strange[0]}, so blocks of another kind than this encoder's "
                "(DINOv3, EVA and BEiT have places inside attention): take encoder kind 'timm' "
                "and their name, such as vit_small_patch16_dinov3, or 'beit'"
            )
    elif "storage_tokens" in state and getattr(target, "rope", None) is not None:
        # timm's own rules, for they follow its options (biases of queries, names of gains)
        rules = import_module(type(target).__module__).checkpoint_filter_fn
        with redirect_stdout(StringIO()):  # it prints each bias that it leaves out
            return dict(rules(state, target))
    for pattern, new in RENAMED:
        state = {k if k in wanted else pattern.sub(new, k): v for k, v in state.items()}
    return state


def resize_patches(state: State, wanted: State) -> list[str]:
    """Resizes the kernel that embeds patches, in place; says from which size to which.

    By the pseudo-inverse of bilinear resizing (Beyer et al. 2023, FlexiViT, section 3.4).
    """
    kernel, own = state.get(EMBED), wanted.get(EMBED)
    if kernel is None or own is None or kernel.ndim != 4 or kernel.shape[:2] != own.shape[:2]:
        return []
    old, new = list(kernel.shape[2:]), list(own.shape[2:])
    if old == new:
        return []
    from timm.layers import resample_patch_embed

    state[EMBED] = resample_patch_embed(kernel, new)
    return [f"{EMBED} {old[0]}x{old[1]} to {new[0]}x{new[1]}"]


def fit_tables(encoder: nn.Module, state: State, old: Grid | None) -> list[str]:
    """Resizes our BEiT's tables of position biases to its grid, in place; says of which.

    Args:
        old: grid of the tables in ``state``; None takes a square one.
    """
    names = [k for k in state if k.endswith(".relative_position_bias_table")]
    if not isinstance(encoder, Beit) or not names:
        return []
    side = (math.isqrt(max(state[names[0]].shape[0] - 3, 0)) + 1) // 2
    old = old or (side, side)
    if old == encoder.grid or math.prod(offsets(old)) + 3 != state[names[0]].shape[0]:
        return []
    for name in names:
        state[name] = resize_table(state[name], old, encoder.grid, policy=encoder.position_resize)
    sizes = "{}x{} to {}x{}".format(*old, *encoder.grid)
    return [f"{len(names)} tables of position biases {sizes}"]


def fit_gains(state: State, wanted: State) -> list[str]:
    """LayerScale where only one of the two has it, in place; says what was done.

    γ · (W x + b) is (γ W) x + γ b: gains without a place go into the layer before them, and a place
    without a gain gets ones.
    """
    folded, added = 0, 0
    for name in [k for k in state if GAIN.match(k) and k not in wanted]:
        layer = name.replace("ls1.gamma", "attn.proj").replace("ls2.gamma", "mlp.fc2")
        if f"{layer}.weight" in wanted and f"{layer}.weight" in state:
            gain = state.pop(name)
            state[f"{layer}.weight"] = gain[:, None] * state[f"{layer}.weight"]
            state[f"{layer}.bias"] = gain * state[f"{layer}.bias"]
            folded += 1
    for name in [k for k in wanted if GAIN.match(k) and k not in state]:
        if name.replace("ls1.gamma", "norm1.weight").replace("ls2.gamma", "norm2.weight") in state:
            state[name] = torch.ones_like(wanted[name])
            added += 1
    notes = [f"{folded} LayerScale gains into the layers before them"] if folded else []
    return notes + ([f"{added} LayerScale gains, which the file has not, to 1"] if added else [])


def fit_distillation(state: State, wanted: State) -> list[str]:
    """DeiT's distillation token as the only register, in place: the same function; says so."""
    register = wanted.get("reg_token")
    if "dist_token" not in state or register is None or register.shape[1] != 1:
        return []
    state["reg_token"] = state.pop("dist_token")
    return ["dist_token into the register"]


def code_layout(encoder: Any) -> tuple[int, Grid, ResizePolicy] | None:
    """Slots before the patch codes, their grid, and the policy of ``encoder``; None without any."""
    own = getattr(encoder, "pos_embed", None)
    if own is None or own.ndim != 3:
        return None
    if hasattr(encoder, "position_resize"):
        return int(encoder.cls_position), encoder.grid, encoder.position_resize
    grid = getattr(getattr(encoder, "patch_embed", None), "grid_size", None)
    if grid is None:
        return None
    return own.shape[1] - grid[0] * grid[1], (grid[0], grid[1]), "bicubic_antialias"  # timm


def fit_codes(
    encoder: nn.Module, state: State, old: Grid | None, path: str | Path
) -> tuple[list[str], list[str], list[str]]:
    """Fits ``pos_embed`` and the tokens before the patches to the encoder, in place.

    Codes are resized to its grid. A code that belongs to a token without a slot of its own there
    is added to the token, which is the same function; that of a token which the encoder has not
    (DeiT's for distillation) is dropped.

    Args:
        old: grid of the codes in ``state``; None takes a square one, or the encoder's own.

    Returns:
        What was resized, what was moved, and what was dropped.
    """
    codes, layout = state.get("pos_embed"), code_layout(encoder)
    if codes is None or codes.ndim != 3 or layout is None:
        return [], [], []
    new_slots, new, policy = layout
    slots, old = _find_grid(codes.shape[1], _tokens(state), old, new, path)
    resized, moved = [], []
    before, wanted = codes[:, :slots], _tokens(encoder.state_dict())
    dropped = [f"code of {t[0]}" for t in _tokens(state)[:slots] if t not in wanted]
    if slots != new_slots or slots > 1:
        before = _move_prefix_codes(state, before, wanted, new_slots)
    if slots - len(dropped) != new_slots:
        moved.append(f"pos_embed {slots} to {new_slots} codes before the patches")
    cells = codes[:, slots:]
    if old != new:
        cells = resize_positions(cells, old, new, policy=policy)
        resized.append(f"pos_embed {old[0]}x{old[1]} to {new[0]}x{new[1]}")
    if resized or moved or slots > 1:
        state["pos_embed"] = torch.cat((before, cells), dim=1)
    return resized, moved, list(dict.fromkeys(dropped))


def _tokens(state: State) -> list[tuple[str, int]]:
    """(name, place in its parameter) of every token before the patches."""
    return [(n, i) for n in PREFIX_TOKENS if n in state for i in range(state[n].shape[1])]


def _find_grid(
    count: int, tokens: list[tuple[str, int]], old: Grid | None, new: Grid, path: str | Path
) -> tuple[int, Grid]:
    """Slots before the patch codes, and the grid of those: the ones among ``count`` that fit."""
    choices = list(dict.fromkeys((1, len(tokens), 0)))
    for grid in (old,) if old is not None else (new, None):
        for slots in choices:
            rest = count - slots
            side = round(max(rest, 0) ** 0.5)
            fitting = grid or (side, side)
            if rest > 0 and fitting[0] * fitting[1] == rest:
                return slots, fitting
    shape = "a square" if old is None else f"{old[0]}x{old[1]}"
    allowed = " or ".join(map(str, sorted(choices)))
    raise ValueError(
        f"{path}: pos_embed has {count} codes, which are not {shape} beside {allowed} for the "
        "tokens before the patches"
    )


def _move_prefix_codes(
    state: State, codes: Tensor, wanted: list[tuple[str, int]], new_slots: int
) -> Tensor:
    """Codes (1, new_slots, D) of the tokens ``wanted``; what has no slot goes into its token."""
    have = _tokens(state)
    moved = codes.new_zeros(1, new_slots, codes.shape[2])
    for place, token in enumerate(wanted):
        if token not in have or have.index(token) >= codes.shape[1]:
            continue
        code = codes[:, have.index(token)]
        if place < new_slots:
            moved[:, place] = code
        else:
            name, i = token
            state[name] = state[name].clone()
            state[name][:, i] += code
    return moved
