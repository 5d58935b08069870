"""The camera of each data set's samples: golden numbers, and points seen where images show them."""

import csv
from pathlib import Path

import depth_trees as trees
import numpy as np
import pytest
from photos import save_picture

from dpt.data import DataError, FolderDataset
from dpt.data.datasets.filelist import KittiDataset
from dpt.data.datasets.indoor import NYUv2Dataset, SunRgbdDataset, TumDataset
from dpt.data.datasets.rendered import (
    HypersimDataset,
    VirtualKitti2Dataset,
    along_axis,
    camera_matrix,
)
from dpt.data.mix import MixDataset
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.data.transforms import EvalTransform, TrainTransform
from dpt.geometry import Camera, project, unproject
from dpt.types.preprocessing import Preprocessing

H, W = trees.SIZE  # of the trees' images, 20 times smaller than those of three of the sets
TILTED = [1.3670867251207173, 0, 0, 0, 0, 2.274878134015949, 0, 0, 0, -0.5905442914530703]
TILTED += [-0.7908680716170842, -2.002002002002002, 0, -0.5893643827788384, -0.7892879156298372, 0]
"""The projection of Hypersim's scene ai_024_004."""
STRAIGHT = [1.7320507492870254, 0, 0, 0, 0, 2.309400999049367, 0, 0, 0, 0]
STRAIGHT += [-1.002002002002002, -2.002002002002002, 0, 0, -1, 0]
"""That of ai_001_001."""


def intrinsics(sample, size=(480, 640)) -> list[float]:
    """fx, fy, cx and cy at the size of the published images."""
    K = Camera(sample["K"], sample["image"].shape[:2]).resized(size).K
    assert abs(K[0, 1]) < 1e-9
    return [K[0, 0], K[1, 1], K[0, 2], K[1, 2]]


def test_nyuv2_camera_counts_pixels_from_zero(tmp_path):
    trees.nyuv2(tmp_path)
    dataset = NYUv2Dataset(root=tmp_path, split="train")
    expected = [518.85790117, 519.46961112, 324.58244941, 252.73616633]
    assert intrinsics(dataset[0]) == pytest.approx(expected)
    trees.nyuv2_bts(tmp_path / "bts")
    assert intrinsics(trees.configured("nyuv2_bts", tmp_path / "bts")[0]) == pytest.approx(expected)


def test_tum_cameras_by_sequence(tmp_path):
    trees.tum(tmp_path, ("rgbd_dataset_freiburg1_xyz", "x_freiburg2_a", "freiburg3_b", "mine"))
    expected = {
        "rgbd_dataset_freiburg1_xyz": [517.3, 516.5, 318.6, 255.3],
        "x_freiburg2_a": [520.9, 521.0, 325.1, 249.7],
        "freiburg3_b": [535.4, 539.2, 320.1, 247.6],
    }
    for name, numbers in expected.items():
        dataset = TumDataset(root=tmp_path, split="train", sequences={"train": [name]})
        assert intrinsics(dataset[0]) == pytest.approx(numbers)
        assert dataset.info.targets == ("depth", "K")
    mine = TumDataset(root=tmp_path, split="train", sequences={"train": ["mine"]})
    assert "K" not in mine[0]
    assert mine.info.targets == ("depth",)


def test_sunrgbd_cameras_by_frame(tmp_path):
    trees.sunrgbd(tmp_path)
    for i, name in enumerate(trees.SUNRGBD[2:4]):
        text = f"{50 + i} 0 15.5 \n0 60 11.5\n0 0 1"
        (tmp_path / "SUNRGBD" / name / "intrinsics.txt").write_text(text)
    dataset = SunRgbdDataset(root=tmp_path, split="train")
    assert [intrinsics(dataset[i], (H, W))[0] for i in range(2)] == [50, 51]
    np.testing.assert_array_equal(dataset[1]["K"], [[51, 0, 15.5], [0, 60, 11.5], [0, 0, 1]])
    assert "K" not in dataset[2]
    path = tmp_path / "SUNRGBD" / trees.SUNRGBD[2] / "intrinsics.txt"
    path.write_text("0 0 15.5 0 60 11.5 0 0 1")
    with pytest.raises(DataError, match=r"000001_2014/intrinsics\.txt"):
        dataset[0]


def test_vkitti2_cameras_by_frame(tmp_path):
    trees.vkitti2(tmp_path)
    for folder in tmp_path.glob("Scene*/*"):
        for path in folder.glob("frames/*/*/*"):
            save = np.zeros((375, 1242), np.uint16)
            pixels = np.zeros((375, 1242, 3), np.uint8) if "rgb" in path.name else save
            save_picture(path, pixels)
        lines = ["frame cameraID K[0,0] K[1,1] K[0,2] K[1,2]", "0 0 725.0087 725.0087 620.5 187"]
        lines += ["0 1 725.0087 725.0087 620.5 187", "1 0 726.0 727.0 620.5 187"]
        (folder / "intrinsic.txt").write_text("\n".join(lines) + "\n")
    chosen = {"scenes": {"train": ["Scene01"]}, "variations": ["fog"]}
    dataset = VirtualKitti2Dataset(root=tmp_path, split="train", **chosen)
    expected = [[725.0087, 0, 620.5], [0, 725.0087, 187], [0, 0, 1]]
    np.testing.assert_array_equal(dataset[0]["K"], expected)
    assert dataset[1]["K"][1, 1] == 727
    cameras = VirtualKitti2Dataset(root=tmp_path, split="train", cameras=["Camera_1"], **chosen)
    with pytest.raises(DataError, match=r"Scene01/fog/intrinsic\.txt"):  # lacks one of its rows
        cameras[1]


