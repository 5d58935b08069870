"""The classes of masks in an unknown folder, and the unit of its depth maps."""

import json

import cv2
import numpy as np
import pytest
import scipy.io
from label_folders import (
    NAMES,
    PALETTE,
    SIZE,
    folder,
    labels_of,
    mask,
    metres,
    samples,
    save,
    save_palette,
    scaled,
    settings,
)
from PIL import Image

from dpt.config.schema import DataConfig
from dpt.data import DataError
from dpt.data.layouts import detect
from dpt.data_check import quick_findings

NAMED_COLOURS = "name,r,g,b\nred,200,10,10\ngreen,10,200,10\n"


def rgb(seed):
    return PALETTE[mask(seed)]


def of_ids(*ids):
    return lambda seed: mask(seed, ids)


def refuses(root, pattern, **given):
    with pytest.raises(DataError, match=pattern):
        detect(root, given)


# ----------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize("ids", [(1, 2, 3), (0, 255)])
def test_ids_become_classes(tmp_path, ids):
    read, _ = samples(folder(tmp_path / "set", kind="annotations", make=of_ids(*ids)))
    np.testing.assert_array_equal(labels_of(read), np.searchsorted(ids, mask(9, ids)))


def test_class_file_of_other_colours_is_not_used(tmp_path):
    root = folder(tmp_path / "set", make=rgb)
    (root / "classes.csv").write_text("name,r,g,b\nwater,80,227,194\nroad,222,89,127\n")
    read, detected = samples(root)
    assert detected.settings["label_colors"] == sorted(PALETTE[:3].tolist())
    assert detected.settings["class_names"] == ["color_000000", "color_0ac80a", "color_c80a0a"]
    assert any("not used" in note and "classes.csv" in note for note in detected.notes)
    assert len(np.unique(labels_of(read))) == 3


def test_ids_below_0_are_unlabelled(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: mask(seed).astype(int) - 1, suffix=".npy")
    for names in ("", "sky\nroad\n"):
        (root / "classes.txt").write_text(names)
        read, detected = samples(root)
        assert any("-1 (33.33%)" in note for note in detected.notes)
        assert set(np.unique(labels_of(read))) == {0, 1, 255}


@pytest.mark.parametrize(("last", "kind"), [(65535, np.uint16), (2**31 - 1, np.int32)])
def test_ids_of_the_largest_value_are_unlabelled(tmp_path, last, kind):
    values = np.array([0, 1, 2, last], kind)
    suffix = ".png" if kind is np.uint16 else ".npy"
    make = of_ids(0, 1, 2, 3)
    root = folder(tmp_path / "set", make=lambda seed: values[make(seed)], suffix=suffix)
    for names in ("", "sky\nroad\ntree\n"):
        (root / "classes.txt").write_text(names)
        read, detected = samples(root)
        assert any(f"{last} (25.00%)" in note for note in detected.notes)
        np.testing.assert_array_equal(labels_of(read), np.array([0, 1, 2, 255])[make(9)])


def interpolated(seed):
    ids = mask(seed, (0, 255))
    ids[0, :12] = range(20, 250, 20)
    return ids


def compressed(seed):
    ids = mask(seed, (0, 255)).astype(int)
    noise = np.random.default_rng(seed).integers(0, 4, SIZE) * (np.arange(SIZE[1]) % 16 == 0)
    return np.abs(ids - noise).astype(np.uint8)


@pytest.mark.parametrize("make", [interpolated, compressed])
def test_binary_masks_with_smooth_borders_are_divided(tmp_path, make):
    read, detected = samples(folder(tmp_path / "set", make=make))
    assert detected.settings["label_map"] == ["0-127", "128-255"]
    assert any("up to 127" in note for note in detected.notes)
    np.testing.assert_array_equal(labels_of(read), make(9) > 127)


def test_few_pixels_of_other_classes_are_no_noise(tmp_path):
    def make(seed):
        ids = mask(seed, (0, 255))
        ids[0, :12] = np.arange(12) % 3 + 1
        return ids

    root = folder(tmp_path / "set", make=make)
    assert settings(root)["num_classes"] == 4  # and 255 means unlabelled


