"""Settings of ``dpt fit`` that follow from the folder, its labels and the machine."""

import math
import re
from pathlib import Path

import torch

from dpt.data.formats.pictures import read_size
from dpt.data.layouts import Detected
from dpt.data.statistics import LabelStatistics, class_weights
from dpt.functional import has_bf16
from dpt.validation import Plain, PlainMapping, validate
from dpt.weights.hub import has_hub_file

_HEAD = "task.objectives.segmentation."
_SEGMENTATION: Plain = {
    "augment": "strong",
    f"{_HEAD}dropout": 0.0,
    f"{_HEAD}auxiliary_weight": 0.0,
}
RECIPES: dict[str, Plain] = {  # as experiment=camvid and experiment=rgbd
    "segmentation": _SEGMENTATION,
    "joint": _SEGMENTATION,
    "depth": {"augment.zoom": [1, 1.5], "augment.color": 0.4, "model.decoder.batch_norm": True},
}
ENCODER = "vit_small_patch14_dinov2.lvd142m"  # DINOv2 (Oquab et al. 2023), Apache-2.0
PRETRAINED: Plain = {
    "model": "dpt_small",
    "model.encoder.weights": f"timm:{ENCODER}",
    "model.encoder.layer_scale": 1.0,
    "model.encoder.final_norm": True,
    "model.encoder.position_resize": "dinov2",
    "model.preprocessing.mean": [0.485, 0.456, 0.406],
    "model.preprocessing.std": [0.229, 0.224, 0.225],
    "optim.encoder_lr": 0.0001,
}
_PIXELS = {"cpu": 192 * 256, "cuda": 384 * 512}  # of training images
_SCALE = 1.25  # of whole images in evaluation, as a multiple of that at which they fit a crop
_ZOOM = 0.6, 1.6  # of training crops, as multiples of the scale in evaluation
_EVAL_PIXELS = 1_500_000  # of a whole image in evaluation
_EVAL_PIXELS_PER_SECOND = {"cpu": 150_000, "cuda": 15_000_000}  # of all, by the time limit
_THIN = 4.0  # pixels: structures are enlarged to this width, but not beyond their size in the file
_WEIGHT_POWER = 0.5  # of class weights
_UPRIGHT = 0.1  # of LabelStatistics.uprightness: flips and turns are used below
_CACHE_BYTES = 2 << 30  # largest cache of decoded samples
_RATE = 0.001  # of learning
_LONG_RUN = 1000  # steps, below which the rate is larger


