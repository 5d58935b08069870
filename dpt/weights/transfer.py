"""Pretrained weights: of an encoder, from timm, DINO, DeiT or any checkpoint; of a whole model.

Tensors of a file are renamed, moved and resized to fit the encoder; a report lists what was done.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path

import torch
from torch import Tensor, nn

from dpt.files import few, plural, reason
from dpt.model_config import ModelConfig, model_dict
from dpt.nn import Beit, Encoder, Network, TimmEncoder, VisionTransformer, beit, vit
from dpt.weights import base, dinov, formats, hub, transformers
from dpt.weights.files import CheckpointFiles, open_checkpoint
from dpt.weights.names import Tensors

Grid = tuple[int, int]
State = dict[str, Tensor]
TIMM, HUB = "timm:", "hf:"
EMBED = "patch_embed.proj.weight"
PREFIX_TOKENS = ("cls_token", "dist_token", "reg_token")  # in the order of timm and ours
EMBEDDINGS = (*PREFIX_TOKENS, "pos_embed", EMBED)  # they fit many encoders of the same width
SHAPELESS = ("num_heads", "norm_order", "rope_theta")
"""Settings of a ViT that change what it computes, but no shape of its tensors."""
BLOCK = re.compile(r"blocks\.\d+\.norm1\.weight")
BIAS_TABLE = ".relative_position_bias_table"
PART = re.compile(
    r"heads\.\w+\.(?:auxiliary_layers|branches\.\w+)|heads\.\w+|"
    r"(?:decoders\.\w+|decoder)(?:\.prompt_\w+)?"
)
RENAMED = [
    (re.compile(r"^blocks\.\d+\.(\d+\.)"), r"blocks.\1"),  # DINOv2 trained in chunks of blocks
    (re.compile(r"^(?:register|storage)_tokens$"), "reg_token"),  # DINOv2, DINOv3
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),  # DINOv2
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),  # BEiT
]
MERGING = "layers.0.downsample.reduction.weight"  # of Swin, as of its authors and timm 0.6


@dataclass
class LoadReport:
    """How the tensors of a file were used: names of tensors, of the decoder and of heads.

    ``loaded`` counts encoder tensors. ``kept`` lists the decoder and the heads that were loaded,
    except the layers listed in ``outputs``, whose outputs have another number or meaning.
    ``patch`` is the side of a patch in the file, if it is another one there. ``has_layer_scale``
    tells whether the file has LayerScale, as DINOv2's and DINOv3's have.
    """

    source: str
    loaded: int = 0
    resized: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    patch: int | None = None
    has_layer_scale: bool = False

    def __str__(self) -> str:
        lists = {
            "resized to this model": self.resized,
            "moved, for the same function": self.moved,
            "not in the file, initialised randomly": self.missing,
            "in the file, not used": self.unused,
            "also kept": self.kept,
            "initialised randomly, of another size or meaning": self.outputs,
        }
        shown = [f"{label}: {few(names, 8)}" for label, names in lists.items() if names]
        return "; ".join([f"{self.source}: {self.loaded} encoder tensors loaded", *shown])


def load_encoder_weights(encoder: Encoder, path: str | Path) -> LoadReport:
    """Loads the tensors of a file that fit into ``encoder``, resized to its grid and patch size.

    ``path`` is a file or folder, ``timm:NAME`` for a timm model's released weights, or ``hf:ID``
    for a repository on the Hugging Face hub.

    Raises:
        ValueError: nothing fits, or a tensor has the wrong shape; the encoder is then unchanged.
    """
    source = str(path)
    state, grid = _read_timm(source) if source.startswith(TIMM) else _read_file(source, encoder)
    with base.naming(path):
        return _fit(encoder, state, grid, source)


def load_model_weights(
    model: Network, config: ModelConfig, checkpoint: base.Checkpoint, *, source: str
) -> LoadReport:
    """Loads the encoder, the decoder and the heads that ``model`` shares with a checkpoint's.

    A head's layer is left as it is if only its number of outputs differs (other classes) or their
    meaning, as :class:`dpt.nn.HeadConfig` declares it (depth in metres after relative depth). A
    head that gets or loses a decoder of its own keeps the decoder's weights where they fit.

    Args:
        model: the model to load into.
        config: its configuration.
        checkpoint: the other model.
        source: the other model's file, for messages.

    Raises:
        ValueError: a part that both have misses tensors, has further ones, or ones of another
            shape; ``model`` is then unchanged.
    """
    by_part, stored_by_part = _by_part(model.state_dict()), _by_part(checkpoint.tensors)
    moved = _move_decoders(by_part, stored_by_part, model, checkpoint.network)
    shared = [part for part in by_part if part in stored_by_part]
    expected = {k: v for part in shared for k, v in by_part[part].items()}
    fitting = {k: v for part in shared for k, v in stored_by_part[part].items()}
    changed = _changed_outputs(expected, fitting, checkpoint.config, config)
    for name in changed:
        del expected[name], fitting[name]
    with base.naming(source):
        if faults := base.list_faults(expected, fitting):
            raise ValueError(f"another architecture: {faults}")
        report = _fit(model.encoder, *_encoder_of(checkpoint, model.encoder), source)
    model.load_state_dict(fitting, strict=False)
    report.kept = [f"{part} (from {moved[part]})" if part in moved else part for part in shared]
    report.outputs = list(dict.fromkeys(changed.values()))
    report.missing += sorted(by_part.keys() - {*shared})
    report.unused += sorted(stored_by_part.keys() - {*by_part, *moved.values()})
    return report


def _by_part(tensors: Tensors) -> dict[str, State]:
    """Returns the tensors of the decoder and of each head."""
    by_part: dict[str, State] = {}
    for name, tensor in tensors.items():
        if match := PART.match(name):
            by_part.setdefault(match[0], {})[name] = tensor
    return by_part


def _move_decoders(
    by_part: Mapping[str, State], stored: dict[str, State], model: Network, source: Network
) -> dict[str, str]:
    """Adds decoders to ``stored`` for heads that read another decoder in the model than there.

    Returns:
        The name of the stored decoder, by the name of the model's decoder that it was added for.
    """
    moved: dict[str, str] = {}
    for name in model.heads:
        ours = f"decoders.{name}" if name in model.decoders else "decoder"
        theirs = f"decoders.{name}" if name in source.decoders else "decoder"
        if name in source.heads and ours in by_part and ours not in stored:
            tensors = {ours + k.removeprefix(theirs): v for k, v in stored.get(theirs, {}).items()}
            if not base.list_faults(by_part[ours], tensors):
                stored[ours], moved[ours] = tensors, theirs
    return moved


def _changed_outputs(
    expected: State, stored: State, old: ModelConfig, new: ModelConfig
) -> dict[str, str]:
    """Returns tensors of layers whose outputs have another number or meaning, with the change."""
    changed = {}
    for name in sorted(n for n in stored if n.startswith("heads.") and n in expected):
        layer, head = name.rpartition(".")[0], name.split(".")[1]
        before, after = vars(old.heads[head]), vars(new.heads[head])
        keys = new.heads[head].meanings.get(layer.removeprefix(f"heads.{head}."), ())
        changes = [f"{k}: {before[k]} to {after[k]}" for k in keys if before[k] != after[k]]
        sizes, new_sizes = stored[name].shape, expected[name].shape
        if sizes != new_sizes and sizes[1:] == new_sizes[1:]:
            changes = [f"{sizes[0]} to {new_sizes[0]}"]
        if changes:
            changed[name] = f"{layer} ({', '.join(changes)})"
    return changed


# --- Reading


def _read_timm(source: str) -> tuple[State, Grid | None]:
    """Returns a timm model's released weights, and the grid of its position embeddings."""
    import timm

    name = source.removeprefix(TIMM)
    if re.search(r"[^\w.-]", name):  # as local-dir:DIR, which timm may unpickle
        raise ValueError(f"{source}: {TIMM} takes the name of a timm model, not a file or folder")
    try:
        model = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # no such model or tag, no released weights, no network
        fault = f"{source}: cannot be fetched from timm ({reason(error)})"
        raise ValueError(f"{fault}: check the name and the network, or give a file") from error
    return dict(model.state_dict()), _grid_of(model)


