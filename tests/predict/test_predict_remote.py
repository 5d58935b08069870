"""``dpt predict --out ADDRESS``: the objects equal the files of a local run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from photos import save_photo
from prediction_files import files_of, predictions_of
from servers import served

from dpt.predict.remote import RemoteFolder

ROOT = Path(__file__).parents[2]
FORMATS = ("--format", "png,coco")
OUT = "memory://bucket/out"


@pytest.fixture
def memory():
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def whole(predict, photos, tmp_path):
    """The folder of one local run."""
    folder = tmp_path / "whole"
    predict(photos, *FORMATS, model="joint", to=folder)
    return contents_of(folder)


def contents_of(folder):
    return {name: (folder / name).read_bytes() for name in files_of(folder)}


def objects_of(system, root):
    """The contents of all objects below a path."""
    system.invalidate_cache()
    paths = system.find(root)
    return {path.removeprefix(root).lstrip("/"): system.cat_file(path) for path in paths}


def test_predict_to_an_address_equals_a_local_run(predict, memory, photos, whole):
    command = (photos, *FORMATS)
    said = predict(*command, model="joint", to=OUT)
    assert f"images/s): {OUT}" in said
    assert objects_of(memory, "/bucket/out") == whole
    before = {path: memory.info(path)["created"] for path in memory.find("/bucket/out/labels")}
    assert "6 were done before" in predict(*command, model="joint", to=OUT)
    save_photo(photos / "a/1.png", 30, 20)
    assert "5 were done before" in predict(*command, model="joint", to=OUT)
    after = {path: memory.info(path)["created"] for path in memory.find("/bucket/out/labels")}
    assert {path for path in after if after[path] != before[path]} == {"/bucket/out/labels/a/1.png"}


def test_predict_merges_shards_at_an_address(run, predict, memory, photos, whole):
    command = (photos, *FORMATS)
    for shard in ("1/2", "2/2"):
        assert run(*command, "--merge", model="joint", to=OUT)[0] == 1
        predict(*command, "--shard", shard, model="joint", to=OUT)
    assert "2-of-2.jsonl" in " ".join(memory.find("/bucket/out/shards"))
    assert "6 inputs are complete" in predict(*command, "--merge", model="joint", to=OUT)
    assert objects_of(memory, "/bucket/out") == whole


@pytest.mark.parametrize("pause", [0, 20])
def test_predict_goes_on_after_an_error_of_the_store(
    refusal, predict, memory, photos, whole, monkeypatch, pause
):
    """The journal is at the address also where it is put only at the end."""
    put, count = type(memory).put_file, []

    def full(self, local, remote, **options):
        count.append(remote)
        if len(count) == 12:
            raise RuntimeError("SlowDown")
        put(self, local, remote, **options)

    monkeypatch.setattr("dpt.predict.remote_store.PAUSE", pause)
    monkeypatch.setattr(type(memory), "put_file", full)
    said = refusal(photos, *FORMATS, model="joint", to=OUT)
    assert f"{OUT}: cannot be written (memory:///bucket/out/" in said
    assert "RuntimeError: SlowDown" in said
    lines = memory.cat_file("/bucket/out/predictions.jsonl").splitlines()
    assert len(lines) >= 1
    done = f"{len(lines)} were done before"
    assert done in predict(photos, *FORMATS, model="joint", to=OUT)
    assert objects_of(memory, "/bucket/out") == whole


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("depth/1.png", b"mine", "memory:///bucket/out/depth: "),
        ("predictions.json", b"{}", "memory:///bucket/out/predictions.json: "),
        ("predictions.json", b" " * (1 << 20) + b"{}", "memory:///bucket/out/predictions.json: "),
        ("predictions.jsonl", b"", "memory:///bucket/out/predictions.jsonl: "),
        ("", b"a file", f"{OUT}: is a file"),
    ],
    ids=["predictions", "settings", "large", "records", "file"],
)
def test_predict_keeps_objects_of_others(refusal, memory, photos, name, content, named):
    memory.pipe(f"/bucket/out/{name}".rstrip("/"), content)
    before = objects_of(memory, "/bucket")
    assert named in refusal(photos, "--overwrite", to=OUT)
    assert objects_of(memory, "/bucket") == before


def test_a_folder_that_begins_while_it_is_listed_has_no_files(memory, monkeypatch):
    """Another worker writes the first object between two questions of s3fs."""
    folder = RemoteFolder(OUT)
    found = {folder.root: {"name": folder.root, "type": "directory", "size": 0}}
    monkeypatch.setattr(type(memory), "find", lambda *arguments, **options: found)
    assert folder.files() == {}


def test_predict_refuses_an_address_without_a_file_system(refusal, photos):
    assert "nowhere://out" in refusal(photos, to="nowhere://out")


def test_predict_never_replaces_a_remote_input(predict, refusal, memory, tmp_path):
    memory.pipe("/bucket/photos/1.png", save_photo(tmp_path / "1.png").read_bytes())
    predict("memory://bucket/photos", "--format", "png", to=OUT)
    before = objects_of(memory, "/bucket")
    command = ("memory://bucket/out/depth", "--format", "png", "--overwrite")
    assert "memory:///bucket/out/depth/1.png: is an input" in refusal(*command, to=OUT)
    assert "--out" in refusal("memory://bucket/photos", to="memory:///bucket/photos/")
    assert objects_of(memory, "/bucket") == before


def test_predict_leaves_out_what_it_wrote_below_remote_inputs(predict, memory, tmp_path):
    memory.pipe("/bucket/1.png", save_photo(tmp_path / "1.png").read_bytes())
    for to in (OUT, "memory://bucket/other", tmp_path / "out", OUT):
        said = predict("memory://bucket", to=to)
        assert ("1 image in" in said) != ("1 were done before" in said)
    assert predictions_of(tmp_path / "out") == {"depth/1.png", "depth_color/1.png"}
    memory.pipe("/bucket/mine/predictions.json", b"{}")  # of another program
    memory.pipe("/bucket/mine/depth/2.png", save_photo(tmp_path / "2.png").read_bytes())
    assert "1 image in" in predict("memory://bucket", to=OUT)


def test_predict_removes_remote_files_of_an_earlier_image(predict, memory, photos):
    predict(photos, "--format", "png,npy", to=OUT)
    save_photo(photos / "a/1.png", 30, 20)
    predict(photos, "--format", "png", to=OUT)
    names = objects_of(memory, "/bucket/out")
    assert "depth/a/1.png" in names
    assert "depth_npy/a/0.npy" in names
    assert "depth_npy/a/1.npy" not in names


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


def test_predict_keeps_keys_with_several_slashes_apart(refusal, predict, memory, tmp_path, out):
    photo = save_photo(tmp_path / "1.png").read_bytes()
    memory.pipe("/bucket/photos//1.png", photo)
    predict("memory://bucket/photos", "--format", "png")
    assert len(predictions_of(out)) == 1
    memory.pipe("/bucket/photos/1.png", photo)
    assert "/bucket/photos/" in refusal("memory://bucket/photos")


# ------------------------------------------------------------------------------ processes


def start(checkpoint, photos, *options):
    command = ["predict", checkpoint, photos, *FORMATS, "--out", "s3://bucket/out", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        [sys.executable, "-m", "dpt", *map(str, command)], cwd=ROOT, env=environment, **pipes
    )


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM])
def test_predict_workers_of_a_bucket_go_on(s3, predict, checkpoints, tmp_path, stop):
    """Two processes write to one bucket, and one is stopped in the middle."""
    photos, local = tmp_path / "photos", tmp_path / "local"
    for k in range(60):
        save_photo(photos / f"{k}.png", 60, 80 + k % 3, seed=k)
    predict(photos, *FORMATS, model="joint", to=local)
    shards = [("--shard", f"{k}/2") for k in (1, 2)]
    first, second = (start(checkpoints["joint"], photos, *shard) for shard in shards)
    while first.poll() is None and len(s3.find("bucket/out/labels")) < 8:
        time.sleep(0.05)
        s3.invalidate_cache()
    first.send_signal(stop)
    _, err = first.communicate()
    assert first.returncode == (-9 if stop is signal.SIGKILL else 143), err
    _, err = second.communicate()
    assert second.returncode == 0, err
    assert len(s3.find("bucket/out/labels")) < 60, "it was stopped too late to tell"
    again = start(checkpoints["joint"], photos, *shards[0])
    said, err = again.communicate()
    assert (again.returncode, err) == (0, "")
    assert ("were done before" in said) == (stop is signal.SIGTERM)
    predict(photos, *FORMATS, "--merge", model="joint", to="s3://bucket/out")
    assert objects_of(s3, "bucket/out") == contents_of(local)
    assert len(json.loads(s3.cat_file("bucket/out/predictions.json"))["written"]) > 1


@pytest.mark.slow
def test_predict_names_a_bucket_that_does_not_exist(s3, refusal, photos):
    assert "s3://none/out" in refusal(photos, to="s3://none/out")


@pytest.mark.slow
def test_predict_with_ray_writes_to_a_bucket(s3, predict, photos, whole, checkpoints):
    pytest.importorskip("ray")
    process = start(checkpoints["joint"], photos, "--engine", "ray")
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert objects_of(s3, "bucket/out") == whole
