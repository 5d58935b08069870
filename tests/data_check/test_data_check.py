"""The data check on copies of real data with planted faults, and on every kind of data set."""

import json
import os
import shutil
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
from coco_files import write_objects
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from photos import save_photo, save_picture
from PIL import Image

from dpt.config.schema import DataConfig
from dpt.data import DataError, Dataset, FolderDataset, ScenesDataset
from dpt.data.formats import arrays
from dpt.data.formats.rules import UNITS, likely_scale
from dpt.data_check import examine, quick_findings
from dpt.data_check.checks import CHECKS
from dpt.data_check.scan import Finding, Scan, read_records
from dpt.files import config_dir
from dpt.objectives.teacher import Teacher
from dpt.training.fit import LabelledData, check_first_files
from dpt.types.samples import DatasetInfo, Sample

SLOW = pytest.mark.slow
COUNTS = {"train": (8, 4), "val": (6, 2)}  # images of a split, and the step between them
CAMVID = ("data=camvid", "data.root={root}")
RGBD = ("data=rgbd", "data.root={root}")
# what the README of the depth set tells of it, and what a few of many images lack
HARMLESS = {"depth_misregistered", "class_absent", "unlabelled"}


def copy_some(source: Path, target: Path, labels: str, counts=COUNTS) -> None:
    """Copies images of each split, and their labels."""
    for split, (count, step) in counts.items():
        for kind in ("images", labels):
            (target / kind / split).mkdir(parents=True)
            paths = sorted((source / kind / split).iterdir())
            for path in paths[:: step or len(paths) // count][:count]:
                shutil.copy(path, target / kind / split / path.name)


@pytest.fixture
def camvid(shared_data, tmp_path) -> Path:
    copy_some(shared_data / "camvid", tmp_path / "camvid", "masks")
    return tmp_path / "camvid"


@pytest.fixture
def rgbd(shared_data, tmp_path) -> Path:
    copy_some(shared_data / "rgbd", tmp_path / "rgbd", "depth")
    return tmp_path / "rgbd"


def files(root: Path, kind: str, split: str = "train") -> list[Path]:
    return sorted((root / kind / split).iterdir())


def load(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path))


def change(root: Path, kind: str, function) -> None:
    """Rewrites all label files of both splits."""
    for split in COUNTS:
        for path in files(root, kind, split):
            save_picture(path, function(load(path)))


def configured(*overrides: str) -> dict:
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose("data_check", overrides=["data.num_workers=0", *overrides])
    return OmegaConf.to_container(cfg.data, resolve=True)


def diagnose(root: Path, *overrides: str, splits=("train", "val")) -> dict[str, Finding]:
    """Returns the findings by code, of the first split that has them."""
    data = configured(*(o.format(root=root) for o in overrides))
    findings, _ = examine(DataConfig.read(data), splits=splits)
    return {finding.code: finding for finding in reversed(findings)}


def passes(findings: dict[str, Finding]) -> bool:
    return all(finding.severity != "error" for finding in findings.values())


def report(folder: Path) -> list[dict]:
    return json.loads((folder / "report.json").read_text())


# ------------------------------------------------------------------------- sets without faults


def test_examine_passes_depth_and_notices_two_cameras(rgbd):
    findings = diagnose(rgbd, *RGBD)
    assert passes(findings)
    assert findings.keys() <= HARMLESS
    # its README: edges fit best after scaling by 0.905 and moving by (-6, -1)
    message = findings["depth_misregistered"].message
    scale, dx = float(message.split("scaling by ")[1].split()[0]), message.split("moving by (")[1]
    assert scale == pytest.approx(0.905, abs=0.02)
    assert int(dx.split(",")[0]) == pytest.approx(-6, abs=4)


# ------------------------------------------------------------------------------ planted faults


def truncated_photos(root):
    for path in files(root, "images")[:2]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return [path.name for path in files(root, "images")[:2]]


def masks_of_another_size(root):
    for path in files(root, "masks")[2:4]:
        save_picture(path, load(path)[:-20])
    return [path.name for path in files(root, "masks")[2:4]]


def train_photo_in_val(root):
    image, mask = (files(root, kind)[5] for kind in ("images", "masks"))
    shutil.copy(image, root / "images/val/new.jpg")
    shutil.copy(mask, root / "masks/val/new.png")
    return [image.name, "new.jpg"]


