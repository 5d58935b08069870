"""Files that hold more than one picture or map: nothing of them is dropped in silence."""

import cv2
import h5py
import numpy as np
import OpenEXR
import pytest
import scipy.io
import tifffile
from PIL import Image, PngImagePlugin

from dpt.data import DataError
from dpt.data.formats import io, pictures
from dpt.data.formats.bands import FilePart
from dpt.data.formats.rules import TRANSPARENT, LabelRule
from dpt.predict.inputs import as_rgb

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 4, (10, 12)).astype(np.uint8)
RGB = RNG.integers(0, 256, (10, 12, 3), dtype=np.uint8)
CLEAR = np.zeros(IDS.shape, bool)
CLEAR[:3] = True
COLORS = [[0, 0, 0], [200, 200, 200]]
LOSSLESS = {"lossless": True, "exact": True}  # for WebP


def with_alpha(pixels: np.ndarray, alpha: np.ndarray) -> Image.Image:
    return Image.fromarray(np.dstack([pixels, alpha.astype(np.uint8)]))


def palette(ids: np.ndarray) -> Image.Image:
    picture = Image.fromarray(ids).convert("P")
    picture.putdata(ids.ravel().tolist())
    return picture


# --------------------------------------------------------------------------- pages and frames


def pages(path, first, second):
    if path.suffix == ".tif":
        tifffile.imwrite(path, np.stack([first, second]), photometric="minisblack")
    else:
        frames = [palette(ids) for ids in (first, second)]
        frames[0].save(path, save_all=True, append_images=frames[1:], **LOSSLESS)
    return path


READERS = (io.read_labels, io.read_objects, io.label_values, io.read_raw_depth)


@pytest.mark.parametrize("suffix", [".tif", ".gif", ".png", ".webp"])
def test_several_pages_are_refused(tmp_path, suffix):
    path = pages(tmp_path / f"a{suffix}", IDS, 3 - IDS)
    for read in (*READERS, io.read_image):
        with pytest.raises(DataError, match=rf"a\{suffix}: holds 2 pages"):
            read(path)


@pytest.mark.parametrize(("bigtiff", "byteorder"), [(False, "<"), (False, ">"), (True, "<")])
def test_smaller_copies_in_any_tiff_do_not_count(tmp_path, bigtiff, byteorder):
    with tifffile.TiffWriter(tmp_path / "a.tif", bigtiff=bigtiff, byteorder=byteorder) as file:
        file.write(IDS, metadata=None)
        file.write(IDS[::2, ::2], subfiletype=1, metadata=None)
    assert np.array_equal(io.read_labels(tmp_path / "a.tif"), IDS)


# --------------------------------------------------------------------------------------- alpha


@pytest.mark.parametrize(
    ("mode", "suffix"),
    [("LA", ".png"), ("LA", ".tif"), ("RGBA", ".png"), ("RGBA", ".tif"), ("RGBA", ".webp")],
)
def test_transparent_pixels_of_masks_are_unlabelled(tmp_path, mode, suffix):
    ids, path = np.minimum(IDS, 1), tmp_path / f"a{suffix}"
    pixels, colors = (ids, ()) if mode == "LA" else (np.dstack([ids * 200] * 3), COLORS)
    with_alpha(pixels, ~CLEAR * 255).save(path, **LOSSLESS)
    labels = io.read_labels(path, colors=colors)
    assert np.array_equal(labels, np.where(CLEAR, TRANSPARENT, ids.astype(int)))
    assert sum(io.label_values(path).values()) == (~CLEAR).sum()
    assert (io.read_objects(path)[CLEAR] == 0).all()
    for rule in (LabelRule(num_classes=3), LabelRule(label_map=[0, 1, 2])):
        assert np.array_equal(rule(labels, source=""), np.where(CLEAR, 255, ids))


@pytest.mark.parametrize(
    ("picture", "clear"),
    [
        (Image.fromarray(IDS), 3),
        (Image.fromarray(np.dstack([IDS] * 3)), (3, 3, 3)),
        (Image.fromarray(IDS == 3), 1),
        (palette(IDS), 3),
    ],
    ids=["grey", "RGB", "bit", "palette"],
)
def test_transparent_value_of_a_png_is_unlabelled(tmp_path, picture, clear):
    picture.save(tmp_path / "a.png", transparency=clear)
    labels = io.read_labels(tmp_path / "a.png", colors=[[k, k, k] for k in range(4)])
    assert np.array_equal(labels == TRANSPARENT, IDS == 3)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_transparent_pixels_of_depth_are_0(tmp_path, suffix):
    with_alpha(IDS, ~CLEAR * 255).save(tmp_path / f"a{suffix}")
    assert np.array_equal(io.read_raw_depth(tmp_path / f"a{suffix}"), np.where(CLEAR, 0, IDS))


@pytest.mark.parametrize("alpha", [IDS, np.zeros_like(IDS), IDS + 1])
def test_ids_in_the_alpha_are_refused(tmp_path, alpha):
    with_alpha(RGB, alpha).save(tmp_path / "a.png")
    np.save(tmp_path / "a.npy", np.dstack([RGB, alpha]))
    for name in ("a.png", "a.npy"):
        with pytest.raises(DataError, match=rf"{name}: its alpha is "):
            io.read_objects(tmp_path / name)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".webp"])
