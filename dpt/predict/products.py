"""Which files ``dpt predict`` writes, by the kind of output and the format.

The table is in ``dpt predict --help``. The files of a second output of kind depth or logits are in
folders that begin with its head's name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dpt.files import few, require
from dpt.predict import encoding
from dpt.predict.label_tools import label_products
from dpt.predict.points import POINT_FORMATS, PointsProduct
from dpt.predict.prediction import Prediction, depth_unit, first_output, require_points
from dpt.predict.product import Product
from dpt.types.outputs import OutputSpec
from dpt.types.samples import IGNORE_INDEX
from dpt.validation import Plain

LABEL_TOOLS = ("coco", "yolo", "labelme", "voc")
RASTER = "tif"
"""The format of images that are predicted by windows."""
FORMATS = ("png", "npy", "color", "overlay", "json", *LABEL_TOOLS, *POINT_FORMATS)
Outputs = Mapping[str, OutputSpec]


def folder_names(outputs: Outputs) -> dict[str, str]:
    """Returns the folder of the files of each dense output."""
    first = {"depth": "depth", "logits": "labels"}  # of the first output of that kind
    return {name: first.pop(spec.kind, name) for name, spec in outputs.items() if spec.dense}


def class_names_by_folder(outputs: Outputs) -> dict[str, list[str]]:
    """Returns the class names of each dense output with classes, by the folder of its files."""
    folders = folder_names(outputs).items()
    with_classes = [(n, folder) for n, folder in folders if outputs[n].kind in ("logits", "masks")]
    return {folder: list(outputs[name].class_names) for name, folder in with_classes}


def class_lines(products: Iterable[Product], outputs: Outputs) -> list[str]:
    """Returns a line for each folder of class ids that says which class each id is."""
    lines = []
    for product in products:
        spec = outputs[product.name]
        if spec.kind == "logits" and product.encoder and spec.class_names:
            ids = [f"{k} {name}" for k, name in enumerate(spec.class_names)]
            lines.append(f"{product.folder}: ids of the classes: {few(ids, 5)}")
    return lines


def all_products(outputs: Outputs) -> dict[str, list[Product]]:
    """Returns the files that can be made of these outputs, by format."""
    products: dict[str, list[Product]] = {name: [] for name in FORMATS}
    encoders = {
        "depth": encoding.encode_depth,
        "logits": encoding.encode_labels,
        "masks": encoding.encode_segments,
    }
    for name, folder in folder_names(outputs).items():
        kind = outputs[name].kind
        products["npy"].append(Product(name, f"{folder}_npy", ".npy", encoding.encode_array))
        products["png"].append(Product(name, folder, encoder=encoders.get(kind)))
        if kind == "depth":
            products["color"].append(Product(name, f"{folder}_color"))
        if kind == "depth" and folder == "depth" and not outputs[name].is_inverse_depth:
            for suffix in POINT_FORMATS:
                products[suffix].append(PointsProduct(name, f"{folder}_{suffix}", f".{suffix}"))
        if kind in ("logits", "masks"):
            overlay = "overlay" if folder == "labels" else f"{folder}_overlay"
            products["overlay"].append(Product(name, overlay))
        if kind == "masks":
            products["json"].append(
                Product(name, f"{folder}_json", ".json", encoding.encode_objects)
            )
        if kind in ("logits", "masks") and (outputs[name].num_classes or 0) <= IGNORE_INDEX:
            for tool in LABEL_TOOLS:
                products[tool] += label_products(outputs[name], f"{folder}_{tool}", tool)
    return products


def raster_products(outputs: Outputs) -> list[Product]:
    """Returns the files for each image that is predicted as :mod:`dpt.predict.windows` does."""
    return [
        Product(name, f"{folder}_{RASTER}", f".{RASTER}")
        for name, folder in folder_names(outputs).items()
        if outputs[name].kind != "masks"
    ]


def folders_of(outputs: Outputs) -> list[str]:
    """Returns the sub-folders of all files that can be made of these outputs."""
    every_product = [product for group in all_products(outputs).values() for product in group]
    every_product += raster_products(outputs)
    return [*dict.fromkeys(product.folder for product in every_product)]


def products_of(formats: Sequence[str], outputs: Outputs) -> list[Product]:
    """Returns the files for each image: by default of all formats but ``npy``, and the arrays of
    maps."""
    possible = all_products(outputs)
    for name in formats:
        if name not in possible:
            raise ValueError(f"--format {name}: choose from {', '.join((*possible, RASTER))}")
        if name in POINT_FORMATS:
            require_points(first_output(outputs, "depth"))
            require("trimesh", f"--format {name}", extra="points")
        if not possible[name]:
            kinds = ", ".join(f"{n} ({s.kind})" for n, s in outputs.items())
            raise ValueError(f"--format {name} fits none of this model's outputs: {kinds}")
    default = ("png", "color", "overlay", "json")
    chosen = [product for name in formats or default for product in possible[name]]
    if not formats:
        chosen += [product for product in possible["npy"] if outputs[product.name].kind == "map"]
    return list(dict.fromkeys(chosen))


def videos_of(products: Iterable[Product]) -> list[Product]:
    """Returns the files for each video: the chosen products that are pictures."""
    return [replace(product, suffix=".mp4") for product in products if product.is_picture]


def facts_of(prediction: Prediction) -> Plain:
    """Returns how to read an image's depth files, by folder, its camera, and the outputs for the
    whole image."""
    known = prediction.known_camera
    facts: Plain = {} if known is None else known.facts
    for name, folder in folder_names(prediction.outputs).items():
        if prediction.outputs[name].kind == "depth":
            scale, offset = encoding.depth_coding(name, prediction)
            unit = depth_unit(prediction.outputs[name])
            facts[folder] = {"scale": scale, "offset": offset, "unit": unit}
    return facts | image_facts(prediction)


def raster_facts(outputs: Outputs) -> Plain:
    """Returns how to read the depth files of a raster, which hold depth as it is, by folder."""
    units = unit_facts(outputs).items()
    return {folder: {"scale": 1.0, "offset": 0.0, **facts} for folder, facts in units}


def unit_facts(outputs: Outputs) -> Plain:
    """Returns the unit of each depth, by the folder of its files."""
    return {
        folder: {"unit": depth_unit(outputs[name])}
        for name, folder in folder_names(outputs).items()
        if outputs[name].kind == "depth"
    }


def image_facts(prediction: Prediction) -> Plain:
    """Returns the outputs for the whole image: class and probability, or values."""
    facts: Plain = {}
    for name, spec in prediction.outputs.items():
        values = prediction.arrays[name]
        if not spec.dense and spec.kind == "logits":
            k = int(values.argmax())
            label, probability = spec.class_name(k), round(float(values[k]), 6)
            facts[name] = {"class_id": k, "class": label, "probability": probability}
        elif not spec.dense:
            facts[name] = values.tolist()
    return facts


def image_lines(prediction: Prediction) -> list[str]:
    """Returns a line for each of :func:`image_facts`, with the first values of a vector."""
    return [
        f"{name}: {few([f'{v:.4g}' for v in value], 4) if np.ndim(value) else value}"
        for name, value in image_facts(prediction).items()
    ]
