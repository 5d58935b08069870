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
    "realsense.json": json.dumps(
        {"width": 64, "height": 48, "ppx": 31.0, "ppy": 23.0, "fx": 60.5, "fy": 61.5}
        | {"model": "distortion.inverse_brown_conrady", "coeffs": [0, 0, 0, 0, 0]}
    ),
    "streams.json": json.dumps({"color": {"fx": 60.5, "fy": 61.5, "ppx": 31, "ppy": 23}}),
    "transforms.json": json.dumps(
        {"camera_model": "OPENCV", "fl_x": 60.5, "fl_y": 61.5, "cx": 31, "cy": 23, "w": 64, "h": 48}
        | {"k1": 0, "k2": 0, "p1": 0, "p2": 0, "frames": [{"file_path": "images/1.jpg"}]}
    ),
    "metadata": json.dumps({"h": 48, "w": 64, "K": K.T.ravel().tolist(), "fps": 60}),
    "calib.txt": "P0: 1 0 1 0 0 1 1 0 0 0 1 0\nP1: 1 0 1 0 0 1 1 0 0 0 1 0\n"
    "P2: 6.05e+01 0 31 4.5 0 61.5 23 0.2 0 0 1 2e-3\nP3: 1 0 1 0 0 1 1 0 0 0 1 0\nTr: 1 0 0 0\n",
    "calib_cam_to_cam.txt": "calib_time: 09-Jan-2012 13:57:47\nK_02: 1 0 1 0 1 1 0 0 1\n"
    "D_02: -0.3 0.2 0 0 0\nS_rect_02: 64 48\nP_rect_02: 60.5 0 31 4 0 61.5 23 0 0 0 1 0\n",
    "camchain.yaml": "cam0:\n  camera_model: pinhole\n  distortion_coeffs: [0, 0, 0, 0]\n"
    "  distortion_model: radtan\n  intrinsics: [60.5, 61.5, 31, 23]\n  resolution: [64, 48]\n"
    "cam1:\n  intrinsics: [1, 1, 31, 23]\n  resolution: [64, 48]\n",
    "orb_slam.yaml": "%YAML:1.0\nCamera.type: PinHole\nCamera.fx: 60.5\nCamera.fy: 61.5\n"
    "Camera.cx: 31\nCamera.cy: 23\nCamera.k1: 0.0\nCamera.width: 64\n"
    "Camera.height: 48\nDepthMapFactor: 5000.0\n",
    "cameras.txt": "# Number of cameras: 1\n1 PINHOLE 64 48 60.5 61.5 31 23\n",
    "00000000_cam.txt": "extrinsic\n1 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1\n\n"
    "intrinsic\n60.5 0 31\n0 61.5 23\n0 0 1\n\n425 2.5\n",
    "scene.txt": "colorHeight = 48\ncolorWidth = 64\nfx_color = 60.5\nfy_color = 61.5\n"
    "mx_color = 31\nmy_color = 23\nfx_depth = 1\n",
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
        ("rs.json", FILES["realsense.json"].replace("[0,", "[0.1,")),
        ("transforms.json", FILES["transforms.json"].replace('"k1": 0', '"k1": 0.1')),
        ("colmap.txt", "1 OPENCV 64 48 60.5 61.5 31 23 0.1 0 0 0\n"),
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
        ("e.json", json.dumps({"K": ROWS, "width": 640, "height": 1})),
        ("a.yaml", "camera_matrix: !!python/object/apply:os.system [ls]"),
        ("c.csv", "image,fx,fy,cx,cy\nother,60,60,31,23\n"),
        ("d.csv", "image,fx,fy,cx,cy\nphoto,60,60,31,23\nphoto,61,60,31,23\n"),
        ("cameras.txt", "1 PINHOLE 64 48 60 61 31 23\n2 PINHOLE 64 48 61 61 31 23\n"),
        ("cameras.txt", "1 OPENCV_FISHEYE 64 48 60 61 31 23 0 0 0 0\n"),
        ("SN1.conf", "[LEFT_CAM_HD]\nfx=60\nfy=60\ncx=31\ncy=23\n[LEFT_CAM_VGA]\nfx=30\n"),
        ("cameras.bin", "COLMAP"),
        ("two.json", json.dumps({"color": {"fx": 1}, "depth": {"fx": 2}})),
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


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_camera_file_with_unknown_names_says_which_are_there(tmp_path, name):
    text = json.dumps({"focal_x": 60, "fy": 61.5, "center": [31, 23]})
    with pytest.raises(DataError, match="keys focal_x, fy, center, but no fx, cx, cy"):
        write(tmp_path, name, text).camera("photo", SIZE)


@pytest.mark.parametrize(("cx", "is_told"), [(20, False), (45, True)], ids=["upright", "unturned"])
def test_camera_file_of_a_photo_before_it_is_turned_warns(tmp_path, caplog, cx, is_told):
    file = tmp_path / "K.txt"
    file.write_text(f"50 0 {cx} 0 50 28 0 0 1")
    for _ in range(2):
        assert CameraFile(file).camera("a.jpg", (57, 40)).K[0, 2] == cx
    assert [str(file) in r.message for r in caplog.records] == [True] * is_told