def _read_file(source: str, encoder: Encoder) -> tuple[State, Grid | None]:
    """Returns the encoder's tensors of any file, and the grid of its position embeddings.

    They are for ``encoder``, see :func:`_encoder_of`.
    """
    is_hub = source.startswith(HUB)
    path = hub.from_hub(source.removeprefix(HUB)) if is_hub else hub.locate(source)
    files = open_checkpoint(path)
    tensors = files.tensors
    prefixes = [k.removesuffix(EMBED) for k in tensors if k.endswith(EMBED)]
    if prefixes and not formats.Native().recognises(files):  # a ViT; of several, the teacher's
        prefix = min(prefixes, key=lambda p: (p != "", "teacher" not in p, len(p)))
        return _below(prefix, tensors), None
    source_format = formats.find_format(files)
    if source_format is None and files.config.get("model_type") not in transformers.BACKBONES:
        return tensors, None
    with base.naming(files.path):
        stored = source_format.read(files) if source_format else _read_backbone(files)
        return _encoder_of(base.Checkpoint(stored), encoder)


def _read_backbone(files: CheckpointFiles) -> base.StoredModel:
    """Returns an encoder alone of transformers, with a head whose tensors are missing."""
    encoder = transformers.read_backbone(files.config, *transformers.BACKBONES)
    config = model_dict("dpt_base", heads={"regression": {}}, encoder=encoder)
    tensors = {f"backbone.{name}": tensor for name, tensor in files.tensors.items()}
    return base.StoredModel(config, tensors, transformers.encoder_table(config["encoder"]))


