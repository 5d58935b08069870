from pathlib import Path

import numpy as np
import pytest
from photos import save_picture

from dpt.data import DataError, FolderDataset
from dpt.data.datasets.files import numbered
from dpt.data.formats.labels import LabelRule
from dpt.types import IGNORE_INDEX


def photo(value: int = 0, size: tuple[int, int] = (6, 8)) -> np.ndarray:
    return np.full((*size, 3), value, np.uint8)


def ids(value: int = 0, size: tuple[int, int] = (6, 8)) -> np.ndarray:
    return np.full(size, value, np.uint8)


def millimetres(value: int = 1500) -> np.ndarray:
    return np.full((6, 8), value, np.uint16)


def segmentation(root: Path, **options) -> FolderDataset:
    settings = {"split": "train", "labels": "masks", "num_classes": 3} | options
    return FolderDataset(root=root, **settings)


def depth_set(root: Path, **options) -> FolderDataset:
    settings = {"split": "train", "depth": "depth", "max_depth": 10} | options
    return FolderDataset(root=root, **settings)


def stems(dataset: FolderDataset) -> list[str]:
    return [dataset.files(i).image.stem for i in range(len(dataset))]


# ----------------------------------------------------------------------------------- layouts


def test_sub_folder_named_after_the_split(tmp_path):
    for split, count in (("train", 3), ("val", 2)):
        for i in range(count):
            save_picture(tmp_path / f"images/{split}/{i}.png", photo(i))
            save_picture(tmp_path / f"masks/{split}/{i}.png", ids(i % 3))
    dataset = segmentation(tmp_path)
    assert (len(dataset), len(segmentation(tmp_path, split="val"))) == (3, 2)
    sample = dataset[2]
    assert sample["image"][0, 0, 0] == 2
    assert sample["labels"].dtype == np.uint8
    assert (sample["labels"] == 2).all()
    assert sample["index"] == 2
    assert sample["name"].endswith("images/train/2.png")
    assert dataset.info.targets == ("labels",)
    assert dataset.info.class_names == ("class_0", "class_1", "class_2")
    with pytest.raises(DataError, match=r"data\.fractions has no effect.*define the splits"):
        segmentation(tmp_path, fractions={"train": 0.5})


def test_split_in_a_template_and_sub_folders(tmp_path):
    for town in ("bonn", "ulm"):
        save_picture(tmp_path / f"train/rgb/{town}/a.jpg", photo())
        save_picture(tmp_path / f"train/ids/{town}/a.png", ids(1 if town == "ulm" else 2))
    dataset = segmentation(tmp_path, images="%split/rgb", labels="%split/ids")
    assert [int(dataset[i]["labels"][0, 0]) for i in range(2)] == [2, 1]
    with pytest.raises(DataError, match=r"val/rgb does not exist.*train.*data\.images"):
        segmentation(tmp_path, split="val", images="%split/rgb", labels="%split/ids")


def test_split_on_disk_may_have_another_name(tmp_path):
    for split in ("train", "validation"):
        save_picture(tmp_path / f"images/{split}/a.png", photo())
        save_picture(tmp_path / f"masks/{split}/a.png", ids())
    assert len(segmentation(tmp_path, split="val", split_names={"val": "validation"})) == 1


def test_missing_split_folder_does_not_fall_back_to_the_other_splits_files(tmp_path):
    save_picture(tmp_path / "images/train/a.png", photo())
    save_picture(tmp_path / "masks/train/a.png", ids())
    with pytest.raises(DataError, match=r"images/val does not exist.*holds train.*split_names"):
        segmentation(tmp_path, split="val")


def test_a_missing_folder_is_told_with_all_others_closest_first(tmp_path):
    save_picture(tmp_path / "images/train/a.png", photo())
    (tmp_path / "masks").mkdir()
    with pytest.raises(DataError, match=r"labels does not exist; .* holds images, masks: check"):
        segmentation(tmp_path, labels="labels")


def test_flat_masks_serve_split_images(tmp_path):
    save_picture(tmp_path / "images/train/a.png", photo())
    save_picture(tmp_path / "images/val/b.png", photo())
    for stem in "ab":
        save_picture(tmp_path / f"masks/{stem}.png", ids())
    assert stems(segmentation(tmp_path)) == ["a"]
    assert stems(segmentation(tmp_path, split="val")) == ["b"]
    save_picture(tmp_path / "images/val/a.png", photo())
    for template in ("images", "images/%split"):
        with pytest.raises(DataError, match=r"masks/a\.png pairs with .*train/a.* and .*val/a"):
            segmentation(tmp_path, images=template)


