"""The list of a data set's files: what goes in comes out, and worker processes share it."""

import multiprocessing
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from dpt.data import FileDataset, Files

FILES = [
    Files(Path("a/b.png")),
    Files(Path("/x/é.png"), labels=Path("l.png"), class_id=0),
    Files(Path("/x/c.png"), depth=Path("d.npy"), value=0.0),
    Files(Path("/x/\udcff name\n.png"), Path("l"), Path("d"), 7, -1.5),  # bytes that are no UTF-8
]


@dataclass(kw_only=True, eq=False)
class Listed(FileDataset):
    listed: object = None

    def list_files(self):
        return self.listed


def test_files_come_out_as_they_were_listed(tmp_path):
    dataset = Listed(root=tmp_path, split="train", listed=FILES)
    assert [dataset.files(i) for i in range(len(dataset))] == FILES
    assert dataset.files(-1) == FILES[-1]
    with pytest.raises(IndexError):
        dataset.files(4)


def _private_kilobytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    return int(re.search(r"Private_Dirty: +(\d+) kB", text)[1])


def _read_all(dataset, pipe) -> None:
    before = _private_kilobytes()
    for i in range(len(dataset)):
        str(dataset.files(i).image)
    pipe.send(_private_kilobytes() - before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_the_list_of_files(tmp_path):
    files = [
        Files(tmp_path / f"images/{i:09}.png", tmp_path / f"labels/{i:09}.png")
        for i in range(40_000)
    ]
    dataset = Listed(root=tmp_path, split="train", listed=iter(files))
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_read_all, args=(dataset, there))
    process.start()
    copied = here.recv()
    process.join()
    assert copied < 30_000  # about 14 MB of the interpreter; as tuples of paths 32 MB more
