"""``data=packed``: the shards that ``dpt data pack`` wrote, in a folder or at a remote address.

The tar files have the layout of webdataset. They are read by index, because webdataset's pipeline
cannot keep the guarantees of ``EpochSampler``: equal numbers on all ranks and resuming mid-epoch.
"""

from __future__ import annotations

import tarfile
from bisect import bisect_right
from collections import OrderedDict
from itertools import accumulate
from typing import BinaryIO

import numpy as np

from dpt.data.base import Dataset
from dpt.data.errors import DataError
from dpt.data.samplers import nearby_permutation
from dpt.data.shards.samples import decode_sample
from dpt.data.shards.store import GIGABYTE, ShardCache, ShardFolder
from dpt.types import Sample

Table = list[tuple[str, dict[str, tuple[int, int]]]]
"""Key and files of each sample of a shard; a file is its first byte and its length."""


class PackedDataset(Dataset):
    """The samples of a packed split, equal to those of the original data set.

    Args:
        root: folder of the shards, or its address: ``https://``, ``http://``, or any that fsspec
            supports (``s3://``, ``gs://``).
        split: ``train``, ``val``, ...
        window: number of shards from which training draws at a time, see
            :func:`dpt.data.samplers.nearby_permutation`; the order does not depend on ``root``.
        cache_dir: folder for shards of a remote address, shared by all processes of a machine.
        cache_gb: gigabytes that they may take there.
    """

    is_sharded = True

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
        self.root = str(root).rstrip("/")
        self.store = (
            ShardCache(self.root, cache_dir, limit=int(cache_gb * GIGABYTE))
            if "://" in self.root
            else ShardFolder(root)
        )
        index = self.store.index(split)
        self.info, self.class_id_names = index.info, index.class_id_names
        self.shards, self.window = index.shards, window
        self._ends = list(accumulate(shard.samples for shard in self.shards))
        self._tables: OrderedDict[int, Table] = OrderedDict()
        count = min(window + 1, len(self.shards))
        needed = count * max(shard.size for shard in self.shards) / GIGABYTE
        if not self.store.is_local and needed > cache_gb:
            raise DataError(
                f"data.cache_gb={cache_gb:g} cannot hold the {count} shards that data.window needs "
                f"at a time, {needed:.3g} GB: raise it, or lower data.window"
            )

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is not in 0..{len(self) - 1}")
        number = bisect_right(self._ends, index)
        with self.store.open(self.shards[number]) as file:
            key, places = self._table(number, file)[index - self._ends[number]]  # from the end
            parts = {}
            for name, (start, length) in places.items():
                file.seek(start)
                parts[name] = file.read(length)
        sample = decode_sample(parts, source=f"{self._name(number)}#{key}")
        sample["index"] = index
        return sample

    @property
    def available_indices(self) -> range:
        """Indices that can be read without fetching much: the first shard of a remote address."""
        return range(len(self) if self.store.is_local else self.shards[0].samples)

    def epoch_order(self, random: np.random.Generator) -> np.ndarray:
        """A random order that reads from ``window`` shards at a time."""
        sizes = [shard.samples for shard in self.shards]
        return nearby_permutation(sizes, window=self.window, random=random)

    def _table(self, number: int, file: BinaryIO) -> Table:
        """The table of a shard; those of the shards used last are kept."""
        if number not in self._tables:
            table = _read_table(file, source=self._name(number))
            if len(table) != self.shards[number].samples:
                raise DataError(
                    f"{self._name(number)}: has {len(table)} samples, expected "
                    f"{self.shards[number].samples}: pack the data again"
                )
            self._tables[number] = table
            if len(self._tables) > 2 * self.window + 1:
                self._tables.popitem(last=False)
        self._tables.move_to_end(number)
        return self._tables[number]

    def _name(self, number: int) -> str:
        return f"{self.root}/{self.shards[number].name}"


def _read_table(file: BinaryIO, *, source: str) -> Table:
    """Finds the samples of a tar file: consecutive files with the same name up to the first dot."""
    table: Table = []
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or member.issparse():
                    raise tarfile.TarError(f"{member.name} is not a plain file")
                key, _, part = member.name.partition(".")
                if not table or table[-1][0] != key:
                    table.append((key, {}))
                table[-1][1][part] = member.offset_data, member.size
    except tarfile.TarError as error:
        raise DataError(f"{source}: not a readable shard ({error}): copy it again") from None
    return table