def test_split_masks_divide_flat_images(tmp_path):
    for i in range(12):
        save_picture(tmp_path / f"images/{i}.png", photo(i))
        if i < 10:
            save_picture(tmp_path / f"masks/{'train' if i < 7 else 'val'}/{i}.png", ids())
    train, val = (segmentation(tmp_path, split=split) for split in ("train", "val"))
    assert (stems(train), stems(val)) == ([*"0123456"], [*"789"])


def test_a_table_pairs_files_of_any_name(tmp_path):
    for i in range(4):
        save_picture(tmp_path / f"rgb/{i}.png", photo(i))
        save_picture(tmp_path / f"ids/mask_{9 - i}.png", ids(i % 3))
    rows = ["image, mask, split", "rgb/0.png, ids/mask_9.png, train", "rgb/1.png,,train",
            "rgb/2.png,ids/mask_7.png,train", "rgb/3.png,ids/mask_6.png,validation"]  # fmt: skip
    (tmp_path / "list.csv").write_text("\n".join(rows))
    lists = {"split_files": {"train": "list.csv", "val": "list.csv", "test": "list.csv"}}
    names = {"split_names": {"val": "validation"}}
    with pytest.raises(DataError, match=r"1 of 3 images .* no labels \(rgb/1\.png\): .*=skip"):
        segmentation(tmp_path, **lists)
    assert stems(segmentation(tmp_path, **lists, missing="skip")) == ["0", "2"]
    dataset = segmentation(tmp_path, **lists, missing="keep")
    assert stems(dataset) == ["0", "1", "2"]
    assert [int(dataset[i]["labels"][0, 0]) for i in (0, 2)] == [0, 2]
    assert "labels" not in dataset[1]
    assert stems(segmentation(tmp_path, **lists, **names, split="val")) == ["3"]
    with pytest.raises(DataError, match=r"holds train, validation, not test: .*split_names"):
        segmentation(tmp_path, **lists, split="test")
    with pytest.raises(DataError, match=r"list\.csv: no column depth"):
        segmentation(tmp_path, **lists, depth="d", max_depth=10)
    (tmp_path / "rgb/2.png").unlink()
    with pytest.raises(DataError, match=r"list\.csv: 1 files of its 2 images do not exist.*2\.png"):
        segmentation(tmp_path, **lists, missing="skip")


def test_fractions_cover_everything_once_and_are_stable(tmp_path):
    for i in range(50):
        save_picture(tmp_path / f"images/{i}.png", photo())
        save_picture(tmp_path / f"masks/{i}.png", ids())
    train, val = (set(stems(segmentation(tmp_path, split=s))) for s in ("train", "val"))
    assert (len(train), len(val)) == (45, 5)
    assert not train & val
    shares = {"train": 0.6, "val": 0.2, "test": 0.2}
    parts = [stems(segmentation(tmp_path, split=s, fractions=shares)) for s in shares]
    assert [len(p) for p in parts] == [30, 10, 10]
    assert sorted(stem for part in parts for stem in part) == sorted(train | val)
    # a new file moves at most one of the old ones
    save_picture(tmp_path / "images/new.png", photo())
    save_picture(tmp_path / "masks/new.png", ids())
    assert len(val ^ set(stems(segmentation(tmp_path, split="val"))) - {"new"}) <= 1


def test_fractions_faults(tmp_path):
    save_picture(tmp_path / "images/a.png", photo())
    save_picture(tmp_path / "masks/a.png", ids())
    with pytest.raises(DataError, match="1 images or groups are too few"):
        segmentation(tmp_path)
    with pytest.raises(DataError, match=r"split test has no folder.*train, val"):
        segmentation(tmp_path, split="test")
    with pytest.raises(DataError, match="sum to at most 1"):
        segmentation(tmp_path, fractions={"train": 0.9, "val": 0.2})
    save_picture(tmp_path / "images/b.png", photo())
    save_picture(tmp_path / "masks/b.png", ids())
    (tmp_path / "list.txt").write_text("a\n")
    for other in ({"folds": 2}, {"split_files": {"train": "list.txt"}}):
        with pytest.raises(DataError, match=r"data.fractions has no effect"):
            segmentation(tmp_path, fractions={"train": 0.5, "val": 0.5}, **other)


