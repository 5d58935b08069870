"""Blocks of images that are not independent of each other, such as the frames of one video."""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dpt.data import Dataset
from dpt.data.splits import groups_shown
from dpt.files import few, plural
from dpt.metrics.intervals import MOST_LEFT_OUT

IMAGES = "image"
FOLDERS = "folder"
MATCHES = "block"
"""The kind of blocks by a regular expression."""


class Blocks(NamedTuple):
    """The block of each image."""

    kind: str
    """What a block is: ``image``, ``folder``, ``sequence``, ``group`` or ``block``."""
    names: tuple[str, ...]
    numbers: np.ndarray
    """int64 (N,), positions in ``names``."""

    @classmethod
    def of(cls, kind: str, keys: Sequence[str]) -> "Blocks":
        """Returns blocks of images that have the same key."""
        names, numbers = np.unique(keys, return_inverse=True)
        return cls(kind, tuple(names.tolist()), numbers)

    def __str__(self) -> str:
        return plural(len(self.names), self.kind)

    def at(self, indices: Sequence[int]) -> "Blocks":
        """Returns the blocks of some of the images."""
        return self.of(self.kind, [self.names[k] for k in self.numbers[indices]])

    def joined(self) -> "Blocks":
        """Returns these blocks, or at most ``MOST_LEFT_OUT`` groups of them."""
        count = len(self.names)
        if count <= MOST_LEFT_OUT:
            return self
        names = [few(self.names[k::MOST_LEFT_OUT], 1) for k in range(MOST_LEFT_OUT)]
        return Blocks(self.kind, tuple(names), self.numbers % MOST_LEFT_OUT)


def blocks_of(dataset: Dataset, rule: str | None) -> Blocks:
    """Returns the blocks of a data set's images.

    Args:
        rule: ``image``: each image is a block; ``folder``: images of one folder are; or a regular
            expression: images in whose names it matches the same text are, those without a match
            are blocks of their own. None: the groups of ``data.group_by``, or else folders, if
            there are several, or else sequences, if the names show several (``a_01``, ``a_02``),
            or else images. Folders of classes are no blocks.
    """
    names = [dataset.name(index) for index in range(len(dataset))]
    if rule is None:
        return _natural_blocks(dataset, names)
    if rule == IMAGES:
        return _single(names)
    try:
        matches = [re.search(".*/" if rule == FOLDERS else rule, name) for name in names]
    except re.error as error:
        raise ValueError(f"blocks={rule}: is not a regular expression: {error}") from None
    if not any(matches):
        raise ValueError(f"blocks={rule}: matches no image's name, such as {names[0]}")
    keys = [match[0] if match else name for match, name in zip(matches, names, strict=True)]
    return Blocks.of(FOLDERS if rule == FOLDERS else MATCHES, keys)


def _natural_blocks(dataset: Dataset, names: Sequence[str]) -> Blocks:
    if len(dataset.groups) == len(names):
        return Blocks.of("group", dataset.groups)
    if dataset.info.targets == ("class_id",):
        return _single(names)
    for kind, groups in groups_shown(names).items():
        # numbers alone are times or years, as of TUM and VOC
        if kind == FOLDERS or all(re.search("[A-Za-z]", group) for group in groups):
            return Blocks.of(kind, groups)
    return _single(names)


def _single(names: Sequence[str]) -> Blocks:
    return Blocks(IMAGES, tuple(names), np.arange(len(names)))
