"""Shards from a local server: fetched once and verified."""

import http.server
import multiprocessing
import os
import re
from functools import partial

import fsspec
import numpy as np
import pytest
from servers import Quiet, running

from dpt import fetch as download
from dpt.data import DataError, Dataset, PackedDataset
from dpt.data.shards.packed import pack_split
from dpt.types.samples import DatasetInfo

COUNT = 24


class Noise(Dataset):
    """Samples of random content with depth."""

    info = DatasetInfo(targets=("depth",), max_depth=10.0)

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        random = np.random.default_rng(index)
        depth = random.integers(0, 9000, (20, 30)).astype(np.float32) / np.float32(1000)
        image = random.integers(0, 256, (20, 30, 3), dtype=np.uint8)
        return {"image": image, "depth": depth, "valid": depth > 0, "name": f"{index}"}


class Handler(Quiet):
    """A folder's files, with Range; ``server.cut`` breaks answers off after so many bytes."""

    protocol_version = "HTTP/1.0"

    def do_GET(self):  # noqa: N802  (the name that is called)
        path = self.translate_path(self.path)
        wanted = self.headers["Range"]
        name = os.path.basename(path)
        self.server.asked.append((name, wanted))
        if not os.path.isfile(path):
            self.send_error(404)
            return
        with open(path, "rb") as file:
            content = file.read()
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted else 0
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        cut = self.server.cut if name.endswith(".tar") else None
        self.wfile.write(content[start:] if cut is None else content[start : start + cut])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for split in ("train", "val"):
        pack_split(Noise(), folder, split=split, shard_size=9_000)
    return folder


@pytest.fixture
def server(folder):
    handler = partial(Handler, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.asked, server.cut = [], None
    server.url = f"http://127.0.0.1:{server.server_port}"
    with running(server):
        yield server


def at(server, cache, **options):
    return PackedDataset(root=server.url, split="train", cache_dir=str(cache), **options)


def kept(cache):
    return sorted(p for p in cache.iterdir() if p.suffix == ".tar")


def shards_asked(server):
    return [name for name, _ in server.asked if name.endswith(".tar")]


def test_packed_samples_from_a_server_equal_the_originals(server, tmp_path):
    dataset = at(server, tmp_path)
    assert len(dataset.shards) > 4
    assert dataset.validate() == []
    assert len(shards_asked(server)) == 1  # a first look fetches no more
    for index in range(COUNT):
        for key, value in Noise()[index].items():
            np.testing.assert_array_equal(dataset[index][key], value)
    assert sorted(shards_asked(server)) == [shard.name for shard in dataset.shards]
    again = at(server, tmp_path)
    assert [again[i]["name"] for i in range(COUNT)] == [str(i) for i in range(COUNT)]
    assert len(shards_asked(server)) == len(dataset.shards)  # all from the cache
    assert {p.suffix for p in tmp_path.iterdir()} <= {".tar", ".lock"}


def test_packed_interrupted_transfer_resumes(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
    dataset = at(server, tmp_path)
    server.cut, server.asked = 4000, []
    assert dataset[0]["name"] == "0"
    size = dataset.shards[0].size
    starts = [f"bytes={start}-" for start in range(4000, size, 4000)]
    assert [wanted for _, wanted in server.asked] == [None, *starts]
    server.cut = 0
    with pytest.raises(DataError, match=r"train-000001\.tar: the connection ended at 0 of"):
        dataset._open(dataset.shards[1])
    server.cut = None
    dataset._open(dataset.shards[1]).close()


def test_packed_file_that_differs_from_the_index_is_refused(server, folder, tmp_path):
    dataset = at(server, tmp_path / "cache")
    shard = dataset.shards[2]
    path = folder / shard.name
    whole = path.read_bytes()
    try:
        path.write_bytes(whole[:-1] + b"?")
        with pytest.raises(DataError, match=r"its sha256 is .*whether http.*has changed"):
            dataset._open(shard)
        assert not kept(tmp_path / "cache")
        path.write_bytes(whole[:-512])
        with pytest.raises(DataError, match=r"has \d+ bytes, expected \d+"):
            dataset._open(shard)
    finally:
        path.write_bytes(whole)
    dataset._open(shard).close()
    (cached,) = kept(tmp_path / "cache")
    cached.write_bytes(whole[:700])  # as after a crash
    with pytest.raises(DataError, match=r"has 700 bytes, expected \d+: remove it"):
        dataset._open(shard)


def test_packed_other_file_systems_through_fsspec(folder, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/bucket", recursive=True)
    dataset = PackedDataset(root="memory://bucket", split="train", cache_dir=str(tmp_path))
    assert dataset.validate() == []
    part = tmp_path / f"{dataset.shards[1].sha256}.tar.part"
    part.write_bytes((folder / dataset.shards[1].name).read_bytes()[:3000])  # of an earlier run
    assert [dataset[i]["name"] for i in range(COUNT)] == [str(i) for i in range(COUNT)]
    assert not list(tmp_path.glob("*.part"))
    memory.pipe(f"/bucket/{dataset.shards[1].name}", b"x" * dataset.shards[1].size)
    kept(tmp_path)[0].unlink()
    for path in kept(tmp_path):
        path.unlink()
    with pytest.raises(DataError, match="its sha256 is"):
        dataset._open(dataset.shards[1])
    assert not list(tmp_path.glob("*.part"))


def _read_all(url, cache, start, queue):
    dataset = PackedDataset(root=url, split="train", cache_dir=cache)
    start.wait()
    queue.put([dataset[i]["name"] for i in range(COUNT)])


def test_packed_processes_fetch_a_shard_once_together(server, tmp_path):
    context = multiprocessing.get_context("fork")
    start, queue = context.Event(), context.Queue()
    arguments = (server.url, str(tmp_path), start, queue)
    processes = [context.Process(target=_read_all, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    start.set()
    results = [queue.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert results == [[str(i) for i in range(COUNT)]] * 3
    asked = shards_asked(server)
    assert len(asked) == len(set(asked))
