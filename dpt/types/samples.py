"""Samples of a data set and batches of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor
from typing_extensions import TypedDict  # pydantic needs it before Python 3.12

from dpt.files import DataError
from dpt.types.outputs import EmbeddingOutput
from dpt.validation import MAX_METRES

IGNORE_INDEX = 255
"""Label of unlabelled pixels in memory. Files may use another value, which readers convert."""
NO_CLASS = -1  # class_id of an image without one (a missing ``value`` is NaN)

Palette = Sequence[tuple[int, int, int]]
"""An RGB row (0..255) for each class; empty for the default colours."""
Target = Literal["depth", "normals", "labels", "objects", "class_id", "value", "caption", "K"]


class Rle(TypedDict):
    """A mask as pycocotools stores it: its [H, W], and its run lengths, compressed."""

    size: list[int]
    counts: bytes


class ObjectMask(NamedTuple):
    """An object of an image: the one form from the files of label tools to metrics and writers."""

    class_id: int
    mask: Rle  # at the labels' size; it may overlap other masks
    is_crowd: bool  # several objects of a class, not told apart
    area: float  # by which COCO calls it small, medium or large


ArrayT = TypeVar("ArrayT")


class RandomViews(NamedTuple, Generic[ArrayT]):
    """Random crops of images, which self-supervision compares (``augment.views``)."""

    large: ArrayT  # of a sample (N, H, W, C), of a batch (B, N, C, H, W)
    small: ArrayT | None  # of a sample (M, h, w, C), of a batch (B, M, C, h, w); ``augment.crops``


class PasteSource(NamedTuple):
    """What semi-supervision needs of an image with labels (``augment.strong``)."""

    part: np.ndarray  # bool (H, W), the pixels to paste on images without labels


class PasteTarget(NamedTuple):
    """What semi-supervision needs of an image without labels (``augment.strong``)."""

    weak: np.ndarray  # (H, W, C), the image in its own colours
    padding: np.ndarray  # bool (H, W), pixels of the crop that lie outside the image


class Mixed(NamedTuple):
    """Parts of images with labels, pasted on the images without labels of a batch."""

    weak: Tensor  # (B, C, H, W), images without labels in their own colours, nothing pasted
    unlabelled: Tensor  # bool (B,)
    kept: Tensor  # bool (B, H, W), where a teacher gives no label: pasted parts and padding


class Sample(TypedDict, total=False):
    """One image and whatever labels it has, as NumPy arrays at one common size.

    A missing label is a missing key. Sizes of the maps equal the image's unless a transform for
    evaluation says otherwise.
    """

    image: np.ndarray  # uint8 (H, W, 3), RGB; or float32 (H, W, C), bands, NaN without data
    depth: np.ndarray  # float32 (H, W), metres; 0 where invalid; see DatasetInfo.has_metres
    valid: np.ndarray  # bool (H, W), True where depth was measured
    inside: np.ndarray  # bool (H, W), in training False where a crop is outside the image; absent
    # if no pixel is
    normals: np.ndarray  # float32 (H, W, 3), unit vectors in the camera's frame (x right, y down,
    # z forward) that face the camera, so that a wall ahead has (0, 0, -1); zeros where unknown
    labels: np.ndarray  # uint8 (H, W), class ids; IGNORE_INDEX where unlabelled
    objects: np.ndarray  # uint16 (H, W), tells objects of one class apart; 0 where there is none
    masks: list[ObjectMask]  # the objects, where they can overlap; absent in training
    empty_objects: list[str]  # names of objects without a pixel; absent if there is none
    prompt: np.ndarray  # float32 (H, W), metres at a few pixels, 0 at others; input of the model
    K: np.ndarray  # float64 (3, 3), the camera of the image, see dpt.geometry.Camera
    class_id: int  # image-level class
    value: float  # image-level number
    caption: str  # what the image shows, never empty
    mixing: PasteSource | PasteTarget  # of ``augment.strong``
    views: RandomViews[np.ndarray]  # of ``augment.views``
    index: int  # position in the data set
    name: str  # what to call it in messages, usually the file's path
    failed: list[str]  # why files could not be read, see data.on_error
    is_blank: bool  # whether the image stands for one that could not be read; absent otherwise


class Batch(TypedDict, total=False):
    """Samples of one size, stacked. A sample without a label is wholly ignored, never missing.

    In training every map has the image's size. In evaluation ``depth``, ``valid``, ``normals``,
    ``labels`` and ``objects`` are lists, one tensor an image at the label's own resolution, and so
    may ``image`` be.
    """

    image: Tensor  # uint8 (B, 3, H, W), RGB, or float32 (B, C, H, W), bands; channels-last in
    # memory; Preprocessing normalises it.
    # RGB is float32 in evaluation if the model's images are resized by ``cubic_float``
    depth: Tensor  # float32 (B, H, W), metres
    valid: Tensor  # bool (B, H, W)
    inside: Tensor  # bool (B, H, W), in training False outside the image; absent if no pixel is
    normals: Tensor  # float32 (B, 3, H, W), unit vectors, zeros where unknown
    labels: Tensor  # uint8 (B, H, W)
    objects: Tensor  # int32 (B, H, W), -1 in images that lack them
    masks: list[list[ObjectMask] | None]  # in evaluation, if a sample has them
    prompt: Tensor  # float32 (B, H, W), at the size of ``image``; absent if no sample has one
    K: Tensor  # float32 (B, 3, 3), cameras of ``image``, NaN where unknown; absent if all are and
    # the task does not need them
    fov: Tensor  # float32 (B,), their horizontal fields of view in degrees; absent without K
    class_id: Tensor  # int64 (B,), NO_CLASS where missing
    value: Tensor  # float32 (B,), NaN where missing
    caption: list[str]  # empty where missing
    index: Tensor  # int64 (B,)
    mixed: Mixed  # if there are images without labels, with ``augment.strong``
    views: RandomViews[Tensor]  # which the model sees in place of ``image``
    teacher: EmbeddingOutput  # a teacher's output for the B·N large ``views``
    hidden: Tensor  # bool (B, H, W), pixels that the task hides from the model; or of its views
    name: list[str]
    failed: list[str]  # why files could not be read; absent where all could
    blank: list[int]  # positions of images that could not be read, which are not scored


class Inputs(NamedTuple):
    """What a network is given."""

    images: Tensor  # float (B, C, H, W), normalised
    prompts: Tensor | None = None  # sparse depth, float (B, H, W) in metres, 0 where unknown

    def mirrored(self) -> "Inputs":
        """Returns the mirror images."""
        return Inputs(self.images.flip(-1), None if self.prompts is None else self.prompts.flip(-1))

    def window(self, rows: slice, columns: slice) -> "Inputs":
        """Returns a part of every image."""
        prompts = None if self.prompts is None else self.prompts[:, rows, columns]
        return Inputs(self.images[..., rows, columns], prompts)


@dataclass(frozen=True)
class DatasetInfo:
    """What a data set gives, known before any file is read."""

    targets: tuple[Target, ...]  # the labels its samples can carry
    class_names: tuple[str, ...] = ()  # of ``labels``, or of ``class_id``
    palette: tuple[tuple[int, int, int], ...] = ()  # RGB (0..255) by class; empty: the default
    min_depth: float = 1e-3  # smallest depth that counts as valid, in metres
    max_depth: float | None = None  # largest such depth; None if the set has no depth
    things: tuple[bool, ...] = ()  # for each class, whether it is a thing; the others are stuff
    has_metres: bool = True  # False: depth is in multiples of the smallest one of each image, and
    # its inverse is known up to a shift

    def __post_init__(self) -> None:
        if twice := [name for name, count in Counter(self.class_names).items() if count > 1]:
            raise DataError(f"data.class_names has {twice[0]!r} twice: give each class its own")
        if not all(0 <= limit <= MAX_METRES for limit in (self.min_depth, self.max_depth or 0)):
            limits = f"data.min_depth={self.min_depth}, data.max_depth={self.max_depth}"
            raise DataError(f"{limits}: must be in 0..{MAX_METRES:g} metres")

    @property
    def depth_unit(self) -> str:
        """The unit of depth in pictures."""
        return "m" if self.has_metres else "x nearest"

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def has_only_things(self) -> bool:
        """Whether an image without a labelled pixel is one without objects."""
        return bool(self.things) and all(self.things)
