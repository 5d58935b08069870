"""Warnings about the data of a run, from a few files of each split that are read before it."""

import logging
import os
from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np

from dpt.config.build import LABEL_NAMES
from dpt.data import DataError, Dataset
from dpt.data.base import require_same_classes
from dpt.data_check import quick_findings
from dpt.objectives import Objective
from dpt.objectives.teacher import Teacher
from dpt.types.samples import Sample
from dpt.validation import Plain

log = logging.getLogger("dpt")

CHECKED_FILES = 16  # of each split


def check_first_files(
    train: Dataset,
    val: Dataset,
    objectives: Mapping[str, Objective],
    teacher: Teacher,
    *,
    on_error: str,
) -> None:
    """Reads a few files of each split, and warns about what may be wrong with them."""
    if os.environ.get("LOCAL_RANK", "0") != "0":  # their launcher ends them; srun does not
        return
    for remark in unscored(val, objectives):
        log.warning("%s", remark)
    require_same_classes(train, val)
    for dataset in (train, val):
        try:
            remarks = [*dataset.validate(limit=CHECKED_FILES)]
            if dataset.reads_files:
                remarks += quick_findings(dataset, CHECKED_FILES)
            if dataset is train and (dataset.reads_files or teacher.labels_images):
                remarks += missing_labels(dataset, objectives, teacher)
        except DataError as error:
            if on_error != "skip":
                raise
            remarks = [str(error)]
        for remark in remarks:
            log.warning("%s", remark)


def unscored(val: Dataset, objectives: Mapping[str, Objective]) -> Iterator[str]:
    """Yields warnings about heads for which the val split has no labels."""
    for name, objective in objectives.items():
        if objective.target and objective.target not in val.info.targets:
            lacks = LABEL_NAMES[objective.target]
            yield f"{name} is trained but not scored: the val split has no {lacks}"
        elif objective.target == "objects" and val.objects_fault:
            yield f"{name} is trained but not scored: {val.objects_fault}"


def missing_labels(
    train: Dataset, objectives: Mapping[str, Objective], teacher: Teacher
) -> Iterator[str]:
    """Yields warnings about targets that no image has, and about a teacher without images to
    label."""
    samples = [without_arrays(train[index]) for index in train.some_indices(CHECKED_FILES)]
    count = len(samples)
    for name, objective in objectives.items():
        yield from objective.remarks(samples)
        if objective.target and not any(objective.target in sample for sample in samples):
            lacks = LABEL_NAMES[objective.target]
            yield f"{name}: none of the {count} training images that were read has {lacks}"
    targets = {objective.target for objective in objectives.values()}
    if teacher.labels_images and all(targets & sample.keys() for sample in samples):
        yield (
            f"task/teacher: all of the {count} training images that were read have labels; "
            "the teacher labels only images without them"
        )


def without_arrays(sample: Sample) -> Sample:
    """Returns a sample with None for images and maps: 16 large ones take a gigabyte."""
    values: Plain = {**sample}
    return cast(Sample, {key: None if np.ndim(value) else value for key, value in values.items()})