def test_tiny_folder_still_has_a_validation_image(tmp_path):
    for stem in "ab":
        save_picture(tmp_path / f"images/{stem}.png", photo())
        save_picture(tmp_path / f"masks/{stem}.png", ids())
    assert len(segmentation(tmp_path)) == len(segmentation(tmp_path, split="val")) == 1


def test_list_files(tmp_path):
    for stem in ("x/a", "x/b", "y/b", "c"):
        save_picture(tmp_path / f"images/{stem}.jpg", photo())
        save_picture(tmp_path / f"masks/{stem}.png", ids())
    (tmp_path / "train.txt").write_text("# a comment\n\nx/b.jpg\nimages/y/b.jpg\nc\n./x/a\n")
    lists = {"train": "train.txt", "val": "val.txt"}
    dataset = segmentation(tmp_path, split_files=lists)
    found = [dataset.files(i).image.relative_to(tmp_path).as_posix() for i in range(4)]
    assert found == ["images/x/b.jpg", "images/y/b.jpg", "images/c.jpg", "images/x/a.jpg"]
    with pytest.raises(DataError, match=r"val\.txt does not exist.*train\.txt"):
        segmentation(tmp_path, split="val", split_files=lists)
    (tmp_path / "val.txt").write_text("b\nzzz\nc\n")  # two files are called b
    with pytest.raises(DataError, match=r"val\.txt: 2 of 3 lines.*\(b, zzz\)"):
        segmentation(tmp_path, split="val", split_files=lists)
    with pytest.raises(DataError, match=r"names no list for split test \(it has train, val\)"):
        segmentation(tmp_path, split="test", split_files=lists)


@pytest.mark.parametrize(
    "text",
    [
        "a\nb\n",
        "\ufeffa\r\nb\r\n",
        "a 1\nb -1\n",
        "images/a.jpg masks/a.png\nimages/b.jpg masks/b.png\n",
        "images\\a.JPG;masks\\a.png\nb.jpg;x\n",
        "{root}/images/a.JPG\n{root}/images/b.jpg\n",
    ],
)
def test_forms_of_lists(tmp_path, text):
    for stem, suffix in (("a", ".JPG"), ("b", ".jpg"), ("c d", ".jpg")):
        save_picture(tmp_path / f"images/{stem}{suffix}", photo())
        save_picture(tmp_path / f"masks/{stem}.png", ids())
    (tmp_path / "train.txt").write_text(text.format(root=tmp_path), newline="")
    (tmp_path / "val.txt").write_text("c d\n")
    lists = {"split_files": {"train": "train.txt", "val": "val.txt"}}
    assert stems(segmentation(tmp_path, **lists)) == ["a", "b"]
    assert stems(segmentation(tmp_path, split="val", **lists)) == ["c d"]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffSplit;Image;Mask\r\ntrain;rgb/a.jpg;ids/a.png\r\ntrain;rgb/b.png;ids/b.png\r\n",
        "IMAGE\tMASK\tSPLIT\n./rgb/a.JPG\tids/a.PNG\ttrain\nrgb\\b.png\tids\\b.png\ttrain\n",
        "split,image,mask\ntrain,{root}/rgb/a.JPG,ids/a.png\ntrain,x/../rgb/b.png,{root}/ids/b.png",
    ],
)
def test_forms_of_tables(tmp_path, text):
    for name in ("a.JPG", "b.png"):
        save_picture(tmp_path / f"rgb/{name}", photo())
        save_picture(tmp_path / f"ids/{name[0]}.png", ids())
    (tmp_path / "list.csv").write_text(text.format(root=tmp_path), newline="")
    table = {"split_files": {"train": "list.csv"}}
    assert stems(segmentation(tmp_path, **table)) == ["a", "b"]
    (tmp_path / "link").symlink_to(tmp_path)
    assert stems(segmentation(tmp_path / "link", **table)) == ["a", "b"]


@pytest.mark.parametrize("name", ["../secret.png", "{root}/../secret.png", "rgb/../../secret.png"])
def test_a_table_names_files_below_the_root_only(tmp_path, name):
    save_picture(tmp_path / "secret.png", photo())
    save_picture(tmp_path / "set/ids/a.png", ids())
    row = f"train,{name.format(root=tmp_path / 'set')},ids/a.png"
    (tmp_path / "set/list.csv").write_text(f"split,image,mask\n{row}\n")
    with pytest.raises(DataError, match=r"list\.csv: .*secret\.png is not below"):
        segmentation(tmp_path / "set", split_files={"train": "list.csv"})


