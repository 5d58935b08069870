"""The interface of a checkpoint format, and what formats share.

A format maps tensor names by a table of rows (our name, its name), used for reading and for
writing. ``*`` is the rest of a name and ``{n}`` a number; the other format's name may hold it
shifted: ``{n+1}``, ``{3-n}``. ``{query,key,value}`` stands for several tensors whose rows our one
tensor holds. The first row that matches a name applies.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor

from dpt.files import MAX_MESSAGE, few, reason
from dpt.model_config import ModelConfig
from dpt.weights.files import Source

Config = dict[str, Any]
Tensors = Mapping[str, Tensor]
Table = Sequence[tuple[str, str]]
Keys = Mapping[str, tuple[str, Any]]
"""For each of our options, the key in another format's config and the default there."""


@dataclass(frozen=True)
class Checkpoint:
    """A model as read from a file.

    Expected ``tensors`` have our names; unexpected ones keep those of the file. ``unused`` are
    names in the file of tensors that take no part in a prediction.
    """

    config: Config
    tensors: dict[str, Tensor]
    unused: list[str] = field(default_factory=list)


class Format(ABC):
    """A checkpoint format.

    Attributes:
        name: as in ``dpt convert --to``.
        encoders, heads: kinds of encoders and names of heads that are written; no encoders in a
            format that is only read.
        free: patterns of options that may change in writing, with a note or None.
        hint: for messages, how the format defines the unit of depth.
    """

    name: str
    encoders: tuple[str, ...] = ()
    heads: tuple[str, ...] = ("depth", "segmentation")
    free: ClassVar[dict[str, str | None]] = {
        "encoder.mlp_ratio": None,  # follows from the shapes
        "encoder.drop_path": None,
        "heads.*.dropout": None,
        "heads.*.class_names": "the format does not hold them",
        "heads.*.palette": "the format does not hold it",
        "preprocessing.output_interpolation": "outputs are resized to the image in another way",
        "preprocessing.*": "pictures are resized or normalised in another way",
    }
    hint = ""

    @abstractmethod
    def recognises(self, source: Source) -> bool:
        """Whether the file is in this format, by the names in it; never fails."""

    @abstractmethod
    def read(self, source: Source) -> Checkpoint:
        """The model in the file; call it within :func:`naming`."""

    def write(self, config: Config, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a model, and returns notes for its user.

        What would be written is read first: a model that comes back with other options or tensors
        is refused with a ValueError.
        """
        if not self.encoders:
            self.refuse("is only read, not written")
        full, _ = resolve(config)
        heads, kind = full["heads"], full["encoder"]["kind"]
        if len(heads) != 1:
            self.refuse(f"holds one head, and this model has {len(heads)}: {', '.join(heads)}")
        ((name, head),) = heads.items()
        if name not in self.heads or head.get("kind") == "linear":
            linear = "linear " if name in self.heads else ""
            self.refuse(f"has no {linear}{name} head, only {' or '.join(self.heads)}")
        if kind not in self.encoders:
            self.refuse(f"cannot express encoder.kind={kind!r} (only {' or '.join(self.encoders)})")
        try:
            source = self._write(full, tensors, Path(path))
            found = self.read(source)
            read, wanted = resolve(found.config)
        except ValueError as error:
            self.refuse(f"cannot express this model: {error}")
        ours, theirs = _options(full), _options(read)
        notes, wrong = [], []
        for key in [k for k in ours | theirs if ours.get(k) != theirs.get(k)]:
            notes_of = [note for pattern, note in self.free.items() if fnmatchcase(key, pattern)]
            if not notes_of:
                wrong.append(f"{key}={ours.get(key)!r} (only {theirs.get(key)!r})")
            elif notes_of[0]:
                was, now = short(ours.get(key)), short(theirs.get(key))
                notes.append(f"{key}={was} becomes {now}: {notes_of[0]}")
        if reason := "; ".join(wrong) or list_faults(wanted, found.tensors):
            self.refuse(f"cannot express {reason}{self.hint if 'heads.depth' in reason else ''}")
        source.save()
        return notes

    def _write(self, config: Config, tensors: Tensors, path: Path) -> Source:
        """What is to be written, with zeros for tensors that the format has but never runs."""
        raise NotImplementedError

    def refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"the {self.name} format {reason}")


def _options(config: Config) -> Config:
    """The options of each part of a model by dotted names."""
    parts = {n: config[n] for n in ("encoder", "decoder", "preprocessing")}
    parts |= {f"heads.{name}": head for name, head in config["heads"].items()}
    return {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Puts the file in front of the message of an error in its model, on one line."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}"[:MAX_MESSAGE]) from error
    except Exception as error:  # of torch, timm, and of operations on values of the wrong type
        message = f"{path}: its configuration describes no model ({reason(error)})"
        raise ValueError(message) from error


@cache
def _pattern(ours: str) -> re.Pattern[str]:
    pattern = re.escape(ours).replace(r"\*", "(?P<rest>.+)")
    return re.compile(re.sub(r"\\\{(\w)\\\}", r"(?P<\1>\\d+)", pattern))


def their_names(name: str, table: Table) -> list[str]:
    """The names in another format of our tensor: one, several for parts, none without a row."""

    def number(found: re.Match[str]) -> str:
        base, letter, shift = found.groups()
        n = int(groups[letter])
        return str(int(base) - n if base else n + int(shift or 0))

    for ours, theirs in table:
        if match := _pattern(ours).fullmatch(name):
            groups = match.groupdict()
            new = re.sub(r"\{(?:(\d)-)?([a-z])([+-]\d)?\}", number, theirs)
            new = new.replace("*", groups.get("rest", ""))
            parts = re.search(r"\{(\w+(?:,\w+)+)\}", new)
            return [new.replace(parts[0], part) for part in parts[1].split(",")] if parts else [new]
    return []


def from_theirs(
    config: Config, tensors: Tensors, table: Table, unused: Iterable[str]
) -> Checkpoint:
    """The model with our names; ``unused`` are patterns of names of tensors that never run."""
    state: dict[str, Tensor] = {}
    left = dict.fromkeys(tensors)
    for name in resolve(config)[1]:
        names = their_names(name, table)
        if names and all(n in tensors for n in names):
            parts = [tensors[n] for n in names]
            state[name] = torch.cat(parts) if len(parts) > 1 else parts[0]
            for n in names:
                left.pop(n, None)
    never_run = [n for n in left if any(fnmatchcase(n, p) for p in unused)]
    unexpected = {n: tensors[n] for n in left if n not in never_run}
    return Checkpoint(config, state | unexpected, never_run)


def to_theirs(state: Tensors, table: Table, deepest_unit: str) -> dict[str, Tensor]:
    """Our tensors under another format's names.

    The first residual unit of the deepest fusion block, which never runs, gets zeros;
    ``deepest_unit`` is its name in the format without the number.
    """
    tensors: dict[str, Tensor] = {}
    for name, value in state.items():
        names = their_names(name, table)
        parts = value.chunk(len(names)) if len(names) > 1 else (value,)
        tensors.update(zip(names, parts, strict=False))
    for name in [n for n in tensors if n.startswith(f"{deepest_unit}2.")]:
        unit1 = name.replace(f"{deepest_unit}2.", f"{deepest_unit}1.")
        tensors[unit1] = torch.zeros_like(tensors[name])
    return tensors


def resolve(config: Config) -> tuple[Config, Tensors]:
    """A configuration with every option, and its tensors without values."""
    full = ModelConfig.from_dict(config)
    tensors = full.outline().state_dict()
    return full.to_dict(), tensors


def list_faults(wanted: Tensors, state: Tensors) -> str:
    """Lists missing, unexpected and unfit tensors of ``state``; empty if there are none."""
    faults = [f"missing {k}" for k in wanted if k not in state]
    faults += [f"unexpected {k}" for k in state if k not in wanted]
    faults += [
        f"{k} {fault}" for k in wanted if k in state and (fault := _fault(wanted[k], state[k]))
    ]
    return few(faults, 8, "; ")


def _fault(wanted: Tensor, given: Tensor) -> str:
    """Why a tensor cannot be loaded; empty if it can."""
    if given.shape != wanted.shape:
        return f"is {tuple(given.shape)}, not {tuple(wanted.shape)}"
    if given.is_floating_point() != wanted.is_floating_point() or given.is_complex():
        return f"is {given.dtype}, not {wanted.dtype}"
    return "" if given.isfinite().all() else "holds NaN or infinity"


class Shapes:
    """Shapes of the tensors of a file, for readers; one that is missing is a ValueError."""

    def __init__(self, tensors: Tensors, family: str) -> None:
        self.tensors, self.family = tensors, family

    def __call__(self, name: str) -> tuple[int, ...]:
        if name not in self.tensors:
            raise ValueError(f"looks like {self.family}, but {name} is missing")
        return tuple(self.tensors[name].shape)

    def count(self, prefix: str) -> int:
        """Number of items with tensors under ``prefix``, such as ``pretrained.blocks.``."""
        return len({n[len(prefix) :].split(".")[0] for n in self.tensors if n.startswith(prefix)})

    def vit(self, prefix: str) -> Config:
        """Arguments of our ViT for one under ``prefix``, with timm's or DINOv2's names.

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
            # SwiGLU has two thirds of the hidden channels, rounded up to a multiple of 8
            usual = (int(4 * dim * 2 / 3) + 7) // 8 * 8
            mlp_ratio = 4.0 if mlp_ratio * dim == 2 * usual else 0.75 * mlp_ratio
        registers = self.tensors.get(f"{prefix}register_tokens")
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
            "num_register_tokens": 0 if registers is None else registers.shape[1],
        }


def quarter_ends(num_blocks: int) -> list[int]:
    """Zero-based indices of the last block of each quarter of an encoder."""
    return [num_blocks * (i + 1) // 4 - 1 for i in range(4)]


def read_keys(keys: Keys, config: Config) -> Config:
    """Our options for another format's config."""
    return {ours: config.get(key, default) for ours, (key, default) in keys.items()}


def write_keys(keys: Keys, options: Config) -> Config:
    """Another format's config for our options."""
    return {key: options[ours] for ours, (key, _) in keys.items()}
