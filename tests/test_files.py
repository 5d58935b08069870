"""Files that are no plain files, or stand for more data than they hold."""

import os
from pathlib import Path

import pytest

from dpt.files import (
    data_root,
    open_file,
    parse_json,
    printable,
    read_bytes,
    read_yaml,
    run_folder,
)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name, kind in {"fifo": "FIFO", "link": "device", "folder": "folder"}.items():
        with pytest.raises(ValueError, match=rf"{name}: is a .*{kind}.*, not a file"):
            read_bytes(tmp_path / name)
    with pytest.raises(ValueError, match="gone does not exist"):
        read_bytes(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "good").symlink_to("file")
    assert read_bytes(tmp_path / "good") == b"text"


def test_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(ValueError, match=rf"{name} is a file: check data.root"):
            data_root(tmp_path / name)


def test_the_size_is_checked_before_reading(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    with pytest.raises(ValueError, match="has more than 1400000000 bytes"):
        read_bytes(path)
    with open_file(path) as file:
        assert file.read(3) == bytes(3)


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff\xff", b'{"a": ' * 100_000])
def test_json(text):
    with pytest.raises(ValueError, match=r"^it\.json: not usable JSON"):
        parse_json(text, "it.json")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "fault"),
    [(BOMB, "alias"), ("[" * 3000, "too deep"), ("a: [", "not valid YAML"), ("a: \0", "not valid"),
     ("- " * 3000 + "a", "too deep"), ("#" * (1 << 20) + "#", "has more than 1048576 bytes")],
)  # fmt: skip
def test_yaml(tmp_path, text, fault):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=rf"config\.yaml: .*{fault}"):
        read_yaml(tmp_path / "config.yaml")


def test_a_name_that_is_not_utf8_can_be_written():
    assert printable(os.fsdecode(b"caf\xe9.png")) == "caf\\udce9.png"
    assert printable("café.png") == "café.png"


def test_a_checkpoint_names_its_run_also_from_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder(Path("last.ckpt")) == tmp_path.parent
    assert run_folder(Path("runs/a/checkpoints/last.ckpt")) == tmp_path / "runs/a"
    assert run_folder(Path("runs/a")) == Path("runs/a")