def _encoder_of(checkpoint: base.Checkpoint, target: Encoder) -> tuple[State, Grid | None]:
    """Returns the encoder's tensors of a model, and the grid of its position embeddings.

    Raises:
        ValueError: ``target`` has other settings that no shape tells, and would compute something
            else with these tensors.
    """
    encoder = checkpoint.network.encoder
    if isinstance(encoder, VisionTransformer) and isinstance(target, VisionTransformer):
        stored, ours = vars(encoder.config), vars(target.config)
        for key in SHAPELESS:
            if stored["embed_dim"] == ours["embed_dim"] and stored[key] != ours[key]:
                remedy = f"must be {stored[key]}, as in this file"
                raise ValueError(f"model.encoder.{key}={ours[key]}: {remedy}")
    prefix = "encoder.model." if isinstance(encoder, TimmEncoder) else "encoder."
    return _below(prefix, checkpoint.tensors), _grid_of(_target(encoder))


def _below(prefix: str, tensors: Tensors) -> State:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _target(encoder: Encoder) -> nn.Module:
    """Returns the module whose tensors have timm's names."""
    return encoder.model if isinstance(encoder, TimmEncoder) else encoder


def _grid_of(target: nn.Module) -> Grid | None:
    """Returns the grid of position embeddings; None if there is no such grid."""
    if isinstance(target, VisionTransformer):
        return target.grid
    return getattr(getattr(target, "patch_embed", None), "grid_size", None)


# --- Fitting: each step changes the tensors in place, and notes it in the report


def _fit(encoder: Encoder, state: State, grid: Grid | None, source: str) -> LoadReport:
    """Loads the tensors of ``state`` that fit; called within :func:`naming`.

    ``grid`` is that of the position embeddings in ``state``, None if it is not known.
    """
    target = _target(encoder)
    expected = target.state_dict()
    report = LoadReport(source, has_layer_scale=any(k.endswith(".ls1.gamma") for k in state))
    _fit_kernels(state, expected, report)
    state = _rename(state, target)
    _resize_bias_tables(target, state, grid, report)
    _fit_positions(target, state, grid, report)
    _fit_gains(state, expected, report)
    stored, registers = state.get("reg_token"), expected.get("reg_token")
    if stored is not None and registers is not None and stored.shape != registers.shape:
        report.unused.append("reg_token")
        del state["reg_token"]
    fitting = {k: v for k, v in state.items() if k in expected}
    faults = base.list_faults({k: expected[k] for k in fitting}, fitting)
    if faults:
        raise ValueError(f"another architecture: {faults}: set model= to that of the file")
    if not any(v.ndim > 1 and k not in EMBEDDINGS for k, v in fitting.items()):
        raise ValueError(f"no tensor of this encoder found; the file has {few(sorted(state), 8)}")
    _require_blocks(target, state)
    target.load_state_dict(fitting, strict=False)
    report.loaded = len(fitting)
    report.missing = sorted(set(expected) - set(fitting))
    report.unused += sorted(set(state) - set(fitting))
    return report


