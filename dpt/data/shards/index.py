"""What a packed split consists of: its shards, with their checksums, and what the samples give."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from dpt import atomic
from dpt.data.base import DataError
from dpt.types import DatasetInfo, Target

FORMAT = "dpt-packed-1"
_SHARD_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\.tar")


@dataclass(frozen=True)
class Shard:
    """A tar file of samples.

    Attributes:
        name: of the file; it lies beside the index, never elsewhere.
        samples: how many it holds.
        size: in bytes.
        sha256: of the file, in hexadecimal digits.
    """

    name: str
    samples: int
    size: int
    sha256: str

    def __post_init__(self) -> None:
        if not _SHARD_NAME.fullmatch(self.name):
            raise ValueError(f"shard name {self.name!r}")
        if self.samples < 1 or self.size < 1 or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"shard {self.name}")


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The JSON file of a split.

    Attributes:
        info: what the samples give, as the original data set says it.
        shards: in the order of the samples.
        class_id_names: the name of every ``class_id``; empty if samples have none.
        skipped: names of what could not be read and was left out.
        source: what was packed, for people.
    """

    info: DatasetInfo
    shards: tuple[Shard, ...]
    class_id_names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        return sum(shard.samples for shard in self.shards)

    def write(self, path: Path) -> None:
        values = {"format": FORMAT, "samples": self.samples, **asdict(self)}
        atomic.write_bytes(path, (json.dumps(values, indent=1, ensure_ascii=False)).encode())

    @classmethod
    def parse(cls, text: str, *, source: str) -> ShardIndex:
        """The index in a JSON text.

        Raises:
            DataError: naming ``source``, unless it is one that :meth:`write` could have written.
        """
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']!r}")
            index = cls(
                info=_info(values["info"]),
                shards=tuple(Shard(**shard) for shard in values["shards"]),
                class_id_names=tuple(values["class_id_names"]),
                skipped=tuple(values["skipped"]),
                source=values["source"],
            )
            if not index.shards or index.samples != values["samples"]:
                raise ValueError(f"{index.samples} samples")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{source}: not an index that dpt data pack wrote ({error}): pack the data again"
            ) from None
        return index


def _info(values: Mapping[str, Any]) -> DatasetInfo:
    unknown = set(values["targets"]) - set(get_args(Target))
    if unknown:
        raise ValueError(f"targets {sorted(unknown)}")
    return DatasetInfo(
        targets=tuple(values["targets"]),
        class_names=tuple(values["class_names"]),
        palette=tuple((int(r), int(g), int(b)) for r, g, b in values["palette"]),
        min_depth=float(values["min_depth"]),
        max_depth=None if values["max_depth"] is None else float(values["max_depth"]),
    )
