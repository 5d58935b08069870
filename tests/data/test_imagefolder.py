import numpy as np
import pytest
from photos import save_picture

from dpt.data import DataError, ImageFolderDataset, ImageTableDataset, UnlabelledDataset


def write(path, value=0):
    save_picture(path, np.full((4, 5, 3), value, np.uint8))


def test_classes_are_numbered_by_the_train_split(tmp_path):
    for i, name in enumerate(("dog", "ant", "cat")):
        write(tmp_path / f"train/{name}/deep/{i}.png", i)
    write(tmp_path / "val/cat/x.png", 9)
    train = ImageFolderDataset(root=tmp_path, split="train")
    val = ImageFolderDataset(root=tmp_path, split="val")
    assert train.info.targets == ("class_id",)
    assert train.class_id_names == val.class_id_names == ("ant", "cat", "dog")
    assert [(train[i]["class_id"], int(train[i]["image"][0, 0, 0])) for i in range(3)] == [
        (0, 1),
        (1, 2),
        (2, 0),
    ]
    assert val[0]["class_id"] == 1
    assert val[0]["name"].endswith("val/cat/x.png")
    assert val.validate() == []


def test_names_of_class_folders_are_cleaned(tmp_path):
    for name in ("a\x1b[31m", "b\u202ec"):
        write(tmp_path / f"train/{name}/1.png")
    train = ImageFolderDataset(root=tmp_path, split="train")
    assert train.class_id_names == train.info.class_names == ("a [31m", "b c")
    assert len(train) == 2
    write(tmp_path / "train/=1+1/1.png")
    with pytest.raises(DataError, match=r"train: '=1\+1' cannot be the name of a class"):
        ImageFolderDataset(root=tmp_path, split="train")


def test_hidden_files_are_no_photos(tmp_path):
    for name in ("ant/a.png", "ant/._a.png", "ant/.checkpoints/a.png", ".old/a.png", "bee/b.JPG"):
        write(tmp_path / "train" / name)
    (tmp_path / "train/ant/more").symlink_to(tmp_path / "train/ant")
    (tmp_path / "link").symlink_to(tmp_path / "train/bee")
    write(tmp_path / "c.png")
    photos = UnlabelledDataset(root=tmp_path, split="train")
    assert [photos.files(i).image.name for i in range(len(photos))] == ["c.png", "a.png", "b.JPG"]
    classes = ImageFolderDataset(root=tmp_path, split="train")
    assert [classes.files(i).image.name for i in range(len(classes))] == ["a.png", "b.JPG"]


def test_faulty_class_folders(tmp_path):
    write(tmp_path / "train/ant/a.png")
    write(tmp_path / "val/bee/a.png")
    with pytest.raises(DataError, match=r"val: class folders bee .*data\.class_names"):
        ImageFolderDataset(root=tmp_path, split="val")
    named = ImageFolderDataset(root=tmp_path, split="val", class_names=["bee", "ant"])
    assert named[0]["class_id"] == 0
    with pytest.raises(DataError, match=r"class_names has 'bee' twice"):
        ImageFolderDataset(root=tmp_path, split="val", class_names=["bee", "ant", "bee"])
    with pytest.raises(DataError, match=r"class_id 2 "):
        named.check({**named[0], "class_id": 2})
    with pytest.raises(DataError, match=r"test .*data\.root"):
        ImageFolderDataset(root=tmp_path, split="test")
    for folder in ("empty/train", "empty/train/ant"):  # no classes, and no images
        (tmp_path / folder).mkdir(parents=True)
        with pytest.raises(DataError, match=r"empty"):
            ImageFolderDataset(root=tmp_path / "empty", split="train")


def test_table_of_values(tmp_path):
    write(tmp_path / "photos/a.png", 3)
    write(tmp_path / "photos/b.png", 4)
    (tmp_path / "labels_train.csv").write_text("id, image, age\n1, b.png, 2.5\n2, a.png, -1\n")
    dataset = ImageTableDataset(root=tmp_path, split="train", images="photos", value_column="age")
    assert dataset.info.targets == ("value",)
    assert [dataset[i]["value"] for i in range(2)] == [2.5, -1.0]
    assert dataset[0]["image"][0, 0, 0] == 4
    with pytest.raises(DataError, match=r"no column value \(it has id, image, age\)"):
        ImageTableDataset(root=tmp_path, split="train", images="photos")
    with pytest.raises(DataError, match=r"labels_val\.csv does not.*labels_train"):
        ImageTableDataset(root=tmp_path, split="val")


def test_one_table_for_all_splits(tmp_path):
    for i in range(20):
        write(tmp_path / f"{i}.png")
    lines = [f"{i}.png,{i}" for i in range(20)]
    (tmp_path / "all.csv").write_text("\n".join(["image,value", *lines]))
    values = [
        [sample["value"] for sample in ImageTableDataset(root=tmp_path, split=s, table="all.csv")]
        for s in ("train", "val")
    ]
    assert [*map(len, values)] == [18, 2]
    assert sorted(values[0] + values[1]) == list(range(20))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("a.png,", "line 2: image 'a.png' and value ''"),
        ("a.png,nan", "value 'nan'"),
        ("a.png", "value ''"),
        ("a.png,1\na.png,2", "line 3: image 'a.png' and value '2'"),
        ("b.png,1", r"1 files of its 1 images do not exist \(.*b\.png\)"),
        ("", "no image found"),
    ],
)
def test_faulty_tables(tmp_path, lines, says):
    write(tmp_path / "a.png")
    (tmp_path / "labels_train.csv").write_text(f"image,value\n{lines}\n")
    with pytest.raises(DataError, match=rf"labels_train\.csv.*{says}"):
        ImageTableDataset(root=tmp_path, split="train")
