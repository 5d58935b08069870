"""Predictions of other projects in COCO's formats: results of instances, and panoptic files."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from dpt import files
from dpt.data.annotations.coco import CocoFile, CocoId
from dpt.data.base import Dataset
from dpt.data.formats import io, rle
from dpt.evaluation.predictions import Predicted
from dpt.metrics.instances import MAX_PREDICTIONS
from dpt.process import log
from dpt.segments import NO_SEGMENT, OBJECT_IDS
from dpt.types.outputs import HeadPrediction, Objects, OutputSpec
from dpt.types.samples import Sample, Target


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


_INSTANCES = TypeAdapter(Annotated[list[_Instance], Field(min_length=1)])
_PANOPTIC = TypeAdapter(_Panoptic)


class CocoPredictions(Predicted):
    """Samples of a data set in COCO's format, with their predictions from a JSON file.

    A list holds COCO's results of instances, an object is a panoptic file, with PNG files of ids
    beside it or in a folder of its name. The ids of images and categories are those of the data
    set's own file.
    """

    def __init__(self, dataset: Dataset, path: Path) -> None:
        if dataset.annotation_file is None:
            fault = f"predictions={path}: this data names no ids of images"
            remedy = "it needs data=coco, or data.annotations=coco with one annotation file"
            raise files.DataError(f"{fault}: {remedy}")
        self.path, self.source, data = path, dataset.annotation_file, files.read_bytes(path)
        self.is_panoptic = not data.lstrip().startswith(b"[")
        kind = _PANOPTIC if self.is_panoptic else _INSTANCES
        content: Any = files.parse_as(kind, data, path, what="COCO's", remedy="export it again")
        head = "panoptic" if self.is_panoptic else "instance"
        spec = OutputSpec(head, "masks", things=dataset.info.things)
        super().__init__(dataset, {"objects": spec})
        truth = CocoFile(self.source)
        names = dataset.info.class_names
        classes = truth.classes(truth.used_names).items()
        self.class_of_category = {i: names.index(c.name) for i, c in classes if c.name in names}
        self.image_ids = [dataset.annotation_id(index) for index in range(len(dataset))]
        self.rows: dict[int | str | None, list[Any]] = {}
        for row in content.annotations if self.is_panoptic else content:
            self.rows.setdefault(row.image_id, []).append(row)
        unknown = self.rows.keys() - truth.image_names.keys()
        others = self.rows.keys() - {*self.image_ids}
        if unknown or others == self.rows.keys():
            named = files.few([str(i) for i in unknown or others])
            fault = f"image_id {named} is not among the images of this split"
            raise files.DataError(f"{path}: {fault}, {self.source}: predict these images")
        if others:
            count = files.plural(len(others), "image")
            log.warning("%s: left out: %s of other splits", path, count)

    def prediction(self, target: Target, sample: Sample) -> HeadPrediction:
        rows = self.rows.get(self.image_ids[sample["index"]], [])
        height, width = sample["image"].shape[:2]
        read = self._segments if self.is_panoptic else self._objects
        return read(rows, (height, width), sample["name"])

    def _class_id(self, category_id: int) -> int:
        """Returns the class of a category; DataError if the data has none."""
        if category_id not in self.class_of_category:
            allowed = files.few([str(i) for i in self.class_of_category], 5)
            fault = f"category_id {category_id} is not among those of {self.source}"
            raise files.DataError(f"{self.path}: {fault}: use {allowed}")
        return self.class_of_category[category_id]

    def _objects(self, rows: Sequence[_Instance], size: tuple[int, int], name: str) -> Objects:
        number_of_class: Counter[int] = Counter()
        kept, codes = [], []
        for row in sorted(rows, key=lambda row: -row.score):
            number_of_class[row.category_id] += 1
            if number_of_class[row.category_id] > MAX_PREDICTIONS:
                continue  # it is not scored
            try:
                codes.append(rle.encode_mask(row.segmentation, size))
            except (ValueError, TypeError) as error:
                fault = f"the mask of an object of image_id {row.image_id} ({name})"
                raise files.DataError(f"{self.path}: {fault}: {error}: export it again") from None
            kept.append(row)
        files.check_bytes(self.path, (len(kept), *size), 1)
        masks = np.zeros((len(kept), size[1] * size[0]), bool)
        for mask, code in zip(masks, codes, strict=True):
            mask[rle.pixels_of(code)] = True  # column by column
        return Objects(
            torch.from_numpy(masks.reshape(-1, size[1], size[0]).swapaxes(1, 2))[None],
            torch.tensor([self._class_id(row.category_id) for row in kept]).long()[None],
            torch.tensor([row.score for row in kept], dtype=torch.float64)[None],
        )

    def _segments(self, rows: Sequence[_Segments], size: tuple[int, int], name: str) -> Tensor:
        if len(rows) != 1:
            fault = f"has {len(rows)} lists of segments of {name}"
            raise files.DataError(f"{self.path}: {fault}: write one for every image")
        beside, inside = self.path.parent, self.path.with_suffix("")
        folder = inside if inside.is_dir() else beside
        path = files.path_below(folder, rows[0].file_name, self.path)
        ids = io.read_objects(path)
        segments = {row.id: self._class_id(row.category_id) for row in rows[0].segments_info}
        present = {*np.unique(ids).tolist()} - {0}
        if not present <= segments.keys() or ids.shape != size:
            fault = f"its size or segment ids are not those of {self.path} and {name}"
            raise files.DataError(f"{path}: {fault}: export both again")
        codes = np.full(ids.shape, NO_SEGMENT)
        for number, i in enumerate(sorted(present), 1):
            codes[ids == i] = segments[i] * OBJECT_IDS + number
        return torch.from_numpy(codes)[None]