def test_copies_by_roboflow_are_in_one_part(tmp_path):
    names = [f"{i}_jpg.rf.{k}{i:07x}" for i in range(10) for k in "abc"]
    for name in names:
        save_picture(tmp_path / f"images/{name}.jpg", photo())
        save_picture(tmp_path / f"masks/{name}.png", ids())
    for options in ({}, {"folds": 10, "fold": 9}):
        parts = [stems(segmentation(tmp_path, split=s, **options)) for s in ("train", "val")]
        assert [len(part) for part in parts] == [27, 3]
        train, val = ({name.split(".")[0] for name in part} for part in parts)
        assert not train & val


def test_labelled_photos_are_spaced_in_natural_order(tmp_path):
    for i in range(1, 101):
        save_picture(tmp_path / f"images/train/f{i}.png", photo())
        save_picture(tmp_path / f"masks/train/f{i}.png", ids())
    assert {*stems(segmentation(tmp_path, labelled=4))} == {"f1", "f26", "f51", "f76"}


# ----------------------------------------------------------------------------------- pairing


def test_name_templates(tmp_path):
    for stem in ("s1", "s2"):
        save_picture(tmp_path / f"images/train/{stem}_leftImg8bit.png", photo())
        save_picture(tmp_path / f"masks/train/{stem}_gtFine_labelIds.png", ids(1))
        save_picture(tmp_path / f"masks/train/{stem}_gtFine_color.png", photo())
        np.save(tmp_path / f"masks/train/depth_{stem}.npy", np.full((6, 8), 2.0))
    dataset = segmentation(
        tmp_path,
        depth="masks",
        depth_scale=1,
        max_depth=5,
        images_name="%stem_leftImg8bit",
        labels_name="%stem_gtFine_labelIds",
        depth_name="depth_%stem",
    )
    assert len(dataset) == 2
    assert dataset.info.targets == ("depth", "labels")
    assert (dataset[1]["depth"] == 2).all()
    with pytest.raises(DataError, match=r"no image pairs.*s1_leftImg8bit and s1_gtFine.*%stem"):
        segmentation(tmp_path)
    with pytest.raises(DataError, match=r"data\.labels_name=labels must hold %stem once"):
        segmentation(tmp_path, labels_name="labels")


def test_photos_and_masks_in_one_folder(tmp_path):
    for stem in "ab":
        save_picture(tmp_path / f"train/{stem}.jpg", photo())
        save_picture(tmp_path / f"train/{stem}.png", ids())
    dataset = segmentation(
        tmp_path, images=".", labels=".", images_name="%stem.jpg", labels_name="%stem.png"
    )
    assert stems(dataset) == ["a", "b"]
    with pytest.raises(DataError, match=r"a\.jpg and .*a\.png have one name.*data\.images_name"):
        segmentation(tmp_path, images=".", labels=".")


def test_images_without_labels(tmp_path):
    for i in range(5):
        save_picture(tmp_path / f"images/train/{i}.png", photo())
    for i in (0, 2):
        save_picture(tmp_path / f"masks/train/{i}.png", ids())
    (tmp_path / "masks/train/.hidden.png").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"3 of 5 .* no labels \(images.train.1.png, .*=skip"):
        segmentation(tmp_path)
    assert stems(segmentation(tmp_path, missing="skip")) == ["0", "2"]
    kept = segmentation(tmp_path, missing="keep")
    assert [("labels" in kept[i]) for i in range(5)] == [True, False, True, False, False]


def test_partial_labels(tmp_path):
    for i in range(4):
        save_picture(tmp_path / f"images/train/{i}.png", photo())
    for i in (0, 1):
        save_picture(tmp_path / f"masks/train/{i}.png", ids())
    for i in (1, 2):
        save_picture(tmp_path / f"depth/train/{i}.png", millimetres())
    with pytest.raises(DataError, match=r"1 of 4 images.*no labels and no depth.*/3\.png\)"):
        segmentation(tmp_path, depth="depth", max_depth=10)
    save_picture(tmp_path / "masks/train/3.png", ids())
    dataset = segmentation(tmp_path, depth="depth", max_depth=10)
    keys = [sorted(dataset[i].keys() & {"labels", "depth", "valid"}) for i in range(4)]
    assert keys == [["labels"], ["depth", "labels", "valid"], ["depth", "valid"], ["labels"]]


