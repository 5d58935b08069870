"""Folders as label tools and published data sets lay them out, made from pictures with known masks.

Nothing of the project writes them: each format is written here as its tool writes it.
"""

import base64
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import cv2
import numpy as np
from PIL import Image
from pycocotools import mask as coco

from dpt.data import ScenesDataset

CLASSES = ("box", "ball", "cylinder", "cone", "fir tree", "ring")
COLORS = [(0, 0, 0), (228, 26, 28), (55, 126, 184), (77, 175, 74), (152, 78, 163), (255, 127, 0)]
COLORS += [(166, 86, 40)]  # of the background and of the classes
SIZE = (72, 96)
_FIRST_THING = 4  # the class of boxes in scenes


@dataclass(frozen=True, eq=False)
class Thing:
    """An object: the position of its class in ``CLASSES``, and its mask, bool (H, W)."""

    class_id: int
    mask: np.ndarray

    @property
    def name(self) -> str:
        return CLASSES[self.class_id]


@dataclass(frozen=True, eq=False)
class Picture:
    """An image, uint8 RGB, with objects that do not overlap."""

    stem: str
    split: str
    image: np.ndarray
    things: tuple[Thing, ...]
    millimetres: np.ndarray  # uint16 (H, W), 0 where depth is unknown

    @property
    def size(self) -> tuple[int, int]:
        return self.image.shape[0], self.image.shape[1]

    @property
    def labels(self) -> np.ndarray:
        """Class ids, 0 for the background and from 1 for classes, uint8."""
        labels = np.zeros(self.size, np.uint8)
        for thing in self.things:
            labels[thing.mask] = 1 + thing.class_id
        return labels

    @property
    def objects(self) -> np.ndarray:
        """Numbers of the objects from 1, uint8; 0 for the background."""
        numbers = np.zeros(self.size, np.uint8)
        for number, thing in enumerate(self.things, 1):
            numbers[thing.mask] = number
        return numbers

    def without_holes(self) -> "Picture":
        """Returns the picture without objects that have holes."""
        things = [t for t in self.things if all(len(p.rings) == 1 for p in parts_of(t.mask))]
        return replace(self, things=tuple(things))

    def solid(self) -> "Picture":
        """Returns the picture with one part of each object, and without objects with holes, also
        such that pixels enclose by their corners."""
        things = []
        for thing in self.things:
            largest = max(parts_of(thing.mask), key=lambda part: len(part.rings[0]))
            plain = largest.mask.astype(np.uint8)
            if len(cv2.findContours(plain, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)[0]) == 1:
                things.append(replace(thing, mask=largest.mask))
        return replace(self, things=tuple(things))


Folder = Mapping[str, Picture]
"""What a maker has written: the picture of each image by its path."""


def scene_pictures(train: int = 4, val: int = 2) -> list[Picture]:
    """Scenes; the first picture of a split has a ring around a hole, and a second part of it."""
    pictures = []
    for split, count in (("train", train), ("val", val)):
        scenes = ScenesDataset(split=split, length=count, size=SIZE, seed=3)
        for number, sample in enumerate(scenes):
            image, things = sample["image"].copy(), []
            masks = [(CLASSES.index("ring"), _ring(number))] if number == 0 else []
            image[masks[0][1] if masks else np.zeros(SIZE, bool)] = COLORS[-1]
            is_free = ~masks[0][1] if masks else np.ones(SIZE, bool)
            for scene_class in range(_FIRST_THING, _FIRST_THING + 5):
                of_class = (sample["labels"] == scene_class) & is_free
                for k in np.unique(sample["objects"][of_class]).tolist():
                    masks.append((scene_class - _FIRST_THING, of_class & (sample["objects"] == k)))
            things = [Thing(k, mask) for k, mask in masks if mask.sum() >= 20]
            depth = np.round(sample["depth"] * 400).astype(np.uint16)  # as in a room
            stem = f"{split[0]}{number:02d}"
            pictures.append(Picture(stem, split, image, tuple(things), depth))
    return pictures


