"""Reads a whole split in parallel and keeps a few numbers of every sample."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import DataLoader

from dpt.data.formats import io
from dpt.data.loading import init_worker
from dpt.data_check.measure import (
    Depth,
    Labels,
    Photo,
    measure_depth,
    measure_labels,
    measure_photo,
)
from dpt.data_check.reading import Facts, Fault, Reading, read
from dpt.data_check.registration import MAP_KINDS, MapKind, edge_map, edge_scores
from dpt.run_log import tracked

ALIGNED = 32
"""Samples of a split that registration is judged by, evenly spread."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is kept of one sample. A part that it lacks, or that was not asked for, is None."""

    index: int
    name: str
    faults: tuple[Fault, ...] = ()
    photo: Photo | None = None
    labels: Labels | None = None
    depth: Depth | None = None
    class_id: int | None = None
    value: float | None = None
    edge_scores: dict[MapKind, np.ndarray | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Scan:
    """A split that was read: what the data set says of itself, and a record for each sample."""

    split: str
    facts: Facts
    records: list[Record]


class Scanner(torch.utils.data.Dataset):
    """The records of a data set; reading one never fails.

    Args:
        dataset: any data set.
        photos: measure photos too, not labels and depth alone.
        aligned: indices of the samples whose registration is judged.
    """

    def __init__(self, dataset: Any, *, photos: bool, aligned: Collection[int] = ()) -> None:
        self.dataset = dataset
        self.facts = Facts.of(dataset)
        self.photos = photos
        self.aligned = frozenset(aligned)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Record:
        reading = read(self.dataset, index, self.facts)
        sample = reading.sample
        aligned = MAP_KINDS if index in self.aligned and not reading.faults else ()
        return Record(
            index=index,
            name=self.facts.short(sample.get("name", f"sample {index}")),
            faults=reading.faults,
            photo=self._photo(reading) if self.photos else None,
            labels=measure_labels(sample["labels"], outside=reading.outside or {})
            if "labels" in sample
            else None,
            depth=self._depth(reading),
            class_id=sample.get("class_id"),
            value=sample.get("value"),
            edge_scores={
                kind: edge_scores(sample["image"], edge_map(sample, kind))
                for kind in aligned
                if kind in sample
            },
        )

    def _photo(self, reading: Reading) -> Photo | None:
        if "image" not in reading.sample:
            return None
        turn = io.exif_orientation(reading.photo) if reading.photo else 1
        return measure_photo(reading.sample["image"], orientation=turn)

    def _depth(self, reading: Reading) -> Depth | None:
        sample = reading.sample
        if "depth" not in sample:
            return None
        return measure_depth(
            sample["depth"], sample["valid"], raw=reading.raw_depth, rule=self.facts.depth
        )


def scan(dataset: Any, *, split: str, num_workers: int) -> Scan:
    """Reads every sample once, in ``num_workers`` processes, and says how far it is."""
    count = min(len(dataset), ALIGNED)
    aligned = np.unique(np.linspace(0, len(dataset) - 1, count).astype(int)).tolist()
    scanner = Scanner(dataset, photos=True, aligned=aligned)
    loader: Iterable[Record] = DataLoader(
        scanner,
        batch_size=None,
        num_workers=num_workers,
        worker_init_fn=init_worker,
        prefetch_factor=8 if num_workers else None,
    )
    records = tracked(loader, len(dataset), title=f"reading {split}")
    return Scan(split, scanner.facts, list(records))
