"""Scenes as a folder in COCO's panoptic or instances format: ``python tests/coco_files.py DIR``."""

import json
import sys
from pathlib import Path

import cv2
import numpy as np
from pycocotools import mask as coco

from dpt.data import ScenesDataset


def write(folder, *, panoptic=True, lengths=(("train", 12), ("val", 4)), size=(96, 128)):
    """Images, ``annotations/{panoptic,instances}_SPLIT.json``, and the PNG files of segments."""
    folder = Path(folder)
    kind = "panoptic" if panoptic else "instances"
    for split, length in lengths:
        data = ScenesDataset(split=split, length=length, size=size)
        info = data.info
        class_ids = [k for k, thing in enumerate(info.things) if thing or panoptic]
        categories = [{"id": category_id(k), "name": info.class_names[k]} for k in class_ids]
        images, annotations = [], []
        for number, sample in enumerate(data, 1):
            name = f"{number - 1:06d}"
            save(folder / split / f"{name}.jpg", sample["image"])
            row = {"id": number, "file_name": f"{name}.jpg", "height": size[0], "width": size[1]}
            images.append(row)
            if panoptic:
                ids, segments = panoptic_segments(sample, class_ids)
                rgb = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=2)
                save(folder / f"annotations/panoptic_{split}/{name}.png", rgb.astype(np.uint8))
                row = {"image_id": number, "file_name": f"{name}.png", "segments_info": segments}
                annotations.append(row)
            else:
                annotations += instances(sample, class_ids, number, first_id=len(annotations) + 1)
        if panoptic:
            for row, k in zip(categories, class_ids, strict=True):
                row |= {"isthing": int(info.things[k]), "color": info.palette[k]}
        content = {"images": images, "annotations": annotations, "categories": categories}
        path = folder / f"annotations/{kind}_{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


def category_id(class_id):
    return 10 + 3 * class_id  # with gaps, as COCO's


def masks_of(sample, class_ids):
    """The segments of a scene: class, number, and where they are, bool (H, W)."""
    labels, objects = sample["labels"], sample["objects"]
    for k in class_ids:
        for number in np.unique(objects[labels == k]).tolist():
            yield k, number, (labels == k) & (objects == number)


def panoptic_segments(sample, class_ids):
    ids, segments = np.zeros(sample["labels"].shape, int), []
    for k, number, mask in masks_of(sample, class_ids):
        row = {"id": 1 + k + 300 * number, "category_id": category_id(k)}
        segments.append(row | {"iscrowd": 0, "area": int(mask.sum())})
        ids[mask] = row["id"]
    return ids, segments


def instances(sample, class_ids, image_id, *, first_id):
    rows = []
    for k, _, mask in masks_of(sample, class_ids):
        code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        code["counts"] = code["counts"].decode()
        row = {"id": first_id + len(rows), "category_id": category_id(k), "iscrowd": 0}
        row |= {"area": int(mask.sum()), "segmentation": code, "image_id": image_id}
        rows.append(row | {"bbox": coco.toBbox(code).tolist()})
    return rows


def write_objects(path, names, categories, size=(8, 8)):
    """The JSON of a triangle in each photo, of the last of ``categories`` (names by their ids)."""
    category = list(categories)[-1]
    images, annotations = [], []
    for k, name in enumerate(names, 1):
        images.append({"id": k, "file_name": name, "height": size[0], "width": size[1]})
        row = {"id": k, "image_id": k, "category_id": category, "iscrowd": 0, "area": 8}
        row |= {"bbox": [1, 1, 4, 4], "segmentation": [[1, 1, 5, 1, 5, 5]]}
        annotations.append(row)
    rows = [{"id": k, "name": name} for k, name in categories.items()]
    content = {"images": images, "annotations": annotations, "categories": rows}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def save(path, rgb):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), rgb[..., ::-1])


if __name__ == "__main__":
    write(sys.argv[1])
    write(sys.argv[1], panoptic=False)
