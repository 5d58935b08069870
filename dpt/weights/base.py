"""The interface of a checkpoint format, and the model that is read from a checkpoint."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from reprlib import repr as shortened
from typing import ClassVar

import torch
from torch import Tensor

from dpt.files import MAX_MESSAGE, few, reason
from dpt.model_config import ModelConfig
from dpt.nn import Network
from dpt.validation import Plain
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import SAME_NAMES, Table, Tensors, their_names


@dataclass(frozen=True)
class StoredModel:
    """A model as a file holds it.

    Attributes:
        config: our configuration, as plain data.
        tensors: by their names in the file.
        table: rows (our name, name in the file).
        never_run: patterns for names of tensors that take no part in a prediction.
    """

    config: Plain
    tensors: Tensors
    table: Table = SAME_NAMES
    never_run: Sequence[str] = ()


class Checkpoint:
    """A model that was read from a file, with our names.

    Attributes:
        config: its complete configuration.
        network: the model on the meta device, without values.
        tensors: by our names; unexpected ones have their name in the file.
        unused: names in the file of tensors that take no part in a prediction.
        format: the name of the file's format.
    """

    def __init__(self, stored: StoredModel, format: str = "dpt") -> None:
        self.format = format
        self.config = ModelConfig.from_dict(stored.config)
        self.network = self.config.outline()
        self.tensors: dict[str, Tensor] = {}
        unread = dict(stored.tensors)
        for name in self.network.state_dict():
            names = their_names(name, stored.table)
            rows = [stored.tensors[n] for n in names if n in stored.tensors]
            if 0 < len(rows) == len(names):
                self.tensors[name] = torch.cat(rows) if len(rows) > 1 else rows[0]
                for n in names:
                    unread.pop(n, None)
        self.unused = [n for n in unread if any(fnmatchcase(n, p) for p in stored.never_run)]
        self.tensors |= {n: tensor for n, tensor in unread.items() if n not in self.unused}

    def list_faults(self) -> str:
        """Lists missing, unexpected and unfit tensors; empty if there are none."""
        return list_faults(self.network.state_dict(), self.tensors)

    def build(self) -> Network:
        """Returns the network with copies of the tensors; it must have no faults.

        The network is not built a second time, unless a class outside the project holds tensors
        that are in no file, or parameters under several names.
        """
        parameters = list(self.network.parameters())
        is_tied = len(parameters) < len(list(self.network.named_parameters(remove_duplicate=False)))
        device = torch.get_default_device()
        copies = {  # files may be mapped into memory, and tensors may share memory
            # empty_like of a meta tensor would import sympy
            name: torch.empty(t.shape, dtype=t.dtype, device=device).copy_(
                self.tensors[name].detach()
            )
            for name, t in self.network.state_dict().items()
        }
        self.network.load_state_dict(copies, assign=True)
        self.network.encoder.compute_buffers()
        if is_tied or _has_meta_tensors(self.network):
            self.network = self.config.build()
            self.network.load_state_dict(copies)
        return self.network


def _has_meta_tensors(network: Network) -> bool:
    """Whether a tensor has no values: a buffer, or an attribute that is no buffer."""
    attributes = (value for module in network.modules() for value in vars(module).values())
    tensors = [*network.buffers(), *(a for a in attributes if isinstance(a, Tensor))]
    return any(tensor.is_meta for tensor in tensors)


class Format(ABC):
    """A checkpoint format.

    Attributes:
        name: as in ``dpt convert --to``.
        encoders, heads: kinds of encoders and names of heads that are written; no encoders in a
            format that is only read.
        free: patterns of options that may change in writing, with a note or None.
    """

    name: str
    encoders: tuple[str, ...] = ()
    heads: tuple[str, ...] = ("depth", "segmentation")
    free: ClassVar[dict[str, str | None]] = {
        "encoder.mlp_ratio": None,  # follows from the shapes
        "encoder.drop_path": None,
        "heads.*.dropout": None,
        "heads.*.prior": None,  # of the random weights
        # of the kind `masks`, which formats with other segmentation heads refuse
        **dict.fromkeys(
            f"heads.segmentation.{key}" for key in ("num_queries", "num_layers", "masked_attention")
        ),
        "heads.*.class_names": "the format does not hold them",
        "heads.*.palette": "the format does not hold it",
        "preprocessing.output_interpolation": "outputs are resized to the image in another way",
        "preprocessing.*": "images are resized or normalised in another way",
    }

    @abstractmethod
    def recognises(self, files: CheckpointFiles) -> bool:
        """Whether files are in this format, by the names in them; never fails."""

    @abstractmethod
    def read(self, files: CheckpointFiles) -> StoredModel:
        """Returns the model in files; called within :func:`naming`."""

    def write(self, config: Plain, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a model with a complete configuration, and returns notes for its user.

        What would be written is read first: a model that comes back with other options or tensors
        is refused with a ValueError.
        """
        config = deepcopy(config)
        heads, kind = config["heads"], config["encoder"]["kind"]
        (name, head), *others = heads.items()
        fits = name in self.heads and head.get("kind") != "linear"
        self._require(config["preprocessing"]["pixels"] == "rgb", "is for RGB images")
        self._require(not others, f"holds one head, and this model has {', '.join(heads)}")
        self._require(fits, f"has no {name} head of this kind, only {' or '.join(self.heads)}")
        allowed = f"cannot express encoder.kind={kind!r} (only {' or '.join(self.encoders)})"
        self._require(kind in self.encoders, allowed)
        try:
            files = self._files(config, tensors, Path(path))
            checkpoint = Checkpoint(self.read(files))
        except ValueError as error:
            raise ValueError(f"the {self.name} format cannot express this model: {error}") from None
        notes, faults = self._compare(config, checkpoint.config.to_dict())
        fault = "; ".join(faults) or checkpoint.list_faults()
        self._require(not fault, f"cannot express {fault}")
        files.save()
        return notes

    def _require(self, condition: bool, fault: str) -> None:
        if not condition:
            raise ValueError(f"the {self.name} format {fault}")

    def _files(self, config: Plain, tensors: Tensors, path: Path) -> CheckpointFiles:
        """Returns what is to be written, with zeros for tensors that the format never runs.

        ``config`` may be changed where its new value means the same model.
        """
        raise NotImplementedError

    def _compare(self, written: Plain, read: Plain) -> tuple[list[str], list[str]]:
        """Returns notes on options that may change, and faults for those that must not."""
        notes, faults = [], []
        for key, (before, after) in differences(written, read).items():
            allowed = [note for pattern, note in self.free.items() if fnmatchcase(key, pattern)]
            if not allowed:
                faults.append(f"{key}={before!r} (only {after!r})")
            elif allowed[0]:
                change = f"{key}={shortened(before)} becomes {shortened(after)}"
                notes.append(f"{change}: {allowed[0]}")
        return notes, faults


