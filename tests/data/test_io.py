import io as bytes_io
import struct

import cv2
import numpy as np
import pytest
from made_png import png
from PIL import Image, ImageOps

from dpt import files as tables
from dpt.data.formats import io, pictures
from dpt.files import DataError

RNG = np.random.default_rng(0)
NOISE = RNG.integers(0, 256, (24, 32, 3), dtype=np.uint8)


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


# ------------------------------------------------------------------------------------- images


def test_image_is_rgb_in_file_order(tmp_path):
    path = save(tmp_path / "a.png", NOISE)
    path.write_bytes(path.read_bytes() + b"\0\0padding")  # which does no harm
    assert np.array_equal(io.read_image(path), NOISE)
    grey = io.read_image(save(tmp_path / "grey.png", NOISE[..., 0]))
    assert np.array_equal(grey, np.repeat(NOISE[..., :1], 3, axis=2))
    cv2.imwrite(str(tmp_path / "16.png"), NOISE[..., ::-1].astype(np.uint16) * 256 + 77)
    assert np.array_equal(io.read_image(tmp_path / "16.png"), NOISE)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_of_a_tiff_only_on_request(tmp_path, orientation):
    depth, labels = NOISE[..., 0].astype(np.uint16), NOISE[..., 0] // 50
    for name, array in (("photo", NOISE), ("depth", depth), ("labels", labels)):
        save(tmp_path / f"{name}.tif", array, tiffinfo={274: orientation})
    path = tmp_path / "photo.tif"
    assert np.array_equal(io.read_image(path), NOISE)
    assert np.array_equal(io.read_image(path, exif=True), ImageOps.exif_transpose(Image.open(path)))
    assert np.array_equal(io.read_raw_depth(tmp_path / "depth.tif"), depth)
    assert np.array_equal(io.read_labels(tmp_path / "labels.tif"), labels)
    palette = Image.fromarray(labels).convert("P")
    palette.putdata(labels.ravel().tolist())
    palette.save(tmp_path / "palette.tif", tiffinfo={274: orientation})
    assert np.array_equal(io.read_labels(tmp_path / "palette.tif"), labels)


@pytest.mark.parametrize("suffix", io.IMAGE_SUFFIXES)
def test_size_is_told_by_the_header(tmp_path, suffix):
    path = tmp_path / f"photo{suffix}"
    kind = ".jpg" if suffix in io.JPEG_SUFFIXES else suffix
    path.write_bytes(cv2.imencode(kind, np.zeros((30, 50, 3), np.uint8))[1].tobytes())
    assert pictures.read_size(path) == io.read_image(path).shape[:2] == (30, 50)


@pytest.mark.parametrize("content", [b"", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
@pytest.mark.parametrize("read", [pictures.read_size, io.read_image])
def test_file_without_a_picture(tmp_path, content, read):
    (tmp_path / "photo.png").write_bytes(content)
    with pytest.raises(DataError, match=r"photo\.png: "):
        read(tmp_path / "photo.png")


@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.99])
@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_truncated_file(tmp_path, suffix, fraction):
    path = save(tmp_path / f"a{suffix}", NOISE)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    with pytest.raises(DataError, match=rf"a\{suffix}: cannot be read as a picture"):
        io.read_image(path)


def test_truncated_jpeg_with_a_whole_thumbnail(tmp_path):
    thumbnail = bytes_io.BytesIO()
    Image.fromarray(NOISE[:8, :8]).save(thumbnail, "JPEG")
    data = save(tmp_path / "a.jpg", NOISE).read_bytes()
    app1 = b"\xff\xe1" + struct.pack(">H", len(thumbnail.getvalue()) + 2) + thumbnail.getvalue()
    whole = data[:2] + app1 + data[2:]
    (tmp_path / "a.jpg").write_bytes(whole)
    assert io.read_image(tmp_path / "a.jpg").shape == NOISE.shape
    (tmp_path / "a.jpg").write_bytes(whole[:-100])
    with pytest.raises(DataError, match="cannot be read as a picture"):
        io.read_image(tmp_path / "a.jpg")


# -------------------------------------------------------------------------------------- depth


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("values", "options", "expected"),
    [
        (
            [499, 500, 10000, 10001],
            {"scale": 0.001, "min_depth": 0.5, "max_depth": 10},
            [0, 0.5, 10, 0],
        ),
        ([-1.0, 2.0, 4.0, NAN, INF, 0.0], {"scale": 2.0, "invalid": [4]}, [0, 4, 0, 0, 0, 0]),
        ([655.35, 2.0], {"invalid": [655.35]}, [0, 2]),
        ([256, 512], {"scale": 1 / 256}, [1, 2]),
        ([256, 512], {"scale": 0.003}, [0.768, 1.536]),
    ],
    ids=["limits are inclusive", "invalid is unscaled", "invalid is rounded", "divisor", "factor"],
)
def test_depth_and_its_validity(tmp_path, values, options, expected):
    np.save(tmp_path / "d.npy", np.array([values], np.float32))
    depth, valid = io.read_depth(tmp_path / "d.npy", **options)
    assert np.allclose(depth, [expected], rtol=1e-6)
    assert valid.tolist() == [[value > 0 for value in expected]]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("header", ["Pf\n3 2\n{}\n", "Pf \n3  2 \n{} \n", "Pf\r\n3\n2\r\n{}\r\n"])
