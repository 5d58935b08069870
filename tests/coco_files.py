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
        chosen = [k for k, thing in enumerate(info.things) if thing or panoptic]
        categories = [
            {
                "id": 10 + 3 * k,  # with gaps, as COCO's
                "name": info.class_names[k],
                **({"isthing": int(info.things[k]), "color": info.palette[k]} if panoptic else {}),
            }
            for k in chosen
        ]
        images, annotations = [], []
        for index in range(length):
            sample = data[index]
            name = f"{index:06d}"
            save(folder / split / f"{name}.jpg", sample["image"])
            images.append(
                {"id": index + 1, "file_name": f"{name}.jpg", "height": size[0], "width": size[1]}
            )
            labels, objects = sample["labels"].astype(int), sample["objects"].astype(int)
            parts, ids = [], np.zeros(size, int)
            for k in chosen:
                for number in np.unique(objects[labels == k]):
                    mask = (labels == k) & (objects == number)
                    part = {
                        "id": 1 + k + 300 * int(number),
                        "category_id": 10 + 3 * k,
                        "iscrowd": 0,
                        "area": int(mask.sum()),
                    }
                    ids[mask] = part["id"]
                    if not panoptic:
                        code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
                        code["counts"] = code["counts"].decode()
                        part |= {"segmentation": code, "image_id": index + 1}
                        part["id"] = len(annotations) + len(parts) + 1
                        part["bbox"] = coco.toBbox(code).tolist()
                    parts.append(part)
            if panoptic:
                rgb = np.stack([ids % 256, ids // 256 % 256, ids // 65536], axis=2)
                save(folder / f"annotations/panoptic_{split}/{name}.png", rgb.astype(np.uint8))
                parts = [
                    {"image_id": index + 1, "file_name": f"{name}.png", "segments_info": parts}
                ]
            annotations += parts
        content = {"images": images, "annotations": annotations, "categories": categories}
        path = folder / f"annotations/{kind}_{split}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))


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
