"""Writes the shards of a packed data set, which ``packed`` reads.

A shard appears under its name once it is whole, and a hidden journal then says so: what was cut
goes on after the last whole shard, and ends with the very files that an undisturbed run would have
left.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data
from torch.utils.data import DataLoader

from dpt import atomic
from dpt.data.base import DataError, Dataset, check_sample, require
from dpt.data.datasets.download import verify
from dpt.data.loading import init_worker
from dpt.data.shards.index import Shard, ShardIndex
from dpt.data.shards.samples import encode_sample

log = logging.getLogger("dpt")


class Packed(NamedTuple):
    """A sample as its files, or why it has none."""

    key: str
    parts: dict[str, bytes]
    failed: str | None = None


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
    watch: Callable[[Iterable[Packed], int], Iterable[Packed]] = lambda items, total: items,
) -> ShardIndex:
    """Writes ``SPLIT-000000.tar``, ... and ``SPLIT.json``.

    What is there already of the same data is verified and kept.

    Args:
        dataset: of one split; its samples must be the same in every epoch.
        folder: where to; made as needed.
        split: its name.
        source: what is packed, as plain data: another run goes on from this one's shards only if
            it has the same, and the same length, order and shard size.
        shard_size: bytes from which on a shard is full.
        shuffle_seed: of the order of the samples, so that neighbours in a shard are no neighbours
            in a video; None keeps the data set's.
        num_workers: processes that read.
        skip_broken: leave out what cannot be read, with a warning, instead of stopping.
        watch: wrapped round the samples, told their number: a progress bar.

    Raises:
        DataError: a sample that cannot be read, a folder that holds other data, or a full disk.
    """
    if hasattr(dataset, "draw"):
        raise DataError(
            f"split {split}: a mix is drawn anew every epoch: pack its sets one by one and mix "
            "those (data=mix with packed sets)"
        )
    values = {**source, "split": split, "samples": len(dataset), "shard_size": shard_size,
              "shuffle_seed": shuffle_seed}  # fmt: skip
    fingerprint = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    target = folder / f"{split}.json"
    if target.exists():
        return _finished(target, fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    journal = _Journal(folder / f".{split}.packing.json", fingerprint)
    order = np.arange(len(dataset))
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(order)
    loader: Iterable[Packed] = DataLoader(
        _Encoder(dataset, skip_broken=skip_broken),
        batch_size=None,
        sampler=order[journal.done :].tolist(),
        num_workers=num_workers,
        worker_init_fn=init_worker,
        prefetch_factor=8 if num_workers else None,
    )
    samples = _readable(watch(loader, len(order) - journal.done), journal)
    while (first := next(samples, None)) is not None:
        path = folder / f"{split}-{len(journal.shards):06}.tar"
        journal.shards.append(_write_shard(path, first, samples, shard_size=shard_size))
        journal.write()
    if not journal.shards:
        raise DataError(
            f"split {split}: no sample could be read: {(journal.skipped or ['none'])[0]}"
        )
    index = ShardIndex(
        info=dataset.info,
        shards=tuple(journal.shards),
        class_id_names=tuple(getattr(dataset, "class_id_names", ())),
        skipped=tuple(journal.skipped),
        source={"dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
                "split": split, "samples": len(dataset), "fingerprint": fingerprint},
    )  # fmt: skip
    index.write(target)
    journal.path.unlink()
    return index


class _Encoder(torch.utils.data.Dataset):
    """The samples of a data set as files."""

    def __init__(self, dataset: Dataset, *, skip_broken: bool) -> None:
        self.dataset = dataset
        self.skip_broken = skip_broken

    def __getitem__(self, index: int) -> Packed:
        key = f"{index:09}"
        try:
            sample = self.dataset[index]
            check_sample(sample)
        except DataError as error:
            if not self.skip_broken:
                raise
            return Packed(key, {}, str(error))
        return Packed(key, encode_sample(sample))


class _Journal:
    """How far packing has come: kept beside the shards until the index takes its place.

    Attributes:
        done: samples, in the order of packing, that are in whole shards or were left out.
        shards: those that are whole.
        skipped: why samples were left out.
    """

    def __init__(self, path: Path, fingerprint: str) -> None:
        self.path, self.fingerprint = path, fingerprint
        self.done = 0
        self.shards: list[Shard] = []
        self.skipped: list[str] = []
        if path.exists():
            self._take_up()

    def write(self) -> None:
        values = {"fingerprint": self.fingerprint, "done": self.done, "skipped": self.skipped,
                  "shards": [asdict(shard) for shard in self.shards]}  # fmt: skip
        atomic.write_bytes(self.path, json.dumps(values).encode())

    def _take_up(self) -> None:
        """What an earlier run has left, if it packed the same and its shards are whole."""
        values = json.loads(self.path.read_text())
        if values["fingerprint"] != self.fingerprint:
            raise _other_data(self.path)
        shards = [Shard(**shard) for shard in values["shards"]]
        _verify(shards, self.path.parent, index=self.path)
        self.done, self.shards, self.skipped = values["done"], shards, values["skipped"]
        count = sum(shard.samples for shard in shards)
        log.info("%s: going on after %d samples in %d shards", self.path.parent, count, len(shards))


def _readable(items: Iterable[Packed], journal: _Journal) -> Iterator[Packed]:
    """The samples that could be read; the journal is told of all."""
    for item in items:
        journal.done += 1
        if item.failed is None:
            yield item
        else:
            log.warning("left out: %s", item.failed)
            journal.skipped.append(item.failed)


def _write_shard(path: Path, first: Packed, others: Iterator[Packed], *, shard_size: int) -> Shard:
    """A tar file of ``first`` and as many of ``others`` as make it full."""
    webdataset = require("webdataset", f"{path}: writing it", extra="stream")
    samples = 0
    try:
        with atomic.replacing(path) as temporary:
            # no times and owners: the same samples make the same file
            plain = {"encoder": False, "mtime": 0, "user": "", "group": ""}
            with temporary.open("wb") as file, webdataset.TarWriter(file, **plain) as tar:
                for item in chain([first], others):
                    tar.write({"__key__": item.key, **item.parts})
                    samples += 1
                    if file.tell() >= shard_size:
                        break
            with temporary.open("rb") as written:
                digest = hashlib.file_digest(written, "sha256").hexdigest()
            return Shard(path.name, samples, temporary.stat().st_size, digest)
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror}): make room, or check the rights, and "
            "run the same command again; it goes on from there"
        ) from None


def _finished(path: Path, fingerprint: str) -> ShardIndex:
    """The index that an earlier run wrote, once its shards are known to be whole."""
    index = ShardIndex.parse(path.read_text(), source=str(path))
    if index.source.get("fingerprint") != fingerprint:
        raise _other_data(path)
    _verify(index.shards, path.parent, index=path)
    log.info("%s: packed before, and whole", path)
    return index


def _verify(shards: Sequence[Shard], folder: Path, *, index: Path) -> None:
    for shard in shards:
        remedy = f"copy it again, or remove {index} to pack the split anew"
        if not (folder / shard.name).is_file():
            raise DataError(f"{folder / shard.name}: is gone: {remedy}")
        verify(folder / shard.name, checksum=f"sha256:{shard.sha256}", size=shard.size,
               remedy=remedy)  # fmt: skip


def _other_data(path: Path) -> DataError:
    return DataError(
        f"{path} is of other data, or was packed with other settings: choose another folder, or "
        "remove it to overwrite its shards"
    )
