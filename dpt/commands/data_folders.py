"""``dpt data convert``: a folder of images in another format of labels."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dpt.commands import make_parser
from dpt.config.overrides import parse
from dpt.files import DataError, few, real_path, require_new, write_bytes
from dpt.process import say

if TYPE_CHECKING:
    from dpt.data import Dataset
    from dpt.data.annotations.base import AnnotatedClass
    from dpt.validation import Plain

FORMATS = ("coco", "yolo", "labelme", "voc", "folder")


def convert(arguments: list[str]) -> None:
    """Writes a data set in another format of labels, for label tools and other programs.

    DIR is read as dpt fit reads it, and all of it is written; KEY=VALUE are keys of data, such as
    data.annotations=coco, or data.objects=FOLDER and data.things=[cow] for maps of object ids.
    Images are copied. Masks become polygons along the edges of pixels, which have exactly the
    pixels of the masks. A class that is not a thing has an object for each of its connected parts.
    What a format cannot hold is printed.

    Formats (--to)
      coco      annotations/instances_SPLIT.json (polygons; RLE for objects with holes), images/
      yolo      data.yaml, labels/SPLIT/*.txt (one ring for each object), images/SPLIT/
      labelme   SPLIT/*.json beside the images: polygons; group_id joins the parts of an object
      voc       JPEGImages/, SegmentationClass/, SegmentationObject/, ImageSets/, labelmap.txt
      folder    images/SPLIT/, masks/SPLIT/ (class ids), objects/SPLIT/ (object ids), classes.txt
    """
    options = _parse(arguments)
    from dpt.data.annotations import WRITERS
    from dpt.data.annotations.conversion import Conversion, names_of
    from dpt.run_log import start_log, tracked

    start_log(None)
    with tempfile.TemporaryDirectory() as folder:
        datasets = _datasets(options, Path(folder))
    classes = _classes(next(iter(datasets.values())))
    writer = WRITERS[options.to](classes)
    out = real_path(options.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as temporary:
        conversion = Conversion(writer, classes, Path(temporary, out.name))
        for split, names in names_of(datasets, writer).items():
            dataset = datasets[split]
            for index, path in enumerate(tracked([*names], len(names), title=split)):
                sample = dataset[index]
                dataset.check(sample)
                conversion.add(path, names[path], split, sample, exif=dataset.exif)
        conversion.finish()
        os.replace(Path(temporary, out.name), out)  # a killed command leaves no half of it
    say("\n".join(conversion.report(options.out)))


def _classes(dataset: Dataset) -> list[AnnotatedClass]:
    """Returns the classes of a data set, with their colours."""
    from dpt.data.annotations.base import AnnotatedClass
    from dpt.viz import as_palette

    info = dataset.info
    if "labels" not in info.targets:
        raise DataError(f"{dataset.root}: no masks and no objects, which alone are written")
    others = [target for target in info.targets if target not in ("labels", "objects")]
    if others:
        say(f"not written: {few(others)}")
    things = info.things or (False,) * info.num_classes
    colors = as_palette(info.palette, info.num_classes, info.class_names).tolist()
    return [
        AnnotatedClass(name=name, is_thing=is_thing, color=tuple(color))
        for name, is_thing, color in zip(info.class_names, things, colors, strict=True)
    ]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = make_parser("data convert", convert.__doc__)
    add = parser.add_argument
    add("folder", metavar="DIR", type=Path, help="the data set")
    add("out", metavar="OUT", type=Path, help="the folder to write, which is new or empty")
    add("--to", required=True, choices=FORMATS, help="the format, see above")
    add("overrides", metavar="KEY=VALUE", nargs="*", help="keys of data, such as data.labels=masks")
    options = parser.parse_intermixed_args(arguments)
    out = real_path(options.out)
    require_new(out)
    if out.is_relative_to(real_path(options.folder)):
        raise ValueError(f"{options.out}: is in DIR, and would be taken for its data: move it")
    return options


def _datasets(options: argparse.Namespace, scratch: Path) -> dict[str, Dataset]:
    """Returns the data set of each split; prints what was recognised, and what is left out.

    Args:
        scratch: folder for a table of the files.
    """
    from dpt.config.schema import DataConfig
    from dpt.data.base import require_same_classes
    from dpt.data.layouts import detect

    given = {override.key: override.value for override in parse(options.overrides)}
    unknown = [key for key in given if not key.startswith("data.") or key == "data.root"]
    if unknown:
        raise ValueError(f"{unknown[0]}: give DIR, and keys data.KEY=VALUE")
    data = {key.removeprefix("data."): value for key, value in given.items()}
    detected = detect(options.folder, data, say, holds_out=False)
    settings = detected.settings | data
    splits = {row.split for row in detected.rows} - {""}
    write_bytes(scratch / "pairs.csv", detected.table().encode())
    settings |= {f"split_files.{split}": str(scratch / "pairs.csv") for split in splits}
    node: Plain = {"kind": "folder", "root": str(options.folder)}
    for key, value in settings.items():
        head, _, tail = key.partition(".")
        node |= {head: {**node.get(head, {}), tail: value}} if tail else {head: value}
    config = DataConfig.read(node)
    datasets: dict[str, Dataset] = {
        split: config.make(split) for split in ("train", "val", "test") if split in splits
    }
    first = next(iter(datasets.values()))
    for dataset in datasets.values():
        dataset.adopt_classes(first.info.class_names)
        require_same_classes(first, dataset)
    return datasets
