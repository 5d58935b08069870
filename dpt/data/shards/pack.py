"""Writes the shards of a packed data set.

A shard appears under its name when it is complete, and the index when all shards are.
"""

import hashlib
import logging
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from io import BytesIO
from itertools import chain
from pathlib import Path

import numpy as np

from dpt import atomic
from dpt.data.base import Dataset
from dpt.data.loading import read_in_order
from dpt.data.shards.packed import INDEX, Shard, ShardIndex
from dpt.data.shards.samples import encode_sample
from dpt.files import DataError
from dpt.run_log import tracked

log = logging.getLogger("dpt")

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
    if dataset.changes_every_epoch:
        raise DataError(
            f"split {split}: a mix is drawn again in every epoch and cannot be packed: pack its "
            "data sets one by one and mix those (data=mix with packed sets), or leave out "
            "data.unlabelled"
        )
    target = folder / f"{split}.json"
    existing = [target] if target.exists() else sorted(folder.glob(f"{split}-{6 * '[0-9]'}.tar"))
    if existing:
        raise DataError(
            f"{existing[0]}: the split is already packed, or a killed run left it: choose another "
            f"out, or remove {target.name} and the split's shards"
        )
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
    atomic.write_bytes(target, INDEX.dump_json(index, indent=1))
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
    try:
        with atomic.replacing(path) as temporary:
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
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}): free some space or check the "
            "permissions, and run the same command again"
        ) from None