@pytest.mark.parametrize(
    ("make", "given", "pattern"),
    [
        (of_ids(0, 128, 255), {}, r"label_map=\[0,128,255\] or data.label_map=\[0,128\]"),
        (lambda seed: mask(seed, (0, 255 if seed % 2 else 1)), {}, r"=\[0,\[1,255\]\].*=?\[0,1\]"),
    ],
)
def test_ids_of_two_readings_are_a_question(tmp_path, make, given, pattern):
    refuses(folder(tmp_path / "set", make=make), pattern, **given)


# ------------------------------------------------------------------- codes of classes and objects


def scene(seed):
    """Returns class ids, road in the whole lower half, and ids of objects, 0 on the road."""
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]]
    classes, objects = np.where(rows < 12, 0, 7), np.zeros(SIZE, int)
    for k, kind in enumerate((24, 24, 26)):
        place = (rows // 4 == 1 + k) & (columns // 8 == (seed + k) % 4)
        classes[place], objects[place] = kind, 1 + k + 3 * seed
    return classes, objects


def coded(code, seed):
    """Returns the file of a scene in a code."""
    classes, objects = scene(seed)
    if code == "class1000":
        return np.where(objects > 0, classes * 1000 + objects, classes).astype(np.uint16)
    if code == "class256":
        return (classes * 256 + objects).astype(np.uint16)
    if code == "ade20k":
        ids = classes * 30  # above 255, too
        return np.dstack([ids // 256 * 10, ids % 256, objects * 4]).astype(np.uint8)
    return np.dstack([classes, objects // 256, objects % 256]).astype(np.uint8)


@pytest.mark.parametrize("code", ["class1000", "class256", "ade20k", "red"])
def test_codes_of_objects_are_a_question(tmp_path, code):
    root = folder(tmp_path / "set", make=lambda seed: coded(code, seed))
    refuses(root, rf"masks/train: .*data\.label_code={code} \(4 classes\)")
    read, detected = samples(root, label_code=code)
    assert detected.settings["label_map"] == [
        0,
        *(np.array([7, 24, 26]) * 30 ** (code == "ade20k")),
    ]
    np.testing.assert_array_equal(labels_of(read), np.searchsorted([0, 7, 24, 26], scene(9)[0]))
    sample = read["val"]["images/val/001.jpg"]
    for k in range(3):
        place = scene(9)[1] == 1 + k + 27
        assert len(np.unique(sample["objects"][place])) == 1
    assert (detected.task, detected.other_tasks) == ("segmentation", ("panoptic", "instance"))
    refuses(root, "data.label_code=", label_code="red" if code[0] == "c" else "class256")


def test_values_with_names_are_classes(tmp_path):
    root = folder(tmp_path / "set", make=lambda seed: coded("class1000", 0))
    ids = np.unique(coded("class1000", 0)).tolist()
    (root / "classes.csv").write_text("id,name\n" + "".join(f"{i},c{i}\n" for i in ids))
    assert settings(root)["label_map"] == ids
    (root / "classes.csv").unlink()
    np.testing.assert_array_equal(labels_of(samples(root, label_map=ids)[0]) < 255, True)


def numbered(seed):
    """Returns objects numbered in each file."""
    ids = np.zeros(SIZE, np.uint16)
    for k in range(4 + seed):
        ids[4 * (k // 8) : 4 * (k // 8) + 3, 4 * (k % 8) : 4 * (k % 8) + 3] = 1 + k
    return ids


def of_one_file(seed):
    """Returns a number for each object of the set, in colours that no other file has."""
    ids = (numbered(seed) > 0) * (numbered(seed) + 20 * seed)
    return np.dstack([ids % 7 * 35, ids * 97 % 256, ids]).astype(np.uint8)


@pytest.mark.parametrize("make", [numbered, of_one_file])
def test_numbers_of_objects_are_a_question(tmp_path, make):
    root = folder(tmp_path / "set", make=make)
    refuses(root, r"masks/train: .*data\.label_code=object \(2 classes\)")
    read, detected = samples(root, label_code="object")
    np.testing.assert_array_equal(labels_of(read), numbered(9) > 0)
    objects = read["val"]["images/val/001.jpg"]["objects"]
    assert len(np.unique(objects)) == 1 + numbered(9).max()
    assert "instance" in detected.other_tasks


def test_many_classes_of_few_files_each_are_classes(tmp_path):
    """Colours of levels such as 64 and 128, and ids that most files have, are classes."""
    levels = np.uint8([[r, g, b] for r in (0, 64) for g in (0, 128) for b in (0, 128, 255)])
    root = folder(tmp_path / "a", make=lambda seed: levels[mask(seed, range(12))])
    assert settings(root)["num_classes"] == 12
    root = folder(tmp_path / "b", make=of_ids(*range(12)))
    assert settings(root)["num_classes"] == 12


# ----------------------------------------------------------------------------- files of classes


@pytest.mark.parametrize(
    ("file", "text", "names"),
    [
        ("classes.txt", "sky\nstage 2\nstage 1\n", "sky, stage 2, stage 1"),
        ("classes.txt", "0: sky\n1: lane 4\n2: car\n", "sky, lane 4, car"),
        ("_classes.csv", "Value, Class\n0, sky\n1, lane 4\n2, car\n", "sky, lane 4, car"),
        ("classes.csv", "id,name,other\n0,a b,7\n1,c,8\n2,d,9\n", "a b, c, d"),
        ("labelmap.txt", "# label:color::\nsky:0,0,0::\na 4:1,1,1::\nb:2,2,2::\n", "sky, a 4, b"),
        ("classes.json", '{"classes": ["a", "b", "c"]}', "a, b, c"),
        ("label_class_dict.csv", "name,id\na,0\nb,1\nc,2\n", "a, b, c"),
        (
            "class_dict.csv",
            "R;G;Name;Weight;B;ID\n7;8;a;3;9;0\n1;2;b;4;5;1\n2;3;c;5;6;2\n",
            "a, b, c",
        ),
        ("classes.csv", "label,Class Name,kind,size\n2,c,x 1,7\n1,b,x,8\n0,a,x,9\n", "c, b, a"),
        ("classes.csv", '"name","id"\n"a, b",0\n"c",1\n"d",2\n', "a, b, c, d"),
    ],
)
def test_class_file_forms(tmp_path, file, text, names):
    root = folder(tmp_path / "set")
    (root / file).write_text(text)
    assert ", ".join(settings(root)["class_names"]) == names


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("classes.json", '{"classes": 5}'),
        ("classes.txt", "sky\n=cmd()\n"),
    ],
)
def test_class_file_with_faults_is_refused(tmp_path, file, text):
    root = folder(tmp_path / "set")
    (root / file).write_text(text)
    with pytest.raises(ValueError, match=file.replace(".", r"\.")):
        detect(root, {})


@pytest.mark.parametrize(
    ("text", "ids", "given", "names"),
    [  # names, or the keys that decide
        ("sky\nroad\ntree\n", (0, 1, 2, 3), {}, "label_map=1-3.*ignore_index=3"),
        ("sky\nroad\ntree\n", (0, 1, 2, 3), {"ignore_index": 3}, ["sky", "road", "tree"]),
        ("0 sky\n1 road\n2 tree\n", (0, 1, 2, 3), {}, ["sky", "road", "tree"]),
        ("1 sky\n2 road\n3 tree\n", (0, 1, 2, 3), {}, ["sky", "road", "tree"]),
        ("-1 plate\n0 sky\n1 cat\n", (0, 1), {}, ["sky", "cat"]),
        ("7 sky\n8 road\n", (0, 1, 7), {}, "masks hold 0, 1, 7"),
        ("void\nsky\nroad\n", (1, 2), {}, "num_classes=3.*label_map=1-3"),
        ("void\nsky\nroad\n", (1, 2), {"num_classes": 3}, ["void", "sky", "road"]),
        ("sky\nroad\n", (1, 2), {}, ["sky", "road"]),
        ("__ignore__\n_background_\ncat\n", (0, 1, 255), {}, ["_background_", "cat"]),
        ("-1 __ignore__\n0 _background_\n1 cat\n", (0, 1, 255), {}, ["_background_", "cat"]),
        ("255: void\n0: sky\n1: cat\n", (0, 1, 255), {}, ["sky", "cat"]),
        ("void\nsky\ncat\n", (0, 1, 2), {}, ["void", "sky", "cat"]),
        ("void\nsky\ncat\n", (0, 1, 255), {}, "num_classes=3"),
        ("sky\nroad\n", (0, 255), {}, ["sky", "road"]),
        ("road\n", (0, 255), {}, "255"),
    ],
)
def test_class_file_names_belong_to_ids(tmp_path, text, ids, given, names):
    root = folder(tmp_path / "set", make=of_ids(*ids))
    (root / "classes.txt").write_text(text)
    if isinstance(names, str):
        refuses(root, rf"classes\.txt: .*{names}", **given)
        return
    read, detected = samples(root, **given)
    assert detected.settings["class_names"] == names
    if len(ids) == 4 or ids == (0, 255):
        expected = {0, 1, 2, 255} if len(ids) == 4 else {0, 1}
        assert {*np.unique(labels_of(read)).tolist()} == expected


# -------------------------------------------------------------------------------------- colours


def test_colours_without_a_table_become_classes(tmp_path):
    root = folder(tmp_path / "set", make=rgb)
    (root / "classes.txt").write_text("black\nred\ngreen\n")
    assert any("classes.txt" in note for note in detect(root, {}).notes)
    (root / "classes.txt").unlink()
    read, detected = samples(root)
    order = [detected.settings["label_colors"].index(c) for c in PALETTE[:3].tolist()]
    np.testing.assert_array_equal(labels_of(read), np.array(order)[mask(9)])
    refuses(root, r"data.class_names needs data.label_colors", class_names=["a", "b", "c"])


def test_colours_of_a_table_have_its_names(tmp_path):
    root = folder(tmp_path / "set", make=rgb)
    expected = np.array([255, 0, 1])[mask(9)]  # black has no name
    (root / "classes.csv").write_text(NAMED_COLOURS)
    read, detected = samples(root)
    assert detected.settings["class_names"] == ["red", "green"]
    np.testing.assert_array_equal(labels_of(read), expected)
    (root / "classes.csv").write_text("name,r,g,b\nred,200,10,10\nVoid,0,0,0\ngreen,10,200,10\n")
    read, detected = samples(root, label_map=[0, 2])
    assert detected.settings["class_names"] == ["red", "green"]
    np.testing.assert_array_equal(labels_of(read), expected)


@pytest.mark.parametrize(
    "text",
    [
        "b,Name,Red,G,pixels,id\n10,red,200,10,77,1\n10,green,10,200,78,2\n",
        "R;G;B;pixels;kind;label\n200;10;10;77;flat;red\n10;200;10;78;a b;green\n",
    ],
)
def test_tables_of_classes_are_read_by_their_header(tmp_path, text):
    root = folder(tmp_path / "set", make=rgb)
    (root / "class_dict.csv").write_text(text)
    found = settings(root)
    assert (found["class_names"], found["label_colors"]) == (
        ["red", "green"],
        PALETTE[1:3].tolist(),
    )


def test_names_of_masks_that_differ_little_are_said(tmp_path):
    root = folder(tmp_path / "set")
    (root / "classes.txt").write_text("sky\ngrass\nGrass \n")
    assert any("Grass, grass may be one" in note for note in detect(root, {}).notes)


def test_depth_of_bytes_beside_masks_is_left_out(tmp_path):
    root = folder(tmp_path / "set")
    folder(root, kind="depth", make=lambda seed: (50 * metres(seed)).astype(np.uint8))
    detected = detect(root, {})
    assert (detected.task, "depth" in detected.settings) == ("segmentation", False)
    assert any("8 bits" in note and "depth/train/000.png" in note for note in detected.notes)
    assert detect(root, {"depth_scale": 0.02}).task == "joint"
    refuses(root, "data.depth_scale", labels=None, objects=None)


def test_colours_that_the_user_gives(tmp_path):
    root = folder(tmp_path / "set", make=rgb)
    (root / "classes.csv").write_text(NAMED_COLOURS)
    colors = PALETTE[[2, 1, 0]].tolist()
    detected = settings(root, label_colors=colors, class_names=["a", "b", "c"])
    assert (detected["num_classes"], detected["label_colors"]) == (3, colors)
    assert "class_names" not in detected
    refuses(root, "data.label_colors", label_colors=colors[:2])
    for given in ({"label_map": [0, 1]}, {"ignore_index": 2}):
        read, detected = samples(root, label_colors=colors, **given)
        assert detected.settings["class_names"] == ["green", "red"]
        np.testing.assert_array_equal(labels_of(read), np.array([255, 1, 0])[mask(9)])


def antialiased(seed):
    big = cv2.resize(rgb(seed), (SIZE[1] * 2, SIZE[0] * 2), interpolation=cv2.INTER_CUBIC)
    return big[1::2, 1::2] if seed % 2 else cv2.GaussianBlur(rgb(seed), (3, 3), 0)


def test_colours_that_are_mixed_are_a_question(tmp_path):
    root = folder(tmp_path / "set", make=antialiased)
    refuses(root, r"masks/train: .*data\.label_colors=\[\[.*data\.color_distance=0")
    given = {"label_colors": PALETTE[:3].tolist(), "color_distance": 0}
    read, detected = samples(root, **given)
    assert any("data.color_distance=32" in note for note in detected.notes)
    labels = labels_of(read, "train/003")
    assert ((labels == mask(3)) | (labels == 255)).all()
    labels = labels_of(samples(root, **given | {"color_distance": 120})[0], "train/003")
    assert (labels == mask(3)).mean() > 0.9
    assert 255 not in labels
    colors = '[{"title": "sky", "color": "#000000"}, {"title": "red", "color": "#C80a0A"}]'
    (root / "classes.json").write_text(colors)
    read, detected = samples(root)
    assert detected.settings["class_names"] == ["sky", "red"]
    labels = labels_of(read, "train/003")
    assert ((labels == np.array([0, 1, 255])[mask(3)]) | (labels == 255)).all()


@pytest.mark.parametrize("reds", [[0, 64, 128, 192], [0, 255]])
def test_colours_between_others_may_be_classes(tmp_path, reds):
    """VOC's colours, and red on black, which are no ids."""
    colours = np.pad(np.array(reds, np.uint8)[:, None], ((0, 0), (0, 2)))
    make = of_ids(*range(len(reds)))
    read, detected = samples(folder(tmp_path / "set", make=lambda seed: colours[make(seed)]))
    assert detected.settings["class_names"] == [f"color_{red:02x}0000" for red in reds]
    np.testing.assert_array_equal(labels_of(read), make(9))


@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.parametrize("axis", [0, 2])
def test_one_hot_arrays_hold_ids(tmp_path, count, axis):
    def make(seed):
        return np.stack([mask(seed, range(count)) == k for k in range(count)], axis).astype("u1")

    read, detected = samples(folder(tmp_path / "set", make=make, suffix=".npy"))
    assert detected.settings["num_classes"] == count
    np.testing.assert_array_equal(labels_of(read), mask(9, range(count)))


@pytest.mark.parametrize(
    "make",
    [
        lambda ids: np.dstack([ids] * 3),
        lambda ids: np.dstack([ids, 0 * ids, 0 * ids]),
    ],
    ids=["grey", "red"],
)
def test_ids_in_three_channels(tmp_path, make):
    root = folder(tmp_path / "set", make=lambda seed: make(mask(seed)))
    np.testing.assert_array_equal(labels_of(samples(root)[0]), mask(9))
    (root / "classes.txt").write_text("sky\nroad\ntree\n")
    assert settings(root)["class_names"] == ["sky", "road", "tree"]
    save(root / "masks/val/001.png", mask(9))  # one channel beside three
    np.testing.assert_array_equal(labels_of(samples(root)[0]), mask(9))


# ------------------------------------------------------------------------------------- palettes


def test_palettes_of_one_order_hold_ids(tmp_path):
    def write(path, ids):  # one palette has the ids as grey
        grey = np.repeat(np.arange(4, dtype=np.uint8)[:, None], 3, axis=1)
        save_palette(path, ids, grey if path.stem == "001" else PALETTE)

    read, detected = samples(folder(tmp_path / "set", write))
    assert "label_colors" not in detected.settings
    np.testing.assert_array_equal(labels_of(read), mask(9))


def test_palettes_beside_colours(tmp_path):
    order = np.array([3, 1, 0, 2])  # of the palette

    def make(seed):
        return cv2.GaussianBlur(rgb(seed), (3, 3), 0) if seed == 1 else rgb(seed)

    root = folder(tmp_path / "set", make=make)
    for seed in (0, 3, 9):
        ids = np.argsort(order)[mask(seed)].astype("u1")
        save_palette(root / f"masks/{NAMES[seed]}.png", ids, PALETTE[order])
    (root / "classes.csv").write_text("name,r,g,b\nsky,0,0,0\nred,200,10,10\ngreen,10,200,10\n")
    read, detected = samples(root)
    assert detected.settings["class_names"] == ["sky", "red", "green"]
    for seed in (0, 3, 4, 9):
        np.testing.assert_array_equal(labels_of(read, NAMES[seed]), mask(seed))


def test_black_and_white_beside_colours(tmp_path):
    colours = np.uint8([[0, 0, 0], [200, 10, 10], [255, 255, 255]])
    root = folder(tmp_path / "set", make=lambda seed: colours[mask(seed)])
    for seed, mode in ((0, "1"), (3, "L"), (9, "L")):  # as programs save such pictures
        path = root / f"masks/{NAMES[seed]}.png"
        Image.fromarray(colours[mask(seed, (0, 2))]).convert(mode).save(path)
    read, detected = samples(root)
    assert detected.settings["label_colors"] == colours.tolist()
    for seed in (0, 3, 4, 9):
        expected = mask(seed) if seed == 4 else mask(seed, (0, 2))
        np.testing.assert_array_equal(labels_of(read, NAMES[seed]), expected)


def test_palettes_of_other_orders(tmp_path):
    def write(path, ids):
        order = np.random.default_rng(ids[::8, ::8].ravel()).permutation(4)
        save_palette(path, np.argsort(order)[ids].astype("u1"), PALETTE[order])

    root = folder(tmp_path / "set", write)
    read, detected = samples(root)
    classes = [PALETTE.tolist().index(color) for color in detected.settings["label_colors"]]
    assert sorted(classes) == [0, 1, 2]
    for seed in (0, 3, 4, 9):
        labels = labels_of(read, NAMES[seed])
        np.testing.assert_array_equal(np.array(classes)[labels], mask(seed))
    assert disagreements(root) == 1


def disagreements(root, **options):
    """The number of findings about palettes when a run starts."""
    node = {
        "kind": "folder",
        "root": str(root),
        "labels": "masks",
        "num_classes": 3,
    }
    lines = quick_findings(DataConfig.read({**node, **options}).make("train"), 8)
    return sum("data.color_distance" in line for line in lines)


def test_one_colour_on_transparency_is_refused(tmp_path):
    def write(path, ids):
        path.parent.mkdir(parents=True, exist_ok=True)
        red = np.where(ids[..., None] > 0, np.uint8([255, 0, 0, 255]), np.uint8(0))
        Image.fromarray(red).save(path)

    refuses(folder(tmp_path / "set", write), r"masks/train: .*transparent")


# ---------------------------------------------------------------------------------------- depth


@pytest.mark.parametrize(
    ("suffix", "factor", "kind"),
    [(".png", 1000, np.uint16), (".npy", 1, np.float32)],
)
def test_depth_units(tmp_path, suffix, factor, kind):
    def make(seed):
        depth = scaled(factor, kind)(seed)
        depth[0, 0] = 65535 if kind is np.uint16 else np.nan
        return depth

    read, detected = samples(folder(tmp_path / "set", kind="depth", make=make, suffix=suffix))
    assert (detected.task, detected.settings["max_depth"]) == ("depth", 5.0)
    sample = read["train"]["images/train/004.jpg"]
    assert not sample["valid"][0, 0]
    np.testing.assert_allclose(sample["depth"].ravel()[1:], metres(4).ravel()[1:], atol=1e-3)


@pytest.mark.parametrize(
    ("factor", "kind", "named"),
    [
        (100, np.uint16, "0.01"),
        (5000, np.uint16, "0.0002"),
        (1000, np.float32, "0.001"),
        (50, np.uint8, ""),
    ],
)
def test_depth_units_are_a_question(tmp_path, factor, kind, named):
    suffix = ".png" if kind in (np.uint8, np.uint16) else ".npy"
    make = scaled(factor, kind)
    root = folder(tmp_path / "set", kind="depth", suffix=suffix, make=make)
    refuses(root, rf"depth/train: .*data\.depth_scale{f'={named}' if named else ''}\b")
    read, _ = samples(root, depth_scale=1 / factor)
    depth = read["val"]["images/val/000.jpg"]["depth"]
    np.testing.assert_allclose(depth, metres(8), atol=1.01 / factor + 1e-4)


@pytest.mark.parametrize(
    ("top", "kind", "suffix"),
    [
        (65535, np.uint16, ".png"),
        (10000, np.uint16, ".png"),
        (1, np.float32, ".tiff"),
        (10, np.float32, ".npy"),
    ],
)
def test_depth_scaled_to_its_own_range_is_a_question(tmp_path, top, kind, suffix):
    def make(seed):
        depth = metres(seed) * (1 + 0.1 * seed)
        return ((depth - depth.min()) / np.ptp(depth) * top).astype(kind)

    root = folder(tmp_path / "set", kind="depth", make=make, suffix=suffix)
    refuses(root, r"depth/train: .*data\.depth_scale")
    assert detect(root, {"depth_scale": 0.1}).task == "depth"


@pytest.mark.parametrize(
    ("factor", "kind", "value", "pixels"),
    [
        (1, np.float32, 65.535, 96),
        (1, np.float32, 1e10, 1),  # of Blender
        (1, np.float32, 10_000, 154),  # of TartanAir
        (1, np.float64, 1e11, 4),
        (1, np.float32, np.finfo(np.float32).max, 154),
        (1, np.float16, 65504, 4),
        (12, np.float32, 655.35, 154),
        (1, np.float32, 0.001, 96),
        (1000, np.uint16, 10_000, 154),
        (1000, np.uint16, 65_535, 1),
        (1000, np.uint16, 1, 20),
    ],
)
def test_depth_of_one_value_far_from_others_is_not_measured(tmp_path, factor, kind, value, pixels):
    def make(seed):
        depth = scaled(factor, kind)(seed)
        depth.flat[:pixels] = value
        return depth

    suffix = ".png" if kind is np.uint16 else ".npy"
    read, detected = samples(folder(tmp_path / "set", kind="depth", make=make, suffix=suffix))
    assert detected.settings["max_depth"] == (5.0 if factor != 12 else 80.0)
    assert f"({pixels / 768:.2%})" in "".join(detected.notes)
    sample = read["val"]["images/val/000.jpg"]
    assert not sample["valid"].flat[:pixels].any()
    assert sample["valid"].flat[pixels:].all()


@pytest.mark.parametrize(("low", "high"), [(0, 3.7), (1.1, 9)])
def test_depth_that_was_clipped_is_not_measured(tmp_path, low, high):
    root = tmp_path / "set"
    make = lambda seed: metres(seed).clip(low, high).astype(np.float32)  # noqa: E731
    read, _ = samples(folder(root, kind="depth", make=make, suffix=".npy"))
    is_inside = (metres(8) > low) & (metres(8) < high)
    np.testing.assert_array_equal(read["val"]["images/val/000.jpg"]["valid"], is_inside)
    assert samples(root, invalid_depth=[0])[0]["val"]["images/val/000.jpg"]["valid"].all()


def test_depth_of_flat_things_is_measured(tmp_path):
    def make(seed):
        depth = metres(seed).astype(np.float32)
        depth[:6] = 6.0  # a wall
        depth[12:18, 4:9] = 0.5
        return depth

    read, _ = samples(folder(tmp_path / "set", kind="depth", make=make, suffix=".npy"))
    assert read["train"]["images/train/004.jpg"]["valid"].all()


@pytest.mark.parametrize(("factor", "is_asked"), [(20, False), (100, True), (220, True)])
def test_depth_in_hundreds_of_metres(tmp_path, factor, is_asked):
    make = lambda seed: scaled(factor, np.float32)(seed)[:, :]  # noqa: E731
    root = folder(tmp_path / "set", kind="depth", make=make, suffix=".npy")
    if is_asked:
        refuses(root, r"data\.depth_scale=1,.*data\.depth_scale=0\.01")
    assert detect(root, {"depth_scale": 1} if is_asked else {}).settings["depth_scale"] == 1


def test_range_of_depth_is_not_that_of_single_pixels(tmp_path):
    def make(seed):
        depth = scaled(1000, np.uint16)(seed)
        depth[0, 0] = 61_000 if seed == 3 else depth[0, 0]
        return depth

    read, detected = samples(folder(tmp_path / "set", kind="depth", make=make))
    assert detected.settings["max_depth"] == 5.0
    assert any("beyond data.max_depth=5 m" in note for note in detected.notes)
    assert not read["train"]["images/train/003.jpg"]["valid"][0, 0]


def test_points_and_swapped_bytes_are_no_depth(tmp_path):
    points = np.random.default_rng(0).uniform(0, 30, (108, 2))
    root = folder(tmp_path / "points")
    for path in root.glob("masks/*/*"):
        (root / "depth" / path.parent.name).mkdir(exist_ok=True, parents=True)
        scipy.io.savemat(root / f"depth/{path.parent.name}/{path.stem}.mat", {"seeds": points})
        path.unlink()
    refuses(root, r"depth/train: .*\(108, 2\)")
    swapped = folder(tmp_path / "b", kind="depth", make=lambda k: scaled(1000, "u2")(k).byteswap())
    refuses(swapped, "depth/train: .*bytes")


def test_unit_that_a_file_states_is_named(tmp_path):
    root = folder(tmp_path / "set", kind="depth", make=scaled(5000, np.uint16))
    (root / "TUM3.yaml").write_text("%YAML:1.0\nDepthMapFactor: 5000.0\n")
    refuses(root, r"0\.0002 by DepthMapFactor in TUM3\.yaml")


def test_depth_of_whole_numbers_beside_floats_is_refused(tmp_path):
    folder(tmp_path, kind="depth", make=scaled(1000, "u2"))
    save(tmp_path / "depth/train/001.npy", metres(1))
    (tmp_path / "depth/train/001.png").unlink()
    refuses(tmp_path, r"depth.*: .*float64, uint16")


@pytest.mark.parametrize("kind", ["disp", "Disparities"])
def test_disparity_is_no_depth(tmp_path, kind):
    def make(seed):
        return (8000 / metres(seed)).astype(np.uint16)

    refuses(folder(tmp_path / "set", kind=kind, make=make), f"{kind}/train: .*disparity")


def test_class_file_names_are_cleaned(tmp_path):
    root = folder(tmp_path / "set")
    (root / "classes.json").write_text(json.dumps(["a\x1b[31m", "می\u200cرود", "\ud800x"]))
    assert settings(root)["class_names"] == ["a [31m", "می\u200cرود", "x"]