def _require_blocks(target: nn.Module, state: State) -> None:
    """Raises a ValueError for a file with fewer or more blocks than ``target``."""
    ours, held = (sum(map(bool, map(BLOCK.match, t))) for t in (target.state_dict(), state))
    # a ViT has no blocks after the last that is used
    most = target.config.num_blocks if isinstance(target, VisionTransformer) else held
    if 0 < held < ours or held > most:
        raise ValueError(f"holds {held} blocks: set model.encoder.num_blocks={held} (timm: depth)")


def _rename(state: State, target: nn.Module) -> State:
    """Returns tensors with the names of ``target``; refuses blocks of another kind."""
    expected = target.state_dict().keys()
    if isinstance(target, VisionTransformer):
        state = _of_our_kind(state, target)
    elif MERGING in state.keys() - expected or "storage_tokens" in state.keys() - expected:
        # Swin's and DINOv3's authors: by timm's own rules, which follow its options
        rules = import_module(type(target).__module__).checkpoint_filter_fn
        with redirect_stdout(StringIO()):  # it prints each bias that it leaves out
            return dict(rules(state, target))
    for pattern, new in RENAMED:
        state = {k if k in expected else pattern.sub(new, k): v for k, v in state.items()}
    return state


def _of_our_kind(state: State, target: VisionTransformer) -> State:
    """Returns tensors of a ViT, those of DINOv3 with our biases and gates; refuses other kinds."""
    is_rotary = target.config.position == "rope"
    of_beit = () if isinstance(target, Beit) or is_rotary else (".gamma_1", BIAS_TABLE)
    of_dinov3 = () if is_rotary else ("storage_tokens", "rope_embed.", "rope.")
    foreign = [k for k in state if k.startswith(of_dinov3) or k.endswith(of_beit)]
    if foreign:
        kinds = "model/encoder=dinov3_small (base, large), timm or beit"
        raise ValueError(f"holds {foreign[0]}, so it is of DINOv3, EVA or BEiT: use {kinds}")
    if not is_rotary:
        return state
    state = dinov.split_biases(state)
    for gate, value in (("w1", "w2"), ("fc1_g", "fc1_x")):  # of the hub and timm
        for name in [name for name in state if f".mlp.{gate}." in name]:
            halves = [state.pop(name), state.pop(name.replace(gate, value))]
            state[name.replace(gate, "fc1")] = torch.cat(halves)
    return state


def _fit_kernels(state: State, expected: Tensors, report: LoadReport) -> None:
    """Fits convolutions over RGB to images of other bands, and patches to another size.

    By timm's rule for bands, the kernels of red, green and blue are repeated, and scaled so that
    their sum over all bands stays alike; a single band gets their sum. Patches are resized by the
    pseudo-inverse of bilinear resizing (Beyer et al. 2023, FlexiViT, section 3.4).
    """
    from timm.layers import resample_patch_embed
    from timm.models import adapt_input_conv

    for name in [k for k, v in state.items() if v.ndim == 4 and k in expected]:
        old, new = state[name].shape, expected[name].shape
        if old[:2] == (new[0], 3) and new[1] != 3:
            state[name] = adapt_input_conv(new[1], state[name])
            report.resized.append(f"{name} to {plural(new[1], 'band')}")
        if name == EMBED and state[name].shape[:2] == new[:2] and old[2:] != new[2:]:
            state[name] = resample_patch_embed(state[name], list(new[2:]))
            report.resized.append(f"{EMBED} {_times(old[2:])} to {_times(new[2:])}")
            report.patch = old[-1]


def _resize_bias_tables(
    target: nn.Module, state: State, grid: Grid | None, report: LoadReport
) -> None:
    """Resizes BEiT's tables of position biases from ``grid``, or a square, to its own grid."""
    names = [k for k in state if k.endswith(BIAS_TABLE)]
    if not isinstance(target, Beit) or not names:
        return
    count = state[names[0]].shape[0]
    grid = grid or (beit.offsets_side(count - 3),) * 2
    if grid != target.grid and math.prod(beit.offsets(grid)) + 3 == count:
        policy = target.config.position_resize
        for name in names:
            state[name] = beit.resize_table(state[name], grid, target.grid, policy=policy)
        tables = f"{len(names)} tables of position biases"
        report.resized.append(f"{tables} {_times(grid)} to {_times(target.grid)}")