def differences(config: Plain, other: Plain) -> dict[str, tuple[object, object]]:
    """Returns the options of a model's parts that differ, by dotted names, with both values."""
    ours, theirs = _dotted(config), _dotted(other)
    return {k: (ours.get(k), theirs.get(k)) for k in ours | theirs if ours.get(k) != theirs.get(k)}


def _dotted(config: Plain) -> Plain:
    """Returns the options of each part of a model by dotted names."""
    sections = {n: config[n] for n in ("encoder", "decoder", "preprocessing")}
    sections |= {f"heads.{name}": head for name, head in config["heads"].items()}
    return {f"{n}.{key}": v for n, values in sections.items() for key, v in values.items()}


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


def list_faults(expected: Tensors, tensors: Tensors) -> str:
    """Lists missing, unexpected and unfit tensors; empty if there are none.

    Raises:
        ValueError: a tensor that fits holds NaN or infinity.
    """
    faults = [f"missing {k}" for k in expected if k not in tensors]
    faults += [f"unexpected {k}" for k in tensors if k not in expected]
    for name in [k for k in expected if k in tensors]:
        ours, tensor = expected[name], tensors[name]
        if tensor.shape != ours.shape:
            faults.append(f"{name} is {tuple(tensor.shape)}, not {tuple(ours.shape)}")
        elif tensor.is_floating_point() != ours.is_floating_point() or tensor.is_complex():
            faults.append(f"{name} is {tensor.dtype}, not {ours.dtype}")
        elif not tensor.isfinite().all():
            raise ValueError(f"{name} holds NaN or infinity: download it again, or use another")
    return few(faults, 8, "; ")
