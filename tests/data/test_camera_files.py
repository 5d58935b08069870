"""Files of intrinsics in all formats, and what is wrong with some."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from dpt.data import DataError
from dpt.data.formats.cameras import CameraFile

SIZE = (48, 64)
K = np.array([[60.5, 0, 31], [0, 61.5, 23], [0, 0, 1]])
ROWS = K.tolist()
OPENCV = """%YAML:1.0
---
camera_matrix: !!opencv-matrix
   rows: 3
   cols: 3
   dt: d
   data: [ 60.5, 0., 31., 0., 61.5, 23., 0., 0., 1. ]
"""
DISTORTION = """distortion_coefficients: !!opencv-matrix
   rows: 1
   cols: 5
   dt: d
   data: [ 0.1, 0., 0., 0., 0. ]
"""
ROS = """image_width: 64
image_height: 48
camera_matrix: {rows: 3, cols: 3, data: [60.5, 0, 31, 0, 61.5, 23, 0, 0, 1]}
"""
FILES = {
    "numpy.txt": "[[60.5  0.   31. ]\n [ 0.   61.5 23. ]\n [ 0.    0.    1. ]]\n",
    "matlab.txt": "60.5, 0, 31; 0, 61.5, 23; 0, 0, 1",
    "comment.txt": "# by hand\n60.5,0,31\n0,61.5,23\n0,0,1\n",
    "homogeneous.txt": "60.5 0 31 0\n0 61.5 23 0\n0 0 1 0\n0 0 0 1\n",
    "bare.json": json.dumps(ROWS),
    "four.json": json.dumps({"intrinsics": [60.5, 61.5, 31, 23]}),
    "camera_matrix.json": json.dumps({"camera_matrix": K.ravel().tolist()}),
    "named.json": json.dumps({"fx": 60.5, "fy": 61.5, "cx": 31, "cy": 23, "w": 64, "h": 48}),
    "nested.json": json.dumps({"intrinsics": {"fx": 60.5, "fy": 61.5, "cx": 31, "cy": 23}}),
    "open3d.json": json.dumps(
        {"width": 64, "height": 48, "intrinsic_matrix": K.T.ravel().tolist()}
    ),
    "opencv.yaml": OPENCV,
    "ros.yml": ROS,
    "table.csv": "image,fx,fy,cx,cy\nphoto,60.5,61.5,31,23\nother,1,1,1,1\n",
}


def write(folder: Path, name: str, text: str) -> CameraFile:
    (folder / name).write_text(text)
    return CameraFile(folder / name)


@pytest.mark.parametrize("name", FILES)
def test_camera_file_formats(tmp_path, caplog, name):
    camera = write(tmp_path, name, FILES[name]).camera(tmp_path / "photo.jpg", SIZE)
    np.testing.assert_array_equal(camera.K, K)
    assert camera.size == SIZE
    assert not caplog.records


@pytest.mark.parametrize(
    ("name", "text"),
    [("ros.yml", ROS), ("kalibr.yaml", "intrinsics: [60.5, 61.5, 31, 23]\nresolution: [64, 48]\n")],
)
def test_camera_file_of_another_size_is_scaled_and_says_so(tmp_path, caplog, name, text):
    caplog.set_level(logging.INFO, "dpt")
    file = write(tmp_path, name, text)
    camera = file.camera("photo", (96, 128))
    np.testing.assert_allclose(camera.K, [[121, 0, 62.5], [0, 123, 46.5], [0, 0, 1]])
    point = np.array([0.3, -0.2, 2.0])  # is seen at the same place of either image
    x, y, _ = K @ point / point[2]
    np.testing.assert_allclose((camera.K @ point / 2)[:2], [2 * x + 0.5, 2 * y + 0.5])
    assert "64x48 to 128x96" in caplog.text
    with pytest.raises(DataError, match=rf"{name}: .*64x48.*photo has 64x64"):
        file.camera("photo", (64, 64))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("opencv.yaml", OPENCV + DISTORTION),
        ("kalibr.yaml", "intrinsics: [60.5, 61.5, 31, 23]\ndistortion_coeffs: [0.1]\n"),
    ],
)
def test_camera_file_with_distortion_warns(tmp_path, caplog, name, text):
    np.testing.assert_array_equal(write(tmp_path, name, text).camera("photo", SIZE).K, K)
    assert name in caplog.text
    assert "distortion" in caplog.text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("b.txt", "60 0 31 0 61"),
        ("d.txt", "60 0 31 0 nan 23 0 0 1"),
        ("e.txt", "0 0 31 0 61 23 0 0 1"),
        ("b.json", json.dumps({"fx": 60})),
        ("d.json", "[" * 100_000),
        ("f.json", json.dumps({"fx": 10**400, "fy": 60, "cx": 1, "cy": 1})),
        ("e.json", json.dumps({"K": ROWS, "width": 640, "height": 1})),
        ("a.yaml", "camera_matrix: !!python/object/apply:os.system [ls]"),
        ("c.csv", "image,fx,fy,cx,cy\nother,60,60,31,23\n"),
        ("d.csv", "image,fx,fy,cx,cy\nphoto,60,60,31,23\nphoto,61,60,31,23\n"),
        ("cameras.txt", "1 PINHOLE 64 48 60 61 31 23\n"),
        ("ros.yaml", f"{ROS}distortion_model: equidistant\n"),
    ],
)
def test_camera_file_faults_name_the_file(tmp_path, name, text):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(DataError, match=rf"{name}") as error:
        CameraFile(path).camera("photo", SIZE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("cx", "is_told"), [(20, False), (45, True)], ids=["upright", "unturned"])
def test_camera_file_of_a_photo_before_it_is_turned_warns(tmp_path, caplog, cx, is_told):
    file = tmp_path / "K.txt"
    file.write_text(f"50 0 {cx} 0 50 28 0 0 1")
    for _ in range(2):
        assert CameraFile(file).camera("a.jpg", (57, 40)).K[0, 2] == cx
    assert [str(file) in r.message for r in caplog.records] == [True] * is_told
