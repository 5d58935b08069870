"""Which files are predicted, and under what names."""

import logging
import os

import numpy as np
import pytest
from photos import photo_of, save_photo
from PIL import Image

from dpt.data.formats.io import IMAGE_SUFFIXES
from dpt.data.formats.video import VIDEO_SUFFIXES
from dpt.predict.inputs import as_rgb, find_inputs


def names(inputs, out="out"):
    sources = find_inputs(inputs, out=out)
    assert all(s.path.is_absolute() for s in sources)
    assert all(".." not in s.name and not s.name.startswith("/") for s in sources)
    return [s.name for s in sources]


@pytest.fixture
def root(tmp_path):
    for name in ("a/1.png", "a/2.jpg", "a/deep/1.png", "b/1.png", "a/.hidden.png", "a/.h/1.png"):
        save_photo(tmp_path / "in" / name)
    (tmp_path / "in/a/notes.txt").write_text("no picture")
    (tmp_path / "in/a/clip.mp4").write_bytes(b"?")
    return tmp_path / "in"


def test_a_folder_keeps_its_sub_folders(root):
    assert names([root / "a"]) == ["1", "2", "clip", "deep/1"]


def test_inputs_of_one_name_stay_apart(root):
    assert names([root / "a/1.png", root / "b/1.png"]) == ["a/1", "b/1"]
    assert names([root / "b", root / "a/deep"]) == ["b/1", "a/deep/1"]


def test_one_file_has_its_own_name(root):
    assert names([root / "a/deep/1.png"]) == ["1"]


def test_an_input_more_changes_no_name(root):
    clip = (root / "a/clip.mp4").rename(root / "b/clip.mp4")
    alone = names([root / "a"])
    assert names([root / "a", clip, root / "a/deep/1.png"]) == [*alone, "clip"]


def test_files_that_differ_by_their_suffix_keep_it(root):
    save_photo(root / "b/1.jpg")
    save_photo(root / "b/3.jpg")
    assert names([root / "b"]) == ["1.jpg", "1.png", "3"]
    save_photo(root / "b/1.jpg.bmp")
    with pytest.raises(ValueError, match=r"output name, 1\.jpg"):
        names([root / "b"])


def test_nothing_twice(root):
    assert names([root / "b", root / "b/1.png", f"{root}/b/../b/1.png"]) == ["1"]


def test_what_was_written_is_no_input(root):
    save_photo(root / "b/out/depth/1.png")
    assert names([root / "b"], root / "b/out") == ["1"]
    with pytest.raises(ValueError, match="choose another --out"):
        names([root / "b"], root / "b")


def test_what_was_written_earlier_is_no_input(root):
    save_photo(root / "b/old/depth_color/1.png")
    save_photo(root / "depth/3.png")
    for folder in (root, root / "b/old"):
        (folder / "predictions.json").write_text('{"written": ["depth", "depth_color"]}')
    assert names([root / "b"]) == ["1"]
    assert names([root]) == ["a/1", "a/2", "a/clip", "a/deep/1", "b/1"]
    assert names([root / "b/old/depth_color"]) == ["1"]  # asked for
    with pytest.raises(ValueError, match=r"no image or video in .*, except what dpt predict"):
        names([root / "b/old"])
    (root / "b/old/predictions.json").write_text("[1]")  # of another program
    assert names([root / "b"]) == ["1", "old/depth_color/1"]


def test_photos_in_formats_that_are_not_read_are_counted(root, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("dpt"), "propagate", True)
    for name in ("a/1.HEIC", "a/deep/2.heic", "b/3.gif", "b/.4.gif"):
        (root / name).touch()
    assert names([root / "a", root / "b"]) == ["a/1", "a/2", "a/clip", "a/deep/1", "b/1"]
    (message,) = (r.getMessage() for r in caplog.records)
    assert message == (
        "left out, because such formats are not read: 1 .gif, 2 .heic: convert to JPEG or PNG"
    )
    names([root / "b/1.png"])
    assert len(caplog.records) == 1
    (root / "only").mkdir()
    (root / "only/1.avif").touch()
    with pytest.raises(ValueError, match=r"no image or video .*; left out, .*: 1 \.avif: convert"):
        names([root / "only"])


@pytest.mark.parametrize("suffix", [*IMAGE_SUFFIXES, *VIDEO_SUFFIXES])
def test_every_suffix_is_taken_in_capitals_too(tmp_path, suffix):
    for name in (f"a{suffix}", f"b{suffix.upper()}"):
        (tmp_path / name).touch()
    assert names([tmp_path]) == ["a", "b"]


@pytest.mark.parametrize("suffix", [".jfif", ".jpe", ".mpo", ".JFIF"])
def test_jpeg_under_its_other_names(tmp_path, suffix):
    path = save_photo(tmp_path / "a.jpg").rename(tmp_path / f"a{suffix}")
    assert as_rgb(path).shape == (40, 57, 3)


def test_a_photo_of_two_views(tmp_path):
    views = [Image.fromarray(photo_of(40, 57, seed=k)) for k in (0, 1)]
    views[0].save(tmp_path / "a.mpo", save_all=True, append_images=views[1:])
    assert np.abs(as_rgb(tmp_path / "a.mpo").astype(int) - np.asarray(views[0])).mean() < 10


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("p06.JPG", "p06.jpg", r"p06\.JPG differs in capitals"),
        ("Ä.jpg", "ä.jpg", r"Ä\.jpg differs in capitals"),
        ("a\u0308.jpg", "\u00e4.jpg", r"a\u0308\.jpg differs in the form of its letters"),
        ("\u00e4.jpg", "a\u0308.jpg", r"\u00e4\.jpg differs in the form of its letters"),
    ],
)
def test_a_name_that_looks_alike_is_explained(tmp_path, name, given, says):
    save_photo(tmp_path / name)
    with pytest.raises(ValueError, match=says):
        names([tmp_path / given])


def test_paths_lead_nowhere_else(root, tmp_path, monkeypatch):
    monkeypatch.chdir(root / "a")
    assert names(["../b/1.png", "../../in/a/deep"]) == ["b/1", "a/deep/1"]
    outside = save_photo(tmp_path / "outside/secret.png")
    (root / "b/link.png").symlink_to(outside)  # the name is the link's
    (root / "b/folder").symlink_to(outside.parent)  # linked folders are not entered
    assert names([root / "b"]) == ["1", "link"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["in/a/x.png"], r"x\.png does not exist; .* holds"),
        (["in/empty"], "no image or video in this folder"),
    ],
)
def test_nothing_there(root, tmp_path, monkeypatch, given, says):
    monkeypatch.chdir(tmp_path)
    os.mkdir("in/empty")
    with pytest.raises(ValueError, match=says):
        find_inputs(given, out="out")
