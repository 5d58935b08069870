"""Files that are whole or not there."""

import os

import pytest

from dpt.files import replacing, write_bytes


def test_replacing_keeps_the_old_file_when_interrupted(tmp_path):
    path = tmp_path / "deep" / "file.png"
    write_bytes(path, b"old")

    def stop_in_the_middle():
        with replacing(path) as temporary:
            assert temporary.suffix == ".png"
            temporary.write_bytes(b"ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_in_the_middle()
    assert path.read_bytes() == b"old"
    assert list(path.parent.iterdir()) == [path]


def test_replacing_overwrites_what_a_killed_process_left(tmp_path):
    path = tmp_path / "file.png"
    with replacing(path) as temporary:
        left = temporary
        temporary.write_bytes(b"first")
    left.write_bytes(b"half of a f")
    write_bytes(path, b"second")
    assert path.read_bytes() == b"second"
    assert list(tmp_path.iterdir()) == [path]


def test_replacing_names_the_file_of_a_failed_write(tmp_path):
    """The system names none for a full disk."""
    with pytest.raises(OSError, match=r"No space.*table\.csv"), replacing(tmp_path / "table.csv"):
        raise OSError(28, "No space left on device")


def test_replacing_follows_no_link(tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_bytes(b"mine")
    path = tmp_path / "in" / "file.txt"
    path.parent.mkdir()
    path.symlink_to(outside)
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
    (path.parent / temporary.name).symlink_to(outside)
    write_bytes(path, b"newer")
    assert outside.read_bytes() == b"mine"
    assert path.read_bytes() == b"newer"
    assert not path.is_symlink()


def test_replacing_obeys_the_umask(tmp_path):
    path, old = tmp_path / "file.txt", os.umask(0o027)
    try:
        with replacing(path) as temporary:
            temporary.unlink()
            temporary.touch(mode=0o600)  # as safetensors
    finally:
        os.umask(old)
    assert path.stat().st_mode & 0o777 == 0o640
