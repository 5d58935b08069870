"""Which files are predicted, and under what names."""

import pytest
from photos import save_photo

from dpt.predict.sources import find_inputs


def names(*inputs, out="out"):
    files = find_inputs(inputs, out=out)
    assert all(file.path.is_absolute() for file in files)
    assert all(".." not in file.name and not file.name.startswith("/") for file in files)
    return [file.name for file in files]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The working folder, with photos, a video and files that are left out."""
    for name in ("a/1.png", "a/2.jpg", "a/deep/1.png", "b/1.png", "a/.hidden.png", "a/.h/1.png"):
        save_photo(tmp_path / "in" / name)
    (tmp_path / "in/a/notes.txt").write_text("no picture")
    (tmp_path / "in/a/clip.mp4").write_bytes(b"?")
    monkeypatch.chdir(tmp_path / "in")
    return tmp_path / "in"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["a"], ["1", "2", "clip", "deep/1"]),
        (["a/1.png", "b/1.png"], ["a/1", "b/1"]),
        (["b", "a/deep"], ["b/1", "a/deep/1"]),
        (["a/deep/1.png"], ["1"]),
        (["b", "b/1.png", "a/../b/1.png"], ["1"]),
        (["b/../b/1.png", "../in/a/deep"], ["b/1", "a/deep/1"]),
        (["b", "a/clip.mp4", "b/1.png"], ["1", "clip"]),
        (["a/*.jpg", "a/d*"], ["2", "1"]),
        (["?/1.png"], ["a/1", "b/1"]),
    ],
)
@pytest.mark.usefixtures("root")
def test_find_inputs_names_files_by_their_folders(inputs, expected):
    assert names(*inputs) == expected


def test_find_inputs_tells_what_it_leaves_out(root, caplog):
    for name in ("x.exr", "y.HDR", "z.psd", "z.heic", "w.heic", "v.svg", "r.raw", "p.pdf"):
        (root / "b" / name).write_bytes(b"?")
    save_photo(root / "b/[1].png")
    assert names("b/[1].png") == ["[1]"]  # a name, not a pattern
    assert names("b") == ["1", "[1]"]
    for text in ("1 .exr", "1 .hdr", "1 .psd", "2 .heic", "1 .svg", "1 .raw", "1 .pdf"):
        assert text in caplog.text
    with pytest.raises(ValueError, match=r"b/\*\.gif does not exist"):
        names("b/*.gif")


def test_find_inputs_keeps_suffixes_that_tell_files_apart(root):
    save_photo(root / "b/1.jpg")
    save_photo(root / "b/3.jpg")
    assert names("b") == ["1.jpg", "1.png", "3"]
    save_photo(root / "b/1.jpg.bmp")
    with pytest.raises(ValueError, match=r"output name, 1\.jpg"):
        names("b")


def test_find_inputs_leaves_out_what_was_written(root):
    for name in ("b/out/depth/1.png", "b/old/depth_color/1.png", "depth/3.png"):
        save_photo(root / name)
    for folder in (root, root / "b/old"):
        (folder / "predictions.json").write_text('{"written": ["depth", "depth_color"]}')
    assert names("b", out="b/out") == ["1"]
    with pytest.raises(ValueError, match="choose another --out"):
        names("b", out="b")
    assert names(".", out="b/out") == ["a/1", "a/2", "a/clip", "a/deep/1", "b/1"]
    assert names("b/old/depth_color") == ["1"]  # asked for
    with pytest.raises(ValueError, match=r"b/old: no image or video"):
        names("b/old")
    for text in ("[1]", '{"classes": 1.5, "written": ["depth_color"]}'):  # of another program
        (root / "b/old/predictions.json").write_text(text)
        assert names("b", out="b/out") == ["1", "old/depth_color/1"]


def test_find_inputs_follows_links_to_files_alone(root, tmp_path):
    outside = save_photo(tmp_path / "outside/secret.png")
    (root / "b/link.png").symlink_to(outside)  # the name is the link's
    (root / "b/folder").symlink_to(outside.parent)
    assert names("b") == ["1", "link"]