def test_transparent_pixels_of_images_are_white(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    with_alpha(RGB, np.where(CLEAR, 0, 255)).save(path, **LOSSLESS)
    wanted = np.where(CLEAR[..., None], 255, RGB)
    assert np.array_equal(io.read_image(path), wanted)
    assert np.array_equal(as_rgb(Image.open(path)), wanted)
    palette(IDS).save(tmp_path / "p.png", transparency=1)
    assert (io.read_image(tmp_path / "p.png")[IDS == 1] == 255).all()
    assert (as_rgb(Image.open(tmp_path / "p.png"))[IDS == 1] == 255).all()


# ------------------------------------------------------------------------------- bands and bits


@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("count", [2, 4, 5, 12])
@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_bands_are_named_and_chosen(tmp_path, count, planes, dtype):
    bands = RNG.integers(0, 200, (10, 12, count)).astype(dtype)
    stored = bands if planes == "contig" else np.moveaxis(bands, -1, 0)
    path = tmp_path / "a.tif"
    layout = {"photometric": "minisblack", "planarconfig": planes}
    tifffile.imwrite(path, stored, compression="zlib", **layout)
    for read in (io.read_image, io.read_labels, io.read_raw_depth):
        with pytest.raises(DataError, match=rf"a\.tif: holds {count} bands.*data\.bands"):
            read(path)
    image_max = 255.0 if dtype == np.int16 else None
    part = FilePart(bands=[1, 0, 1], image_max=image_max)
    assert np.array_equal(io.read_image(path, part=part), bands[..., [1, 0, 1]])
    part = FilePart(bands=[1], image_max=image_max)
    assert np.array_equal(io.read_image(path, part=part), bands[..., [1, 1, 1]])
    with pytest.raises(DataError, match=rf"a\.tif: holds {count} bands"):
        io.read_image(path, part=FilePart(bands=[0, 1, count]))


@pytest.mark.parametrize(
    ("dtype", "layout"),
    [
        (np.uint8, {"extrasamples": ["unspecified"]}),
        (np.int8, {"extrasamples": ["unassalpha"]}),
        (np.float32, {"extrasamples": ["unassalpha"]}),
        (np.uint16, {"planarconfig": "separate"}),
        (np.float32, {"planarconfig": "separate"}),
    ],
    ids=str,
)
def test_bands_that_opencv_would_misread(tmp_path, dtype, layout):
    bands = RNG.integers(0, 100, (10, 12, 4 if "extrasamples" in layout else 3)).astype(dtype)
    stored = np.moveaxis(bands, 2, 0) if "planarconfig" in layout else bands
    tifffile.imwrite(tmp_path / "a.tif", stored, photometric="rgb", **layout)
    with pytest.raises(DataError, match=r"a\.tif: holds . bands.*data\.bands"):
        io.read_image(tmp_path / "a.tif", part=FilePart(image_max=255.0))
    image = io.read_image(tmp_path / "a.tif", part=FilePart(bands=[0, 1, 2], image_max=255.0))
    assert np.array_equal(image, bands[..., :3])


@pytest.mark.parametrize("suffix", [".png", ".tif", ".bmp"])
def test_bit_is_0_or_1_in_maps_and_white_in_images(tmp_path, suffix):
    Image.fromarray(CLEAR).save(tmp_path / f"a{suffix}")
    for read in (io.read_labels, io.read_objects, io.read_raw_depth):
        assert np.array_equal(read(tmp_path / f"a{suffix}"), CLEAR)
    assert np.array_equal(io.read_image(tmp_path / f"a{suffix}"), np.dstack([CLEAR * 255] * 3))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
@pytest.mark.parametrize("bits", [10, 12, 14])
def test_fewer_than_16_bits_in_16(tmp_path, suffix, bits):
    photo = RNG.integers(0, 2**bits, (10, 12, 3)).astype(np.uint16)
    path = tmp_path / f"a{suffix}"
    cv2.imwrite(str(path), photo[..., ::-1])
    with pytest.raises(DataError, match=rf"a\{suffix}: .* {bits} bits.*data\.image_max"):
        io.read_image(path)
    image = io.read_image(path, part=FilePart(image_max=2**bits - 1))
    assert np.array_equal(image, np.rint(photo / (2**bits - 1) * 255))
    assert image.max() > 240
    assert io.read_image(path, part=FilePart(image_max=65535)).max() <= 2**bits / 256


def test_mask_in_a_tiff_hides_pixels(tmp_path):
    """As GDAL stores the alpha of cloud-optimized JPEG files."""
    depth, path = IDS + np.float32(1.5), tmp_path / "a.tif"
    for pixels, read, hidden in (
        (RGB, io.read_image, 255),
        (IDS, io.read_labels, TRANSPARENT),
        (IDS, io.read_objects, 0),
        (depth, io.read_raw_depth, 0),
    ):
        with tifffile.TiffWriter(path) as file:
            file.write(pixels, metadata=None)
            file.write(~CLEAR, subfiletype=4, photometric="mask", metadata=None)
            file.write(pixels[::2, ::2], subfiletype=1, metadata=None)
            file.write(~CLEAR[::2, ::2], subfiletype=5, photometric="mask", metadata=None)
        shown = read(path)
        assert (shown[CLEAR] == hidden).all()
        assert np.array_equal(shown[~CLEAR], pixels[~CLEAR])


def test_damage_inside_a_tiff_of_8_bits(tmp_path):
    ids = np.random.default_rng(0).integers(0, 4, (64, 80), dtype=np.uint8)
    path = tmp_path / "a.tif"
    for pixels in (ids, np.dstack([ids * 80] * 3)):
        tifffile.imwrite(path, pixels, compression="zlib")
        data = bytearray(path.read_bytes())
        start = 7 * len(data) // 10
        data[start : start + 40] = bytes(range(200, 240))
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.tif: "):
            io.read_image(path)


# -------------------------------------------------------------------------------- lossy masks


@pytest.mark.parametrize("kind", ["tif", "jpg", "webp", "webp with alpha"])
def test_lossy_masks_are_refused(tmp_path, kind):
    path = tmp_path / f"a.{kind[:4].strip()}"
    picture = with_alpha(RGB, ~CLEAR * 255) if "alpha" in kind else Image.fromarray(RGB)
    picture.save(path, **{"compression": "jpeg"} if kind == "tif" else {})
    (tmp_path / "named.png").write_bytes(path.read_bytes())
    for target in (path, tmp_path / "named.png"):
        for read in (io.read_labels, io.read_objects):
            with pytest.raises(DataError, match=rf"{target.name}: .*compression changes class ids"):
                read(target)
    tifffile.imwrite(tmp_path / "a.tif", IDS, compression="zlib")
    assert np.array_equal(io.read_labels(tmp_path / "a.tif"), IDS)


# -------------------------------------------------------------------------------------- arrays


def arrays(path, **values):
    if path.suffix == ".npz":
        np.savez(path, **values)
    elif path.suffix == ".mat":
        scipy.io.savemat(path, values)
    else:
        with h5py.File(path, "w") as file:
            file.update(values)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".mat", ".h5"])
