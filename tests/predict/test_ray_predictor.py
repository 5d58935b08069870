"""``RayPredictor``: in this process, and in a local Ray."""

import numpy as np
import pytest
from photos import photo_of, save_photo, tiny
from PIL import Image

import dpt
from dpt.geometry import Camera
from dpt.predict.predictor import RayPredictor


def test_ray_predictor_adds_a_column_for_each_output(joint):
    images = np.empty(2, dtype=object)
    images[0], images[1] = photo_of(40, 57), photo_of(33, 90, seed=1)
    columns = RayPredictor(joint)({"image": images, "path": np.array(["a", "b"])})
    assert columns["path"].tolist() == ["a", "b"]
    assert columns["depth_unit"].tolist() == ["relative inverse depth"] * 2
    for k, image in enumerate(images):
        expected = dpt.Predictor(joint)(image)
        for name in ("depth", "segmentation"):
            assert np.array_equal(columns[name][k], expected.arrays[name])


def test_ray_predictor_gives_metres_with_cameras():
    model = tiny({"depth": {"kind": "metric", "activation": "exp", "canonical_focal": 300.0}})
    images = np.stack([photo_of(40, 57, seed=k) for k in range(2)])
    cameras = [Camera.from_fov(fov, (40, 57)) for fov in (50, 70)]
    batch = {"image": images, "K": np.stack([camera.K for camera in cameras])}
    columns = RayPredictor(model, cameras="K")(batch)
    assert columns["depth_unit"].tolist() == ["metres"] * 2
    for depth, image, camera in zip(columns["depth"], images, cameras, strict=True):
        assert np.array_equal(depth, dpt.Predictor(model)(image, camera).depth)
    assert RayPredictor(model)(batch)["depth_unit"].tolist() == ["relative depth"] * 2


def test_ray_predictor_reads_the_files_of_a_column_of_paths(joint, tmp_path):
    path = save_photo(tmp_path / "a.png")
    columns = RayPredictor(joint, column="path")({"path": np.array([str(path)])})
    assert np.array_equal(columns["depth"][0], dpt.Predictor(joint)(path).depth)


@pytest.mark.slow
@pytest.mark.parametrize("differ", [True, False], ids=["sizes", "one size"])
def test_ray_predictor_in_ray_equals_predictor(shared_data, tmp_path, differ):
    ray = pytest.importorskip("ray")
    kitchen = sorted(shared_data.glob("rgbd/images/val/*.jpg"))[:3]
    street = sorted(shared_data.glob("camvid/images/val/*"))[:2] if differ else []
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 300}}
    heads |= {"classification": {"num_classes": 3}, "regression": {}, "normals": {}}
    tiny(heads).save_pretrained(tmp_path / "model")
    for k, path in enumerate([*kitchen, *street]):
        image = Image.open(path).convert("RGB")
        image = image.crop((0, 0, 200, 300)) if differ and k == 1 else image
        (tmp_path / "photos").mkdir(exist_ok=True)
        image.save(tmp_path / f"photos/{k}.png")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        images = ray.data.read_images(str(tmp_path / "photos"), mode="RGB", include_paths=True)
        predicted = images.map_batches(
            RayPredictor,
            fn_constructor_args=[str(tmp_path / "model")],
            batch_size=2,
            concurrency=1,
            num_cpus=1,
        )
        predicted.write_parquet(str(tmp_path / "rows"))
        rows = ray.data.read_parquet(str(tmp_path / "rows")).take_all()
    finally:
        ray.shutdown()
    predictor = dpt.Predictor(tmp_path / "model")
    assert len(rows) == 3 + 2 * differ
    for row in rows:
        expected = predictor(row["path"])
        assert row["depth_unit"] == "metres"
        for name, array in expected.arrays.items():
            assert row[name].dtype == array.dtype
            assert np.array_equal(row[name], array)
