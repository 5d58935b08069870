"""Pretrained weights: of an encoder, from timm, DINO, DeiT or any checkpoint; of a whole model.

Tensors of a file are renamed, moved and resized to fit the encoder; a report lists what was done.
"""

import math
import re
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpt.files import few, reason
from dpt.model_config import ModelConfig
from dpt.nn import Beit, TimmConfig, TimmEncoder, VisionTransformer
from dpt.nn.beit import offsets, offsets_side, resize_table
from dpt.nn.positions import ResizePolicy, resize_positions
from dpt.weights.files import from_hub, locate, open_source
from dpt.weights.format import Config, Tensors, list_faults, naming
from dpt.weights.formats import Native, find_format

Grid = tuple[int, int]
State = dict[str, Tensor]
TIMM, HUB = "timm:", "hf:"
EMBED = "patch_embed.proj.weight"
PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # in the order of timm and ours
EMBEDDINGS = (*PREFIX_TOKENS, "pos_embed", EMBED)  # they fit many encoders of the same width
BEIT = (".gamma_1", ".relative_position_bias_table")
PART = re.compile(r"heads\.\w+\.auxiliary_layers|heads\.\w+|decoder")
RENAMED = [
    (re.compile(r"^blocks\.\d+\.(\d+\.)"), r"blocks.\1"),  # DINOv2 trained in chunks of blocks
    (re.compile(r"^(?:register|storage)_tokens$"), "reg_token"),  # DINOv2, DINOv3
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),  # DINOv2
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),  # BEiT
]
MERGING = re.compile(r"^layers\.(\d)(?=\.downsample\.)")


@dataclass
class LoadReport:
    """Use of a file's tensors: names of tensors and parts.

    ``loaded`` counts encoder tensors; ``kept`` are the other parts that were loaded, except the
    layers listed in ``outputs``, whose outputs have another number or meaning.
    """

    source: str
    loaded: int = 0
    resized: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lists = {
            "resized to this grid": self.resized,
            "moved, for the same function": self.moved,
            "not in the file, initialised randomly": self.missing,
            "in the file, not used": self.unused,
            "also kept": self.kept,
            "initialised randomly, of another size or meaning": self.outputs,
        }
        shown = [f"{label}: {few(names, 8)}" for label, names in lists.items() if names]
        return "; ".join([f"{self.source}: {self.loaded} encoder tensors loaded", *shown])


def load_encoder_weights(encoder: nn.Module, path: str | Path) -> LoadReport:
    """Loads the tensors of a file that fit into ``encoder``, resized to its grid and patch size.

    ``path`` is a file or folder, ``timm:NAME`` for a timm model's released weights, or ``hf:ID``
    for a repository on the Hugging Face hub.

    Raises:
        ValueError: nothing fits, or a tensor has the wrong shape; the encoder is then unchanged.
    """
    state, grid = _read(str(path))
    with naming(path):
        return _fit(encoder, state, grid, str(path))


def load_model_weights(model: Any, config: Config, state: Tensors, *, source: str) -> LoadReport:
    """Loads the encoder, the decoder and the heads that ``model``, a DPT, shares with another one.

    The other one is given by ``config``, tensors and, for messages, its file. A head's layer is
    left as it is if only its number of outputs differs (other classes) or their meaning, as
    :class:`dpt.nn.HeadConfig` declares it (depth in metres after relative depth).

    Raises:
        ValueError: a part that both have misses tensors, has further ones, or ones of another
            shape; ``model`` is then unchanged.
    """
    own, given = _by_part(model.state_dict()), _by_part(state)
    shared = [part for part in own if part in given]
    wanted = {k: v for part in shared for k, v in own[part].items()}
    fitting = {k: v for part in shared for k, v in given[part].items()}
    outputs, meanings = {}, _other_meanings(ModelConfig.from_dict(config), model.config)
    for name in sorted(n for n in fitting if n.startswith("heads.") and n in wanted):
        shape, new, layer = fitting[name].shape, wanted[name].shape, name.rpartition(".")[0]
        change = meanings.get(layer, "")
        if shape != new and shape[1:] == new[1:]:
            change = f"{shape[0]} to {new[0]}"
        if change:
            outputs[layer] = f"{layer} ({change})"
            del wanted[name], fitting[name]
    if faults := list_faults(wanted, fitting):
        raise ValueError(f"{source}: another architecture: {faults}")
    with naming(source):
        report = _fit(model.encoder, *_encoder_part(config, state), source)
    model.load_state_dict(fitting, strict=False)
    report.kept, report.outputs = shared, list(outputs.values())
    report.missing += [part for part in own if part not in given]
    report.unused += [part for part in given if part not in own]
    return report