def _ring(seed: int) -> np.ndarray:
    rows, columns = np.indices(SIZE)
    distance = np.hypot(rows - 30 - seed, columns - 40)
    other_part = (abs(rows - 60) < 4) & (abs(columns - 20) < 7)
    return ((distance < 18) & (distance > 9)) | other_part


# ------------------------------------------------------------------------------ masks and outlines


@dataclass(frozen=True, eq=False)
class Part:
    """A connected part of a mask, and its outlines: the outer one, then holes; int (N, 2)."""

    mask: np.ndarray
    rings: list[np.ndarray]


def parts_of(mask: np.ndarray) -> list[Part]:
    """Returns the parts of a mask, whose outlines follow the edges of pixels."""
    count, numbers = cv2.connectedComponents(mask.astype(np.uint8), connectivity=4)
    masks = [numbers == k for k in range(1, count)]
    return [Part(part, sorted(_rings(part), key=_signed_area, reverse=True)) for part in masks]


def _signed_area(ring: np.ndarray) -> float:
    x, y = ring.T
    return float(np.sum(x * np.roll(y, -1) - np.roll(x, -1) * y)) / 2


def _rings(mask: np.ndarray) -> list[np.ndarray]:
    """Walks along the edges of pixels with the mask on the right."""
    filled = np.pad(mask, 1)
    ends: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for y, x in np.argwhere(filled).tolist():
        square = [(x - 1, y - 1), (x, y - 1), (x, y), (x - 1, y)]
        neighbours = [filled[y - 1, x], filled[y, x + 1], filled[y + 1, x], filled[y, x - 1]]
        for k, is_inside in enumerate(neighbours):
            if not is_inside:
                ends.setdefault(square[k], []).append(square[(k + 1) % 4])
    rings = []
    while ends:
        ring = [next(iter(ends))]
        step = (0, 0)
        while ring[-1] in ends:
            x, y = ring[-1]
            to_the_right = (x - step[1], y + step[0])
            options = ends[x, y]
            following = to_the_right if to_the_right in options else options[0]
            options.remove(following)
            if not options:
                del ends[x, y]
            step = (following[0] - x, following[1] - y)
            ring.append(following)
        points = np.array(ring[:-1])
        before, after = np.roll(points, 1, axis=0), np.roll(points, -1, axis=0)
        rings.append(points[((after - points) != (points - before)).any(axis=1)])
    return rings