def test_faulty_folders(tmp_path):
    with pytest.raises(DataError, match=r"nowhere does not exist.*data\.root"):
        segmentation(tmp_path / "nowhere")
    (tmp_path / "imges").mkdir()
    with pytest.raises(DataError, match=r"images does not exist; .* holds imges: .*data\.images"):
        segmentation(tmp_path)
    (tmp_path / "labls").mkdir()
    with pytest.raises(DataError, match=r"holds imges, labls: .*data\.images"):  # near names first
        segmentation(tmp_path)
    (tmp_path / "images/train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"no file in .*images/train.*it is empty"):
        segmentation(tmp_path)
    (tmp_path / "images/train/a.heic").write_bytes(b"x")
    for name in ("b", "c"):  # endless, if they were followed
        (tmp_path / "images/train" / name).symlink_to("..")
    with pytest.raises(DataError, match=r"no file in .*suffix of \.jpg .*found .*a\.heic"):
        segmentation(tmp_path)


# ------------------------------------------------------------------------------------ labels


def one(root: Path, mask: np.ndarray, **options) -> FolderDataset:
    save_picture(root / "images/train/a.png", photo())
    save_picture(root / "masks/train/a.png", mask)
    return segmentation(root, **options)


def test_ignored_values_become_255(tmp_path):
    mask = np.arange(48, dtype=np.uint8).reshape(6, 8) % 4
    labels = one(tmp_path, mask, ignore_index=3)[0]["labels"]
    assert np.array_equal(labels, np.where(mask == 3, IGNORE_INDEX, mask))
    mask[0, 0] = 255
    labels = one(tmp_path, mask, ignore_index=[3, 255])[0]["labels"]
    assert labels[0, 0] == IGNORE_INDEX
    assert (labels == 0).sum() == 11


def test_16_bit_ids(tmp_path):
    labels = one(tmp_path, np.full((6, 8), 65535, np.uint16), ignore_index=65535)[0]["labels"]
    assert (labels == IGNORE_INDEX).all()
    assert labels.dtype == np.uint8
    with pytest.raises(DataError, match="class ids 256 are outside"):  # would wrap to 0
        one(tmp_path, np.full((6, 8), 256, np.uint16))[0]


@pytest.mark.parametrize("value", [3, 77])
def test_id_out_of_range(tmp_path, value):
    mask = ids()
    mask[2, 2] = value
    with pytest.raises(
        DataError, match=rf"a\.png: class ids {value} are outside 0\.\.2.*label_map=1-3"
    ):
        one(tmp_path, mask)[0]
    mask[2, 2] = 255
    with pytest.raises(
        DataError,
        match=r"class ids 255.*ignore_index=\[7\]: set data\.ignore_index=\[255\]",
    ):
        one(tmp_path, mask, ignore_index=7)[0]


def test_colour_masks(tmp_path):
    colors = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 0, 0]]  # the last means unlabelled
    mask = np.random.default_rng(0).integers(0, 4, (6, 8))
    dataset = one(tmp_path, np.array(colors, np.uint8)[mask], label_colors=colors, ignore_index=3)
    assert np.array_equal(dataset[0]["labels"], np.where(mask == 3, IGNORE_INDEX, mask))
    assert dataset.info.palette == ((255, 0, 0), (0, 255, 0), (0, 0, 255))
    mask[0, :3] = mask[1] = 2
    dataset = one(tmp_path, np.array(colors, np.uint8)[np.where(mask == 2, 2, 0)])
    with pytest.raises(DataError, match=r"2 colours: .*label_colors=\[\[0,0,255\],\[255,0,0\]\]"):
        dataset[0]


def test_class_options(tmp_path):
    dataset = one(tmp_path, ids(), num_classes=None, class_names=["a", "b"])
    assert dataset.info.num_classes == 2
    for options, says in [
        ({"num_classes": None}, r"data\.num_classes is needed"),
        ({"num_classes": 256}, r"data\.num_classes=256 must lie in 1\.\.255"),
        ({"class_names": ["a"]}, r"data\.class_names has 1 rows for 3 classes"),
        ({"class_names": ["a", "b", "a"]}, r"data\.class_names has 'a' twice: give each class"),
        ({"label_colors": [[1, 2, 3]]}, r"data\.label_colors has 1 rows for 3"),
        ({"label_colors": [[1, 2]] * 3}, r"data\.label_colors must have rows \[r,g,b\]"),
        ({"label_colors": [[1, 2, 300]] * 3}, r"data\.label_colors must have rows \[r,g,b\]"),
    ]:
        with pytest.raises(DataError, match=says):
            one(tmp_path, ids(), **options)


