"""The content of the files that hold predictions: pictures with legends, PNG, NPY, JSON, points.

Functions that encode take the output's name and :class:`Predicted`, and return the file's bytes.
:func:`encode_depth` makes 16-bit PNGs of depth. Point clouds (PLY) and textured surfaces (GLB) have
glTF's axes: x to the right, y up, and the camera looks along -z from the origin.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import PIL.Image

from dpt import viz
from dpt.data.formats.rle import encode_pixels
from dpt.files import require
from dpt.geometry import depth_edges, unproject
from dpt.predict.prediction import Prediction
from dpt.segments import OBJECT_IDS
from dpt.validation import Plain

PIXELS_AT_ONCE = 2**20  # larger images are painted in bands of rows of this many pixels
MILLIMETRE = 0.001
KITTI_SCALE = 1 / 256
LARGEST = 65535
_LEVELS = 10_000  # fewest values of metres up to the largest depth of a model
MAX_POINTS = 2**20
"""Of a file. Of larger images every second pixel becomes a point, or every third, and so on."""
TEXTURE_WIDTH = 4096  # largest, in pixels; graphics cards refuse larger ones


@dataclass(frozen=True)
class Style:
    """The colormap of depth, and the limits of the colours by output; without limits those of each
    image, see :func:`dpt.viz.color_limits`."""

    colormap: str = "inferno"
    limits: Mapping[str, viz.Limits] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.colormap not in viz.COLORMAPS:
            raise ValueError(f"colormap {self.colormap}: choose from {', '.join(viz.COLORMAPS)}")


class Predicted(NamedTuple):
    """What the files of an image are made of."""

    prediction: Prediction
    image: np.ndarray | None = None  # uint8 (H, W, 3), given if a file needs it
    style: Style = Style()

    def limits(self, name: str) -> viz.Limits:
        """Returns the limits of an output's colours."""
        if name in self.style.limits:
            return self.style.limits[name]
        return viz.color_limits(self.prediction.arrays[name], self.prediction.outputs[name])


def encode_array(name: str, predicted: Predicted) -> bytes:
    """Returns an NPY file of the values as they are."""
    file = io.BytesIO()
    np.save(file, predicted.prediction.arrays[name], allow_pickle=False)
    return file.getvalue()


def exr_library() -> Any:
    """Returns the library that writes OpenEXR; ValueError if it is not installed."""
    return require("OpenEXR", "--format exr", extra="exr")


def encode_exr(name: str, predicted: Predicted, *, dtype: type[np.floating]) -> bytes:
    """Returns an OpenEXR file of a map as it is, of 32 or 16 bits: depth in the channel ``Z``,
    normals in ``N.X``, ``N.Y`` and ``N.Z``, others in channels with the output's name and a number.
    """
    library = exr_library()
    values = predicted.prediction.arrays[name].astype(dtype)
    planes = [values] if values.ndim == 2 else [*np.moveaxis(values, 2, 0)]
    names = [f"{name}.{number}" for number in range(len(planes))]
    if predicted.prediction.outputs[name].kind == "depth":
        names = ["Z"]
    elif name == "normals":
        names = ["N.X", "N.Y", "N.Z"]
    header = {"compression": library.ZIP_COMPRESSION, "type": library.scanlineimage}
    channels = {key: np.ascontiguousarray(plane) for key, plane in zip(names, planes, strict=True)}
    with TemporaryDirectory() as folder:  # the library writes to paths alone
        path = Path(folder) / "map.exr"
        with library.File(header, channels) as file:
            file.write(str(path))
        return path.read_bytes()


def encode_depth(name: str, predicted: Predicted) -> bytes:
    """Returns a 16-bit PNG of depth, see :func:`depth_to_uint16`."""
    return viz.encode_png(depth_to_uint16(name, predicted.prediction))


def depth_coding(name: str, prediction: Prediction) -> tuple[float, float]:
    """Returns (scale, offset) of a 16-bit PNG: depth = value × scale + offset.

    Metres have one scale for all images: millimetres if the model's depth is at most 65.5 m, a
    finer one below 10 m, 1/256 m (KITTI's) if it is larger or unbounded, a coarser one beyond 256
    m. Relative inverse depth is stretched from the smallest to the largest value, depth up to scale
    from 0 to the largest.
    """
    depth, spec = prediction.arrays[name], prediction.outputs[name]
    if spec.depth_kind == "metric":
        largest = spec.value_range[1] if spec.value_range else LARGEST * KITTI_SCALE
        if largest <= LARGEST * MILLIMETRE:
            return min(MILLIMETRE, largest / _LEVELS), 0.0
        return max(KITTI_SCALE, largest / LARGEST), 0.0
    finite = depth[np.isfinite(depth)]
    if not finite.size:
        return 1.0, 0.0
    low, high = float(finite.min()) if spec.is_inverse_depth else 0.0, float(finite.max())
    return (high - low) / LARGEST or 1.0, low