def _other_meanings(old: ModelConfig, new: ModelConfig) -> dict[str, str]:
    """How the meaning of a layer's output differs, by the layer's name in the whole model."""
    found = {}
    for name in old.heads.keys() & new.heads.keys():
        before, after = vars(old.heads[name]), vars(new.heads[name])
        for layer, keys in new.heads[name].meanings.items():
            differs = [f"{k}: {before[k]} to {after[k]}" for k in keys if before[k] != after[k]]
            found[f"heads.{name}.{layer}"] = ", ".join(differs)
    return found


def _by_part(state: Tensors) -> dict[str, State]:
    """The tensors of the decoder and of each head."""
    parts: dict[str, State] = {}
    for name, value in state.items():
        if match := PART.match(name):
            parts.setdefault(match[0], {})[name] = value
    return parts


def _fit(encoder: nn.Module, state: State, grid: Grid | None, source: str) -> LoadReport:
    """Loads the tensors of ``state`` that fit; call it within :func:`naming`.

    ``grid`` is that of the position embeddings in ``state``, None if it is not known.
    """
    target: Any = encoder.model if isinstance(encoder, TimmEncoder) else encoder
    wanted = target.state_dict()
    report = LoadReport(source)
    _resize_patches(state, wanted, report)
    state = _rename(state, target)
    _fit_tables(target, state, grid, report)
    if "dist_token" in state and "reg_token" in wanted and wanted["reg_token"].shape[1] == 1:
        state["reg_token"] = state.pop("dist_token")  # DeiT's, as the only register
        report.moved.append("dist_token into the register")
    _fit_positions(target, state, grid, report)
    _fit_gains(state, wanted, report)
    registers = [s["reg_token"].shape[1] for s in (state, wanted) if "reg_token" in s]
    if len(set(registers)) > 1:  # another number of registers is of no use
        report.unused.append("reg_token")
        del state["reg_token"]
    fitting = {k: v for k, v in state.items() if k in wanted}
    if wrong := list_faults({k: wanted[k] for k in fitting}, fitting):
        raise ValueError(f"another architecture: {wrong}: set model= to that of the file")
    if not any(v.ndim > 1 and k not in EMBEDDINGS for k, v in fitting.items()):
        raise ValueError(f"no tensor of this encoder found; the file has {few(sorted(state), 8)}")
    target.load_state_dict(fitting, strict=False)
    report.loaded = len(fitting)
    report.missing = sorted(set(wanted) - set(fitting))
    report.unused += sorted(set(state) - set(fitting))
    return report


def _read(name: str) -> tuple[State, Grid | None]:
    """Encoder tensors of any file, and the grid of their position embeddings if it is known."""
    if name.startswith(TIMM):
        import timm

        model_name = name.removeprefix(TIMM)
        if re.search(r"[^\w.-]", model_name):  # as local-dir:DIR, which timm may unpickle
            raise ValueError(
                f"{name}: {TIMM} takes the name of a timm model: give a file or folder without "
                f"{TIMM}, or {HUB}USER/NAME"
            )
        try:
            model = timm.create_model(model_name, pretrained=True, num_classes=0)
        except Exception as error:  # no such model or tag, no released weights, no network
            fault = f"{name}: cannot be fetched from timm ({reason(error)})"
            raise ValueError(f"{fault}: check the name and the network, or give a file") from error
        return dict(model.state_dict()), _timm_grid(model)
    source = open_source(from_hub(name.removeprefix(HUB)) if name.startswith(HUB) else locate(name))
    tensors = source.tensors
    prefixes = [k.removesuffix(EMBED) for k in tensors if k.endswith(EMBED)]
    if prefixes and not Native().recognises(source):  # a ViT; of several, the teacher's
        prefix = min(prefixes, key=lambda p: (p != "", "teacher" not in p, len(p)))
        return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}, None
    known = find_format(source)
    if known is None:
        return tensors, None
    with naming(source.path):
        checkpoint = known.read(source)
        return _encoder_part(checkpoint.config, checkpoint.tensors)


