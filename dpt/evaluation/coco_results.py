"""Predictions of other projects in COCO's formats: results of instances, and panoptic files."""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from dpt.data.annotations.coco import CocoFile, CocoId
from dpt.data.base import Dataset
from dpt.data.formats import io
from dpt.data.formats.rle import encode_mask, pixels_of
from dpt.data.loading import collate_eval
from dpt.files import DataError, check_bytes, few, parse_as, path_below, plural, read_bytes
from dpt.metrics.instances import MAX_PREDICTIONS
from dpt.predict.records import RECORDS_FILE
from dpt.segments import NO_SEGMENT, OBJECT_IDS
from dpt.types.outputs import DepthKind, HeadOutput, HeadPrediction, Objects, OutputSpec
from dpt.types.samples import Batch

log = logging.getLogger("dpt")


@dataclass(frozen=True, kw_only=True)
class _Instance:
    image_id: CocoId
    category_id: int
    score: Annotated[float, Field(allow_inf_nan=False)]
    segmentation: object = None


@dataclass(frozen=True, kw_only=True)
class _Segment:
    id: Annotated[int, Field(gt=0)]
    category_id: int


@dataclass(frozen=True, kw_only=True)
class _Segments:
    image_id: CocoId
    file_name: str
    segments_info: list[_Segment]


@dataclass(frozen=True, kw_only=True)
class _Panoptic:
    annotations: Annotated[list[_Segments], Field(min_length=1)]


Row = _Instance | _Segments
_INSTANCES = TypeAdapter(Annotated[list[_Instance], Field(min_length=1)])
_PANOPTIC = TypeAdapter(_Panoptic)


class CocoPredictions(ABC):
    """Samples of a data set in COCO's format, with their predictions from a JSON file.

    The ids of images and categories are those of the data set's own file.

    Args:
        rows: what the JSON file says of each object or image.
    """

    kind: DepthKind = "metric"
    encoding: str | None = None
    scale_to_change: float | None = None
    head: ClassVar[str]

    def __init__(self, dataset: Dataset, path: Path, rows: Sequence[Row]) -> None:
        self.dataset, self.path = dataset, path
        if dataset.annotation_file is None:
            remedy = "it needs data=coco, or data.annotations=coco with one annotation file"
            raise DataError(f"predictions={path}: this data names no ids of images: {remedy}")
        truth = CocoFile(dataset.annotation_file)
        names = dataset.info.class_names
        classes = truth.classes(truth.used_names).items()
        self.class_of_category = {i: names.index(c.name) for i, c in classes if c.name in names}
        self.outputs = {
            self.head: OutputSpec(self.head, "masks", things=dataset.info.things),
        }
        self.image_ids = [dataset.annotation_id(index) for index in range(len(dataset))]
        self.rows: dict[int | str, list[Row]] = {}
        for row in rows:
            self.rows.setdefault(row.image_id, []).append(row)
        unknown = self.rows.keys() - truth.image_names.keys()
        others = self.rows.keys() - {*self.image_ids}
        if unknown or others == self.rows.keys():
            named = few([str(i) for i in unknown or others])
            fault = f"image_id {named} is not among the images of this split"
            raise DataError(f"{path}: {fault}, {dataset.annotation_file}: predict these images")
        if others:
            log.warning("%s: left out: %s of other splits", path, plural(len(others), "image"))

    def read(self, index: int) -> tuple[dict[str, HeadOutput], Batch]:
        """Returns the prediction of a sample, and its labels as an evaluation batch."""
        sample = self.dataset[index]
        self.dataset.check(sample)
        sample["index"] = index
        height, width = sample["image"].shape[:2]
        image_id = self.image_ids[index]
        rows = [] if image_id is None else self.rows.get(image_id, [])
        output = HeadOutput(self.prediction(rows, (height, width), sample["name"]))
        return {self.head: output}, collate_eval([sample], targets=["objects"])

    @abstractmethod
    def prediction(self, rows: Sequence[Row], size: tuple[int, int], name: str) -> HeadPrediction:
        """Returns the prediction of one image, ``name``, of ``size`` (H, W)."""

    def class_id(self, category_id: int) -> int:
        """Returns the class of a category; DataError if the data has none."""
        if category_id not in self.class_of_category:
            known = few([str(i) for i in self.class_of_category], 5)
            fault = (
                f"category_id {category_id} is not among those of {self.dataset.annotation_file}"
            )
            raise DataError(f"{self.path}: {fault}: use {known}")
        return self.class_of_category[category_id]