def test_label_map_names_the_ids_of_each_class(tmp_path):
    mask = np.arange(48, dtype=np.uint8).reshape(6, 8)
    dataset = one(tmp_path, mask, num_classes=None, label_map=[7, [11, 40], 8])
    expected = np.full(48, IGNORE_INDEX)
    expected[[7, 8, 11, 40]] = [0, 2, 1, 1]
    assert dataset.info.num_classes == 3
    assert np.array_equal(dataset[0]["labels"].ravel(), expected)
    labels = one(tmp_path, mask, num_classes=None, label_map="1-40")[0]["labels"]
    assert labels.ravel().tolist() == [IGNORE_INDEX, *range(40), *[IGNORE_INDEX] * 7]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
def test_label_map_of_any_integer_type(dtype):
    rule = LabelRule(label_map=[7, [200, 65535]])
    raw = np.array([[-1, 7, 200, 255, 65535, 70000]]).clip(*_limits(dtype)).astype(dtype)
    expected = [{7: 0, 200: 1, 65535: 1}.get(int(v), IGNORE_INDEX) for v in raw[0]]
    assert rule(raw, source="m.png")[0].tolist() == expected


def _limits(dtype) -> tuple[int, int]:
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def test_label_map_with_colours(tmp_path):
    colors = [[0, 0, 0], [255, 0, 0], [0, 255, 0]]  # row 0 means unlabelled
    mask = np.random.default_rng(0).integers(0, 3, (6, 8))
    dataset = one(tmp_path, np.array(colors, np.uint8)[mask], num_classes=None,
                  label_colors=colors, label_map=[1, 2])  # fmt: skip
    assert np.array_equal(dataset[0]["labels"], np.array([IGNORE_INDEX, 0, 1])[mask])
    assert dataset.info.palette == ((255, 0, 0), (0, 255, 0))


@pytest.mark.parametrize(
    ("label_map", "says"),
    [
        ([1, [2, 1]], "names 1 twice"),
        ([1, []], "has an empty row"),
        ([-1, 3], r"outside 0\.\.65535"),
        ("150", "a range of ids such as 1-150"),
        ([1, 2], "has 2 rows for 3 classes"),
    ],
)
def test_faulty_label_map(label_map, says):
    num_classes = 3 if label_map == [1, 2] else None
    with pytest.raises(DataError, match=rf"data\.label_map.*{says}"):
        LabelRule(num_classes=num_classes, label_map=label_map)


# ------------------------------------------------------------------------------------- depth


def test_depth_in_metres(tmp_path):
    save_picture(tmp_path / "images/train/a.png", photo())
    raw = np.arange(48, dtype=np.uint16).reshape(6, 8) * 300
    raw[0, 1] = 65535
    save_picture(tmp_path / "depth/train/a.png", raw)
    sample = depth_set(tmp_path, invalid_depth=[0, 65535], min_depth=0.5)[0]
    valid = (raw >= 500) & (raw <= 10000)
    assert np.array_equal(sample["valid"], valid)
    assert np.array_equal(sample["depth"], np.where(valid, raw / 1000, 0).astype(np.float32))


def test_depth_options(tmp_path):
    save_picture(tmp_path / "images/train/a.png", photo())
    save_picture(tmp_path / "depth/train/a.png", millimetres())
    for options, says in [
        ({"max_depth": None}, r"data\.max_depth is needed"),
        ({"min_depth": 20}, r"data\.min_depth=20 must lie"),
        ({"depth_scale": 0}, r"data\.depth_scale=0"),
        ({"depth_scale": 1e-320}, r"data\.depth_scale=.* must be above 0"),
        ({"cache_size": [5]}, r"data\.cache_size=\[5\]: must be \[height, width\]"),
    ]:
        with pytest.raises(DataError, match=says):
            depth_set(tmp_path, **options)


def test_sizes_must_agree(tmp_path):
    dataset = one(tmp_path, ids(size=(3, 4)))
    says = r"images/train/a\.png: image is 8x6 but its mask is 4x3 \(.*masks/train/a\.png\)"
    with pytest.raises(DataError, match=says):
        dataset.validate()
    with pytest.raises(DataError, match=r"8x6 but its mask is 6x8.*EXIF"):
        one(tmp_path, ids(size=(8, 6))).validate()