def test_arrays_are_named_and_chosen(tmp_path, suffix):
    numbers = {"fps": np.array(25.0), "list": np.arange(9.0)}  # are no maps
    for mask in (IDS, IDS[None], IDS[..., None], CLEAR):
        path = arrays(tmp_path / f"a{suffix}", mask=mask, **numbers)
        assert np.array_equal(io.read_labels(path), mask.squeeze())
    path = arrays(tmp_path / f"b{suffix}", first=IDS, second=3 - IDS, **numbers)
    for read in READERS:
        with pytest.raises(DataError, match=r"b\.\w+: .*first, second.*data\.array_key"):
            read(path)
    for read in (io.read_labels, io.read_objects):
        assert np.array_equal(read(path, part=FilePart(key="second")), 3 - IDS)
        with pytest.raises(DataError, match=rf"b\{suffix}: holds no third, but first, second"):
            read(path, part=FilePart(key="third"))


def test_parts_of_an_exr(tmp_path):
    depth = RNG.uniform(1, 9, (10, 12)).astype(np.float32)
    header = {"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}
    parts = [OpenEXR.Part({**header}, {"Z": depth + k}, f"part{k}") for k in range(2)]
    OpenEXR.File(parts).write(str(tmp_path / "a.exr"))
    with pytest.raises(DataError, match=r"a\.exr: holds several .*part0\.Z, part1\.Z"):
        io.read_raw_depth(tmp_path / "a.exr")
    assert np.array_equal(io.read_raw_depth(tmp_path / "a.exr", key="part1.Z"), depth + 1)


# ------------------------------------------------------------------------------- other formats


@pytest.mark.parametrize("largest", [255, 65535])
def test_pgm_of_8_and_16_bits(tmp_path, largest):
    path, header = tmp_path / "a.pgm", "P5 # made\n12 10\n# by hand\n"
    pixels = IDS.astype(">u2" if largest > 255 else np.uint8).tobytes()
    path.write_bytes(f"{header}{largest}\n".encode() + pixels)
    for read in (io.read_labels, io.read_raw_depth, io.read_objects):
        assert np.array_equal(read(path), IDS)
    assert pictures.read_size(path) == IDS.shape
    # libraries would scale values, or leave out a picture; and a text
    contents = (f"{header}3\n".encode() + pixels, 2 * path.read_bytes(), b"P2 2 1 255 3 4\n")
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.pgm: "):
            io.read_labels(path)


def test_logarithmic_depth_is_refused(tmp_path):
    texts = PngImagePlugin.PngInfo()
    texts.add_text("near", "0.5")
    Image.fromarray(np.zeros((4, 5), np.uint16)).save(tmp_path / "a.png", pnginfo=texts)
    with pytest.raises(DataError, match=r"a\.png: .*logarithms"):
        io.read_raw_depth(tmp_path / "a.png")
