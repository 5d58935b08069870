"""The depth data sets on small trees of their own layout."""

from pathlib import Path

import depth_trees as trees
import numpy as np
import pytest
import scipy.io

from dpt.data import DataError
from dpt.data.datasets.filelist import FileListDataset
from dpt.data.datasets.indoor import NYUv2Dataset, SunRgbdDataset, TumDataset, associate
from dpt.data.datasets.rendered import HypersimDataset, VirtualKitti2Dataset, along_axis
from dpt.types.samples import IGNORE_INDEX


def metres(dataset) -> list[float]:
    """The one depth of each frame; rows that mean "not measured" are checked on the way."""
    depths = []
    for i in range(len(dataset)):
        sample = dataset[i]
        assert sample["image"].shape == (*sample["depth"].shape, 3)
        assert not sample["valid"][0].any()
        assert (sample["depth"][~sample["valid"]] == 0).all()
        depths.append(float(np.unique(sample["depth"][sample["valid"]]).item()))
    return [round(value, 4) for value in depths]


# ------------------------------------------------------------------------------------- NYUv2


def test_nyuv2_frames_of_the_official_split(tmp_path):
    arrays = trees.nyuv2(tmp_path)
    train, test = (NYUv2Dataset(root=tmp_path, split=s) for s in ("train", "val"))
    assert (len(train), len(test)) == (3, 2)
    assert len(NYUv2Dataset(root=tmp_path, split="test")) == 2
    for sample, number in zip((train[0], train[1], test[1]), (5, 1, 4), strict=True):
        assert np.array_equal(sample["image"], arrays["images"][..., number - 1])
        assert np.array_equal(sample["depth"], arrays["depths"][..., number - 1])
        assert sample["name"].endswith(f"nyu_depth_v2_labeled.mat#{number:04}")
    assert train.info.targets == ("depth", "K")
    assert train.validate() == []
    raw = NYUv2Dataset(root=tmp_path, split="train", depth="raw")[0]
    assert np.array_equal(raw["valid"], arrays["rawDepths"][..., 4] > 0)


def test_nyuv2_forty_classes(tmp_path):
    arrays = trees.nyuv2(tmp_path)
    class_of_id = trees.nyu40_mapping(tmp_path)
    dataset = trees.configured("nyuv2", tmp_path, "data.cache=true")
    assert dataset.info.targets == ("depth", "labels", "K")
    assert dataset.info.class_names[::13] == ("wall", "desk", "towel", "other prop")
    raw = arrays["labels"][..., 4]
    expected = np.where(raw == 0, IGNORE_INDEX, class_of_id[raw.astype(int) - 1] - 1)
    assert np.array_equal(dataset[0]["labels"], expected)
    assert "labels" not in NYUv2Dataset(root=tmp_path, split="train", labels=False)[0]


BTS = {
    "split_files": {
        "train": "nyudepthv2_train_files_with_gt.txt",
        "val": "nyudepthv2_test_files_with_gt.txt",
    },
    "split_names": {"train": "sync", "val": "official_splits/test"},
    "images": "%split",
    "depth": "%split",
    "max_depth": 10.0,
}


def test_nyuv2_bts_lists(tmp_path):
    trees.nyuv2_bts(tmp_path)
    train = FileListDataset(root=tmp_path, split="train", **BTS)
    assert metres(train) == [1, 2, 3, 4]  # the line without depth is left out
    val = FileListDataset(root=tmp_path, split="val", **BTS)
    assert val[3]["name"].endswith("official_splits/test/bathroom/rgb_00003.jpg")
    with pytest.raises(DataError, match=r"data\.split_files .*split test"):
        FileListDataset(root=tmp_path, split="test", **BTS)
    (tmp_path / "sync/kitchen_0028b/rgb_00002.jpg").unlink()
    with pytest.raises(DataError, match=r"train_files_with_gt\.txt: 1 files .*rgb_00002\.jpg"):
        FileListDataset(root=tmp_path, split="train", **BTS)
    (tmp_path / "nyudepthv2_test_files_with_gt.txt").write_text("# comment\na.jpg\n")
    with pytest.raises(DataError, match=r"test_files_with_gt\.txt: line 'a\.jpg'"):
        FileListDataset(root=tmp_path, split="val", **BTS)


# --------------------------------------------------------------------------------- SUN RGB-D