def ids_outside(root):
    for path, value in zip(files(root, "masks")[6:8], (40, 77), strict=True):
        mask = load(path).copy()
        mask[:9, :9] = value
        save_picture(path, mask)
    return ["40", "77"]


def removed(kind):
    """Removes two files of a kind."""

    def plant(root):
        paths = files(root, kind)[4:6]
        for path in paths:
            path.unlink()
        return [path.stem for path in paths]

    return plant


def changed(kind, function):
    """Changes all files of a kind."""

    def plant(root):
        change(root, kind, function)
        return []

    return plant


def smooth(mask):
    small = Image.fromarray(mask).resize((160, 120), Image.Resampling.NEAREST)
    return np.asarray(small.resize((480, 360), Image.Resampling.BILINEAR))


MASK_FAULTS = [
    (removed("images"), "label_without_photo", "warning"),
    (train_photo_in_val, "duplicate_across_splits", "error"),
    (changed("masks", lambda mask: np.roll(mask, 20, axis=0)), "labels_misregistered", "warning"),
    (changed("masks", lambda mask: mask + np.uint8(1)), "off_by_one", "error"),
    (changed("masks", smooth), "labels_interpolated", "warning"),
]
MASK_FAULTS_OF_FILES = [
    (ids_outside, "label_outside", "error"),
    (truncated_photos, "unreadable", "error"),
    (masks_of_another_size, "size_mismatch", "error"),
    (removed("masks"), "photo_without_label", "error"),
]


@pytest.mark.parametrize(
    "faults",
    [*([fault] for fault in MASK_FAULTS), MASK_FAULTS_OF_FILES],
    ids=lambda faults: "-".join(fault[1] for fault in faults),
)
def test_examine_finds_faults_of_masks(camvid, faults):
    named = {code: plant(camvid) for plant, code, _ in faults}
    findings = diagnose(camvid, *CAMVID)
    for _, code, severity in faults:
        assert findings[code].severity == severity
        assert findings[code].remedy
        said = " ".join(findings[code].examples)
        assert all(name in said for name in named[code]), said  # every file, not only the first
    assert findings.keys() - HARMLESS == named.keys()  # and said once


def reordered(folder: Path, order) -> None:
    """Gives file i the content of file order[i]."""
    paths = sorted(folder.iterdir())
    contents = [path.read_bytes() for path in paths]
    for path, source in zip(paths, order, strict=True):
        path.write_bytes(contents[source])


ORDERS = {  # of 24 label files; the code without the kind, and the severity of masks
    "right": (np.arange(24), None, None),
    "shuffled": (np.random.default_rng(0).permutation(24), "unpaired", None),
    "next": (np.roll(np.arange(24), 1), "unpaired", None),
    "swapped": (np.array([*range(4), 15, *range(5, 15), 4, *range(16, 24)]), "swapped", "warning"),
    "mirrored": (np.arange(24), "unpaired", "error"),
}


@pytest.mark.parametrize(
    "fault", [pytest.param(f, marks=SLOW) if f == "next" else f for f in ORDERS]
)
@pytest.mark.parametrize("name", ["camvid", pytest.param("rgbd", marks=SLOW)])
def test_registration_finds_labels_of_other_photos(shared_data, tmp_path, name, fault):
    labels, kind = {"camvid": ("masks", "labels"), "rgbd": ("depth", "depth")}[name]
    order, code, severity = ORDERS[fault]
    copy_some(shared_data / name, tmp_path, labels, {"train": (24, None)})
    reordered(tmp_path / labels / "train", order)
    if fault == "mirrored":
        for path in files(tmp_path, labels):
            save_picture(path, load(path)[:, ::-1])
    findings = diagnose(tmp_path, f"data={name}", "data.root={root}", splits=["train"])
    codes = {code for code in findings if code.startswith(kind)} - HARMLESS
    assert codes == ({f"{kind}_{code}"} if code else set())
    if severity:
        assert findings[f"{kind}_{code}"].severity == severity
    if fault == "swapped":
        named = " ".join(findings[f"{kind}_{code}"].examples)
        stems = [path.stem for path in files(tmp_path, "images")]
        assert stems[4] in named
        assert stems[15] in named


def one_changed(index, function):
    """Changes one depth map."""

    def plant(root):
        path = files(root, "depth")[index]
        save_picture(path, function(load(path)).astype(np.uint16))
        return [path.stem]

    return plant