def kitti(root: Path, size: tuple[int, int], **options) -> KittiDataset:
    folder, depth = root / "raw/2011_09_26", "d_sync/proj_depth/groundtruth/image_02/1.png"
    save_picture(folder / "d_sync/image_02/data/1.png", np.zeros((*size, 3), np.uint8))
    save_picture(root / "data_depth_annotated" / depth, np.full(size, 512, np.uint16))
    (root / "val.txt").write_text(f"2011_09_26/d_sync/image_02/data/1.png {depth} 721.5377\n")
    rows = ["calib_time: 09-Jan-2012 13:57:47", "S_rect_02: 1.242000e+03 3.750000e+02"]
    projection = "7.215377e+02 0 6.095593e+02 4.485728e+01 0 7.215377e+02 1.728540e+02 2.163791e-01"
    rows.append(f"P_rect_02: {projection} 0 0 1 2.745884e-03")
    (folder / "calib_cam_to_cam.txt").write_text("\n".join(rows) + "\n")
    paths = {"images": "raw", "depth": "data_depth_annotated", "max_depth": 80.0}
    lists = {"split_files": {"val": "val.txt"}}
    return KittiDataset(root=root, split="val", **paths, **lists, **options)


def test_kitti_camera_of_the_whole_frame_and_of_the_crop(tmp_path):
    expected = [[721.5377, 0, 609.5593], [0, 721.5377, 172.854], [0, 0, 1]]
    dataset = kitti(tmp_path, (375, 1242))
    np.testing.assert_array_equal(dataset[0]["K"], expected)
    assert dataset.info.targets == ("depth", "K")
    cropped = kitti(tmp_path, (375, 1242), crop="kb")[0]
    expected[0][2] -= 13
    expected[1][2] -= 23
    np.testing.assert_allclose(cropped["K"], expected, rtol=1e-12)
    with pytest.raises(DataError, match=r"calib_cam_to_cam\.txt"):
        kitti(tmp_path / "other", (300, 400))[0]


@pytest.mark.parametrize("projection", [STRAIGHT, TILTED])
def test_hypersim_depth_and_camera_give_the_points_of_the_projection(projection):
    """Points seen through OpenGL's projection keep their distances from each other."""
    matrix, size = np.reshape(projection, (4, 4)), (768, 1024)
    pixels = np.random.default_rng(0).uniform([0, 0], [1023, 767], (40, 2))
    ndc = np.column_stack([(pixels + 0.5) / (512, 384) - 1, np.ones(40)]) * (1, -1, 1)
    rays = ndc @ np.linalg.inv(matrix[[0, 1, 3], :3]).T
    points = rays * np.linspace(1, 8, 40)[:, None]
    K = camera_matrix(matrix, size)
    seen = np.column_stack([pixels, np.ones(40)]) @ np.linalg.inv(K).T
    distance = np.linalg.norm(points, axis=1)
    ours = seen * (distance / np.linalg.norm(seen, axis=1))[:, None]
    np.testing.assert_allclose(ours @ ours.T, points @ points.T, rtol=1e-9, atol=1e-9)
    depth = along_axis(np.full(size, 2.0), K)
    x, y = pixels[0].astype(int)
    ray = np.linalg.inv(K) @ (x, y, 1)
    assert depth[y, x] == pytest.approx(2 / np.linalg.norm(ray), rel=1e-6)


def test_hypersim_cameras_by_scene(tmp_path):
    trees.hypersim(tmp_path)
    dataset = HypersimDataset(root=tmp_path, split="train")
    assert "metadata_camera_parameters.csv" in dataset.notes[0]
    nominal = dataset[0]
    assert intrinsics(nominal, (768, 1024)) == pytest.approx([886.81, 886.81, 511.5, 383.5])
    names = ["scene_name", *(f"M_proj_{i}{j}" for i in range(4) for j in range(4))]
    with (tmp_path / "metadata_camera_parameters.csv").open("w", newline="") as file:
        csv.writer(file).writerows([names, ["ai_001_001", *TILTED]])
    sample = HypersimDataset(root=tmp_path, split="train")[0]
    expected = [710.571, 710.571, 511.5, 914.086]  # the axis is below the image
    assert intrinsics(sample, (768, 1024)) == pytest.approx(expected, abs=1e-3)
    assert not np.allclose(sample["depth"], nominal["depth"], rtol=0.02)
    with pytest.raises(DataError, match=r"metadata_camera_parameters\.csv: .*ai_003_010"):
        HypersimDataset(root=tmp_path, split="val")