def _encoder_part(config: Config, state: Tensors) -> tuple[State, Grid | None]:
    """The encoder's tensors of a whole model of ours, and the grid of its position embeddings."""
    encoder = config["encoder"]
    if encoder.get("kind") == "timm":
        prefix = "encoder.model."
        with torch.device("meta"):
            grid = _timm_grid(TimmEncoder(TimmConfig(**encoder)).model)
    else:
        prefix, patch = "encoder.", encoder.get("patch_size", 16)
        height, width = encoder.get("image_size", (384, 384))
        grid = height // patch, width // patch
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}, grid


def _timm_grid(model: nn.Module) -> Grid | None:
    """The grid of a timm model's position embeddings; None if it has no such grid."""
    return getattr(getattr(model, "patch_embed", None), "grid_size", None)


def _rename(state: State, target: nn.Module) -> State:
    """The tensors of ``state`` with the names of ``target``; blocks of another kind are refused."""
    wanted = target.state_dict().keys()
    merged = "layers.0.downsample.reduction.weight"  # Swin, as of its authors and timm 0.6
    if merged in state and merged not in wanted:
        state = {MERGING.sub(lambda m: f"layers.{int(m[1]) + 1}", k): v for k, v in state.items()}
    if isinstance(target, VisionTransformer):
        strange = [k for k in state if k.startswith(("storage_tokens", "rope_embed.", "rope."))]
        if not isinstance(target, Beit):
            strange += [k for k in state if k.endswith(BEIT)]
        if strange:
            raise ValueError(
                f"holds {strange[0]}, so it is of DINOv3, EVA or BEiT: use encoder kind "
                "'timm' and their name, such as vit_small_patch16_dinov3, or 'beit'"
            )
    elif "storage_tokens" in state and getattr(target, "rope", None) is not None:  # DINOv3
        # by timm's own rules, which follow its options (biases of queries, names of gains)
        rules = import_module(type(target).__module__).checkpoint_filter_fn
        with redirect_stdout(StringIO()):  # it prints each bias that it leaves out
            return dict(rules(state, target))
    for pattern, new in RENAMED:
        state = {k if k in wanted else pattern.sub(new, k): v for k, v in state.items()}
    return state


def _resize_patches(state: State, wanted: Tensors, report: LoadReport) -> None:
    """Resizes the kernel of the patch embedding, in place.

    By the pseudo-inverse of bilinear resizing (Beyer et al. 2023, FlexiViT, section 3.4).
    """
    kernel, own = state.get(EMBED), wanted.get(EMBED)
    if kernel is None or own is None or kernel.shape[:2] != own.shape[:2]:
        return
    old, new = list(kernel.shape[2:]), list(own.shape[2:])
    if old != new:
        from timm.layers import resample_patch_embed

        state[EMBED] = resample_patch_embed(kernel, new)
        report.resized.append(f"{EMBED} {old[0]}x{old[1]} to {new[0]}x{new[1]}")


def _fit_tables(encoder: nn.Module, state: State, old: Grid | None, report: LoadReport) -> None:
    """Resizes BEiT's tables of position biases from ``old``, or a square, to its grid, in place."""
    names = [k for k in state if k.endswith(".relative_position_bias_table")]
    if not isinstance(encoder, Beit) or not names:
        return
    rows = state[names[0]].shape[0]
    old = old or (offsets_side(rows - 3),) * 2
    if old != encoder.grid and math.prod(offsets(old)) + 3 == rows:
        policy = encoder.config.position_resize
        for name in names:
            state[name] = resize_table(state[name], old, encoder.grid, policy=policy)
        sizes = "{}x{} to {}x{}".format(*old, *encoder.grid)
        report.resized.append(f"{len(names)} tables of position biases {sizes}")