def _fit_gains(state: State, expected: Tensors, report: LoadReport) -> None:
    """Fits LayerScale if only one of the two has it.

    γ · (W x + b) is (γ W) x + γ b: gains that the encoder lacks go into the layer before them,
    and gains that the file lacks are ones.
    """
    changed = 0
    for layer, gain in (("attn.proj", "ls1.gamma"), ("mlp.fc2", "ls2.gamma")):
        for weight in [k for k in expected if k in state and k.endswith(f".{layer}.weight")]:
            block = weight.removesuffix(f"{layer}.weight")
            name, bias = f"{block}{gain}", f"{block}{layer}.bias"
            if name in state and name not in expected:
                gamma = state.pop(name)
                state[weight], state[bias] = gamma[:, None] * state[weight], gamma * state[bias]
                changed += 1
            elif name in expected and name not in state:
                state[name] = torch.ones_like(expected[name])
                changed += 1
    if changed:
        report.moved.append(f"{changed} LayerScale gains, into the layers before them or to 1")


def _fit_positions(target: nn.Module, state: State, grid: Grid | None, report: LoadReport) -> None:
    """Fits ``pos_embed`` and the tokens before the patches to the encoder.

    A token's position embedding without a slot is added to the token, which gives the same
    outputs; those of tokens that the encoder lacks (DeiT's distillation token) are dropped.
    """
    expected, new = target.state_dict(), _grid_of(target)
    positions = state.get("pos_embed")
    if new is None or "pos_embed" not in expected or positions is None or positions.ndim != 3:
        return
    tokens, expected_tokens = _tokens(state), _tokens(expected)
    slots, old = _find_grid(positions.shape[1], len(tokens), grid, new)
    new_slots = expected["pos_embed"].shape[1] - new[0] * new[1]
    with_slots = dict(zip(tokens[:slots], positions[0], strict=False))
    dropped = with_slots.keys() - expected_tokens
    report.unused += sorted({f"code of {name}" for name, _ in dropped})
    before = positions.new_zeros(1, new_slots, positions.shape[2])
    for slot, (name, index) in enumerate(expected_tokens):
        position = with_slots.get((name, index), 0)
        if slot < new_slots:
            before[:, slot] = position
        elif (name, index) in with_slots:
            state[name] = state[name].clone()
            state[name][:, index] += position
    if slots - len(dropped) != new_slots:
        report.moved.append(f"pos_embed {slots} to {new_slots} codes before the patches")
    cells = positions[:, slots:]
    if old != new:
        policy: vit.ResizePolicy = "bicubic_antialias"
        if isinstance(target, VisionTransformer):
            policy = target.config.position_resize
        cells = vit.resize_positions(cells, old, new, policy=policy)
        report.resized.append(f"pos_embed {_times(old)} to {_times(new)}")
    state["pos_embed"] = torch.cat((before, cells), dim=1)


def _tokens(tensors: Tensors) -> list[tuple[str, int]]:
    """Returns (name, index in its parameter) of every token before the patches."""
    names = [n for n in PREFIX_TOKENS if n in tensors]
    return [(n, i) for n in names for i in range(tensors[n].shape[1])]


def _find_grid(count: int, num_tokens: int, grid: Grid | None, new: Grid) -> tuple[int, Grid]:
    """Returns the number of slots before those of patches, and the latter's grid, of ``count``.

    Without ``grid``, a square comes before ``new``: most files are of square images.
    """
    for slots in (1, num_tokens, 0):
        side = math.isqrt(max(count - slots, 0))
        for height, width in (grid,) if grid else ((side, side), new):
            if 0 < height * width == count - slots:
                return slots, (height, width)
    patches = f"{_times(grid)} patches" if grid else "a square of patches"
    fault = f"pos_embed has {count} slots: not {patches} and {num_tokens} tokens"
    raise ValueError(f"{fault}: set model.encoder.image_size (timm: img_size) to the file's")


def _times(sides: Sequence[int]) -> str:
    return f"{sides[0]}x{sides[1]}"
