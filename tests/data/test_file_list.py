"""The list of a data set's files: what goes in comes out, and worker processes share it."""

import multiprocessing
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpt.data import FileDataset, Files


@dataclass(kw_only=True, eq=False)
class Listed(FileDataset):
    listed: object = None

    def list_files(self):
        return self.listed


def private_kilobytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty: +(\d+) kB", text)[1])


def read_all(dataset, pipe) -> None:
    before = private_kilobytes()
    assert all(dataset.files(i).labels.stem == f"{i:09}" for i in range(len(dataset)))
    pipe.send(private_kilobytes() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_the_list_of_files(tmp_path):
    files = [
        Files(tmp_path / f"images/{i:09}.png", tmp_path / f"labels/{i:09}.png")
        for i in range(40_000)
    ]
    dataset = Listed(root=tmp_path, split="train", listed=iter(files))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=read_all, args=(dataset, there))
    process.start()
    copied = here.recv()
    process.join()
    assert copied < 30_000  # about 14 MB of the interpreter; as tuples of paths 32 MB more