def test_sunrgbd_by_the_toolbox(tmp_path):
    trees.sunrgbd(tmp_path)
    assert metres(SunRgbdDataset(root=tmp_path, split="train")) == [3, 4, 5]
    assert metres(SunRgbdDataset(root=tmp_path, split="val")) == [1, 2]
    assert metres(SunRgbdDataset(root=tmp_path, split="test", depth="depth_bfx")) == [1.5, 2.5]
    (tmp_path / "SUNRGBD/kv1/NYUdata/NYU0002/image/0000001.jpg").unlink()
    with pytest.raises(DataError, match=r"NYU0002: holds 0 images in image/ and 1 maps in depth/"):
        SunRgbdDataset(root=tmp_path, split="val")
    (tmp_path / "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat").unlink()
    with pytest.raises(DataError, match=r"allsplit\.mat .*SUNRGBDtoolbox\.zip"):
        SunRgbdDataset(root=tmp_path, split="train")


def test_sunrgbd_masks(tmp_path):
    trees.sunrgbd(tmp_path)
    assert SunRgbdDataset(root=tmp_path, split="train").info.targets == ("depth",)
    masks = trees.sunrgbd_masks(tmp_path)
    for split, count in (("train", 3), ("val", 2)):
        dataset = SunRgbdDataset(root=tmp_path, split=split)
        assert dataset.info.targets == ("depth", "labels")
        assert dataset.info.num_classes == 37
        assert len(dataset) == count
        for sample in (dataset[i] for i in range(count)):
            folder = Path(sample["name"]).parents[1]
            raw = masks[folder.relative_to(tmp_path / "SUNRGBD").as_posix()]
            expected = np.where(raw == 0, IGNORE_INDEX, raw.astype(int) - 1)  # 0 is unlabelled
            assert sample["labels"].dtype == np.uint8
            np.testing.assert_array_equal(sample["labels"], expected)
    assert "labels" not in SunRgbdDataset(root=tmp_path, split="train", labels=False)[0]
    cells = {"alltrain": np.array([["/n/data//SUNRGBD/kv2/new/"]], dtype=object)}
    scipy.io.savemat(tmp_path / "SUNRGBDtoolbox/traintestSUNRGBD/allsplit.mat", cells)
    with pytest.raises(DataError, match=r"SUNRGBDMeta\.mat: .*kv2/new"):
        SunRgbdDataset(root=tmp_path, split="train")


# --------------------------------------------------------------------------------------- TUM


def test_tum_pairs_by_time(tmp_path):
    trees.tum(tmp_path)
    chosen = {"train": ["freiburg1_desk"], "val": ["freiburg2_xyz"]}
    train = TumDataset(root=tmp_path, split="train", sequences=chosen)
    # the second photo's own map is 25 ms away: it pairs with none, since the third's is taken
    assert metres(train) == [1, 3, 4, 5]
    assert (
        "freiburg2_xyz/rgb" in TumDataset(root=tmp_path, split="val", sequences=chosen)[0]["name"]
    )


def test_associate_takes_the_closest_first_and_each_once():
    assert associate([0.0, 1.0], [0.019, 0.98, 1.001]) == [(0, 0), (1, 2)]
    assert associate([0.0, 0.01], [0.008]) == [(1, 0)]
    assert associate([0.0], [0.02]) == []
    times = np.sort(np.random.default_rng(0).uniform(0, 2, 80))
    images, maps = times[::2].tolist(), times[1::2].tolist()
    differences = [(abs(a - b), i, j) for i, a in enumerate(images) for j, b in enumerate(maps)]
    expected: dict[int, int] = {}
    for difference, i, j in sorted(differences):
        if difference < 0.02 and i not in expected and j not in expected.values():
            expected[i] = j
    assert associate(images, maps) == sorted(expected.items())
    assert len(expected) > 20
    hour = np.arange(0, 3600, 1 / 30)  # a table of all differences would need 93 GB
    assert associate(hour.tolist(), (hour + 0.01).tolist()) == [(i, i) for i in range(len(hour))]


def test_tum_sequences_are_never_divided(tmp_path):
    trees.tum(tmp_path, tuple(f"freiburg1_{i}" for i in range(5)))

    def sequences(**options):
        datasets = [TumDataset(root=tmp_path, split=s, **options) for s in ("train", "val")]
        return [{d.files(i).image.parts[-3][-1] for i in range(len(d))} for d in datasets]

    train, val = sequences(fractions={"train": 0.6, "val": 0.4})
    assert (len(train), len(val)) == (3, 2)
    assert not train & val
    chosen = {"train": None, "val": ["freiburg1_1", "freiburg1_3"]}
    assert sequences(sequences=chosen) == [{*"024"}, {*"13"}]  # train is all that val leaves
    with pytest.raises(DataError, match=r"freiburg1_0.*data\.sequences\.train"):
        sequences(sequences={"train": ["freiburg9"]})


