"""Data sets beyond one machine's disk: shards that ``dpt data pack`` wrote, here or at an address.

The shards are tar files as webdataset's: its own writer writes them, and webdataset, tar and
whatever else knows that layout can read them. They are read by position rather than through
webdataset's iterable pipeline, since the guarantees of this project rest on indices: each sample
exactly once an epoch on any number of ranks and workers, batches that do not depend on the workers,
a run that goes on in mid-epoch as if it had never stopped. A pipeline deals out shards to ranks and
workers, whose numbers of samples then differ, and its place inside an epoch is not kept. webdataset
had a reader by position once (wids, up to 0.2.111); 1.0 no longer has it. litdata (0.2.76) has one
for its own chunks, but no checksums of them and no http addresses, goes on in mid-epoch only with a
loader of its own, and brings boto3, obstore and requests along.

What remains is little: a tar's headers say where every file in it starts, ``EpochSampler`` draws an
order that needs few shards at a time, and ``ShardCache`` keeps those on disk.
"""

from __future__ import annotations

import tarfile
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from typing import BinaryIO

import numpy as np

from dpt.data.base import DataError, validate_samples
from dpt.data.samplers import nearby_permutation
from dpt.data.shards.index import Shard
from dpt.data.shards.samples import decode_sample
from dpt.data.shards.store import GIGABYTE, ShardFolder, make_store
from dpt.types import Sample

Places = dict[str, tuple[int, int]]
"""Where each part of a sample lies in its shard: first byte and length."""


class PackedDataset:
    """The samples of a split, as the data set gave them that was packed.

    Args:
        root: the folder of the shards; or its address, ``https://...``, ``http://...``,
            ``s3://...``, ``gs://...``, whatever fsspec has a file system for.
        split: ``train``, ``val``, ...
        window: shards that training draws from at a time, see ``samplers.nearby_permutation``. The
            order is the same wherever the shards lie.
        cache_dir: where shards from an address are kept; all processes of a machine share it.
        cache_gb: gigabytes that they may take there.
    """

    def __init__(
        self,
        *,
        root: str,
        split: str,
        window: int = 16,
        cache_dir: str = "data/shards",
        cache_gb: float = 20.0,
    ) -> None:
        if window < 1:
            raise DataError(f"data.window={window}: must be at least 1 shard")
        self.root = root
        self.store = make_store(root, cache_dir=cache_dir, cache_gb=cache_gb)
        index = self.store.index(split)
        self.info, self.class_id_names = index.info, index.class_id_names
        self.shards, self.window = index.shards, window
        self._is_local = isinstance(self.store, ShardFolder)
        self._ends = list(accumulate(shard.samples for shard in self.shards))
        self._tables: OrderedDict[int, list[tuple[str, Places]]] = OrderedDict()
        if not self._is_local:
            self._check_cache(cache_gb)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is not in 0..{len(self) - 1}")
        number = bisect_right(self._ends, index)
        shard = self.shards[number]
        with self.store.open(shard) as file:
            table = self._table(number, file)
            key, places = table[index - (self._ends[number] - shard.samples)]
            parts = {name: _read(file, *place) for name, place in places.items()}
        sample = decode_sample(parts, source=f"{self._name(shard)}#{key}")
        sample["index"] = index
        return sample

    @property
    def at_hand(self) -> range:
        """What can be read without fetching much, see ``base.at_hand``: the first shard."""
        return range(len(self) if self._is_local else self.shards[0].samples)

    def order(self, random: np.random.Generator) -> np.ndarray:
        """A random order that reads from ``window`` shards at a time."""
        sizes = [shard.samples for shard in self.shards]
        return nearby_permutation(sizes, window=self.window, random=random)

    def validate(self, *, limit: int = 16, seed: int = 0) -> list[str]:
        """Reads some samples and raises DataError for what would spoil a run; returns remarks."""
        return validate_samples(self, limit=limit, seed=seed)

    def _table(self, number: int, file: BinaryIO) -> list[tuple[str, Places]]:
        """Key and places of each sample of a shard; those of the shards used last are kept."""
        if number not in self._tables:
            shard = self.shards[number]
            table = _places(file, source=self._name(shard))
            if len(table) != shard.samples:
                raise DataError(
                    f"{self._name(shard)}: holds {len(table)} samples, must hold {shard.samples}: "
                    "pack the data again"
                )
            self._tables[number] = table
            if len(self._tables) > 2 * self.window + 1:
                self._tables.popitem(last=False)
        self._tables.move_to_end(number)
        return self._tables[number]

    def _name(self, shard: Shard) -> str:
        return f"{str(self.root).rstrip('/')}/{shard.name}"

    def _check_cache(self, cache_gb: float) -> None:
        count = min(self.window + 1, len(self.shards))
        needed = count * max(shard.size for shard in self.shards) / GIGABYTE
        if needed > cache_gb:
            raise DataError(
                f"data.cache_gb={cache_gb:g} cannot hold the {count} shards that are in use at a "
                f"time (data.window), {needed:.3g} GB: raise it, or lower data.window"
            )


def _places(file: BinaryIO, *, source: str) -> list[tuple[str, Places]]:
    """Where every sample of a tar file lies: files in a row whose names agree to the first dot."""
    table: list[tuple[str, Places]] = []
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    raise tarfile.TarError(f"{member.name} is no plain file")
                key, _, part = member.name.partition(".")
                if not table or table[-1][0] != key:
                    table.append((key, {}))
                table[-1][1][part] = member.offset_data, member.size
    except tarfile.TarError as error:
        raise DataError(
            f"{source}: not a shard that can be read ({error}): copy it again"
        ) from None
    return table


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)
