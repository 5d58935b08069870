"""The cameras of predicted images: given, by EXIF tags, predicted or guessed; and their records."""

import json

import numpy as np
import pytest
from photos import photo_of, save_photo
from PIL import Image
from PIL.ExifTags import IFD, Base
from prediction_files import records_of

import dpt
from dpt.geometry import Camera

SIZE = (40, 57)


def save_exif_photo(path, *, film=28, orientation=1):
    exif = Image.Exif()
    exif[Base.Orientation] = orientation
    exif.get_ifd(IFD.Exif)[Base.FocalLengthIn35mmFilm] = film
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo_of(*SIZE)).save(path, exif=exif)
    return path


def test_predictor_camera_is_the_given_one_at_the_images_size(metric):
    predictor = dpt.Predictor(metric)
    camera = Camera.from_fov(70, SIZE)
    prediction = predictor(photo_of(*SIZE), camera)
    np.testing.assert_array_equal(prediction.camera.K, camera.K)
    assert prediction.known_camera.source == "given"
    double = Camera.from_fov(70, (2 * SIZE[0], 2 * SIZE[1]))
    np.testing.assert_allclose(predictor(photo_of(*SIZE), double).camera.K, camera.K)
    assert predictor(photo_of(*SIZE)).camera is None
    with pytest.raises(ValueError, match=r"cameras: .*57x57"):
        predictor(photo_of(*SIZE), Camera.from_fov(70, (57, 57)))


def test_predictor_camera_by_exif_is_that_of_the_upright_image(metric, tmp_path):
    path = save_exif_photo(tmp_path / "photo.jpg", orientation=6)
    prediction = dpt.Predictor(metric)(path)
    focal = 28 / np.hypot(36, 24) * np.hypot(*SIZE)
    expected = Camera.from_focal(focal, SIZE[::-1])
    np.testing.assert_allclose(prediction.camera.K, expected.K)
    assert prediction.camera.size == prediction.depth.shape == SIZE[::-1]
    given = dpt.Predictor(metric)(path, Camera.from_focal(9, SIZE[::-1]))
    assert (given.camera.focal, given.known_camera.source) == (9, "given")


def cameras_of(out) -> dict[str, tuple[float, str]]:
    facts = {name: record.get("camera") for name, record in records_of(out).items()}
    return {k: v and (round(v["K"][0][0], 3), v["source"]) for k, v in facts.items()}


@pytest.fixture
def folder(tmp_path):
    save_exif_photo(tmp_path / "in/exif.jpg")
    save_photo(tmp_path / "in/plain.png", *SIZE)
    return tmp_path / "in"


BY_EXIF = (round(float(28 / np.hypot(36, 24) * np.hypot(*SIZE)), 3), "EXIF")
FOV_90 = (28.5, "given")


@pytest.mark.parametrize(
    ("options", "exif", "plain"),
    [((), BY_EXIF, None), (("--fov", "90"), FOV_90, FOV_90), (("--focal", "28.5"), FOV_90, FOV_90)],
)
def test_predict_command_records_cameras(predict, folder, out, options, exif, plain):
    predict(folder, "--format", "npy", *options)
    assert cameras_of(out) == {"exif": exif, "plain": plain}
    record = records_of(out)["exif"]["camera"]
    assert record["size"] == [*SIZE]
    assert record["K"][1][2] == (SIZE[0] - 1) / 2


def test_predict_command_reads_intrinsics_and_refuses_to_mix_cameras(
    predict, run, refusal, folder, out, tmp_path
):
    file = tmp_path / "K.json"
    file.write_text(json.dumps({"fx": 50, "fy": 51, "cx": 28, "cy": 20, "width": 57, "height": 40}))
    predict(folder, "--format", "npy", "--intrinsics", file)
    assert cameras_of(out) == dict.fromkeys(("exif", "plain"), (50, "given"))
    options = json.loads((out / "predictions.json").read_text())["options"]
    assert options["intrinsics"].startswith(str(file))
    assert "0 images" in predict(folder, "--format", "npy", "--intrinsics", file)
    assert "fov=" in refusal(folder, "--format", "npy", "--fov", "90")
    file.write_text(file.read_text().replace("51", "52"))
    assert "intrinsics=" in refusal(folder, "--format", "npy", "--intrinsics", file)
    file.write_text(file.read_text().replace("52", "51"))
    other = save_photo(tmp_path / "other.png", 57, 57)
    code, _, err = run(other, "--intrinsics", file, to=tmp_path / "2")
    assert code == 1
    assert "K.json: is for 57x40 pixels" in err
