import zlib

import numpy as np
import pytest

from dpt.data import Augmented, Dataset, EvalTransform, TrainTransform
from dpt.geometry import View, mirrored_classes
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX, DatasetInfo, Sample

H, W = 48, 64


def coordinates(height: int = H, width: int = W) -> Sample:
    """A sample in which image, labels and depth all tell the pixel's row and column."""
    rows, columns = np.mgrid[:height, :width]
    return {
        "image": np.dstack([rows, columns, 0 * rows]).astype(np.uint8),
        "labels": (rows // 8 * 8 + columns // 8).astype(np.uint8),
        "depth": (1 + rows + columns / 1000).astype(np.float32),
        "valid": np.ones((height, width), bool),
        "index": 5,
        "name": "here",
    }


def run(sample: Sample, seed: int = 0, **options) -> Sample:
    options = {"image_size": (H, W), "hflip": 0.0} | options
    return TrainTransform(**options)(sample, seed=seed)


def draw_views(count: int, size: tuple[int, int], **options) -> tuple[list[View], np.ndarray]:
    """Views of images of ``size`` for different seeds, and their zooms."""
    transform = TrainTransform(**options)
    draws = [transform.draw_view(size, np.random.default_rng(seed)) for seed in range(count)]
    return [view for view, _ in draws], np.array([zoom for _, zoom in draws])


def test_transform_without_options_changes_nothing():
    sample = coordinates()
    sample["valid"][0, :5] = False
    sample["labels"][3] = IGNORE_INDEX
    out = run(sample)
    for key in ("image", "labels", "valid"):
        assert np.array_equal(out[key], sample[key])
        assert not np.shares_memory(out[key], sample[key])
    assert np.array_equal(out["depth"], np.where(sample["valid"], sample["depth"], 0))
    assert (out["index"], out["name"]) == (5, "here")


def test_transform_rotation_shows_what_lies_beside_the_window():
    sample = coordinates()
    seeds = range(20)
    whole = [run(sample, seed, rotate=30.0)["valid"] for seed in seeds]
    windows = [run(sample, seed, rotate=30.0, zoom=(2.0, 2.0))["valid"] for seed in seeds]
    assert 0.02 < 1 - np.mean(whole) < 0.5
    assert np.mean(windows) > np.mean(whole) + 0.02
    assert any(valid.all() for valid in windows)


@pytest.mark.parametrize(
    ("seed", "options", "depth", "image"),
    [
        (0, {"zoom": (0.5, 2.0), "hflip": 0.5}, 2701479461, 15.75),
        (1, {"zoom": (0.5, 2.0), "hflip": 0.5}, 3960701692, 18.24),
        (2, {"zoom": (1.0, 1.0), "hflip": 0.5, "color": 0.5, "gamma": 0.5}, 3475485073, 22.41),
        (3, {"zoom": (2.0, 3.0), "image_size": (9, 31), "blur": 1.0}, 2760232919, 18.33),
        (4, {"zoom": (0.7, 0.9), "image_size": (80, 80), "hflip": 1.0}, 2645157319, 32.23),
    ],
)
def test_transform_draws_stay_the_same(seed, options, depth, image):
    """Scores of documented runs rest on them: checksum of the depth, mean of the image."""
    out = run(coordinates(), seed, **options)
    assert zlib.crc32(out["depth"].tobytes()) == depth
    assert out["image"].mean() == pytest.approx(image, abs=0.01)


@pytest.mark.parametrize("zoom", [2.0, 0.5])
def test_transform_zoom_divides_depth(zoom):
    sample = coordinates()
    sample["depth"][:] = 3.0
    scaled = run(sample, zoom=(zoom, zoom))
    assert np.allclose(scaled["depth"][scaled["valid"]], 3.0 / zoom)
    assert run(sample, zoom=(zoom, zoom), zoom_scales_depth=False)["depth"].max() == 3.0


def test_depth_is_divided_by_the_zoom_of_the_crop():
    """Whole pixels make it differ from the drawn one; then depth belongs to the unchanged camera,
    which is that of the whole image at the size of evaluation."""
    K = np.array([[300.0, 0, 124.5], [0, 300, 99.5], [0, 0, 1]])
    for seed in range(40):
        sample = coordinates(200, 250) | {"depth": np.full((200, 250), 3, np.float32), "K": K}
        out = run(sample, seed, image_size=(41, 33), zoom=(1.0, 2.0))
        focal = np.sqrt(out["K"][0, 0] * out["K"][1, 1])
        assert focal == pytest.approx(300 * 41 / 200, rel=1e-6)
    views, zooms = draw_views(40, (200, 250), image_size=(41, 33), zoom=(1.0, 2.0))
    own = [200 / 41 / view.shrinks_by for view in views]
    np.testing.assert_allclose(zooms, own)


@pytest.mark.parametrize(("zoom", "image_size", "locations"), [(1, (8, 8), 5), (0.5, (16, 24), 13)])
def test_draw_view_windows_are_equally_likely_at_all_locations(zoom, image_size, locations):
    """Also at the first and last, and where the window is larger than the image (zoom 0.5)."""
    options = {"image_size": image_size, "zoom": (zoom, zoom), "hflip": 0}
    views, _ = draw_views(100 * locations, (8, 12), **options)
    counts = np.bincount([abs(view.window.left) for view in views], minlength=locations)
    assert len(counts) == locations
    assert ((counts - 100) ** 2 / 100).sum() < 3 * locations


def test_transform_same_seed_same_result_and_inputs_untouched():
    options = {"zoom": (0.5, 2.0), "hflip": 0.5, "rotate": 10.0, "color": 1.0, "blur": 0.3}
    sample = coordinates()
    before = {k: v.copy() for k, v in sample.items() if isinstance(v, np.ndarray)}
    for array in before:
        sample[array].setflags(write=False)
    first, second = (run(sample, 11, grayscale=0.3, **options) for _ in range(2))
    other = run(sample, 12, grayscale=0.3, **options)
    for key, array in before.items():
        assert np.array_equal(sample[key], array)
        assert np.array_equal(first[key], second[key])
    assert not np.array_equal(first["image"], other["image"])


@pytest.mark.parametrize("step", ["color", "blur", "gamma", "grayscale"])
def test_transform_colours_leave_labels_and_depth_alone(step):
    sample = coordinates()
    sample["image"] = np.random.default_rng(0).integers(0, 256, (H, W, 3), dtype=np.uint8)
    outs = [run(sample, seed, **{step: 1.0}) for seed in range(4)]
    assert any(not np.array_equal(out["image"], sample["image"]) for out in outs)
    for out in outs:
        for key in ("labels", "depth", "valid"):
            assert np.array_equal(out[key], sample[key])


# ---------------------------------------------------------------------------------- evaluation


def test_eval_transform_keeps_labels_at_their_own_size():
    sample = coordinates()
    for array in (sample["image"], sample["labels"], sample["depth"]):
        array.setflags(write=False)
    preprocessing = Preprocessing(image_size=(32, 32), multiple_of=16)
    out = EvalTransform(preprocessing)(sample)
    assert out["image"].shape == (32, 48, 3)
    for key in ("labels", "depth", "valid"):
        assert out[key] is sample[key]
    assert sample["image"].shape == (H, W, 3)


def midas_size(height, width, target, rule, multiple):
    """MiDaS, midas/transforms.py, Resize.get_size, with keep_aspect_ratio=True."""

    def constrain(x, min_val=0, max_val=None):
        y = int(np.round(x / multiple) * multiple)
        if max_val is not None and y > max_val:
            y = int(np.floor(x / multiple) * multiple)
        if y < min_val:
            y = int(np.ceil(x / multiple) * multiple)
        return y

    scale_height, scale_width = target[0] / height, target[1] / width
    if rule == "lower_bound":
        scale = max(scale_height, scale_width)
        limits = [{"min_val": side} for side in target]
    elif rule == "upper_bound":
        scale = min(scale_height, scale_width)
        limits = [{"max_val": side} for side in target]
    else:
        fit_width = abs(1 - scale_width) < abs(1 - scale_height)
        scale = scale_width if fit_width else scale_height
        limits = [{}, {}]
    return tuple(
        constrain(scale * x, **limit) for x, limit in zip((height, width), limits, strict=True)
    )


@pytest.mark.parametrize("rule", ["lower_bound", "upper_bound", "minimal"])
def test_preprocessing_input_has_the_size_of_midas(rule):
    random = np.random.default_rng(0)
    for _ in range(2000):
        height, width = random.integers(100, 2000, 2).tolist()
        target = tuple(random.integers(100, 700, 2).tolist())
        multiple = int(random.choice([1, 14, 16, 32]))
        ours = Preprocessing(image_size=target, resize=rule, multiple_of=multiple)
        wanted = midas_size(height, width, target, rule, multiple)
        # where MiDaS rounds to 0 pixels, ours takes one multiple
        assert ours.input_size(height, width) == tuple(max(multiple, side) for side in wanted)


# ----------------------------------------------------------------------------------- Augmented


class Constant(Dataset):
    info = DatasetInfo(targets=("labels", "depth"))

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Sample:
        return coordinates()


def test_augmented_randomness_depends_on_seed_epoch_and_index_only():
    def image(seed: int, key: tuple[int, int]) -> np.ndarray:
        transform = TrainTransform(image_size=[24, 24], zoom=[1, 2], color=1.0)
        return Augmented(Constant(), transform, seed=seed)[key]["image"]

    assert np.array_equal(image(0, (1, 2)), image(0, (1, 2)))
    for seed, key in [(1, (1, 2)), (0, (0, 2)), (0, (1, 1)), (0, (2, 1))]:
        assert not np.array_equal(image(0, (1, 2)), image(seed, key))
    augmented = Augmented(Constant(), TrainTransform(image_size=[24, 24]), seed=0)
    assert (augmented[(4, 2)]["index"], len(augmented)) == (2, 3)
    assert np.array_equal(augmented[1]["image"], augmented[(0, 1)]["image"])


def test_transform_turns_and_flips_image_labels_and_depth_alike():
    """Without zoom each result is one of the eight views of a square, all of which occur."""
    sample = coordinates(H, H)
    views = [(k, step) for k in range(4) for step in (1, -1)]
    seen = set()
    for seed in range(80):
        out = run(sample, seed, image_size=(H, H), turn=1.0, vflip=0.5)
        (found,) = [
            (k, step)
            for k, step in views
            if np.array_equal(out["image"], np.rot90(sample["image"], k)[::step])
        ]
        seen.add(found)
        for key in ("labels", "depth", "valid"):
            np.testing.assert_array_equal(out[key], np.rot90(sample[key], found[0])[:: found[1]])
    assert seen == {*views}


@pytest.mark.parametrize(
    ("names", "ids"),
    [
        ("left_arm right_arm torso", [1, 0, 2]),
        ("LeftArm rightArm Right-Leg left-leg", [1, 0, 3, 2]),
        ("l_eye r_eye u_lip l_lip ear_r neck_l", [1, 0, 2, 3, 4, 5]),
        ("leftlung rightlung arm(L) arm(R)", [1, 0, 3, 2]),
        ("ctx-lh-a ctx-rh-a bright copyright", [1, 0, 2, 3]),
        ("turn_left turn_right left_only road", [1, 0, -1, 3]),
        ("car road", [0, 1]),
    ],
)
def test_classes_of_a_mirror_image(names, ids):
    assert mirrored_classes(names.split()) == ids


def test_mirrored_views_exchange_left_and_right(caplog):
    sample = coordinates()
    sample["labels"] = sample["labels"] % 3
    sample["labels"][3] = IGNORE_INDEX
    names = ("left_arm", "torso", "right_arm")
    expected = np.append(np.uint8([2, 1, 0]), np.arange(3, 256, dtype=np.uint8))
    flipped = run(sample, hflip=1.0, class_names=names)["labels"]
    np.testing.assert_array_equal(flipped, expected[sample["labels"]][:, ::-1])
    turned = run(sample, hflip=1.0, vflip=1.0, class_names=names)["labels"]
    np.testing.assert_array_equal(turned, sample["labels"][::-1, ::-1])
    for seed in range(8):  # turns alone keep the sides
        square = coordinates(H, H) | {"labels": np.zeros((H, H), np.uint8)}
        assert not run(square, seed, image_size=(H, H), turn=1.0, class_names=names)["labels"].any()
    kind = {"image": sample["image"], "class_id": 2}
    same = run(kind, hflip=1.0, class_names=names, targets=["class_id"])["image"]
    np.testing.assert_array_equal(same, sample["image"])
    unpaired = run(sample, hflip=1.0, class_names=("left_arm", "torso", "head"))
    np.testing.assert_array_equal(unpaired["labels"], sample["labels"])
    assert caplog.text.count("augment.hflip=0") == 2
