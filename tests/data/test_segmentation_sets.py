"""Known data sets on small trees of their layout, and on genuine files."""

import shutil
from itertools import pairwise

import numpy as np
import pytest
from depth_trees import configured as make
from hydra import compose, initialize_config_dir
from photos import save_picture
from PIL import Image

from dpt.data import DataError
from dpt.files import config_dir
from dpt.types.samples import IGNORE_INDEX

SIZE = (6, 8)
CLASSES = {"ade20k": 150, "cityscapes": 19, "voc": 21, "nyu40": 40, "camvid": 11}
CLASSES |= {"pascal_context": 59, "pascal_context60": 60, "pascal_context_rgb": 59}


def photo(path, size=SIZE):
    save_picture(path, np.zeros((*size, 3), np.uint8))


def ids(*values):
    """A mask with these ids in its first pixels, the last one in the others."""
    mask = np.full(SIZE, values[-1], np.uint8)
    mask.flat[: len(values)] = values
    return mask


def first(sample, count):
    return sample["labels"].flat[:count].tolist()


def test_every_class_has_a_name_and_a_color():
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        for name, count in CLASSES.items():
            data = compose("data_check", [f"data={name}"]).data
            names = list(data.class_names)
            assert len(names) == len(set(names)) == count
            assert all(n == n.strip() for n in names)
            assert all(len(c) == 3 and max(c) < 256 for c in data.label_colors)


def test_ade20k(tmp_path):
    for folder, stem in (("training", "ADE_train_1"), ("validation", "ADE_val_1")):
        photo(tmp_path / f"images/{folder}/{stem}.jpg")
        save_picture(tmp_path / f"annotations/{folder}/{stem}.png", ids(0, 1, 2, 150, 21))
    dataset = make("ade20k", tmp_path)
    assert first(dataset[0], 5) == [IGNORE_INDEX, 0, 1, 149, 20]
    named = {dataset.info.class_names[i] for i in first(dataset[0], 5)[1:]}
    assert named == {"wall", "building", "flag", "car"}
    colors = dict(zip(dataset.info.class_names, dataset.info.palette, strict=True))
    # the table of colours starts with one for 0: classes must not get their neighbour's
    assert colors["wall"] == (120, 120, 120)
    assert colors["sky"] == (6, 230, 230)
    assert colors["car"] == (0, 102, 200)
    assert colors["flag"] == (92, 0, 255)
    assert (0, 0, 0) not in dataset.info.palette
    assert len(make("ade20k", tmp_path, split="val")) == 1


# labelIds of the files, and the classes in the order of the benchmark's trainIds
CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, *range(19, 29), 31, 32, 33)
CITYSCAPES_NAMES = (
    "road, sidewalk, building, wall, fence, pole, traffic light, traffic sign, vegetation, "
    "terrain, sky, person, rider, car, truck, bus, train, motorcycle, bicycle"
)


def test_cityscapes(tmp_path):
    for split, cities in {"train": ("aachen", "ulm"), "val": ("munster",)}.items():
        for city in cities:
            stem = f"{city}_000000_000019"
            photo(tmp_path / f"leftImg8bit/{split}/{city}/{stem}_leftImg8bit.png")
            folder = tmp_path / f"gtFine/{split}/{city}"
            save_picture(folder / f"{stem}_gtFine_labelIds.png", ids(*range(34)))
            for other in ("labelTrainIds", "instanceIds", "color"):  # beside it in the archive
                save_picture(folder / f"{stem}_gtFine_{other}.png", ids(250))
    dataset = make("cityscapes", tmp_path)
    assert (len(dataset), len(make("cityscapes", tmp_path, split="val"))) == (2, 1)
    expected = [IGNORE_INDEX] * 34
    for class_id, label_id in enumerate(CITYSCAPES_IDS):
        expected[label_id] = class_id
    assert first(dataset[0], 34) == expected
    assert ", ".join(dataset.info.class_names) == CITYSCAPES_NAMES
    assert dataset.info.palette[10] == (70, 130, 180)  # sky
    assert dataset.info.palette[13] == (0, 0, 142)  # car


def test_voc_reads_palette_masks_of_the_listed_images(tmp_path):
    colors = np.zeros((256, 3), np.uint8)
    colors[15], colors[255] = (192, 128, 128), (224, 224, 192)
    for stem in ("2007_000032", "2007_000039", "2007_000063"):
        photo(tmp_path / f"JPEGImages/{stem}.jpg")
    (tmp_path / "SegmentationClass").mkdir()
    for stem in ("2007_000032", "2007_000039"):
        mask = Image.fromarray(ids(0, 15, 20, 255))
        mask.putpalette(colors.tobytes())
        mask.save(tmp_path / f"SegmentationClass/{stem}.png")
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("2007_000032\n")
    (lists / "val.txt").write_text("2007_000039\n")
    dataset = make("voc", tmp_path)
    assert [dataset.files(i).image.stem for i in range(len(dataset))] == ["2007_000032"]
    assert first(dataset[0], 4) == [0, 15, 20, IGNORE_INDEX]
    assert dataset.info.class_names[15] == "person"
    assert dataset.info.palette[15] == (192, 128, 128)
    # the augmented masks, as they are usually laid beside
    for stem in ("2007_000032", "2007_000063"):
        save_picture(tmp_path / f"SegmentationClassAug/{stem}.png", ids(0, 7))
    (lists / "trainaug.txt").write_text("2007_000032\n2007_000063\n")
    listed = "data.split_files.train=ImageSets/Segmentation/trainaug.txt"
    assert len(make("voc", tmp_path, "data.labels=SegmentationClassAug", listed)) == 2