# --------------------------------------------------------------------------------- objects


def with_objects(root: Path, objects: np.ndarray, **options) -> FolderDataset:
    save_picture(root / "ids/train/a.png", objects)
    names = ["road", "car", "person"]
    return one(root, ids(1), objects="ids", class_names=names, **options)


def test_objects_are_numbered(tmp_path):
    """Whole numbers, or R + 256 G + 65536 B; those below ``first_object`` are none."""
    stored = np.repeat([[0, 9, 26001, 26002]], 6, 0).repeat(2, 1).astype(np.uint16)
    data = with_objects(tmp_path, stored, first_object=1000, things=["car", 2])
    assert data.info.things == (False, True, True)
    assert data[0]["objects"][0].tolist() == [0, 0, 0, 0, 1, 1, 2, 2]
    rgb = np.stack([stored % 256, stored // 256, stored // 26001], 2).astype(np.uint8)
    assert with_objects(tmp_path, rgb)[0]["objects"][0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"things": ["tram", 3]}, "data.things: tram, 3 are not classes: choose from road"),
        ({"labels": None, "num_classes": None}, "data.objects needs data.labels"),
        ({"size": (3, 4)}, r"8x6 but its map of objects is 4x3 \(.*ids/train/a\.png\)"),
    ],
)
def test_mistakes_of_objects_are_named(tmp_path, change, message):
    size = change.pop("size", (6, 8))
    with pytest.raises(DataError, match=message):
        with_objects(tmp_path, ids(size=size), **change).validate()


def test_the_number_of_objects_is_bounded():
    with pytest.raises(DataError, match=r"a\.png: 90000 objects, at most 65535 in an image"):
        numbered(np.arange(90000).reshape(300, 300), "a.png")


# ---------------------------------------------------------------------------------- validate


def depth_files(root: Path, values: list[int], **options) -> FolderDataset:
    for i, value in enumerate(values):
        save_picture(root / f"images/train/{i:03}.png", photo())
        save_picture(root / f"depth/train/{i:03}.png", millimetres(value))
    return depth_set(root, **options)


def test_validate_sees_a_wrong_scale(tmp_path):
    dataset = depth_files(tmp_path, [1500, 2500], depth_scale=1)
    says = r"every pixel of .*000\.png is invalid.*look like millimetres.*depth_scale=0\.001"
    with pytest.raises(DataError, match=says):
        dataset.validate()
    dataset = depth_files(tmp_path, [1500, 2500], depth_scale=0.01)
    with pytest.raises(DataError, match=r"check data\.depth_scale, data\.invalid_depth"):
        dataset.validate()


def test_validate_remarks_on_a_single_dead_map(tmp_path):
    dataset = depth_files(tmp_path, [1500, 0, 2500])
    remarks = dataset.validate()
    assert len(remarks) == 1
    assert "001.png is invalid" in remarks[0]
    assert not dataset[1]["valid"].any()


def test_validate_reads_beyond_the_first_files(tmp_path):
    dataset = depth_files(tmp_path, [1500] * 12)
    for i in range(4, 12):
        (tmp_path / f"depth/train/{i:03}.png").write_bytes(b"broken")
    with pytest.raises(DataError, match="not a picture"):
        dataset.validate(limit=8)
    assert dataset.validate(limit=0) == []


def test_validate_sees_wholly_ignored_labels(tmp_path):
    with pytest.raises(DataError, match=r"every label pixel of .*a\.png is ignored"):
        one(tmp_path, ids(1), ignore_index=1).validate()


# ------------------------------------------------------------------------------------- cache


def test_cache_keeps_samples_safe(tmp_path):
    dataset = depth_files(tmp_path, [1500, 2500], cache=True)
    dataset.preload()
    (tmp_path / "depth/train/000.png").unlink()
    sample = dataset[0]
    with pytest.raises(ValueError, match="read-only"):
        sample["depth"][0, 0] = 1
    sample["name"] = "changed"
    assert dataset[0]["name"] != "changed"


def test_a_broken_file_does_not_stop_the_filling_of_the_cache(tmp_path):
    for name in ("a", "b"):
        save_picture(tmp_path / f"images/{name}.png", photo())
        save_picture(tmp_path / f"masks/{name}.png", ids())
    dataset = FolderDataset(
        root=tmp_path, split="train", labels="masks", num_classes=3, cache=True,
        fractions={"train": 1.0},
    )  # fmt: skip
    (tmp_path / "images/a.png").write_bytes(b"broken")
    dataset.preload()
    assert dataset[1]["image"].shape[2] == 3
    with pytest.raises(DataError, match=r"a\.png"):
        dataset[0]


