"""Inputs of ``dpt predict`` at addresses: buckets, web servers, and fsspec's store in memory."""

import fsspec
import pytest
from photos import save_photo
from prediction_files import predictions_of, records_of
from servers import served


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def bucket(s3, tmp_path):
    """A folder with three photos, one of which is hidden, and a bucket with the same files."""
    for number, name in enumerate(("a/0.png", "b/1.png", ".hidden/2.png")):
        path = save_photo(tmp_path / "s3" / name, 40, 57, seed=number)
        s3.put_file(str(path), f"bucket/photos/{name}")
    return tmp_path / "s3"


@pytest.mark.slow
def test_predict_reads_images_of_a_bucket(bucket, predict, refusal, tmp_path):
    local, remote = tmp_path / "local", tmp_path / "remote"
    predict(bucket, to=local)
    assert "2 images" in predict("s3://bucket/photos", to=remote)
    assert "2 were done" in predict("s3://bucket/photos", to=remote)
    assert records_of(remote)["a/0"]["source"] == "s3://bucket/photos/a/0.png"
    for name in predictions_of(local):
        assert (remote / name).read_bytes() == (local / name).read_bytes()
    assert "s3://bucket/none" in refusal("s3://bucket/none", to=remote)


def test_predict_reads_an_image_of_the_memory(predict, memory, tmp_path, out):
    memory.pipe("/photos/x.png", save_photo(tmp_path / "x.png").read_bytes())
    table = tmp_path / "cameras.csv"
    table.write_text("image,fx,fy,cx,cy\nx.png,50,50,28,19.5\n")
    predict("memory://photos/x.png", "--intrinsics", table)
    assert records_of(out)["x"]["source"] == "memory:///photos/x.png"
    assert records_of(out)["x"]["camera"]["K"][0][0] == 50


@pytest.mark.parametrize("to", ["memory://bucket/out", "nowhere://out"])
def test_predict_writes_to_folders_alone(refusal, memory, photos, to):
    assert to in refusal(photos, to=to)
    assert not memory.find("/bucket")


def test_predict_takes_an_address_of_this_machine_as_a_path(refusal, predict, photos, out):
    predict(f"file://{photos}", "--format", "png", to=f"file://{out}")
    assert len(predictions_of(out)) == 6
    said = refusal(out / "depth", "--format", "png", "--overwrite", to=f"file://{out}")
    assert "is an input" in said


@pytest.mark.parametrize("name", ["1.png", ""], ids=["file", "folder"])
def test_predict_fetches_images_of_a_web_server(predict, tmp_path, out, name):
    pytest.importorskip("aiohttp")
    save_photo(tmp_path / "web/1.png")
    with served(tmp_path / "web") as address:
        predict(f"{address}/{name}", "--format", "png")
    assert predictions_of(out) == {"depth/1.png"}
