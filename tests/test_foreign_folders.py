"""Folders of label tools and of other people: what is read equals the masks that were drawn."""

import codecs
import re
import shutil
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import foreign_folders as made
import numpy as np
import pytest
import yaml
from label_folders import datasets
from pycocotools import mask as coco
from tiny import slow_after

from dpt.data import FolderDataset
from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import AnnotatedImage
from dpt.data.base import Dataset, require_same_classes
from dpt.data.layouts import detect
from dpt.files import DataError, files_below, plain_name
from dpt.types.samples import Sample

PICTURES = made.scene_pictures()
KINDS = {
    "any": PICTURES,
    "parts": [picture.without_holes() for picture in PICTURES],
    "solid": [picture.solid() for picture in PICTURES],
}
RECORDS = {  # the name of the format, its maker, and what it can draw
    "coco": (made.coco_instances, "any"),
    "coco RLE": (made.coco_rle, "any"),
    "coco Roboflow": (made.roboflow_coco, "any"),
    "labelme": (made.labelme, "any"),
    "labelme folders": (made.labelme_in_folders, "solid"),
    "via": (made.via, "solid"),
    "via project": (made.via_project, "solid"),
    "yolo": (made.yolo, "parts"),
    "cvat": (made.cvat, "any"),
    "labelstudio": (made.label_studio, "solid"),
    "labelstudio brush": (made.label_studio_brush, "any"),
    "object_masks": (made.mask_per_object, "any"),
}
OF_ONE_CLASS = {"object_masks"}
SPLITS = {"coco", "coco Roboflow", "via", "yolo"}


def paths_below(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in files_below(root)]


def packed(mask: np.ndarray) -> bytes:
    return np.packbits(mask).tobytes()


def things_of(picture: made.Picture) -> set[tuple[str, bytes]]:
    """Class and pixels of each object."""
    return {(thing.name, packed(thing.mask)) for thing in picture.things}


def require_equal(root: Path, case: str, written: made.Folder) -> None:
    """Checks that what the format of the case reads equals the pictures."""
    name = case.split()[0]
    tool = FORMATS[name]
    files = paths_below(root)
    sources = tool.find(root, files)
    for other, other_tool in FORMATS.items():
        assert other == name or not other_tool.find(root, files)
    annotations = tool.read(root, sources, files)
    pictures = {plain_name(path): picture for path, picture in written.items()}
    assert sorted(path_of(image, root) for image in annotations.images) == sorted(pictures)
    for image in annotations.images:
        picture = pictures[path_of(image, root)]
        read = {
            (item.class_name, packed(coco.decode(item.encode(picture.size))))
            for item in image.objects
        }
        expected = things_of(picture)
        if name in OF_ONE_CLASS:
            (class_name,) = {row.name for row in annotations.classes}
            expected = {(class_name, pixels) for _, pixels in expected}
        assert read == expected
        assert image.size in (None, picture.size)
        assert image.split == (picture.split if case in SPLITS else "")


def path_of(image: AnnotatedImage, root: Path) -> str:
    return plain_name(image.image.relative_to(root).as_posix())


# ---------------------------------------------------------- the same, as people's machines leave it


LABEL_SUFFIXES = (".json", ".xml", ".txt", ".yaml")


def with_byte_order_marks(root: Path, written: made.Folder) -> made.Folder:
    for path in files_below(root, LABEL_SUFFIXES):
        content = path.read_bytes()
        path.write_bytes(codecs.BOM_UTF8 + content.removeprefix(codecs.BOM_UTF8))
    return written


def with_carriage_returns(root: Path, written: made.Folder) -> made.Folder:
    for path in files_below(root, LABEL_SUFFIXES):
        text = path.read_bytes().replace(b"\r", b"").replace(b', "', b',\n"')
        path.write_bytes(text.replace(b"\n", b"\r\n"))
    return written