def test_cache_size_is_for_training_only(tmp_path):
    for split in ("train", "val"):
        save_picture(tmp_path / f"images/{split}/a.png", photo(7, size=(60, 80)))
        ramp = np.arange(4800, dtype=np.uint16).reshape(60, 80) + 1000
        save_picture(tmp_path / f"depth/{split}/a.png", ramp)
    train = depth_set(tmp_path, cache=True, cache_size=[20, 40])
    sample = train[0]
    assert sample["image"].shape == (30, 40, 3)  # covers 20 x 40
    assert np.isin(np.round(sample["depth"] * 1000), ramp).all()
    assert sample["valid"].shape == (30, 40)
    val = depth_set(tmp_path, split="val", cache=True, cache_size=[20, 40])
    assert val[0]["depth"].shape == (60, 80)
    assert depth_set(tmp_path, cache=True, cache_size=[100, 100])[0]["depth"].shape == (60, 80)


# --------------------------------------------------------------------------------- real data


def test_camvid(shared_data):
    root = shared_data / "camvid"
    options = {"labels": "masks", "num_classes": 11, "ignore_index": 11}
    train = FolderDataset(root=root, split="train", **options)
    val = FolderDataset(root=root, split="val", **options)
    assert (len(train), len(val)) == (367, 101)
    counts = np.zeros(256, np.int64)
    for i in range(len(val)):
        counts += np.bincount(val[i]["labels"].ravel(), minlength=256)
    shares = 100 * counts[:11] / counts[:11].sum()
    expected = [9.34, 26.41, 0.57, 29.46, 8.87, 16.62, 0.91, 3.13, 1.78, 0.66, 2.26]
    assert np.allclose(shares, expected, atol=0.006)
    assert 100 * counts[255] / counts.sum() == pytest.approx(1.70, abs=0.006)
    assert train.validate(limit=6) == []
    assert train[0]["image"].shape == (360, 480, 3)
    with pytest.raises(DataError, match=r"class ids 11 are outside 0\.\.10.*ignore_index=\[11\]"):
        FolderDataset(root=root, split="train", labels="masks", num_classes=11)[0]


def test_rgbd(shared_data):
    root = shared_data / "rgbd"
    options = {"depth": "depth", "invalid_depth": [0, 65535], "max_depth": 10}
    train = FolderDataset(root=root, split="train", **options)
    val = FolderDataset(root=root, split="val", **options)
    assert (len(train), len(val)) == (234, 25)
    total, invalid, values = 0, 0, []
    for i in range(len(val)):
        sample = val[i]
        total += sample["valid"].size
        invalid += (~sample["valid"]).sum()
        values.append(sample["depth"][sample["valid"]])
    depth = np.concatenate(values)
    assert 100 * invalid / total == pytest.approx(17.59, abs=0.006)
    assert depth.min() == pytest.approx(0.801)
    assert depth.max() == pytest.approx(3.231)
    assert depth.mean(dtype=np.float64) == pytest.approx(1.6366, abs=1e-4)
    assert np.median(depth) == pytest.approx(1.711, abs=1e-4)
    assert train.validate(limit=4) == []
    metres = FolderDataset(root=root, split="val", depth="depth", depth_scale=1, max_depth=10)
    with pytest.raises(DataError, match=r"look like millimetres: set data\.depth_scale=0\.001"):
        metres.validate(limit=2)


@pytest.mark.slow
def test_rgbd_65535_is_invalid(shared_data):
    options = {"depth": "depth", "depth_scale": 0.001, "max_depth": 100}
    root = shared_data / "rgbd"
    knows_both = FolderDataset(root=root, split="val", invalid_depth=[0, 65535], **options)
    knows_zero = FolderDataset(root=root, split="val", **options)
    highest = [
        (both["depth"].max(), zero["depth"].max())
        for both, zero in ((knows_both[i], knows_zero[i]) for i in range(25))
    ]
    assert max(both for both, _ in highest) < 4
    assert sum(zero > 65 for _, zero in highest) == 1
    train = FolderDataset(root=root, split="train", invalid_depth=[0, 65535], **options)
    share = np.mean([(~train[i]["valid"]).mean() for i in range(len(train))])
    assert 100 * share == pytest.approx(10.41, abs=0.006)
