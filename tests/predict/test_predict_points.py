"""Points of predictions, and their files: exact, cut at discontinuities, bounded."""

import io
import json
import struct

import numpy as np
import pytest
from photos import photo_of, save_photo
from prediction_files import records_of

from dpt.geometry import Camera, project
from dpt.predict import Prediction, encoding
from dpt.predict.encoding import point_grid
from dpt.predict.inputs import KnownCamera
from dpt.types.outputs import OutputSpec

trimesh = pytest.importorskip("trimesh", reason="needs the extra 'points'")

SIZE = H, W = (60, 90)
CAMERA = Camera.from_fov(70, SIZE)
FOLDED = np.s_[20:40, 30:60]


def made(depth=None, unit="m", camera=CAMERA):
    """A prediction of a wall 4 m away, and a box in front of it 2 m away."""
    if depth is None:
        depth = np.full(SIZE, 4, np.float32)
        depth[FOLDED] = 2
        depth[0] = np.nan
        depth[1] = 0
    spec = OutputSpec("depth", "depth", unit=unit)
    known = None if camera is None else KnownCamera(camera, "given")
    return Prediction({"depth": depth}, {"depth": spec}, known_camera=known)


def encoded(suffix, prediction):
    encode = {"ply": encoding.encode_cloud, "glb": encoding.encode_surface}[suffix]
    return encode("depth", encoding.Predicted(prediction, photo_of(*SIZE)))


def test_points_project_to_their_pixels_and_are_nan_where_invalid():
    found = made().points
    assert found.dtype == np.float32
    assert np.isnan(found[:2]).all()
    rows, columns = np.indices(SIZE)
    pixels = np.stack([columns, rows], axis=2)
    np.testing.assert_allclose(project(found[2:], CAMERA.K), pixels[2:], atol=1e-4)
    np.testing.assert_array_equal(found[FOLDED][..., 2], 2)
    np.testing.assert_array_equal(made(unit="relative depth").points, found)


def test_ply_holds_colored_points_without_those_beside_discontinuities():
    cloud = trimesh.load(io.BytesIO(encoded("ply", made())), file_type="ply")
    beside = 2 * (30 + 20) + 2 * (30 + 20) - 4  # corners of the box have two neighbours outside
    assert len(cloud.vertices) == 58 * 90 - beside
    expected = made().points[10, 70] * [1, -1, -1]
    nearest = np.abs(cloud.vertices - expected).sum(axis=1).argmin()
    np.testing.assert_allclose(cloud.vertices[nearest], expected, atol=1e-6)
    assert np.array_equal(cloud.colors[nearest][:3], photo_of(*SIZE)[10, 70])


def test_glb_has_no_triangle_across_a_discontinuity():
    content = encoded("glb", made())
    (mesh,) = trimesh.load(io.BytesIO(content), file_type="glb").geometry.values()
    box, wall = 29 * 19, 89 * 57 - 31 * 21
    at_corners = 2  # triangles of the wall beside two corners of the box
    assert len(mesh.faces) == 2 * (box + wall) + at_corners
    assert len(mesh.vertices) == 58 * 90
    depths = -mesh.vertices[mesh.faces][..., 2]
    assert np.ptp(depths, axis=1).max() < 1e-5
    np.testing.assert_allclose(mesh.face_normals @ [0, 0, 1], 1, atol=1e-5)  # to the camera
    # the texture's coordinates are those of the vertices' pixels
    pixels = project(mesh.vertices * [1, -1, -1], CAMERA.K)
    expected = (pixels + 0.5) / [W, H]
    np.testing.assert_allclose(mesh.visual.uv * [1, -1] + [0, 1], expected, atol=1e-4)
    (length,) = struct.unpack("<I", content[12:16])
    tree = json.loads(content[20 : 20 + length])
    assert tree["materials"][0]["extensions"] == {"KHR_materials_unlit": {}}
    assert tree["images"][0]["mimeType"] == "image/jpeg"


def test_point_grid_of_large_images_has_a_stride(monkeypatch):
    monkeypatch.setattr(encoding, "MAX_POINTS", 700)
    grid = point_grid(made(np.full(SIZE, 4, np.float32)))
    assert grid.stride == 3
    np.testing.assert_allclose(
        grid.points * [1, -1, -1], made(np.full(SIZE, 4, np.float32)).points[::3, ::3], atol=1e-5
    )
    mesh = encoding.surface(grid, photo_of(*SIZE))
    pixels = project(mesh.vertices * [1, -1, -1], CAMERA.K)
    np.testing.assert_allclose(
        mesh.visual.uv * [1, -1] + [0, 1], (pixels + 0.5) / [W, H], atol=1e-4
    )


def test_predict_command_writes_points_and_counts_what_is_left_out(predict, out, tmp_path):
    photo = save_photo(tmp_path / "photo.png", *SIZE)
    predict(photo, "--format", "ply,glb", "--fov", "70", model="metric")
    record = records_of(out)["photo"]
    facts = record["depth_ply"]
    assert facts == record["depth_glb"]
    assert facts["stride"] == 1
    cloud = trimesh.load(out / "depth_ply/photo.ply")
    assert len(cloud.vertices) == H * W - facts["invalid"] - facts["beside_edges"]
    assert (out / "depth_glb/photo.glb").read_bytes()[:4] == b"glTF"
