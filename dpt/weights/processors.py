"""Image processors and class names, as transformers' configs hold them."""

from dpt.validation import Plain

_RESAMPLE = {2: "bilinear_antialias", 3: "cubic_antialias", 4: "area"}  # by Pillow's constant
_PILLOW = {"bilinear": 2, "cubic": 3, "area": 4}


def read_pixels(processor: Plain, mean: list[float], std: list[float], resample: int) -> Plain:
    """Returns our ``mean``, ``std`` and ``interpolation``; the arguments are the defaults."""
    mean, std = processor.get("image_mean", mean), processor.get("image_std", std)
    if not processor.get("do_normalize", True):
        mean, std = [0.0] * 3, [1.0] * 3
    factor = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1
    gain = 255 * factor  # the largest pixel value before normalisation
    resample = processor.get("resample", resample)
    return {
        "mean": [m / gain for m in mean],
        "std": [s / gain for s in std],
        "interpolation": _RESAMPLE.get(resample, resample),
    }


def write_pixels(preprocessing: Plain) -> Plain:
    """Returns the keys of an image processor that :func:`read_pixels` reads."""
    return {
        "resample": _PILLOW[preprocessing["interpolation"].partition("_")[0]],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing["mean"]),
        "image_std": list(preprocessing["std"]),
    }


def read_dpt_processor(processor: Plain, encoder: Plain) -> Plain:
    """Returns our preprocessing for a ``DPTImageProcessor``.

    Sets ``encoder["padding"]`` if the processor pads.
    """
    size = processor.get("size", 384)
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    rule = "minimal" if processor.get("keep_aspect_ratio", False) else "stretch"
    if processor.get("do_pad"):
        encoder["padding"] = "center"
    return {
        **read_pixels(processor, [0.5] * 3, [0.5] * 3, 3),
        "image_size": [size, size] if isinstance(size, int) else size,
        "resize": rule if processor.get("do_resize", True) else "none",
        "multiple_of": processor.get("ensure_multiple_of") or 1,
    }


def write_dpt_processor(config: Plain, *, only_square: bool) -> Plain:
    """Returns the ``DPTImageProcessor`` that comes closest to our preprocessing."""
    encoder, preprocessing = config["encoder"], config["preprocessing"]
    size, rule = preprocessing["image_size"], preprocessing["resize"]
    if only_square:
        size, rule = encoder["image_size"], "stretch"
    padding = {"do_pad": encoder["padding"] == "center"}
    if padding["do_pad"]:
        padding["size_divisor"] = encoder["patch_size"]
    return {
        "image_processor_type": "DPTImageProcessor",
        "do_resize": rule != "none",
        "size": {"height": size[0], "width": size[1]},
        "keep_aspect_ratio": rule in ("minimal", "lower_bound", "upper_bound"),
        "ensure_multiple_of": preprocessing["multiple_of"],
        **write_pixels(preprocessing),
        **padding,
    }


def read_names(config: Plain) -> list[str]:
    """Returns the class names in a config; none if they are transformers' placeholders."""
    labels = config.get("id2label") or {}
    names = [labels[k] for k in sorted(labels, key=int)]
    return [] if all(str(n).startswith("LABEL_") for n in names) else names


def write_names(head: Plain) -> Plain:
    """Returns the keys of a config that hold the class names of ``head``."""
    names = head["class_names"] or [f"LABEL_{i}" for i in range(head["num_classes"])]
    return {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
