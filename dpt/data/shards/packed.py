"""``data=packed``: the shards that ``dpt data pack`` wrote, in a folder.

The tar files have the layout of webdataset. They are read by index, because webdataset pipelines
cannot keep the guarantees of ``EpochSampler``: equal numbers on all ranks and resuming mid-epoch.
A shard appears under its name when it is complete, and the index when all shards are.
"""

import hashlib
import tarfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from itertools import accumulate, chain
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import numpy as np
from pydantic import Field, TypeAdapter

from dpt.data.base import Dataset
from dpt.data.loading import nearby_permutation, read_in_order
from dpt.data.shards.samples import decode_name, decode_sample, encode_sample
from dpt.fetch import verify
from dpt.files import (
    MAX_BYTES,
    DataError,
    data_root,
    parse_as,
    read_bytes,
    replacing,
    required_file,
    write_bytes,
)
from dpt.plugins import register
from dpt.process import log
from dpt.run_log import tracked
from dpt.types.samples import DatasetInfo, Sample
from dpt.validation import Count

MAX_SAMPLES = 10**8
"""Largest number of samples in a split: the order of an epoch is held in memory."""
_MAX_INDEX = 1 << 26

Table = list[tuple[str, dict[str, tuple[int, int]]]]
"""Key and files of each sample of a shard; a file is its first byte and its length."""


@dataclass(frozen=True)
class Shard:
    """A tar file of samples, in the folder of the index; ``size`` in bytes, ``sha256`` in hex."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.tar$")]
    samples: Annotated[int, Field(ge=1)]
    size: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class ShardIndex:
    """The JSON file of a packed split: its shards in order, and its description."""

    info: DatasetInfo
    class_id_names: tuple[str, ...] = ()
    resize_labels: bool = False
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]
    format: Literal["dpt-packed-3"] = "dpt-packed-3"

    def __post_init__(self) -> None:
        if (count := sum(shard.samples for shard in self.shards)) > MAX_SAMPLES:
            raise ValueError(f"{count} samples, at most {MAX_SAMPLES} are read")


INDEX = TypeAdapter(ShardIndex)


@register("packed")
class PackedDataset(Dataset):
    """The samples of a packed split, equal to those of the original data set.

    Args:
        root: folder of the shards.
        window: number of shards from which training draws at a time, see
            :func:`dpt.data.loading.nearby_permutation`.
    """

    is_sharded = True

    def __init__(self, *, root: str, split: str, window: Count = 16) -> None:
        self.root = self.folder = data_root(root)
        index = self._read_index(split)
        self.info, self.class_id_names = index.info, index.class_id_names
        self.resize_labels = index.resize_labels
        self.shards, self.window = index.shards, window
        self._ends = list(accumulate(shard.samples for shard in self.shards))
        self._tables: dict[int, Table] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Sample:
        files, source = self._read(index)
        sample = decode_sample(files, source=source)
        sample["index"] = index
        return sample

    def name(self, index: int) -> str:
        files, source = self._read(index, only="json")
        return decode_name(files, source=source) or f"sample {index}"

    def _read(self, index: int, only: str | None = None) -> tuple[dict[str, bytes], str]:
        """Returns the files of a sample, or one of them, and what messages call the sample."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is not in 0..{len(self) - 1}")
        number = bisect_right(self._ends, index)
        shard = self.shards[number]
        position = index - self._ends[number] + shard.samples
        with self._open(shard) as file:
            key, members = self._table(number, file)[position]
            files = {}
            for name, (start, length) in members.items():
                if only in (None, name):
                    file.seek(start)
                    files[name] = file.read(length)
        return files, f"{self.root}/{shard.name}#{key}"

    def damaged_files(self) -> Sequence[str]:
        faults = []
        for shard in self.shards:
            try:
                checksum = f"sha256:{shard.sha256}"
                verify(self.folder / shard.name, checksum=checksum, remedy="copy it again")
            except DataError as error:
                faults.append(str(error))
        return faults

    def epoch_order(self, random: np.random.Generator) -> np.ndarray:
        """Returns a random order that reads from ``window`` shards at a time."""
        sizes = [shard.samples for shard in self.shards]
        return nearby_permutation(sizes, window=self.window, random=random)

    def _read_index(self, split: str) -> ShardIndex:
        remedy = f"check data.root, or pack the split: dpt data pack data=... split={split}"
        path = required_file(self.folder / f"{split}.json", what="index", remedy=remedy)
        text, what = read_bytes(path, limit=_MAX_INDEX), "an index that dpt data pack wrote"
        return parse_as(INDEX, text, path, what=what, remedy="pack the data again")

    def _open(self, shard: Shard) -> BinaryIO:
        """Opens the file of a shard, after checking its size."""
        path = self.folder / shard.name
        verify(path, size=shard.size, remedy="copy it again")
        return path.open("rb")

    def _table(self, number: int, file: BinaryIO) -> Table:
        """Returns the table of a shard; keeps those of the shards used last."""
        table = self._tables.pop(number, None)
        if table is None:
            shard = self.shards[number]
            table = _read_table(file, source=f"{self.root}/{shard.name}", count=shard.samples)
        self._tables[number] = table  # as the last
        if len(self._tables) > 2 * self.window + 1:
            del self._tables[next(iter(self._tables))]
        return table