# ---------------------------------------------------------------------------- Virtual KITTI 2


def test_vkitti2(tmp_path):
    trees.vkitti2(tmp_path)
    chosen = {"train": ["Scene01"], "val": ["Scene20"]}
    train = VirtualKitti2Dataset(root=tmp_path, split="train", scenes=chosen)
    assert metres(train) == [12.34, 12.35, 12.34, 12.35]
    half = trees.SIZE[0] // 2
    far = VirtualKitti2Dataset(root=tmp_path, split="train", scenes=chosen, max_depth=1000.0)[0]
    assert not far["valid"][:half].any()  # the sky is invalid, not 655 m away
    assert far["valid"][half:].all()
    options = {"variations": ["fog"], "cameras": ["Camera_0", "Camera_1"]}
    val = VirtualKitti2Dataset(root=tmp_path, split="val", scenes=chosen, **options)
    assert [val.files(i).image.parent.name for i in range(4)] == ["Camera_0"] * 2 + ["Camera_1"] * 2
    assert {val.files(i).image.parts[-5] for i in range(4)} == {"fog"}
    with pytest.raises(DataError, match=r"Scene20 holds clone, fog: .*data\.variations"):
        VirtualKitti2Dataset(root=tmp_path, split="val", scenes=chosen, variations=["snow"])
    with pytest.raises(DataError, match=r"Scene02 holds nothing: .*scenes\.train"):
        VirtualKitti2Dataset(root=tmp_path, split="train", scenes={"train": ["Scene02"]})
    (tmp_path / "Scene01/fog/frames/depth/Camera_0/depth_00001.png").unlink()
    with pytest.raises(DataError, match=r"1 files .*depth_00001\.png"):
        VirtualKitti2Dataset(root=tmp_path, split="train", scenes=chosen)


def test_vkitti2_masks(tmp_path):
    trees.vkitti2(tmp_path)

    def make(*overrides):
        return trees.configured("vkitti2", tmp_path, "data.scenes.train=[Scene01]", *overrides)

    assert make().info.targets == ("depth",)
    ids = trees.vkitti2_masks(tmp_path)
    dataset = make()
    assert dataset.info.targets == ("depth", "labels")
    assert dataset.info.class_names[::13] == ("Terrain", "Van")
    assert dataset.info.palette[6] == (250, 100, 255)
    for i in range(len(dataset)):
        expected = np.where(ids == 14, IGNORE_INDEX, ids)  # black is undefined
        np.testing.assert_array_equal(dataset[i]["labels"], expected)
    assert "labels" not in make("data.labels=false")[0]


# ---------------------------------------------------------------------------------- Hypersim


def test_hypersim(tmp_path):
    distance = trees.hypersim(tmp_path)
    train = HypersimDataset(root=tmp_path, split="train")
    assert len(train) == len(HypersimDataset(root=tmp_path, split="val")) == 2  # one is withheld
    sample = train[1]
    assert sample["name"].endswith("scene_cam_00_final_preview/frame.0002.tonemap.jpg")
    valid = sample["valid"]
    assert np.array_equal(sample["depth"][valid], along_axis(distance, sample["K"])[valid])
    assert not valid[0, 0]
    assert valid.sum() == valid.size - 1
    assert train.info.targets == ("depth", "K")


def test_hypersim_labels(tmp_path):
    trees.hypersim(tmp_path)
    dataset = trees.configured("hypersim", tmp_path, "data.labels=true", split="val")
    ids = np.arange(trees.SIZE[0] * trees.SIZE[1]).reshape(trees.SIZE) % 42
    expected = np.where((ids == 0) | (ids == 41), IGNORE_INDEX, ids - 1)
    assert np.array_equal(dataset[0]["labels"], expected)
    assert dataset.info.class_names[::13] == ("wall", "desk", "towel", "other prop")


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("5.0 depth/a.png", "one: no image"),  # long before the first one
        ("soon depth/a.png", r"depth\.txt: line"),
        ("5.0 ../a.png", r"depth\.txt: line"),
    ],
)
def test_tum_faults(tmp_path, line, fault):
    trees.tum(tmp_path, ("one",))
    (tmp_path / "one/depth.txt").write_text(f"# times\n{line}\n")
    with pytest.raises(DataError, match=fault):
        TumDataset(root=tmp_path, split="train", sequences={"train": ["one"]})