class CocoInstances(CocoPredictions):
    """COCO's results: ``image_id``, ``category_id``, ``score`` and ``segmentation`` of objects."""

    head = "instance"

    def prediction(self, rows: Sequence[Row], size: tuple[int, int], name: str) -> Objects:
        found = sorted((row for row in rows if isinstance(row, _Instance)), key=lambda r: -r.score)
        number_of_class: Counter[int] = Counter()
        kept, codes = [], []
        for row in found:
            number_of_class[row.category_id] += 1
            if number_of_class[row.category_id] > MAX_PREDICTIONS:
                continue  # it is not scored
            try:
                codes.append(encode_mask(row.segmentation, size))
            except (ValueError, TypeError) as error:
                fault = f"the mask of an object of image_id {row.image_id} ({name})"
                raise DataError(f"{self.path}: {fault}: {error}: export masks again") from None
            kept.append(row)
        check_bytes(self.path, (len(kept), *size), 1)
        masks = np.zeros((len(kept), size[1] * size[0]), bool)
        for mask, code in zip(masks, codes, strict=True):
            mask[pixels_of(code)] = True  # column by column
        return Objects(
            torch.from_numpy(masks.reshape(-1, size[1], size[0]).swapaxes(1, 2))[None],
            torch.tensor([self.class_id(row.category_id) for row in kept]).long()[None],
            torch.tensor([row.score for row in kept], dtype=torch.float64)[None],
        )


class CocoPanoptic(CocoPredictions):
    """A panoptic JSON file, with PNG files of ids beside it or in a folder of its name."""

    head = "panoptic"

    def prediction(self, rows: Sequence[Row], size: tuple[int, int], name: str) -> Tensor:
        images = [row for row in rows if isinstance(row, _Segments)]
        if len(images) != 1:
            fault = f"has {len(images)} lists of segments of {name}"
            raise DataError(f"{self.path}: {fault}: write one for every image")
        row = images[0]
        beside, inside = self.path.parent, self.path.with_suffix("")
        path = path_below(inside if inside.is_dir() else beside, row.file_name, self.path)
        ids = io.read_objects(path)
        codes = np.full(ids.shape, NO_SEGMENT)
        segments = {segment.id: self.class_id(segment.category_id) for segment in row.segments_info}
        present = np.unique(ids).tolist()
        unknown = [str(i) for i in present if i and i not in segments]
        if unknown or ids.shape != size:
            fault = f"segment ids {few(unknown)} are not in {self.path}"
            if not unknown:
                fault = (
                    f"{ids.shape[1]}x{ids.shape[0]} pixels (width x height), not those of {name}"
                )
            raise DataError(f"{path}: {fault}: export both again")
        for number, i in enumerate(set(present) - {0}, 1):
            codes[ids == i] = segments[i] * OBJECT_IDS + number
        return torch.from_numpy(codes)[None]


def coco_predictions(dataset: Dataset, path: Path) -> CocoPredictions:
    """Returns the predictions in a JSON file: a list is of instances, an object panoptic."""
    data = read_bytes(path)
    if data.lstrip().startswith(b"["):
        rows = parse_as(_INSTANCES, data, path, what="COCO's results", remedy="export it again")
        return CocoInstances(dataset, path, rows)
    content = parse_as(_PANOPTIC, data, path, what="COCO's panoptic JSON", remedy="export it again")
    return CocoPanoptic(dataset, path, content.annotations)


def find_json(dataset: Dataset, path: Path) -> Path | None:
    """Returns the JSON file of predictions that ``path`` is, or holds alone; None without one."""
    if path.suffix.lower() == ".json":
        return path
    files = [*path.glob("*.json")]
    is_ours = (path / RECORDS_FILE).exists() or (path / "panoptic_npy").exists()
    return files[0] if dataset.annotation_file and len(files) == 1 and not is_ours else None