def with_capital_suffixes(root: Path, written: made.Folder) -> made.Folder:
    """Images and label files whose suffixes are capital, unlike in the label files."""
    for path in files_below(root):
        if path.suffix != ".yaml":
            path.rename(path.with_suffix(path.suffix.upper()))
    return {str(Path(p).with_suffix(Path(p).suffix.upper())): v for p, v in written.items()}


def with_decomposed_names(root: Path, written: made.Folder) -> made.Folder:
    """Files as macOS names them, unlike in the label files."""
    for path in files_below(root):
        path.rename(path.with_name(unicodedata.normalize("NFD", path.name)))
    return written


def with_links(root: Path, written: made.Folder) -> made.Folder:
    """Files that are links to a folder elsewhere."""
    target = root.with_name("elsewhere")
    shutil.copytree(root, target)
    for path in files_below(root):
        path.unlink()
        path.symlink_to(target / path.relative_to(root))
    return written


def with_other_files(root: Path, written: made.Folder) -> made.Folder:
    """Empty folders, and what file managers leave."""
    for name in ("masks", "labels/train", "annotations", "runs", ".git"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for path in files_below(root):
        path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")
        path.with_name("Thumbs.db").write_bytes(b"\xd0\xcf")
        path.with_name("desktop.ini").write_text("[.ShellClassInfo]")
    return written


CHANGES = (
    with_byte_order_marks,
    with_carriage_returns,
    with_capital_suffixes,
    with_decomposed_names,
    with_links,
    with_other_files,
)
FEW = {kind: [replace(p[0], stem="Straße é 1 (2)"), p[-1]] for kind, p in KINDS.items()}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("case", RECORDS)
def test_annotations_survive(tmp_path, case, change):
    maker, kind = RECORDS[case]
    root = tmp_path / "Möbel und mehr"
    require_equal(root, case, change(root, maker(root, FEW[kind])))


# ------------------------------------------------------------------------- what dpt fit finds


@dataclass(frozen=True)
class Case:
    """A folder, and what is read of it.

    Attributes:
        shown: what masks say: classes, or object or not ("binary").
        answer: the setting that decides, if there is a question.
    """

    make: Callable[[Path, Sequence[made.Picture]], made.Folder]
    kind: str = "any"
    shown: Literal["names", "binary"] = "names"
    states_splits: bool = False
    has_objects: bool = True
    has_maps_of_objects: bool = False
    answer: str = ""


CASES = {
    "coco": Case(made.coco_instances, states_splits=True),
    "coco_rle": Case(made.coco_rle),
    "roboflow_coco": Case(made.roboflow_coco, states_splits=True),
    "labelme": Case(made.labelme),
    "labelme_in_folders": Case(made.labelme_in_folders, "solid"),
    "via": Case(made.via, "solid", states_splits=True),
    "via_project": Case(made.via_project, "solid"),
    "yolo": Case(made.yolo, "parts", states_splits=True),
    "cvat": Case(made.cvat),
    "cvat_masks": Case(made.cvat_masks, states_splits=True, has_maps_of_objects=True),
    "label_studio": Case(made.label_studio, "solid"),
    "label_studio_brush": Case(made.label_studio_brush),
    "mask_per_object": Case(made.mask_per_object, shown="binary"),
    "voc": Case(made.voc, states_splits=True, has_maps_of_objects=True),
    "labelme2voc": Case(made.labelme2voc, answer="labels=SegmentationClass", has_objects=False),
    "two_annotators": Case(
        made.two_annotators, shown="binary", answer="labels=1st_manual", has_objects=False
    ),
    "tiles": Case(made.tiles, has_objects=False),
    "roboflow_masks": Case(made.roboflow_masks, states_splits=True, has_objects=False),
    "cut_outs": Case(made.cut_outs, shown="binary", has_objects=False),
}


def open_folder(root: Path, answer: str = "", **given: object) -> dict[str, Dataset]:
    """Returns the data sets of train and val, as ``dpt fit`` finds them."""
    if answer:
        with pytest.raises(DataError, match=re.escape(f"data.{answer}")):
            detect(root, given)
        key, value = answer.split("=")
        given[key] = yaml.safe_load(value)
    read = datasets(root, detect(root, given), **given)
    read["val"].adopt_classes(read["train"].info.class_names)
    require_same_classes(read["train"], read["val"])
    return read


def names_of_pixels(labels: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """Returns ids in the order of ``CLASSES`` from 1, and 0 for the background."""
    known = {name: k for k, name in enumerate(made.CLASSES, 1)}
    known |= {f"class_{k}": k for k in known.values()}  # of masks of ids
    table = np.zeros(256, np.uint8)
    for k, name in enumerate(names):
        assert name in known or name in ("background", "_background_")
        table[k] = known.get(name, 0)
    return table[labels]


def read_all(datasets: Mapping[str, Dataset], root: Path) -> dict[str, tuple[str, Sample]]:
    """Returns split and sample of each image by its path."""
    read: dict[str, tuple[str, Sample]] = {}
    for split, dataset in datasets.items():
        assert len(dataset)
        for index in range(len(dataset)):
            files, sample = dataset.files(index), dataset[index]
            assert files is not None
            dataset.check(sample)
            path = files.image.relative_to(root).as_posix()
            assert path not in read
            read[path] = split, sample
    return read


def require_labels(
    datasets: Mapping[str, Dataset], root: Path, written: made.Folder, case: Case
) -> None:
    """Checks that the data sets hold every image with its labels."""
    read = read_all(datasets, root)
    assert read.keys() == written.keys()
    class_names = datasets["train"].info.class_names
    for path, (split, sample) in read.items():
        picture = written[path]
        assert not case.states_splits or picture.split == split
        expected, labels = picture.labels, sample["labels"]
        if case.shown == "names":
            labels = names_of_pixels(labels, class_names)
        else:
            expected, labels = expected > 0, labels == len(class_names) - 1
        scale = len(labels) // len(expected)
        expected = expected.repeat(scale, 0).repeat(scale, 1)
        np.testing.assert_array_equal(labels, expected)
        if case.has_objects:
            assert same_objects(sample["objects"], picture)
        if case.has_objects and not case.has_maps_of_objects:
            masks = {packed(coco.decode(mask.mask)) for mask in sample["masks"]}
            assert masks == {packed(thing.mask) for thing in picture.things}


def test_masks_of_one_class_each_are_a_question(tmp_path):
    made.mask_per_class(tmp_path / "things", PICTURES)
    with pytest.raises(DataError, match=r"data\.labels"):
        detect(tmp_path / "things", {})


@pytest.mark.parametrize("name", CASES)
def test_fit_finds_the_labels(tmp_path, name):
    case = CASES[name]
    written = case.make(tmp_path / "things", KINDS[case.kind])
    require_labels(
        open_folder(tmp_path / "things", case.answer), tmp_path / "things", written, case
    )


def require_depth(root: Path, written: made.Folder, answer: str = "") -> None:
    read = read_all(open_folder(root, answer), root)
    assert read.keys() == written.keys()
    for path, (_, sample) in read.items():
        millimetres = written[path].millimetres
        metres = np.where(sample["valid"], sample["depth"], 0)
        np.testing.assert_allclose(metres, millimetres / np.float32(1000), rtol=1e-6)


def test_fit_finds_depth_in_pairs(tmp_path):
    require_depth(tmp_path / "a", made.depth_pairs(tmp_path / "a", PICTURES))


def test_fit_resizes_small_depth(tmp_path):
    require_depth(tmp_path / "a", made.small_depth(tmp_path / "a", PICTURES))


def same_objects(objects: np.ndarray, picture: made.Picture) -> bool:
    numbers = [np.unique(objects[thing.mask]).tolist() for thing in picture.things]
    is_one = all(len(values) == 1 and values[0] for values in numbers)
    return is_one and len({values[0] for values in numbers}) == len(picture.things) == objects.max()


def test_images_that_were_enlarged_after_labelling(tmp_path):
    written = made.labelme(tmp_path, PICTURES)
    for path, picture in written.items():
        made.save(tmp_path / path, picture.image.repeat(2, 0).repeat(2, 1))
    settings = {"root": tmp_path, "split": "train", "annotations": "labelme"}
    with pytest.raises(DataError, match=r"t01\.jpg: 192x144.*96x72.*data\.resize_labels=true"):
        FolderDataset(**settings).validate()
    settings |= {"resize_labels": True, "fractions": {"train": 0.5, "val": 0.5}}
    datasets = {s: FolderDataset(**settings | {"split": s}) for s in ("train", "val")}
    require_labels(datasets, tmp_path, written, CASES["labelme"])


# ----------------------------------------------------------------------------------- bad input


def test_fit_finds_images_that_were_uploaded(tmp_path):
    """Label Studio's export in COCO's format names images where its server has them."""
    written = made.coco_rle(tmp_path / "a", PICTURES)
    path = tmp_path / "a/result.json"
    uploaded = "../../label-studio/data/media/upload/1/"
    path.write_text(path.read_text("utf-8-sig").replace("images\\\\", uploaded))
    require_labels(open_folder(tmp_path / "a"), tmp_path / "a", written, CASES["coco_rle"])


def test_fit_finds_a_folder_for_each_split(tmp_path):
    """Roboflow's export for YOLO, whose data.yaml leads to its own parent folder."""
    root, written = tmp_path / "a", {}
    for path, picture in made.yolo(tmp_path / "yolo", KINDS["parts"]).items():
        split = {"train": "train", "val": "valid"}[picture.split]
        label = path.replace("images/", "labels/").replace(".jpg", ".txt")
        for kind, source in (("images", path), ("labels", label)):
            target = root / split / kind / Path(source).name
            target.parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "yolo" / source).rename(target)
        written[f"{split}/images/{Path(path).name}"] = picture
    entries = "train: ../train/images\nval: ../valid/images\ntest: ../test/images\n"
    (root / "data.yaml").write_text(f"{entries}nc: 6\nnames: {[*made.CLASSES]}\n")
    require_labels(open_folder(root), root, written, CASES["yolo"])


# --------------------------------------------------------------------------------- round trips


def convert(dpt_command: Callable, root: Path, name: str, to: str) -> tuple[Path, made.Folder]:
    """Returns the folder that ``dpt data convert`` writes of the case, and its pictures."""
    case, out = CASES[name], root.with_name("out")
    written = case.make(root, KINDS[case.kind])
    picture_of = {(root / path).read_bytes(): picture for path, picture in written.items()}
    answer = [f"data.{case.answer}"] if case.answer else []
    code, _, err = dpt_command("data", "convert", root, out, "--to", to, *answer)
    assert code == 0, err
    images = [path for path in files_below(out) if path.read_bytes() in picture_of]
    return out, {p.relative_to(out).as_posix(): picture_of[p.read_bytes()] for p in images}


TO = ("coco", "yolo", "labelme", "voc", "folder")
ROUNDS = [(name, TO[k % 5]) for k, name in enumerate(CASES)]


@pytest.mark.parametrize(("name", "to"), slow_after(12, ROUNDS))
def test_conversion_and_back(dpt_command, tmp_path, name, to):
    out, written = convert(dpt_command, tmp_path / "things", name, to)
    case = CASES[name]
    has_maps = case.has_maps_of_objects or to in ("voc", "folder")
    case = replace(case, has_maps_of_objects=has_maps)
    # each pixel has a class, of which the first has no name
    is_full = case.shown == "binary" and not case.has_objects and to in ("yolo", "labelme")
    given = {"background": False} if is_full else {}
    require_labels(open_folder(out, **given), out, written, case)
