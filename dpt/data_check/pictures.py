"""What samples look like, with their labels, before and after augmentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dpt.data.base import Augmented
from dpt.data.resize import resize_image, resize_map
from dpt.data_check.reading import Facts, read
from dpt.data_check.registration import MapKind, Move, edge_map, moved
from dpt.types import DatasetInfo, Sample
from dpt.viz import colorize_depth, colorize_labels, overlay

CELL = 256
"""Width of a picture in a row, in pixels."""
_RED, _GREEN = np.array((255, 40, 40), np.uint8), np.array((60, 255, 60), np.uint8)


def views(sample: Sample, info: DatasetInfo) -> list[np.ndarray]:
    """The photo, its labels laid over it where it has any, and its depth where it has that."""
    shown = [sample["image"]]
    if "labels" in sample:
        color = colorize_labels(sample["labels"], info.palette or None)
        shown = [overlay(sample["image"], color, 0.55)]
    if "depth" in sample:
        shown.append(colorize_depth(sample["depth"], sample["valid"]))
    return shown


def row_of(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures side by side, each brought to the height of the first and ``CELL`` wide there."""
    height, width = pictures[0].shape[:2]
    rows = max(1, round(CELL * height / width))
    cells = []
    for picture in pictures:
        columns = max(1, round(rows * picture.shape[1] / picture.shape[0]))
        cell = resize_image(picture, (rows, columns), rule="area")
        cells.append(np.pad(cell, ((0, 0), (0, 4), (0, 0)), constant_values=255))
    return np.concatenate(cells, axis=1)


def example_rows(
    dataset: Any, facts: Facts, indices: Iterable[int]
) -> Iterator[tuple[str, np.ndarray]]:
    """Caption and picture of samples as they are on disk: photo, labels, depth."""
    for index in indices:
        sample = read(dataset, index, facts).sample
        shown = [sample["image"]] if "image" in sample else []
        if "labels" in sample:
            shown.append(colorize_labels(sample["labels"], facts.info.palette or None))
        if "depth" in sample:
            shown.append(colorize_depth(sample["depth"], sample["valid"]))
        if shown:
            yield facts.short(sample.get("name", str(index))), row_of(shown)


def augmented_rows(
    augmented: Augmented, facts: Facts, indices: Iterable[int], *, draws: int = 4
) -> Iterator[tuple[str, np.ndarray]]:
    """A row for each sample: the photo, then what training gets of it in its first epochs.

    Where there is depth, it follows in a second row.
    """
    for index in indices:
        original = augmented.dataset[index]
        samples = [augmented[epoch, index] for epoch in range(draws)]
        for kind in zip(*(views(sample, facts.info) for sample in samples), strict=True):
            yield facts.short(original.get("name", str(index))), row_of([original["image"], *kind])


def move_rows(
    dataset: Any, facts: Facts, indices: Iterable[int], *, kind: MapKind, move: Move
) -> Iterator[tuple[str, np.ndarray]]:
    """Label edges over the photo: red where the files have them, green where they would fit."""
    for index in indices:
        sample = dataset[index]
        edges = edge_map(sample, kind)
        size = (round(2 * CELL * edges.shape[0] / edges.shape[1]), 2 * CELL)
        shown = []
        for lines, color in ((edges, _RED), (moved(edges, move), _GREEN)):
            picture = resize_image(sample["image"], size, rule="area") // 2
            picture[resize_map(lines, size)] = color
            shown.append(picture)
        caption = f"{facts.short(sample.get('name', str(index)))}: as it is, and moved"
        yield caption, np.concatenate(shown, axis=1)
