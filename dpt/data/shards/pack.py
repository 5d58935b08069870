"""Writes the shards of a packed data set.

A shard appears under its name when it is complete, and a hidden index file then records it. An
interrupted run resumes after the last recorded shard and ends with the same bytes as an
uninterrupted one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import DataLoader

from dpt import atomic
from dpt.data.base import Dataset, check_sample
from dpt.data.datasets.download import verify
from dpt.data.errors import DataError
from dpt.data.loading import init_worker
from dpt.data.shards.samples import encode_sample
from dpt.data.shards.store import Shard, ShardIndex
from dpt.run_log import tracked

log = logging.getLogger("dpt")

Encoded = tuple[str, dict[str, bytes] | str]
"""Key of a sample, and its files or the reason why it cannot be read."""


def pack_split(
    dataset: Dataset,
    folder: Path,
    *,
    split: str,
    source: Mapping[str, Any],
    shard_size: int,
    shuffle_seed: int | None = None,
    num_workers: int = 0,
    skip_broken: bool = False,
) -> ShardIndex:
    """Writes ``SPLIT-000000.tar``, ... and ``SPLIT.json``; verifies and keeps existing shards.

    Args:
        dataset: one split; its samples must be the same in every epoch.
        folder: where to write; created.
        split: name of the split.
        source: settings of the data set, as plain data. A later run resumes only if these, the
            length, the order and the shard size are the same.
        shard_size: size in bytes after which the next shard is started.
        shuffle_seed: seed of a random order of the samples; None keeps the order.
        num_workers: processes that read samples.
        skip_broken: leave out samples that cannot be read, with a warning.

    Raises:
        DataError: a sample cannot be read, the folder holds other data, or the disk is full.
    """
    if dataset.changes_every_epoch:
        raise DataError(
            f"split {split}: a mix is drawn again in every epoch and cannot be packed: pack its "
            "data sets one by one and mix those (data=mix with packed sets)"
        )
    settings = [source, split, len(dataset), shard_size, shuffle_seed]
    fingerprint = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    target, partial = folder / f"{split}.json", folder / f".{split}.partial.json"
    if finished := _existing(target, fingerprint):
        log.info("%s: already packed and complete", target)
        return finished
    index = _existing(partial, fingerprint) or ShardIndex(
        info=dataset.info,
        class_id_names=dataset.class_id_names,
        fingerprint=fingerprint,
    )
    if index.done:
        log.info("%s: resuming after %d samples", partial, index.done)
    order = np.arange(len(dataset))
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(order)
    loader: Iterable[Encoded] = DataLoader(
        _Encoder(dataset, skip_broken),
        batch_size=None,
        sampler=order[index.done :].tolist(),
        num_workers=num_workers,
        worker_init_fn=init_worker,
        prefetch_factor=8 if num_workers else None,
    )
    done, skipped, remaining = index.done, list(index.skipped), len(dataset) - index.done

    def readable() -> Iterator[tuple[str, dict[str, bytes]]]:
        nonlocal done
        for key, parts in tracked(loader, remaining, title=f"packing {split}"):
            done += 1
            if isinstance(parts, str):
                log.warning("left out: %s", parts)
                skipped.append(parts)
            else:
                yield key, parts

    samples = readable()
    for first in samples:
        path = folder / f"{split}-{len(index.shards):06}.tar"
        shard = _write_shard(path, chain([first], samples), shard_size=shard_size)
        index = replace(index, shards=(*index.shards, shard), skipped=tuple(skipped), done=done)
        index.write(partial)
    if not index.shards:
        raise DataError(f"split {split}: no sample could be read: {(skipped or ['none'])[0]}")
    index = replace(index, skipped=tuple(skipped), done=done)
    index.write(target)
    partial.unlink(missing_ok=True)
    return index


@dataclass
class _Encoder(torch.utils.data.Dataset[Encoded]):
    """Encodes samples in the worker processes."""

    dataset: Dataset
    skip_broken: bool

    def __getitem__(self, index: int) -> Encoded:
        key = f"{index:09}"
        try:
            sample = self.dataset[index]
            check_sample(sample)
        except DataError as error:
            if not self.skip_broken:
                raise
            return key, str(error)
        return key, encode_sample(sample)


def _existing(path: Path, fingerprint: str) -> ShardIndex | None:
    """The index of an earlier run, after checking its settings and shards; None without one."""
    if not path.exists():
        return None
    index = ShardIndex.read(path)
    if index.fingerprint != fingerprint:
        raise DataError(
            f"{path} belongs to other data or other settings: choose another folder, or remove it "
            "to overwrite its shards"
        )
    for shard in index.shards:
        remedy = f"copy it again, or remove {path} to pack the split again"
        shard_path = path.parent / shard.name
        verify(shard_path, checksum=f"sha256:{shard.sha256}", size=shard.size, remedy=remedy)
    return index


def _write_shard(
    path: Path, samples: Iterable[tuple[str, dict[str, bytes]]], *, shard_size: int
) -> Shard:
    """Writes samples to a tar file in the layout of webdataset until it is full."""
    count = 0
    try:
        with atomic.replacing(path) as temporary:
            with temporary.open("wb") as file, tarfile.open(fileobj=file, mode="w") as tar:
                for key, parts in samples:
                    for name in sorted(parts):
                        member = tarfile.TarInfo(f"{key}.{name}")  # no time, no owner
                        member.size = len(parts[name])
                        tar.addfile(member, BytesIO(parts[name]))
                    count += 1
                    if file.tell() >= shard_size:
                        break
            with temporary.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            return Shard(path.name, count, temporary.stat().st_size, digest)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}): free some space or check the "
            "permissions, and run the same command again to resume"
        ) from None