def context_tree(root):
    photo(root / "JPEGImages/2008_000001.jpg")
    lists = root / "ImageSets/SegmentationContext"
    lists.mkdir(parents=True)
    for split in ("train", "val"):
        (lists / f"{split}.txt").write_text("2008_000001\n")
    return root / "SegmentationClassContext/2008_000001.png"


def test_pascal_context_with_and_without_background(tmp_path):
    save_picture(context_tree(tmp_path), ids(0, 1, 6, 59))
    without, with_it = make("pascal_context", tmp_path), make("pascal_context60", tmp_path)
    assert first(without[0], 4) == [IGNORE_INDEX, 0, 5, 58]
    assert first(with_it[0], 4) == [0, 1, 6, 59]
    assert with_it.info.class_names == ("background", *without.info.class_names)
    names = without.info.class_names
    assert [names[i] for i in (0, 5, 58)] == ["aeroplane", "bicycle", "wood"]
    assert all(a < b for a, b in pairwise(names))


def test_pascal_context_in_colors_gives_the_same_classes(tmp_path):
    # the data set's own list: 1 aeroplane, 2 bicycle, 3 bird, ... 36 grass, ... 59 wood; the
    # colours are those of the VOC table: the bits of the id dealt out to red, green and blue
    colors = {2: (0, 128, 0), 3: (128, 128, 0), 36: (0, 0, 192), 59: (192, 192, 64), 0: (0, 0, 0)}
    mask = np.zeros((*SIZE, 3), np.uint8)
    mask.reshape(-1, 3)[: len(colors)] = list(colors.values())
    save_picture(context_tree(tmp_path), mask)
    dataset = make("pascal_context_rgb", tmp_path)
    class_ids = first(dataset[0], 5)
    assert [dataset.info.class_names[i] for i in class_ids[:4]] == [
        "bicycle",
        "bird",
        "grass",
        "wood",
    ]
    assert class_ids[4] == IGNORE_INDEX
    for i, name in zip(class_ids, ("bicycle", "bird"), strict=False):
        assert dataset.info.palette[i] == colors[{"bicycle": 2, "bird": 3}[name]]


def test_nyu40(tmp_path):
    for split in ("train", "val"):
        photo(tmp_path / f"images/{split}/a.png")
        save_picture(
            tmp_path / f"masks/{split}/a.png", ids(0, 39, 255, 40 if split == "val" else 1)
        )
    dataset = make("nyu40", tmp_path)
    assert first(dataset[0], 4) == [0, 39, IGNORE_INDEX, 1]
    assert dataset.info.class_names[::13] == ("wall", "desk", "towel", "other prop")
    with pytest.raises(DataError, match=r"class ids 40.*data\.label_map=1-40"):
        make("nyu40", tmp_path, split="val")[0]
    from_one = make("nyu40", tmp_path, "data.label_map=1-40", split="val")
    assert first(from_one[0], 4) == [IGNORE_INDEX, 38, IGNORE_INDEX, 39]


# ----------------------------------------------------------------------- genuine files


def place(source, root, **folders):
    """Copies files of ``source`` to the folders where the data set has them: folder=pattern."""
    for folder, pattern in folders.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for path in source.glob(pattern):
            shutil.copy(path, root / folder)


def test_genuine_ade20k(shared_data, tmp_path):
    folders = {"images/training": "images/*", "annotations/training": "annotations/*"}
    place(shared_data / "formats/ade20k", tmp_path, **folders)
    dataset = make("ade20k", tmp_path)
    names = np.array([*dataset.info.class_names, *["other"] * (256 - 150)])  # 0 in the files
    first, second = ({*names[np.unique(sample["labels"])]} for sample in dataset)
    assert first == {"wall", "building", "sky", "tree", "earth", "plant", "other"}
    assert {"road", "sidewalk", "car", "other"} <= second


def test_genuine_cityscapes(shared_data, tmp_path):
    folders = {"leftImg8bit/val/frankfurt": "leftImg8bit/*", "gtFine/val/frankfurt": "gtFine/*"}
    place(shared_data / "formats/cityscapes", tmp_path, **folders)
    (sample,) = make("cityscapes", tmp_path, split="val")
    (train_ids,) = (tmp_path / "gtFine/val/frankfurt").glob("*labelTrainIds.png")
    differ = (sample["labels"] != np.asarray(Image.open(train_ids))).mean()
    assert round(100 * differ, 2) == 0.23  # the two files were shrunk separately
    assert sample["image"].shape == (128, 256, 3)
