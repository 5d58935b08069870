"""Inputs of ``dpt predict`` at addresses: buckets, web servers, and fsspec's store in memory."""

import http.server
import os
from contextlib import suppress

import fsspec
import pytest
from photos import save_photo
from prediction_files import predictions_of, records_of
from servers import Quiet, running, served


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
    save_photo(tmp_path / "web/1.png")
    with served(tmp_path / "web") as address:
        predict(f"{address}/{name}", "--format", "png")
        assert "1 were done" in predict(f"{address}/{name}", "--format", "png")
        save_photo(tmp_path / "web/1.png", seed=1)
        os.utime(tmp_path / "web/1.png", (0, 0))  # its size may be the same
        assert "were done" not in predict(f"{address}/{name}", "--format", "png")
    assert predictions_of(out) == {"depth/1.png"}


def test_predict_knows_an_address_in_any_capitals_and_hides_its_query(predict, tmp_path, out):
    save_photo(tmp_path / "web/1.png")
    with served(tmp_path / "web") as address:
        written = address.replace("http", "HTTP")
        said = predict(f"{written}/1.png?token=secret-of-mine", "--format", "png")
        assert "1 were done" in predict(f"{address}/1.png?token=secret-of-mine", "--format", "png")
    assert predictions_of(out) == {"depth/1.png"}
    assert records_of(out)["1"]["source"] == f"{address}/1.png?***"
    assert "secret-of-mine" not in said


class Endless(Quiet):
    def do_GET(self):  # noqa: N802  (the name that is called)
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):  # the client hangs up
            while True:
                self.wfile.write(b"<a href='1.png'>" * 4096)


@pytest.mark.parametrize("name", ["photos/", "1.png"])
def test_an_endless_answer_is_cut_off(refusal, run, tmp_path, monkeypatch, name):
    monkeypatch.setattr("dpt.predict.sources.MAX_BYTES", 1 << 22)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    with running(server):
        code, _, err = run(f"http://127.0.0.1:{server.server_port}/{name}")
    assert code == 1
    assert "has more than" in err