def depth_to_uint16(name: str, prediction: Prediction) -> np.ndarray:
    """Returns depth as uint16 (H, W), coded as :func:`depth_coding` says.

    Values that are not finite are 0, and so are metres that do not fit into 16 bits: clipped, they
    would be wrong depths. Depth that would be rounded to 0 is 1.
    """
    scale, offset = depth_coding(name, prediction)
    with np.errstate(invalid="ignore"):
        value = np.rint((prediction.arrays[name] - np.float32(offset)) / np.float32(scale))
        if prediction.outputs[name].depth_kind != "metric":  # the largest may be rounded up
            np.minimum(value, LARGEST, out=value)
        if not prediction.outputs[name].is_inverse_depth:
            value[value == 0] = 1
        value[~((value >= 0) & (value <= LARGEST))] = 0  # NaN too
    return value.astype(np.uint16)


def encode_labels(name: str, predicted: Predicted) -> bytes:
    """Returns a PNG of class ids that shows their colours; 16-bit without colours above 256
    classes."""
    labels = predicted.prediction.arrays[name]
    if labels.dtype != np.uint8:
        return viz.encode_png(labels)
    picture, spec = PIL.Image.fromarray(labels), predicted.prediction.outputs[name]
    picture.putpalette(viz.output_palette(spec).tobytes())  # mode L becomes mode P
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def encode_segments(name: str, predicted: Predicted) -> bytes:
    """Returns a PNG of the segments' numbers as in COCO's panoptic files, R + 256 G + 65536 B."""
    codes = predicted.prediction.arrays[name]
    ids = np.where(codes < 0, 0, codes % OBJECT_IDS)
    channels = [ids % 256, ids // 256, np.zeros_like(ids)]
    return viz.encode_png(np.stack(channels, axis=2).astype(np.uint8))


def encode_objects(name: str, predicted: Predicted) -> bytes:
    """Returns a JSON list of the segments like COCO's results, with masks as RLE."""
    entries = []
    for segment in predicted.prediction.segments_of(name):
        rle = encode_pixels(segment.mask)
        entry = {
            "id": segment.id,
            "category_id": segment.class_id,
            "category": segment.class_name,
            "isthing": segment.is_thing,
            "score": round(segment.score, 6),
            "bbox": segment.box,
            "area": int(segment.mask.sum()),
            "segmentation": {**rle, "counts": rle["counts"].decode()},
        }
        entries.append(entry)
    return json.dumps(entries).encode()


def paint(name: str, predicted: Predicted) -> np.ndarray:
    """Returns the picture of a dense output, uint8 (H, W, 3): classes and segments over the image,
    other outputs as :func:`dpt.viz.colorize_output` draws them."""
    values, spec = predicted.prediction.arrays[name], predicted.prediction.outputs[name]
    limits, image = predicted.limits(name), predicted.image
    count = max(1, PIXELS_AT_ONCE // values.shape[1])
    bands = []
    for start in range(0, len(values), count):
        rows = slice(start, start + count)
        maps = values[rows].transpose(2, 0, 1) if values.ndim == 3 else values[rows]
        colormap = predicted.style.colormap
        picture = viz.colorize_output(maps, spec, limits=limits, colormap=colormap)
        if spec.kind in ("logits", "masks"):
            assert image is not None
            picture = viz.overlay(image[rows], picture)
        bands.append(picture)
    return np.concatenate(bands)


def paint_legend(name: str, predicted: Predicted, *, width: int) -> np.ndarray:
    """Returns the legend of an output's picture, see :func:`dpt.viz.legend`."""
    values, spec = predicted.prediction.arrays[name], predicted.prediction.outputs[name]
    limits, colormap = predicted.limits(name), predicted.style.colormap
    return viz.legend(values, spec, width=width, limits=limits, colormap=colormap)


def paint_with_legend(name: str, predicted: Predicted) -> np.ndarray:
    """Returns the picture of a dense output above its legend: uint8 (H + h, max(W, 240), 3)."""
    style = replace(predicted.style, limits={name: predicted.limits(name)})
    predicted = predicted._replace(style=style)
    picture = paint(name, predicted)
    return viz.stack([picture, paint_legend(name, predicted, width=picture.shape[1])])


def encode_picture(name: str, predicted: Predicted) -> bytes:
    """Returns a PNG of :func:`paint_with_legend`'s picture."""
    return viz.encode_png(paint_with_legend(name, predicted))


# --- points ---------------------------------------------------------------------------------------


class PointGrid(NamedTuple):
    """The points of every ``stride``-th pixel of an image."""

    points: np.ndarray  # float32 (h, w, 3), with glTF's axes; NaN where invalid
    right: np.ndarray  # bool (h, w - 1), see dpt.geometry.depth_edges
    down: np.ndarray  # bool (h - 1, w)
    stride: int
    size: tuple[int, int]  # (H, W) of the image

    @property
    def is_valid(self) -> np.ndarray:
        """bool (h, w)."""
        return np.isfinite(self.points[..., 2])

    @property
    def is_beside_edge(self) -> np.ndarray:
        """bool (h, w), whether depth is discontinuous between a point and one of its neighbours."""
        right, down = np.pad(self.right, [(0, 0), (1, 1)]), np.pad(self.down, [(1, 1), (0, 0)])
        return right[:, 1:] | right[:, :-1] | down[1:] | down[:-1]

    def triangles(self) -> np.ndarray:
        """Returns the triangles of neighbouring points between which depth is continuous, (N, 3).

        They are flat indices of the points, counterclockwise as the camera sees them.
        """
        height, width = self.points.shape[:2]
        indices = np.arange(height * width).reshape(height, width)
        a, b = indices[:-1, :-1], indices[:-1, 1:]
        c, d = indices[1:, :-1], indices[1:, 1:]
        valid = self.is_valid
        has_diagonal = valid[:-1, 1:] & valid[1:, :-1]
        upper = valid[:-1, :-1] & has_diagonal & ~self.right[:-1] & ~self.down[:, :-1]
        lower = valid[1:, 1:] & has_diagonal & ~self.right[1:] & ~self.down[:, 1:]
        corners = [(upper, (a, c, b)), (lower, (b, c, d))]
        return np.concatenate(
            [np.stack([ids[used] for ids in triple], axis=1) for used, triple in corners]
        )


def point_grid(prediction: Prediction) -> PointGrid:
    """Returns at most ``MAX_POINTS`` points of a prediction; ValueError if it has none, see
    ``Prediction.points``."""
    camera = prediction.require_camera()
    depth = prediction.valid_depth()
    height, width = depth.shape
    stride = max(1, ceil(sqrt(depth.size / MAX_POINTS)))
    depth = depth[::stride, ::stride]
    K = np.diag([1 / stride, 1 / stride, 1]) @ camera.K
    valid = np.isfinite(depth)
    if not valid.any():
        raise ValueError("no pixel of the image has a valid depth, so that there are no points")
    right, down = depth_edges(depth, K, valid)
    points = unproject(depth, K) * np.array([1, -1, -1], np.float32)
    return PointGrid(points, right, down, stride, (height, width))


def encode_cloud(name: str, predicted: Predicted) -> bytes:
    """Returns a PLY file of the points beside which depth is continuous, in the image's colours."""
    import trimesh

    assert predicted.image is not None
    grid = point_grid(predicted.prediction)
    smooth = grid.is_valid & ~grid.is_beside_edge
    colors = predicted.image[:: grid.stride, :: grid.stride][smooth]
    content: bytes = trimesh.PointCloud(grid.points[smooth], colors=colors).export(file_type="ply")
    return content


def encode_surface(name: str, predicted: Predicted) -> bytes:
    """Returns a GLB file of the triangles of the points, with the image as texture."""
    assert predicted.image is not None
    mesh = surface(point_grid(predicted.prediction), predicted.image)
    content: bytes = mesh.export(file_type="glb", tree_postprocessor=_make_unlit)
    return content


def point_facts(prediction: Prediction) -> Plain:
    """Returns what a record says of the points; ValueError if there are none."""
    grid = point_grid(prediction)
    return {
        "stride": grid.stride,
        "invalid": int((~grid.is_valid).sum()),
        "beside_edges": int((grid.is_valid & grid.is_beside_edge).sum()),
    }


def surface(grid: PointGrid, image: np.ndarray) -> Any:
    """Returns the triangles of the points, with the image, of any size, as their texture."""
    import trimesh

    used, faces = np.unique(grid.triangles(), return_inverse=True)
    rows, columns = np.divmod(used, grid.points.shape[1])
    height, width = grid.size
    u = (columns * grid.stride + 0.5) / width
    v = 1 - (rows * grid.stride + 0.5) / height
    picture = PIL.Image.fromarray(viz.shrink(image, TEXTURE_WIDTH))
    picture.format = "JPEG"  # PNG would be many times larger
    material = trimesh.visual.material.PBRMaterial(
        baseColorTexture=picture, metallicFactor=0.0, roughnessFactor=1.0, doubleSided=True
    )
    return trimesh.Trimesh(
        vertices=grid.points.reshape(-1, 3)[used],
        faces=faces.reshape(-1, 3),
        visual=trimesh.visual.TextureVisuals(uv=np.stack([u, v], axis=1), material=material),
        process=False,
    )


def _make_unlit(tree: Plain) -> None:
    """Lets viewers show the colours of a glTF file without light, which they already hold."""
    tree["extensionsUsed"] = ["KHR_materials_unlit"]
    for material in tree["materials"]:
        material["extensions"] = {"KHR_materials_unlit": {}}
