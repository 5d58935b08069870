"""Files that are no plain files, or stand for more data than they hold."""

import os
from pathlib import Path

import pytest

from dpt.files import (
    DataError,
    checked_address,
    files_below,
    open_file,
    parse_json,
    plural,
    read_bytes,
    read_yaml,
    run_folder,
    without_passwords,
)
from dpt.validation import unknown_key, validate


@pytest.mark.parametrize("name", ["fifo", "device", "folder", "gone"])
def test_read_bytes_takes_only_regular_files(tmp_path, name):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=name):
        read_bytes(tmp_path / name)
    (tmp_path / "file").write_bytes(b"text")
    (tmp_path / "good").symlink_to("file")
    assert read_bytes(tmp_path / "good") == b"text"


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
        (2, "entry", "2 entries"),
        (0, "file", "0 files"),
    ],
)
def test_plural(count, noun, text):
    assert plural(count, noun) == text


def test_read_bytes_checks_the_size_first(tmp_path):
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no space
    with pytest.raises(ValueError, match="has more than 1400000000 bytes"):
        read_bytes(path)
    with open_file(path) as file:
        assert file.read(3) == bytes(3)


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"\xff\xff", b'{"a": ' * 100_000])
def test_parse_json_refuses_bad_files(text):
    with pytest.raises(ValueError, match=r"^it\.json: not usable JSON"):
        parse_json(text, "it.json")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    "text", [BOMB, "[" * 3000, "a: [", "a: \0", "- " * 3000 + "a", "#" * (1 << 20) + "#"]
)
def test_read_yaml_refuses_bad_files(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"config\.yaml: "):
        read_yaml(tmp_path / "config.yaml")


def test_run_folder_of_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder(Path("last.ckpt")) == tmp_path.parent
    assert run_folder(Path("runs/a/checkpoints/last.ckpt")) == tmp_path / "runs/a"
    assert run_folder(Path("runs/a")) == Path("runs/a")


def test_files_below_enters_linked_folders_once(tmp_path):
    """Without that, twelve folders would give 12! paths."""
    folders = [tmp_path / f"f{k:02}" for k in range(12)]
    for folder in folders:
        folder.mkdir()
        (folder / f"{folder.name}.png").touch()
        for other in folders:
            (folder / other.name).symlink_to(f"../{other.name}")
    assert files_below(tmp_path) == [folder / f"{folder.name}.png" for folder in folders]


def test_files_below_lists_linked_folders_under_one_name(tmp_path):
    """Elsewhere by their link, inside by their own name; system folders not at all."""
    for name in ("here/z", "elsewhere/b", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.JPG").touch()
    root = tmp_path / "here"
    targets = {"a": "z", "b": "../elsewhere", "c": "b", "up": "..", "gone": "nowhere"}
    for name, target in (targets | {"self": "self", "p": "/proc", "s": "/sys/class"}).items():
        (root / name).symlink_to(target)
    assert files_below(root, [".jpg"]) == [root / "b/b/1.JPG", root / "z/1.JPG"]
    (tmp_path / "top").symlink_to("here")
    assert len(files_below(tmp_path / "top", [".jpg"])) == 2


def test_files_below_limits_the_number_of_files(tmp_path):
    for k in range(10):
        (tmp_path / str(k)).mkdir()
        (tmp_path / f"{k}/1.png").touch()
    assert len(files_below(tmp_path, limit=21)) == 10
    with pytest.raises(ValueError, match="more than 20 files"):
        files_below(tmp_path, limit=20)


def test_errors_that_quote_a_file_are_one_short_line():
    quoted = "a\n\u2028\x85" * 5000
    texts = [str(DataError(f"FILE: {quoted}")), unknown_key(f"data.{quoted}", quoted, ["root"])]
    with pytest.raises(ValueError, match="KEY") as caught:
        validate(dict[str, int], {quoted: quoted}, "KEY")
    for text in (*texts, str(caught.value)):
        assert len(text.splitlines()) == 1
        assert len(text) <= 4000


@pytest.mark.parametrize(
    "address",
    [
        "reference://x::http://host/refs",
        "ZIP://a::s3://b/c.zip",
        "ftp://host/x.png",
        "hf://a/b",
        "x",
    ],
)
def test_addresses_of_other_schemes_and_chains_are_refused(address):
    with pytest.raises(DataError, match=address):
        checked_address(address)


def test_addresses_have_their_scheme_in_any_capitals():
    assert checked_address("HTTPS://Host/A.png") == "https://Host/A.png"


SECRETS = {
    "https://TOKEN@host/x.png": "https://***@host/x.png",
    "https://me:wo:rd@host/x": "https://***@host/x",
    "s3://KEY:sec/ret@bucket/a": "s3://***@bucket/a",
    "http://host/x?sig=TOKEN&a=b: cannot be read": "http://host/x?***: cannot be read",
    "[http://host/x?X-Amz-Signature=TOKEN,https://TOKEN@b/c]": "[http://host/x?***",
    "http://host:8080/icon@2x.png": "http://host:8080/icon@2x.png",
    "me@host.org, http://host/a b?c=d": "me@host.org, http://host/a b?c=d",
}


@pytest.mark.parametrize("text", SECRETS)
def test_secrets_in_addresses_are_masked(text):
    masked = without_passwords(text)
    assert masked.startswith(SECRETS[text])
    assert "TOKEN" not in masked
    assert "sec/ret" not in masked