def test_pfm_header_byte_order_and_rows(tmp_path, order, header):
    values = np.array([[1, 2, 3], [4, 5, np.inf]], f"{order}f4")
    text = header.format("-1.0" if order == "<" else "1.0").encode()
    (tmp_path / "d.pfm").write_bytes(text + values[::-1].tobytes())
    depth, valid = io.read_depth(tmp_path / "d.pfm")
    assert depth.tolist() == [[1, 2, 3], [4, 5, 0]]
    assert not valid[1, 2]


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_png_of_few_bits(tmp_path, bits):
    """Of a palette its indices are the ids, and grey values are not stretched."""
    ids = RNG.integers(0, 2**bits, (5, 6)).astype(np.uint8)
    mask = Image.fromarray(ids).convert("P")
    mask.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
    mask.save(tmp_path / "m.png", bits=bits)
    assert np.array_equal(io.read_labels(tmp_path / "m.png"), ids)
    rows = np.unpackbits(ids[..., None], axis=2)[..., 8 - bits :].reshape(len(ids), -1)
    (tmp_path / "m.png").write_bytes(png(6, 5, np.packbits(rows, axis=1), bits=bits, color_type=0))
    assert np.array_equal(io.read_labels(tmp_path / "m.png"), ids)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif"])
@pytest.mark.parametrize("mode", ["L", "P"])
def test_ids_of_other_pictures(tmp_path, mode, suffix):
    ids = RNG.integers(0, 9, (5, 6)).astype(np.uint8)
    mask = Image.fromarray(ids)
    if mode == "P":
        mask.putpalette(RNG.integers(0, 256, 768).astype(np.uint8).tobytes())
    mask.save(tmp_path / f"m{suffix}")
    assert np.array_equal(io.read_labels(tmp_path / f"m{suffix}"), ids)


def test_colour_table(tmp_path):
    colors = [[128, 0, 0], [0, 0, 0], [0, 128, 5]]
    ids = RNG.integers(0, 3, (5, 6))
    path = save(tmp_path / "m.png", np.array(colors, np.uint8)[ids])
    assert np.array_equal(io.read_labels(path, colors=colors), ids)
    with pytest.raises(DataError, match=r"m\.png.*RGB picture.*data\.label_colors"):
        io.read_labels(path)
    with pytest.raises(DataError, match=r"m\.png: colour \[0, 128, 5\].*data\.label_colors"):
        io.read_labels(path, colors=colors[:2])
    with pytest.raises(DataError, match=r"data\.label_colors has a colour twice"):
        io.read_labels(path, colors=[*colors, colors[1]])


@pytest.mark.parametrize("values", [np.ones((3, 4), np.float32), np.ones((3, 4, 3), np.uint16)])
def test_label_files_without_ids(tmp_path, values):
    np.save(tmp_path / "m.npy", values)
    with pytest.raises(DataError, match=rf"m\.npy: found {values.dtype}"):
        io.read_labels(tmp_path / "m.npy")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            'image,value\r\n"a\nb.png",1\r\nc\u2028d.png,2\r\n',
            [["a\nb.png", "1"], ["c\u2028d.png", "2"]],
        ),
        (
            'value,image,,\n\n,a.png\n"say ""hi"" ","b, c.png",,,\n',
            [["a.png", ""], ["b, c.png", 'say "hi"']],
        ),
        ("image,value\na.png\n", [["a.png", ""]]),
    ],
)
def test_cells_of_a_table(tmp_path, content, expected):
    (tmp_path / "a.csv").write_bytes(content.encode())
    rows = tables.read_table(tmp_path / "a.csv", ["image", "value"], remedy="")
    assert [texts for _, texts in rows] == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('image,value\n"a.png,1\nb.png,2\nc.png,3\n', "cannot be read as a table"),
        ('image,value\n"a.png,1\nb.png,2\nc.png",3\n', "line 4: .*quotes"),
        ("image,value, image\na.png,1,b.png\n", "several columns image"),
        ("image,value\na.png,1,5\n", "line 2: 3 cells for 2 columns"),
        ("name,value\na.png,1\n", "no column image"),
    ],
)
def test_table_that_would_lose_rows_or_cells_is_refused(tmp_path, text, says):
    (tmp_path / "a.csv").write_bytes(text.encode())
    with pytest.raises(DataError, match=rf"a\.csv: {says}"):
        list(tables.read_table(tmp_path / "a.csv", ["image", "value"], remedy=""))


@pytest.mark.parametrize("text", ["1_0", "\u0661\u0662", "", "1,5"])
def test_only_plain_numbers_are_numbers(text):
    with pytest.raises(ValueError, match=r".+"):
        tables.parse_number(text)
    assert tables.parse_number("-1.5e3") == -1500
