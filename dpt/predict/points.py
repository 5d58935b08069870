"""Files of the points that an image's depth shows: point clouds (PLY) and textured surfaces (GLB).

Both have glTF's axes: x to the right, y up, and the camera looks along -z from the origin.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import PIL.Image

from dpt.geometry import depth_edges, unproject
from dpt.predict.prediction import Prediction
from dpt.validation import Plain
from dpt.viz import shrink

if TYPE_CHECKING:
    import trimesh

MAX_POINTS = 2**20
"""Of a file. Of larger images every second pixel becomes a point, or every third, and so on."""
TEXTURE_WIDTH = 4096  # largest, in pixels; graphics cards refuse larger ones


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
        beside = np.zeros(self.points.shape[:2], bool)
        beside[:, 1:] |= self.right
        beside[:, :-1] |= self.right
        beside[1:] |= self.down
        beside[:-1] |= self.down
        return beside

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


def point_grid(prediction: Prediction, *, limit: int = MAX_POINTS) -> PointGrid:
    """Returns at most ``limit`` points of a prediction; ValueError if it has none, see
    ``Prediction.points``."""
    camera = prediction.require_camera()
    depth = prediction.valid_depth()
    height, width = depth.shape
    stride = max(1, ceil(sqrt(depth.size / limit)))
    depth = depth[::stride, ::stride]
    K = np.diag([1 / stride, 1 / stride, 1]) @ camera.K
    valid = np.isfinite(depth)
    if not valid.any():
        raise ValueError("no pixel of the image has a valid depth, so that there are no points")
    right, down = depth_edges(depth, K, valid)
    points = unproject(depth, K) * np.array([1, -1, -1], np.float32)
    return PointGrid(points, right, down, stride, (height, width))


def point_cloud(grid: PointGrid, image: np.ndarray) -> trimesh.PointCloud:
    """Returns the points beside which depth is continuous, in the colours of the image."""
    import trimesh

    smooth = grid.is_valid & ~grid.is_beside_edge
    colors = image[:: grid.stride, :: grid.stride][smooth]
    return trimesh.PointCloud(grid.points[smooth], colors=colors)


def surface(grid: PointGrid, image: np.ndarray) -> trimesh.Trimesh:
    """Returns the triangles of the points, with the image, of any size, as their texture."""
    import trimesh

    used, faces = np.unique(grid.triangles(), return_inverse=True)
    rows, columns = np.divmod(used, grid.points.shape[1])
    height, width = grid.size
    u = (columns * grid.stride + 0.5) / width
    v = 1 - (rows * grid.stride + 0.5) / height
    picture = PIL.Image.fromarray(shrink(image, TEXTURE_WIDTH))
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


def encode_points(grid: PointGrid, image: np.ndarray, *, textured: bool) -> bytes:
    """Returns a PLY file of the points, or a GLB file of the surface with the image as texture."""
    if textured:
        content = surface(grid, image).export(file_type="glb", tree_postprocessor=_make_unlit)
    else:
        content = point_cloud(grid, image).export(file_type="ply")
    assert isinstance(content, bytes)
    return content


def viewer_page(prediction: Prediction, image: np.ndarray, *, limit: int) -> bytes:
    """Returns a web page in which the surface can be turned, seen at first from behind the camera.

    It holds trimesh's viewer with a copy of three.js, and needs no other address.

    Args:
        image: uint8 (h, w, 3), of any size.
        limit: largest number of points.
    """
    import trimesh
    from trimesh.viewer import scene_to_html

    class UnlitScene(trimesh.Scene):
        def export(self, *arguments: Any, **options: Any) -> Any:
            return super().export(*arguments, tree_postprocessor=_make_unlit, **options)

    depth, K = prediction.valid_depth(), prediction.require_camera().K
    camera = trimesh.scene.Camera(resolution=depth.shape[::-1], focal=(K[0, 0], K[1, 1]))
    place = np.eye(4)
    place[2, 3] = 0.3 * np.nanmedian(depth)
    # the viewer shows linear colours as they are: encoded twice, they look right
    brighter = np.rint(255 * (np.arange(256) / 255) ** (1 / 2.2)).astype(np.uint8)[image]
    mesh = surface(point_grid(prediction, limit=limit), brighter)
    return scene_to_html(UnlitScene(mesh, camera=camera, camera_transform=place)).encode()


def _make_unlit(tree: Plain) -> None:
    """Lets viewers show the colours of a glTF file without light, which they already hold."""
    tree["extensionsUsed"] = ["KHR_materials_unlit"]
    for material in tree["materials"]:
        material["extensions"] = {"KHR_materials_unlit": {}}