def a_tenth(depth):
    return np.where(depth == 65535, depth, depth // 10)


def inverted(depth):
    is_measured = (depth > 0) & (depth < 65535)
    return np.where(is_measured, 3e6 / depth.clip(1), 0).astype(np.uint16)


HOLES = changed("depth", lambda depth: np.where(depth == 0, 65535, depth).astype(np.uint16))
WHOLE_METRES = changed("depth", lambda depth: np.rint(depth.clip(0, 9999) / 1000).astype(np.uint16))
EIGHT_BITS = changed("depth", lambda depth: (depth // 40).clip(0, 254).astype(np.uint8))
# overrides; for each fault: what plants it, code, severity, remedy
DEPTH_FAULTS = [
    (("data.depth_scale=1",), (None, "depth_unit", "error", "data.depth_scale=0.001")),
    ((), (WHOLE_METRES, "depth_unit", "error", "data.depth_scale=1")),
    (
        ("data.invalid_depth=[0]", "data.max_depth=100"),
        (HOLES, "depth_undeclared", "warning", "[0,65535]"),
    ),
    # no unit is proposed: another scale would make the fault look mended
    ((), (EIGHT_BITS, "depth_8bit", "warning", "16-bit")),
    ((), (changed("depth", inverted), "depth_inverse", "warning", "data.depth_kind=inverse")),
]
DEPTH_FAULTS_OF_FILES = [
    (one_changed(1, lambda depth: 0 * depth + 1500), "depth_constant", "warning", "remove"),
    (one_changed(2, np.zeros_like), "depth_all_invalid", "warning", "remove"),
    (one_changed(3, a_tenth), "depth_outlier", "warning", "unit"),
]


@pytest.mark.parametrize(
    ("overrides", "faults"),
    [*((overrides, [fault]) for overrides, fault in DEPTH_FAULTS), ((), DEPTH_FAULTS_OF_FILES)],
)
def test_examine_finds_faults_of_depth(rgbd, overrides, faults):
    named = {code: plant(rgbd) if plant else [] for plant, code, *_ in faults}
    findings = diagnose(rgbd, *RGBD, *overrides, splits=["train"])
    for _, code, severity, remedy in faults:
        assert findings[code].severity == severity
        assert remedy in findings[code].remedy
        said = " ".join(findings[code].examples)
        assert all(name in said for name in named[code]), said
    assert findings.keys() - HARMLESS == named.keys()


def test_unit_is_proposed_for_all_splits(rgbd):
    """Alone, val would look like KITTI's 1/256 m: it shows only what is near."""
    path = files(rgbd, "depth")[0]
    save_picture(path, (load(path) // 40).clip(0, 254).astype(np.uint8))
    data = configured("data=rgbd", f"data.root={rgbd}", "data.depth_scale=1")
    findings, _ = examine(DataConfig.read(data), splits=["train", "val", "test"])
    hints = {f.split: f.remedy for f in findings if f.code == "depth_unit"}
    assert hints == dict.fromkeys(("train", "val"), "set data.depth_scale=0.001")
    codes = {f.code: f.examples for f in findings}
    assert path.stem in " ".join(codes["depth_8bit"])  # not hidden by the unit
    assert "no_split" in codes  # of test


def test_examine_finds_splits_with_other_classes(tmp_path):
    for split, names in (("train", "abc"), ("val", "ad")):
        save_picture(tmp_path / f"{split}/1.png", np.zeros((8, 8, 3), np.uint8))
        write_objects(tmp_path / f"{split}.json", ["1.png"], dict(enumerate(names)))
    splits = [f"data.split_names.{split}={split}" for split in ("train", "val")]
    data = ("data=coco", f"data.root={tmp_path}", "data.annotations=%split.json")
    data = configured(*data, *splits)
    (error,) = [
        f
        for f in examine(DataConfig.read(data), splits=["train", "val"])[0]
        if f.severity == "error"
    ]
    assert "val.json: 1.png has objects of the class 'd'" in error.message
    train, val = (DataConfig.read(data).make(split) for split in ("train", "val"))
    with pytest.raises(DataError, match=r"val\.json: 1\.png .*'d'"):
        check_first_files(LabelledData(train, val, {}, Teacher()), on_error="raise")


# --------------------------------------------------------------------------------- the command


def test_report_lists_findings_and_the_exit_code_tells_errors(data_check, camvid, capsys):
    arguments = [o.format(root=camvid) for o in (*CAMVID, "data.num_workers=1")]
    clean, broken = camvid / "clean", camvid / "broken"
    assert data_check(clean, *arguments, "augment=strong") == 0
    assert {finding["code"] for finding in report(clean)} <= HARMLESS
    page = (clean / "report.html").read_text()
    assert "Passed: 0 errors" in page
    assert page.count("<img") == 8  # four samples, and four rows of what training gets
    ids_outside(camvid)
    assert data_check(broken, *arguments) == 1
    assert "Failed: 1 error" in (broken / "report.html").read_text()
    first = report(broken)[0]
    assert first["code"] == "label_outside"
    assert first.keys() == {"severity", "code", "split", "message", "remedy", "examples"}
    out = capsys.readouterr().out
    assert "Bicyclist" in out  # the tables of the report
    assert "reading val: 6 of 6" in out  # lines, no bar, without a terminal
    assert "2 masks with class ids outside 0..10: 40, 77" in out


def test_command_takes_the_arguments_of_training(data_check, dense_folder, tmp_path):
    folder = ["data=folder", f"data.root={dense_folder}", "data.labels=masks", "limit=4"]
    folder += ["data.missing=skip", "data.num_classes=3", "data.num_workers=0"]
    others = ("model=dpt_tiny", "optim.lr=1e-3", "trainer.max_steps=3", "logger=csv", "seed=1")
    assert data_check(tmp_path / "none", *folder, *others) == 0  # the default task needs depth, too
    assert data_check(tmp_path / "wrong", "task=depth", *folder) == 1
    assert report(tmp_path / "wrong")[0]["code"] == "task"


@pytest.mark.parametrize("task", ["dino", "inpainting"])
def test_command_checks_tasks_with_other_views(data_check, dense_folder, tmp_path, task):
    folder = ("data=folder", f"data.root={dense_folder}", "data.num_workers=0", "limit=2")
    assert data_check(tmp_path / "run", f"task={task}", *folder) == 0


# ------------------------------------------------------------------------- other kinds of data


def test_examine_looks_at_photos(tmp_path):
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for i in range(4):
            photo = random.integers(0, 255, (40, 60 + i, 3), np.uint8)
            if i == 1:
                photo[:] = 0
            mask = random.integers(0, 3, photo.shape[:2], np.uint8)
            save_picture(tmp_path / f"masks/{split}/{i}.png", mask)
            save_picture(tmp_path / f"images/{split}/{i}.png", photo)
    data = ["data=folder", f"data.root={tmp_path}", "data.labels=masks", "data.num_classes=3"]
    findings = diagnose(tmp_path, *data)
    assert [Path(name).name for name in findings["photo_empty"].examples] == ["1.png"]
    assert not any("duplicate" in name for name in findings)  # black photos are no copies
    assert passes(findings)


def test_unusual_masks_of_0_and_255(dense_folder, tmp_path):
    """255 means unlabelled unless told otherwise: with it as the only other class none is left."""
    shutil.copytree(dense_folder / "images", tmp_path / "images")
    for path in (dense_folder / "masks").rglob("*.png"):
        target = tmp_path / path.relative_to(dense_folder)
        save_picture(target, np.where(load(path) == 1, 255, 0).astype(np.uint8))
    settings = ("data=folder", f"data.root={tmp_path}", "data.labels=masks", "data.missing=skip")
    findings = diagnose(tmp_path, *settings, "data.num_classes=2")
    assert "set data.label_map=[0,255]" in findings["labels_constant"].remedy
    assert "labels_constant" not in diagnose(tmp_path, *settings, "data.label_map=[0,255]")
    train = FolderDataset(
        root=tmp_path, split="train", labels="masks", num_classes=2, missing="skip"
    )
    assert any("set data.label_map=[0,255]" in line for line in quick_findings(train, 4))


@pytest.mark.parametrize(
    "name", ["imagefolder", pytest.param("imagetable", marks=pytest.mark.slow)]
)
def test_examine_reads_labels_of_whole_images(data_check, image_folder, tmp_path, name):
    root = tmp_path / "data"
    shutil.copytree(image_folder, root)
    arguments = (f"data={name}", f"data.root={root}", "data.num_workers=0")
    assert data_check(tmp_path / name, *arguments) == 0
    (root / "train/a/0.png").write_bytes(b"no picture")
    findings = diagnose(root, *arguments)
    assert "train/a/0.png" in findings["unreadable"].examples[0]


def test_examine_names_the_files_of_a_mix(camvid, rgbd):
    black, broken = files(rgbd, "images")[0], files(camvid, "images")[1]
    save_picture(black, np.zeros_like(load(black)))
    broken.write_bytes(b"no photo")
    sets = [f"+data@data.sets.{k}={k}" for k in ("camvid", "rgbd")]
    roots = [f"data.sets.{r.name}.root={r}" for r in (camvid, rgbd)]
    findings = diagnose(camvid, "data=mix", *sets, *roots, "+data.weights.rgbd=4", splits=["train"])
    assert "duplicate" not in findings
    assert [Path(name).name for name in findings["photo_empty"].examples] == [black.name]
    assert broken.name in findings["unreadable"].examples[0]


class Numbers(Dataset):
    """A data set without files whose samples have faults of several kinds."""

    info = DatasetInfo(targets=("labels", "depth"), class_names=("a", "b"), max_depth=10.0)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        if index == 2:
            raise KeyError("lost")
        sample = Sample(
            image=random.integers(0, 255, (40, 50, 3), np.uint8),
            labels=random.integers(0, 2, (40, 50 + (index == 3)), np.uint8),
            depth=np.full((40, 50), 2.0, np.float32) + random.random((40, 50), np.float32),
            valid=np.ones((40, 50), bool),
        )
        if index == 4:
            sample["depth"] = sample["depth"].astype(np.float64)
        return sample


def test_read_records_ends_by_the_clock():
    """A few of each split in any case, and all in order if there is time."""
    few = read_records(Numbers(), title="reading", num_workers=0, seconds=0)
    assert len(few) == 6
    records = read_records(Numbers(), title="reading", num_workers=0, seconds=600)
    assert [record.index for record in records] == [*range(8)]


def test_read_records_reads_any_data_set_to_its_end():
    some = read_records(Numbers(), title="reading", num_workers=0, limit=2)
    assert [record.index for record in some] == [0, len(Numbers()) - 1]
    scan = Scan("train", Numbers(), read_records(Numbers(), title="reading", num_workers=0))
    assert [bool(record.faults) for record in scan.records] == [i in (2, 3, 4) for i in range(8)]
    findings = {finding.code: finding for check in CHECKS for finding in check(scan)}
    finding = findings["unreadable"]
    assert finding.message == "3 of 8 samples cannot be read"
    assert "KeyError: 'lost'" in finding.examples[0]
    assert "51x40" in finding.examples[1]
    assert "float64" in finding.examples[2]
    assert not any(code.startswith("depth") for code in findings)


# ------------------------------------------------------------------------- the checks' own rules


@pytest.mark.parametrize(
    ("typical", "high", "max_depth", "tried", "unit"),
    [  # a room of 1.9 m, at most 3 m; a road of 15 m, at most 60 m
        (1900, 3000, 10, 1.0, "millimetres"),
        (1.9, 3.0, 10, 0.001, "metres"),
        (190, 300, 10, 0.0001, "centimetres"),
        (9500, 15000, 10, 1.0, "TUM's 1/5000 m"),
        (15 * 256, 60 * 256, 80, 1.0, "KITTI's 1/256 m"),
        (1e9, 2e9, 10, 1.0, None),
    ],
)
def test_likely_scale_of_units(typical, high, max_depth, tried, unit):
    assert UNITS.get(likely_scale(typical, high, max_depth=max_depth, scale=tried)) == unit


# --------------------------------------------------------------------------- at a run's start


@pytest.mark.parametrize(
    "kept",
    [(), pytest.param(("data.cache=true", "data.cache_size=[96,128]"), marks=pytest.mark.slow)],
)
def test_quick_findings_of_healthy_sets(camvid, rgbd, kept):
    for root, name in ((camvid, "camvid"), (rgbd, "rgbd")):
        dataset = DataConfig.read(configured(f"data={name}", f"data.root={root}", *kept)).make(
            "train"
        )
        assert quick_findings(dataset, 16) == []
    assert quick_findings(ScenesDataset(length=4), 16) == []


def scaled_to_own_range(depth):
    measured = np.where(depth == 65535, 0, depth)
    return (measured / measured.max() * 65535).astype(np.uint16)


NORMALISED = changed("depth", scaled_to_own_range)
FROM_ONE = changed("masks", lambda mask: (mask + 1).clip(1, 10).astype(np.uint8))


@pytest.mark.parametrize(
    ("plant", "overrides", "remedy"),
    [
        (None, "data=rgbd data.depth_scale=1e-6 data.min_depth=0", "data.depth_scale=0.001"),
        (NORMALISED, "data=rgbd data.invalid_depth=[0] data.max_depth=100", "save metres"),
        (FROM_ONE, "data=camvid", "set data.label_map=1-11"),
    ],
)
def test_quick_findings_name_the_remedy(camvid, rgbd, plant, overrides, remedy):
    root = rgbd if "data=rgbd" in overrides else camvid
    if plant:
        plant(root)
    dataset = DataConfig.read(configured(*overrides.split(), f"data.root={root}")).make("train")
    assert any(remedy in line for line in quick_findings(dataset, 16))


GREYS = [[0] * 3, [1] * 3, [2] * 3]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"num_classes": 3, "ignore_index": [7, 255]}, "7 (25.00%), 255 (12.50%)"),
        ({"label_map": [0, 1, 2]}, "7 (25.00%), 255 (12.50%)"),
        ({"label_map": [[0, 1], 7]}, "2 (25.00%), 255 (12.50%)"),
        ({"label_colors": GREYS, "num_classes": 3, "color_distance": 0}, "-1 (37.50%)"),
    ],
)
def test_quick_findings_count_unlabelled_values(tmp_path, caplog, options, shown):
    mask = np.repeat([0, 1, 2, 2, 7, 7, 255, 0], 8).astype(np.uint8).reshape(8, 8)
    for name in "ab":
        save_picture(tmp_path / f"images/train/{name}.png", np.zeros((8, 8, 3), np.uint8))
        stored = np.dstack([mask] * 3) if "label_colors" in options else mask
        save_picture(tmp_path / f"masks/train/{name}.png", stored)
    for kept in ({}, {"cache": True, "cache_size": [4, 4]}):
        train = FolderDataset(root=tmp_path, split="train", labels="masks", **options, **kept)
        caplog.clear()
        with caplog.at_level("INFO", "dpt"):
            quick_findings(train, 16)
        assert f"unlabelled in the masks: {shown} of the pixels" in caplog.text


def test_quick_findings_are_logged_when_a_run_starts(dense_folder, caplog):
    data = ["data=folder", f"data.root={dense_folder}", "data.depth=depth", "data.missing=skip"]
    data += ["data.max_depth=10", "data.depth_scale=1e-6", "data.min_depth=0"]
    data = configured(*data)
    train, val = (DataConfig.read(data).make(s) for s in ("train", "val"))
    check_first_files(LabelledData(train, val, {}, Teacher()), on_error="raise")
    assert "these look like millimetres" in caplog.text


@pytest.mark.parametrize(("suffix", "num_workers"), [("h5", 0), ("h5", 2), ("mat", 0)])
def test_files_that_end_their_reader_are_named(tmp_path, monkeypatch, suffix, num_workers):
    """HDF5's library and SciPy's MATLAB reader read past the end of some damaged files."""
    for k in range(4):
        save_photo(tmp_path / f"images/{k}.png", 20, 30)
        (tmp_path / "depth").mkdir(exist_ok=True)
        path, depth = tmp_path / f"depth/{k}.{suffix}", np.ones((20, 30), np.float32)
        if suffix == "mat":
            scipy.io.savemat(path, {"depth": depth})
            continue
        with h5py.File(path, "w") as file:
            file["depth"] = depth
    main, choose = os.getpid(), arrays._choose

    def end(path, *arguments):
        if str(path).endswith(f"2.{suffix}"):
            assert os.getpid() != main
            os.kill(os.getpid(), signal.SIGSEGV)
        return choose(path, *arguments)

    monkeypatch.setattr(arrays, "_choose", end)
    options = {"depth": "depth", "max_depth": 10.0, "fractions": {"train": 1.0}}
    train = FolderDataset(root=tmp_path, split="train", **options)
    records = read_records(train, title="", num_workers=num_workers)
    assert [bool(record.faults) for record in records] == [False, False, True, False]
    assert f"2.{suffix}: damaged" in records[2].faults[0][1]
    with pytest.raises(DataError, match=rf"/2\.{suffix}: damaged"):
        train.validate()