def opencv_outline(mask: np.ndarray, factor: int = 8) -> np.ndarray:
    """Returns what OpenCV traces around the enlarged mask, float (N, 2): 1/16 pixel inside."""
    large = mask.repeat(factor, 0).repeat(factor, 1).astype(np.uint8)
    outlines, _ = cv2.findContours(large, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    outline = max(outlines, key=len)
    return (outline[:, 0] + 0.5) / factor


def bridged(parts: Sequence[Part]) -> np.ndarray:
    """Returns the outer outlines of several parts as one, as ultralytics joins them for YOLO."""
    start = parts[0].rings[0][0]
    closed = [np.concatenate([part.rings[0], part.rings[0][:1], start[None]]) for part in parts]
    return np.concatenate(closed)


# ----------------------------------------------------------------------------------------- files


def save(path: Path, array: np.ndarray, **options: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)


def save_palette(path: Path, ids: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.fromarray(ids, "P")
    others = [(7 * k % 256, 5 * k % 256, k) for k in range(len(COLORS), 256)]
    picture.putpalette([value for color in [*COLORS, *others] for value in color])
    picture.save(path)


def save_json(path: Path, content: object, encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False), encoding=encoding)


def save_images(root: Path, pictures: Iterable[Picture], template: str) -> dict[str, Picture]:
    """Saves images; ``template`` has {split} and {stem}."""
    written = {}
    for picture in pictures:
        path = template.format(split=picture.split, stem=picture.stem)
        save(root / path, picture.image)
        written[path] = picture
    return written


def png_text(array: np.ndarray) -> str:
    return base64.b64encode(_png(array)).decode()


def _png(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "png")
    return file.getvalue()


def colored(labels: np.ndarray) -> np.ndarray:
    return np.array(COLORS, np.uint8)[labels]


def hex_of(color: Sequence[int]) -> str:
    return "#{:02X}{:02X}{:02X}".format(*color)


def by_split(pictures: Iterable[Picture]) -> Iterator[tuple[str, list[Picture]]]:
    groups: dict[str, list[Picture]] = {}
    for picture in pictures:
        groups.setdefault(picture.split, []).append(picture)
    yield from groups.items()


def corners(ring: np.ndarray) -> list[list[float]]:
    return [[float(x), float(y)] for x, y in ring]


# ------------------------------------------------------------------------------------------ COCO


def coco_rows(pictures: Sequence[Picture], segmentation: Callable[[np.ndarray, int], object]):
    """Images and annotations; ``segmentation`` gets a mask and the number of the object."""
    images, annotations = [], []
    for image_id, picture in enumerate(pictures, 1):
        height, width = picture.size
        images.append({"id": image_id, "height": height, "width": width})
        for thing in picture.things:
            number = len(annotations)
            annotation = {"id": number + 1, "image_id": image_id, "iscrowd": 0}
            annotation |= {"category_id": thing.class_id, "area": int(thing.mask.sum())}
            annotation["segmentation"] = segmentation(thing.mask, number)
            annotations.append(annotation)
    return images, annotations


def rle_of(mask: np.ndarray, *, compressed: bool) -> dict[str, object]:
    code = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    if compressed:
        return {"size": [*mask.shape], "counts": code["counts"].decode()}
    flat = mask.ravel(order="F").astype(int)
    borders = np.flatnonzero(np.diff(flat, prepend=0))
    return {"size": [*mask.shape], "counts": np.diff([0, *borders, flat.size]).tolist()}


def polygons_or_rle(mask: np.ndarray, number: int) -> object:
    """Polygons; RLE of either kind for masks with holes, and for every fourth object."""
    parts = parts_of(mask)
    if number % 4 == 3 or any(len(part.rings) > 1 for part in parts):
        return rle_of(mask, compressed=number % 2 == 0)
    return [part.rings[0].ravel().tolist() for part in parts]


def coco_instances(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Folders and files as COCO's own; category ids have gaps, and differ between the splits."""
    written = save_images(root, pictures, "{split}2017/{stem}.jpg")
    for split, group in by_split(pictures):
        images, annotations = coco_rows(group, polygons_or_rle)
        order = [*range(len(CLASSES))] if split == "train" else [4, 2, 0, 1, 3, 5]
        category_id = {k: 1 + 3 * position for position, k in enumerate(order)}
        for row, picture in zip(images, group, strict=True):
            row["file_name"] = f"{picture.stem}.jpg"
        for row in annotations:
            row["category_id"] = category_id[row["category_id"]]
        categories = [{"id": category_id[k], "name": CLASSES[k]} for k in order]
        content = {"images": images, "annotations": annotations, "categories": categories}
        save_json(root / f"annotations/instances_{split}2017.json", content)
    return written


def coco_rle(root: Path, pictures: Sequence[Picture]) -> Folder:
    """One file without splits, as a tool on Windows writes it: BOM, backslashes, ids as texts."""
    written = save_images(root, pictures, "images/{stem}.png")
    images, annotations = coco_rows(pictures, lambda mask, k: rle_of(mask, compressed=k % 2 == 0))
    for row, picture in zip(images, pictures, strict=True):
        row |= {"id": str(row["id"]), "file_name": f"images\\{picture.stem}.png"}
        row |= {"height": float(row["height"]), "width": float(row["width"]), "license": None}
    for row in annotations:
        row["image_id"] = str(row["image_id"])
        del row["area"], row["iscrowd"]
    categories = [{"id": k, "name": name} for k, name in enumerate(CLASSES)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    save_json(root / "result.json", content, "utf-8-sig")
    return written


def roboflow_coco(root: Path, pictures: Sequence[Picture]) -> Folder:
    """``train`` and ``valid``, with copies of training images, and a category without objects."""
    written: dict[str, Picture] = {}
    for split, group in by_split(pictures):
        copies = []
        for k, picture in enumerate(group):
            for copy in range(3 if split == "train" else 1):
                image = np.clip(picture.image.astype(int) + 9 * copy, 0, 255).astype(np.uint8)
                name = f"{picture.stem}_jpg.rf.{k * 7 + copy:032x}.jpg"
                copies.append((name, replace(picture, image=image)))
        images, annotations = coco_rows([picture for _, picture in copies], polygons_or_rle)
        folder = {"train": "train", "val": "valid"}[split]
        for row, (name, picture) in zip(images, copies, strict=True):
            row["file_name"] = name
            save(root / folder / name, picture.image)
            written[f"{folder}/{name}"] = picture
        for row in annotations:
            row["category_id"] += 1
        categories = [{"id": 0, "name": "things", "supercategory": "none"}]
        for k, name in enumerate(CLASSES, 1):
            categories.append({"id": k, "name": name, "supercategory": "things"})
        content = {"images": images, "annotations": annotations, "categories": categories}
        save_json(root / folder / "_annotations.coco.json", content)
    (root / "README.dataset.txt").write_text("things > 2024-01-01\n")
    return written


# --------------------------------------------------------------------------- labelme, VIA, YOLO


def labelme(root: Path, pictures: Sequence[Picture]) -> Folder:
    """A JSON file beside each image; parts of an object share a group, masks have holes."""
    written = save_images(root, pictures, "{stem}.jpg")
    for picture in pictures:
        shapes = [s for k, thing in enumerate(picture.things) for s in labelme_shapes(thing, k)]
        save_json(root / f"{picture.stem}.json", labelme_file(picture, shapes))
    return written


def labelme_file(picture: Picture, shapes: Sequence[object], path: str = "") -> dict[str, object]:
    height, width = picture.size
    content = {"version": "5.4.1", "flags": {}, "shapes": shapes, "imageData": None}
    content |= {"imagePath": path or f"{picture.stem}.jpg"}
    return content | {"imageHeight": height, "imageWidth": width}


def labelme_shapes(thing: Thing, number: int) -> Iterator[dict[str, object]]:
    parts = parts_of(thing.mask)
    shape = {"label": thing.name, "group_id": None, "flags": {}, "description": ""}
    if any(len(part.rings) > 1 for part in parts):
        y, x = np.nonzero(thing.mask)
        box = [[int(x.min()), int(y.min())], [int(x.max()), int(y.max())]]
        cut = thing.mask[y.min() : y.max() + 1, x.min() : x.max() + 1]
        yield shape | {"shape_type": "mask", "points": box, "mask": png_text(cut)}
        return
    for part in parts:
        shape["group_id"] = number if len(parts) > 1 else None
        yield shape | {"shape_type": "polygon", "points": corners(part.rings[0])}


def labelme_in_folders(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Images and JSON files in folders of their own, written on Windows; OpenCV's outlines."""
    written = save_images(root, pictures, "images/{stem}.png")
    for picture in pictures:
        shapes = []
        for thing in picture.things:
            shape = {"label": thing.name, "shape_type": "polygon", "group_id": None}
            shapes.append(shape | {"points": corners(opencv_outline(thing.mask))})
        content = labelme_file(picture, shapes, f"..\\images\\{picture.stem}.png")
        path = root / f"annotations/{picture.stem}.json"
        save_json(path, content)
        path.write_bytes(path.read_bytes().replace(b', "', b',\r\n "'))
    return written


def via_regions(picture: Picture) -> list[dict[str, object]]:
    regions = []
    for thing in picture.things:
        (part,) = parts_of(thing.mask)
        x, y = part.rings[0].T.tolist()
        shape = {"name": "polygon", "all_points_x": x, "all_points_y": y}
        regions.append({"shape_attributes": shape, "region_attributes": {"type": thing.name}})
    return regions


def via(root: Path, pictures: Sequence[Picture]) -> Folder:
    """``via_region_data.json`` in the folder of each split; version 1 has regions by numbers."""
    written = save_images(root, pictures, "{split}/{stem}.jpg")
    for split, group in by_split(pictures):
        files = {}
        for picture in group:
            name = f"{picture.stem}.jpg"
            size = (root / split / name).stat().st_size
            regions: object = via_regions(picture)
            if split == "train":
                regions = {str(k): region for k, region in enumerate(via_regions(picture))}
            row = {"filename": name, "size": size, "regions": regions, "file_attributes": {}}
            files[f"{name}{size}"] = row
        save_json(root / split / "via_region_data.json", files)
    return written


def via_project(root: Path, pictures: Sequence[Picture]) -> Folder:
    """A project of version 2 beside the folder of images, with the classes as a menu."""
    written = save_images(root, pictures, "images/{stem}.png")
    files = {}
    for picture in pictures:
        name = f"{picture.stem}.png"
        size = (root / "images" / name).stat().st_size
        row = {"filename": name, "size": size, "regions": via_regions(picture)}
        files[f"{name}{size}"] = row | {"file_attributes": {"caption": ""}}
    menu = {"type": "dropdown", "options": dict.fromkeys(CLASSES, ""), "default_options": {}}
    content = {
        "_via_settings": {"ui": {}, "core": {"default_filepath": "images/"}},
        "_via_img_metadata": files,
        "_via_attributes": {"region": {"type": menu}, "file": {}},
        "_via_data_format_version": "2.0.10",
        "_via_image_id_list": [*files],
    }
    save_json(root / "via_project.json", content)
    return written


def yolo(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Ultralytics' layout; parts are joined, and images without objects have an empty file."""
    written = save_images(root, pictures, "images/{split}/{stem}.jpg")
    for picture in pictures:
        height, width = picture.size
        lines = []
        for thing in picture.things:
            outline = bridged(parts_of(thing.mask)) / (width, height)
            numbers = " ".join(f"{value:.6f}" for value in outline.ravel().tolist())
            lines.append(f"{thing.class_id} {numbers}\n")
        path = root / f"labels/{picture.split}/{picture.stem}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines))
    names = "\n".join(f"  {k}: {name}" for k, name in enumerate(CLASSES))
    text = (
        f"path: ../datasets/things  # root\ntrain: images/train\nval: images/val\nnames:\n{names}\n"
    )
    (root / "data.yaml").write_text(text)
    return written


# ---------------------------------------------------------------- CVAT, Label Studio, Supervisely


def cvat(root: Path, pictures: Sequence[Picture]) -> Folder:
    """CVAT for images 1.1: polygons, and masks cut to their box."""
    written = save_images(root, pictures, "images/{stem}.png")
    top = ElementTree.Element("annotations")
    ElementTree.SubElement(top, "version").text = "1.1"
    labels = ElementTree.SubElement(ElementTree.SubElement(top, "meta"), "labels")
    for name, color in zip(CLASSES, COLORS[1:], strict=True):
        label = ElementTree.SubElement(labels, "label")
        ElementTree.SubElement(label, "name").text = name
        ElementTree.SubElement(label, "color").text = hex_of(color)
    for k, picture in enumerate(pictures):
        height, width = picture.size
        values = {"id": str(k), "name": f"{picture.stem}.png"}
        values |= {"width": str(width), "height": str(height)}
        node = ElementTree.SubElement(top, "image", values)
        for number, thing in enumerate(picture.things):
            common = {"label": thing.name, "source": "manual", "occluded": "0", "z_order": "0"}
            (part, *others) = parts_of(thing.mask)
            if others or len(part.rings) > 1 or number % 3 == 2:
                ElementTree.SubElement(node, "mask", common | cvat_mask(thing.mask))
            else:
                points = ";".join(f"{x:.2f},{y:.2f}" for x, y in part.rings[0].tolist())
                ElementTree.SubElement(node, "polygon", common | {"points": points})
    ElementTree.ElementTree(top).write(root / "annotations.xml", "utf-8", xml_declaration=True)
    return written


def cvat_mask(mask: np.ndarray) -> dict[str, str]:
    """Run lengths along the rows of the mask's box, beginning with zeros."""
    y, x = np.nonzero(mask)
    cut = mask[y.min() : y.max() + 1, x.min() : x.max() + 1]
    flat = cut.ravel().astype(int)
    borders = np.flatnonzero(np.diff(flat, prepend=0))
    runs = np.diff([0, *borders, flat.size]).tolist()
    box = {"left": x.min(), "top": y.min(), "width": cut.shape[1], "height": cut.shape[0]}
    return {"rle": ", ".join(map(str, runs))} | {key: str(value) for key, value in box.items()}


def cvat_masks(root: Path, pictures: Sequence[Picture]) -> Folder:
    """CVAT's "Segmentation mask 1.1": colours of classes in labelmap.txt, and of objects."""
    written = save_images(root, pictures, "JPEGImages/{stem}.jpg")
    object_colors = np.random.default_rng(0).permutation(np.arange(1, 256))
    for picture in pictures:
        save(root / f"SegmentationClass/{picture.stem}.png", colored(picture.labels))
        numbers = np.array([0, *object_colors], np.uint8)[picture.objects]
        rgb = np.stack([numbers, 255 - numbers, numbers], axis=2) * (numbers > 0)[..., None]
        save(root / f"SegmentationObject/{picture.stem}.png", rgb.astype(np.uint8))
    lines = ["# label:color_rgb:parts:actions", "background:0,0,0::"]
    rows = zip(CLASSES, COLORS[1:], strict=True)
    lines += [f"{name}:{','.join(map(str, color))}::" for name, color in rows]
    (root / "labelmap.txt").write_text("\n".join(sorted(lines)) + "\n")
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for split, group in by_split(pictures):
        text = "".join(f"{picture.stem}\n" for picture in group)
        (root / f"ImageSets/Segmentation/{split}.txt").write_text(text)
    return written


def label_studio(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Tasks with polygons in percent; images have the names of the upload."""
    written = save_images(root, pictures, "images/1a2b3c4d-{stem}.png")
    tasks = []
    for k, picture in enumerate(pictures, 1):
        results = []
        for thing in picture.things:
            (part,) = parts_of(thing.mask)
            points = corners(part.rings[0] * 100 / picture.size[::-1])
            value = {"points": points, "closed": True, "polygonlabels": [thing.name]}
            results.append(label_studio_result(picture, value, "polygonlabels", len(results)))
        tasks.append(
            label_studio_task(k, quote(f"/data/upload/1/1a2b3c4d-{picture.stem}.png"), results)
        )
    save_json(root / "project-1-at-2024-05-01-10-00-abcdef12.json", tasks)
    return written


def label_studio_result(picture, value, kind, number):
    height, width = picture.size
    row = {"original_width": width, "original_height": height, "image_rotation": 0}
    row |= {"id": f"r{number}", "from_name": "label", "to_name": "image", "origin": "manual"}
    return row | {"type": kind, "value": value}


def label_studio_task(number, image, results):
    annotation = {"id": 100 + number, "result": results, "was_cancelled": False}
    return {"id": number, "annotations": [annotation], "data": {"image": image}, "predictions": []}


def label_studio_brush(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Tasks with brush strokes, in the tool's own run lengths; images in local storage."""
    written = save_images(root, pictures, "{stem}.png")
    tasks = []
    for k, picture in enumerate(pictures, 1):
        results = []
        for thing in picture.things:
            rgba = (thing.mask.ravel().astype(np.uint8) * 255).repeat(4)
            value = {"format": "rle", "rle": brush_rle(rgba), "brushlabels": [thing.name]}
            results.append(label_studio_result(picture, value, "brushlabels", len(results)))
        image = "/data/local-files/?d=" + quote(f"things/{picture.stem}.png")
        tasks.append(label_studio_task(k, image, results))
    save_json(root / "export.json", tasks)
    return written


def brush_rle(values: np.ndarray) -> list[int]:
    """Packs flat bytes in the run lengths of @thi.ng/rle-pack; single bytes are no runs."""
    length_bits = [3, 4, 8, 16]  # for runs of different length
    bits = f"{len(values):032b}" + f"{8 - 1:05b}" + "".join(f"{n - 1:04b}" for n in length_bits)
    borders = [0, *(np.flatnonzero(np.diff(values.astype(int))) + 1).tolist(), len(values)]
    for start, stop in pairwise(borders):
        for first in range(start, stop, 1 << 16):
            count = min(stop - first, 1 << 16)
            k = next(k for k, n in enumerate(length_bits) if count <= 1 << n)
            bits += f"{count > 1:b}{k:02b}{count - 1:0{length_bits[k]}b}{values[first]:08b}"
    bits += "0" * (-len(bits) % 8)
    return [int(bits[k : k + 8], 2) for k in range(0, len(bits), 8)]


# ------------------------------------------------------------------------------ pictures of masks


def mask_per_object(root: Path, pictures: Sequence[Picture]) -> Folder:
    """DSB2018: a folder for each image, with a PNG for each object."""
    written = {}
    for picture in pictures:
        name = f"{hash_of(picture.stem)}"
        save(root / f"stage1_train/{name}/images/{name}.png", picture.image)
        written[f"stage1_train/{name}/images/{name}.png"] = picture
        for k, thing in enumerate(picture.things):
            path = root / f"stage1_train/{name}/masks/{hash_of(f'{picture.stem} {k}')}.png"
            save(path, thing.mask.astype(np.uint8) * 255)
    return written


def hash_of(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}{zlib.adler32(text.encode()):08x}"


def mask_per_class(root: Path, pictures: Sequence[Picture]) -> Folder:
    """``masks/STEM_CLASS.png`` with 0 and 255, for the classes that occur."""
    written = save_images(root, pictures, "images/{stem}.jpg")
    for picture in pictures:
        for k in {thing.class_id for thing in picture.things}:
            name = f"{picture.stem}_{CLASSES[k]}.png"
            save(root / "masks" / name, (picture.labels == 1 + k).astype(np.uint8) * 255)
    return written


def voc(root: Path, pictures: Sequence[Picture]) -> Folder:
    """JPEGImages, palettes of classes and of objects, ImageSets."""
    written = save_images(root, pictures, "JPEGImages/{stem}.jpg")
    for picture in pictures:
        save_palette(root / f"SegmentationClass/{picture.stem}.png", picture.labels)
        save_palette(root / f"SegmentationObject/{picture.stem}.png", picture.objects)
    (root / "ImageSets/Segmentation").mkdir(parents=True)
    for split, group in by_split(pictures):
        text = "".join(f"{picture.stem}\n" for picture in group)
        (root / f"ImageSets/Segmentation/{split}.txt").write_text(text)
    return written


def labelme2voc(root: Path, pictures: Sequence[Picture]) -> Folder:
    """What labelme's script writes: masks as arrays and pictures, and visualisations as JPEG."""
    written = save_images(root, pictures, "JPEGImages/{stem}.jpg")
    for picture in pictures:
        save_palette(root / f"SegmentationClassPNG/{picture.stem}.png", picture.labels)
        (root / "SegmentationClass").mkdir(exist_ok=True)
        np.save(root / f"SegmentationClass/{picture.stem}.npy", picture.labels.astype(np.int32))
        shown = (picture.image // 2 + colored(picture.labels) // 2).astype(np.uint8)
        save(root / f"SegmentationClassVisualization/{picture.stem}.jpg", shown)
    names = ["_background_", *CLASSES]
    (root / "class_names.txt").write_text("\n".join(names))
    return written


def two_annotators(root: Path, pictures: Sequence[Picture]) -> Folder:
    """DRIVE: TIFF images, GIF masks of two annotators, and the field of view."""
    written = {}
    for k, picture in enumerate(pictures, 21):
        save(root / f"images/{k}_training.tif", picture.image)
        written[f"images/{k}_training.tif"] = picture
        mask = (picture.labels > 0).astype(np.uint8) * 255
        save(root / f"1st_manual/{k}_manual1.gif", mask)
        save(root / f"2nd_manual/{k}_manual2.gif", cv2.dilate(mask, np.ones((3, 3), np.uint8)))
        save(root / f"mask/{k}_training_mask.gif", np.full(picture.size, 255, np.uint8))
    return written


def tiles(root: Path, pictures: Sequence[Picture]) -> Folder:
    """The same names in the folders of four tiles; a colour for each class, in hexadecimal."""
    written = {}
    for k, picture in enumerate(pictures):
        tile, number = divmod(k, 2)
        folder, name = f"Tile {tile + 1}", f"image_part_{number + 1:03d}"
        save(root / folder / f"images/{name}.jpg", picture.image)
        written[f"{folder}/images/{name}.jpg"] = picture
        path = root / folder / f"masks/{name}.png"
        if tile == 1:
            save_palette(path, picture.labels)
        else:
            save(path, colored(picture.labels))
    rows = zip(("background", *CLASSES), COLORS, strict=True)
    classes = [{"title": n, "shape": "polygon", "color": hex_of(c)} for n, c in rows]
    save_json(root / "classes.json", {"classes": classes, "tags": []})
    return written


def roboflow_masks(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Masks of ids beside the images of ``train`` and ``valid``, and a table of names."""
    written = {}
    for k, picture in enumerate(pictures):
        folder = {"train": "train", "val": "valid"}[picture.split]
        stem = f"{('IMG_87', '0')[k % 2]}{k}_JPG.rf.{k:032x}"
        save(root / folder / f"{stem}.jpg", picture.image)
        save(root / folder / f"{stem}_mask.png", picture.labels)
        written[f"{folder}/{stem}.jpg"] = picture
        rows = [f"{i}, {name}\n" for i, name in enumerate(("background", *CLASSES))]
        (root / folder / "_classes.csv").write_text("Pixel Value, Class\n" + "".join(rows))
    return written


def cut_outs(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Words for the folders as people write them, and masks smaller than most images."""
    written = {}
    for k, picture in enumerate(pictures, 1):
        factor = 1 if k % 3 == 0 else 3
        save(root / f"Training_Images/{k}.jpg", picture.image.repeat(factor, 0).repeat(factor, 1))
        save(root / f"Ground_Truth/{k}.png", (picture.labels > 0).astype(np.uint8) * 255)
        written[f"Training_Images/{k}.jpg"] = picture
    return written


def depth_pairs(root: Path, pictures: Sequence[Picture]) -> Folder:
    """tsdf-fusion: colour, 16-bit depth in millimetres and the pose of each frame."""
    written = {}
    for k, picture in enumerate(pictures, 150):
        save(root / f"frame-{k:06d}.color.png", picture.image)
        save(root / f"frame-{k:06d}.depth.png", picture.millimetres)
        (root / f"frame-{k:06d}.pose.txt").write_text("1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n")
        written[f"frame-{k:06d}.color.png"] = picture
    (root / "camera-intrinsics.txt").write_text("585 0 320\n0 585 240\n0 0 1\n")
    return written


def small_depth(root: Path, pictures: Sequence[Picture]) -> Folder:
    """Depth of a third of the image's size, as phones give it."""
    written = {}
    for picture in pictures:
        path = f"rgb/{picture.split}/{picture.stem}.jpg"
        save(root / path, picture.image.repeat(3, 0).repeat(3, 1))
        save(root / f"depth/{picture.split}/{picture.stem}.png", picture.millimetres)
        written[path] = picture
    return written