def _read_table(file: BinaryIO, *, source: str, count: int) -> Table:
    """Finds the ``count`` samples of a tar file: consecutive files with the same name up to the
    first dot."""
    table: Table = []
    try:
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for member in tar:
                plain = member.isreg() and not member.issparse()
                if not (plain and 0 <= member.size <= MAX_BYTES):
                    raise tarfile.TarError(f"{member.name} is not a plain file, or too large")
                key, _, name = member.name.partition(".")
                if not table or table[-1][0] != key:
                    table.append((key, {}))
                table[-1][1][name] = member.offset_data, member.size
    except (tarfile.TarError, MemoryError) as error:  # a header may declare any size
        raise DataError(f"{source}: not a readable shard ({error}): copy it again") from None
    if len(table) != count:
        raise DataError(f"{source}: {len(table)} samples, expected {count}: pack the data again")
    return table


Encoded = tuple[str, dict[str, bytes] | str]
"""Key of a sample, and its files or the reason why it cannot be read."""


def pack_split(
    dataset: Dataset,
    folder: Path,
    *,
    split: str,
    shard_size: int,
    shuffle: bool = False,
    num_workers: int = 0,
    skip_broken: bool = False,
) -> ShardIndex:
    """Writes ``SPLIT-000000.tar``, ... and ``SPLIT.json``.

    Args:
        dataset: one split; its samples must be the same in every epoch.
        shard_size: size in bytes after which the next shard is started.
        shuffle: write the samples in a random order, the same in every run.
        skip_broken: leave out samples that cannot be read, with a warning.

    Raises:
        DataError: a sample cannot be read, the split is already packed, or the disk is full.
    """
    target = folder / f"{split}.json"
    existing = [target] if target.exists() else sorted(folder.glob(f"{split}-{6 * '[0-9]'}.tar"))
    if dataset.changes_every_epoch:
        raise DataError(f"split {split}: a mix is drawn again in every epoch: pack its data sets")
    if existing:
        raise DataError(f"{existing[0]} is there: choose another out, or remove it")
    order = np.random.default_rng(0).permutation(len(dataset)) if shuffle else range(len(dataset))
    encode = partial(_encode, dataset, skip_broken)
    encoded = read_in_order(encode, [int(i) for i in order], num_workers=num_workers)
    samples = _readable(tracked(encoded, len(dataset), title=f"packing {split}"))
    shards: list[Shard] = []
    try:
        for first in samples:
            path = folder / f"{split}-{len(shards):06}.tar"
            shards.append(_write_shard(path, chain([first], samples), shard_size=shard_size))
    except BaseException:
        for shard in shards:
            (folder / shard.name).unlink(missing_ok=True)
        raise
    if not shards:
        raise DataError(f"split {split}: no sample could be read: check the data set")
    index = ShardIndex(
        info=dataset.info,
        class_id_names=dataset.class_id_names,
        resize_labels=dataset.resize_labels,
        shards=tuple(shards),
    )
    write_bytes(target, INDEX.dump_json(index, indent=1))
    return index


def _readable(encoded: Iterable[Encoded]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Yields the samples that could be read, and warns of the others."""
    for key, files in encoded:
        if isinstance(files, str):
            log.warning("left out: %s", files)
        else:
            yield key, files


def _encode(dataset: Dataset, skip_broken: bool, index: int) -> Encoded:
    key = f"{index:09}"
    try:
        sample = dataset[index]
        dataset.check(sample)
    except DataError as error:
        if not skip_broken:
            raise
        return key, str(error)
    return key, encode_sample(sample)


def _write_shard(
    path: Path, samples: Iterable[tuple[str, dict[str, bytes]]], *, shard_size: int
) -> Shard:
    """Writes samples to a tar file in the layout of webdataset until it is full."""
    count = 0
    with replacing(path) as temporary:
        with temporary.open("wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            for key, files in samples:
                for name in sorted(files):
                    member = tarfile.TarInfo(f"{key}.{name}")  # no time, no owner
                    member.size = len(files[name])
                    tar.addfile(member, BytesIO(files[name]))
                count += 1
                if file.tell() >= shard_size:
                    break
        with temporary.open("rb") as written:
            digest = hashlib.file_digest(written, "sha256").hexdigest()
        return Shard(path.name, count, temporary.stat().st_size, digest)