def _fit_gains(state: State, wanted: Tensors, report: LoadReport) -> None:
    """Fits LayerScale if only one of the two has it, in place.

    γ · (W x + b) is (γ W) x + γ b: gains without a place go into the layer before them, and a place
    without a gain gets ones.
    """
    changed = 0
    for layer, gain in (("attn.proj", "ls1.gamma"), ("mlp.fc2", "ls2.gamma")):
        for weight in [k for k in wanted if k in state and k.endswith(f".{layer}.weight")]:
            block = weight.removesuffix(f"{layer}.weight")
            name, bias = f"{block}{gain}", f"{block}{layer}.bias"
            if name in state and name not in wanted:
                gamma = state.pop(name)
                state[weight], state[bias] = gamma[:, None] * state[weight], gamma * state[bias]
            elif name in wanted and name not in state:
                state[name] = torch.ones_like(wanted[name])
            else:
                continue
            changed += 1
    if changed:
        report.moved.append(f"{changed} LayerScale gains, into the layers before them or to 1")


def _fit_positions(encoder: nn.Module, state: State, old: Grid | None, report: LoadReport) -> None:
    """Fits ``pos_embed`` and the tokens before the patches to the encoder, in place.

    A token's position embedding without a slot is added to the token, which gives the same
    outputs; those of tokens that the encoder lacks (DeiT's distillation token) are dropped.
    """
    positions, own = state.get("pos_embed"), encoder.state_dict()
    if positions is None or positions.ndim != 3 or "pos_embed" not in own:
        return
    policy: ResizePolicy = "bicubic_antialias"
    new = _timm_grid(encoder)
    if isinstance(encoder, VisionTransformer):
        new, policy = encoder.grid, encoder.config.position_resize
    if new is None:
        return
    new_slots = own["pos_embed"].shape[1] - new[0] * new[1]
    have, wanted = _tokens(state), _tokens(own)
    slots, old = _find_grid(positions.shape[1], len(have), old, new)
    dropped = [token[0] for token in have[:slots] if token not in wanted]
    report.unused += [f"code of {name}" for name in dict.fromkeys(dropped)]
    before = positions.new_zeros(1, new_slots, positions.shape[2])
    for place, token in enumerate(wanted):
        if token not in have[:slots]:
            continue
        position = positions[:, have.index(token)]
        if place < new_slots:
            before[:, place] = position
        else:
            name, i = token
            state[name] = state[name].clone()
            state[name][:, i] += position
    if slots - len(dropped) != new_slots:
        report.moved.append(f"pos_embed {slots} to {new_slots} codes before the patches")
    cells = positions[:, slots:]
    if old != new:
        cells = resize_positions(cells, old, new, policy=policy)
        report.resized.append(f"pos_embed {old[0]}x{old[1]} to {new[0]}x{new[1]}")
    state["pos_embed"] = torch.cat((before, cells), dim=1)


def _tokens(state: Tensors) -> list[tuple[str, int]]:
    """(name, index in its parameter) of every token before the patches."""
    return [(n, i) for n in PREFIX_TOKENS if n in state for i in range(state[n].shape[1])]


def _find_grid(count: int, num_tokens: int, old: Grid | None, new: Grid) -> tuple[int, Grid]:
    """Number of slots before those of patches, and grid of the latter, that fit ``count``.

    Without ``old``, a square comes before ``new``: most files are of square images.
    """
    for slots in (1, num_tokens, 0):
        side = math.isqrt(max(count - slots, 0))
        for height, width in (old,) if old else ((side, side), new):
            if 0 < height * width == count - slots:
                return slots, (height, width)
    raise ValueError(
        f"pos_embed has {count} slots, which are not those of "
        f"{'x'.join(map(str, old)) if old else 'a square of'} patches and {num_tokens} tokens"
    )