def settings_of(
    detected: Detected,
    root: Path,
    table: Path,
    image_size: object = None,
    labels: LabelStatistics | None = None,
    seconds: float = math.inf,
) -> Plain:
    """Returns the arguments of ``train.py`` for the folder and this machine, by key.

    Args:
        table: where the samples are listed.
        image_size: the user's ``data.image_size``, [H, W]. None: it follows from the images' size.
        labels: statistics of the masks; None if they are not known yet.
        seconds: the time limit.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    height, width = read_size(root / detected.image)
    sizes = image_size or crop_size((height, width), _PIXELS[device])
    size = validate(tuple[int, int], sizes, "data.image_size")
    enlarged = _SCALE
    if labels is not None:
        limit = seconds * _EVAL_PIXELS_PER_SECOND[device] / max(1, val_images(detected))
        enlarged = enlargement(labels.thickness, (height, width), size, limit)
    cache_size = [round(side * 1.2 * enlarged) for side in size]  # enough for most zooms
    sample_bytes = 9 * max(math.prod(cache_size), height * width // 4)
    is_cached = sample_bytes * len(detected.rows) < _CACHE_BYTES
    values: Plain = {"task": detected.task, "data": "folder", "data.root": str(root)}
    values |= RECIPES.get(detected.task, {})
    values |= {f"data.{key}": value for key, value in detected.settings.items()}
    values |= {f"data.split_files.{split}": str(table) for split in ("train", "val", "test")}
    values |= {
        "data.image_size": size,
        "trainer.precision": "auto",
        "optim.weight_decay": 0.05,
        "optim.lr": 0.0005 if detected.task in ("instance", "panoptic") else _RATE,
        "data.num_workers": 0 if is_cached or device == "cpu" else 4,
        "data.cache": is_cached,
        "data.cache_size": cache_size if is_cached else None,
    }
    if detected.task in ("segmentation", "joint"):
        values["data.eval_size"] = [round(side * enlarged) for side in size]
        values["augment.zoom"] = [round(factor * enlarged, 3) for factor in _ZOOM]
    return values | (label_settings(labels) if labels else {})


def crop_size(image: tuple[int, int], pixels: int) -> list[int]:
    """Returns the size [H, W] of training crops of about so many pixels, in steps of 32."""
    scale = min(1.0, math.sqrt(pixels / math.prod(image)))
    return [max(32, 32 * round(side * scale / 32)) for side in image]


def val_images(detected: Detected) -> int:
    """Returns about how many images are held out, 0 if that is not known yet."""
    listed = sum(row.split == "val" for row in detected.rows)
    return listed or len(detected.rows) // detected.settings.get("folds", 10)


def enlargement(
    thickness: float, image: tuple[int, int], crop: tuple[int, int], limit: float = math.inf
) -> float:
    """Returns the scale of whole images in evaluation as a multiple of that at which they cover a
    training crop: larger where structures would be thinner than ``_THIN`` pixels.

    Args:
        thickness: of the structures, in pixels of the file.
        image, crop: sizes (H, W).
        limit: of the pixels of an image in evaluation.
    """
    covering = max(crop[0] / image[0], crop[1] / image[1])
    largest = min(1.0, math.sqrt(min(_EVAL_PIXELS, limit) / math.prod(image)))
    return max(_SCALE, min(largest, _THIN / thickness) / covering)


def label_settings(labels: LabelStatistics) -> Plain:
    """Returns the settings of the loss, of the head and of the augmentation that follow from the
    masks. The head starts at the constant prediction with the smallest loss."""
    # a class of fewer than a thousandth of the pixels would leave no weight for the others
    least = sum(labels.counts) // 1000
    counts = [max(count, least) if count else 0 for count in labels.counts]
    weights = class_weights(counts, _WEIGHT_POWER)
    products = [max(1, n) * weight for n, weight in zip(labels.counts, weights, strict=True)]
    settings: Plain = {
        "task.segmentation_loss.class_weights": weights,
        f"{_HEAD}prior": [round(p / sum(products), 6) or 1e-6 for p in products],
    }
    if labels.uprightness < _UPRIGHT:
        settings |= {"augment.vflip": 0.5, "augment.turn": 1.0}
    return settings


def pretrained_settings() -> Plain:
    """Returns the arguments of ``train.py`` for a pretrained encoder. If it cannot be fetched or is
    too slow on this machine, prints the reason and returns no arguments."""
    if not (torch.cuda.is_available() or has_bf16("cpu")):
        print("model: from scratch (larger encoders take long on a CPU without bf16)")
        return {}
    if not has_hub_file(f"timm/{ENCODER}", "model.safetensors"):
        print(f"model: from scratch (the encoder timm/{ENCODER} cannot be fetched)")
        return {}
    print("model: from the encoder DINOv2 ViT-S (model=dpt_stem trains from scratch)")
    return PRETRAINED


def rate_settings(task: str, given: PlainMapping, steps: int) -> Plain:
    """Returns a larger learning rate, if a run of segmentation from random weights is short.

    Args:
        given: keys that the user or a pretrained encoder decides.
    """
    is_chosen = any(re.match(r"optim|model[./]?(encoder|weights|$)|steps", key) for key in given)
    if is_chosen or steps >= _LONG_RUN or task != "segmentation":
        return {}
    return {"optim.lr": float(f"{_RATE * min(4.0, math.sqrt(_LONG_RUN / steps)):.2g}")}