# ---------------------------------------------------------------------------------- data=folder


@pytest.fixture
def root(tmp_path):
    """Images a/0.png to b/1.png of 24 × 32 pixels with depth."""
    for name in ("a/0", "a/1", "b/0", "b/1"):
        trees.photo(tmp_path / f"images/{name}_rgb.png")
        trees.depth_png(tmp_path / f"depth/{name}.png", 2.0, scale=1000)
    return tmp_path


def folder(root, **options) -> FolderDataset:
    names = {"images_name": "%stem_rgb", "depth": "depth", "max_depth": 9}
    return FolderDataset(root=root, split="train", fractions={"train": 1.0}, **names, **options)


def test_folder_cameras_in_a_file_for_each_image(root):
    for number, name in enumerate(("a/0", "a/1", "b/0", "b/1")):
        path = root / f"cameras/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{30 + number} 0 15\n0 30 12\n0 0 1\n")
    dataset = folder(root, intrinsics="cameras/%stem.txt")
    assert [dataset[i]["K"][0, 0] for i in range(4)] == [30, 31, 32, 33]
    (root / "cameras/b/0.txt").unlink()
    with pytest.raises(DataError, match=r"cameras/b/0\.txt"):
        dataset[2]


def test_packed_and_mixed_samples_keep_the_camera(root):
    dataset = folder(root, intrinsics=(33.3, 31.7, 15.1, 11.9, H, W))
    sample = dataset[0]
    np.testing.assert_array_equal(sample["K"], [[33.3, 0, 15.1], [0, 31.7, 11.9], [0, 0, 1]])
    files = encode_sample(sample)
    decoded = decode_sample(files, source="x")
    np.testing.assert_array_equal(decoded["K"], sample["K"])
    assert decoded["K"].dtype == np.float64
    files["json"] = files["json"].replace(b"33.3", b"NaN")
    with pytest.raises(DataError, match=r"x\.json"):
        decode_sample(files, source="x")
    mix = MixDataset(
        sets={"a": lambda split: dataset, "b": lambda split: folder(root)}, split="val"
    )
    assert mix.info.targets == ("depth", "K")
    assert ["K" in mix[i] for i in range(8)] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    "K",
    [
        np.full((3, 3), np.nan),
        np.diag([0.0, 30, 1]),
        np.diag([30.0, -30, 1]),
        np.array([[30.0, 0, 900], [0, 30, 12], [0, 0, 1]]),
        np.array([[30.0, 0, 15], [0, 30, 12], [0, 0, 2]]),
        np.eye(4),
    ],
    ids=["nan", "zero", "negative", "outside", "row", "size"],
)
def test_check_refuses_a_camera_that_does_not_fit(root, K):
    dataset = folder(root)
    sample = {**dataset[0], "K": K}
    with pytest.raises(DataError, match=r"a/0_rgb\.png: K = \["):
        dataset.check(sample)


# ----------------------------------------------------------------- depth smaller than its image


def test_depth_smaller_than_its_image_is_enlarged_for_training_and_keeps_its_camera(tmp_path):
    """As ARKit's, of 256 × 192 pixels beside images of 1920 × 1440."""
    trees.photo(tmp_path / "images/a.png")
    metres = np.arange(1, 13, dtype=np.float32).reshape(3, 4)
    (tmp_path / "depth").mkdir()
    np.save(tmp_path / "depth/a.npy", metres)
    options = {"depth": "depth", "max_depth": 20, "depth_scale": 1.0, "fov": 60}
    options |= {"root": tmp_path, "split": "train", "fractions": {"train": 1.0}}
    with pytest.raises(DataError, match=r"data\.resize_labels=true"):
        FolderDataset(**options).validate()
    dataset = FolderDataset(**options, resize_labels=True)
    sample = dataset[0]
    dataset.check(sample)
    assert sample["depth"].shape == (3, 4)
    # the point of a pixel of the map, seen by the image, lies in the middle of its 8 × 8 pixels
    small = Camera(sample["K"], (H, W)).resized((3, 4))
    np.testing.assert_allclose(small.K, Camera.from_fov(60, (3, 4)).K)
    points = unproject(sample["depth"], small.K)
    rows, columns = np.mgrid[:3, :4]
    expected = np.stack([8 * columns + 3.5, 8 * rows + 3.5], axis=-1)
    np.testing.assert_allclose(project(points, sample["K"]), expected, atol=1e-4)
    # nearest neighbour in training, with the image's camera
    train = TrainTransform(image_size=(H, W), hflip=0)(sample, seed=0)
    np.testing.assert_array_equal(train["depth"], metres.repeat(8, 0).repeat(8, 1))
    np.testing.assert_allclose(train["K"], sample["K"])
    # its own size in scores
    preprocessing = Preprocessing(image_size=(48, 64), resize="stretch", multiple_of=1)
    scored = EvalTransform(preprocessing)(sample)
    np.testing.assert_array_equal(scored["depth"], metres)
    np.testing.assert_allclose(scored["K"], Camera.from_fov(60, (48, 64)).K)
