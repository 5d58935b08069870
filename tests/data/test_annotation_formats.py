"""Files of label tools, written from known objects: each reader gives their pixels exactly."""

import base64
import io
import json

import numpy as np
import pytest
from label_tool_files import SCENES, SIZE, box, one_ring, save_images
from PIL import Image
from pycocotools import mask as coco

from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import UNLABELLED
from dpt.files import DataError, files_below


def read(name, root, sources=None):
    files = [path.relative_to(root).as_posix() for path in files_below(root)]
    found = FORMATS[name].find(root, files) if sources is None else sources
    return FORMATS[name].read(root, found, files)


def objects_of(image):
    return [
        (annotation.class_name, coco.decode(annotation.shape.encode(SIZE)) > 0)
        for annotation in image.objects
    ]


def assert_equal(annotations, scenes=SCENES):
    images = {image.image.stem: image for image in annotations.images}
    assert sorted(images) == sorted(scenes)
    for name, expected in scenes.items():
        objects = objects_of(images[name])
        assert [class_name for class_name, _ in objects] == [k for k, _ in expected]
        for (_, mask), (_, expected_mask) in zip(objects, expected, strict=True):
            assert np.array_equal(mask, expected_mask)


def write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def png(pixels):
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return data.getvalue()


def only_mask(annotations):
    ((_, mask),) = objects_of(annotations.images[0])
    return mask


# ------------------------------------------------------------------------------------ labelme


def labelme_file(shapes, image="a.png"):
    content = {"version": "5.2.1", "flags": {}, "shapes": shapes, "imagePath": image}
    return content | {"imageData": None, "imageHeight": SIZE[0], "imageWidth": SIZE[1]}


def labelme_shape(label, points, kind="polygon", **options):
    shape = {"label": label, "points": points, "group_id": None, "shape_type": kind}
    return shape | {"flags": {}} | options


def write_labelme(root):
    save_images(root)
    for name, objects in SCENES.items():
        shapes = [labelme_shape(label, one_ring(mask)) for label, mask in objects]
        write_json(root / f"{name}.json", labelme_file(shapes, f"{name}.png"))


def test_labelme_is_read_exactly(tmp_path):
    write_labelme(tmp_path)
    annotations = read("labelme", tmp_path)
    assert_equal(annotations)
    assert [row.name for row in annotations.classes] == ["car", "tree"]
    assert annotations.notes == []
    assert annotations.images[0].size == SIZE


@pytest.mark.parametrize(
    "image", ["..\\old\\a.png", "C:\\data\\a.png", "/home/me/a.png", "gone.jpg", ""]
)
def test_labelme_image_of_another_folder_is_found(tmp_path, image):
    save_images(tmp_path)
    shape = labelme_shape("tree", one_ring(box(1, 1, 5, 5)))
    write_json(tmp_path / "a.json", labelme_file([shape], image))
    assert [i.image.name for i in read("labelme", tmp_path).images] == ["a.png"]


def test_labelme_group_is_one_object(tmp_path):
    save_images(tmp_path)
    parts = box(0, 0, 4, 4), box(10, 0, 12, 24)
    shapes = [labelme_shape("car", one_ring(part), group_id=3) for part in parts]
    shapes.append(labelme_shape("tree", one_ring(parts[0]), group_id=3))
    write_json(tmp_path / "a.json", labelme_file(shapes))
    (image,) = read("labelme", tmp_path).images
    (car, car_mask), (tree, _) = objects_of(image)
    assert (car, tree) == ("car", "tree")
    assert np.array_equal(car_mask, parts[0] | parts[1])


def test_labelme_background_takes_pixels_of_shapes_before_it(tmp_path):
    save_images(tmp_path)
    shapes = [
        labelme_shape("tree", one_ring(box(0, 0, 20, 20))),
        labelme_shape("_background_", one_ring(box(2, 2, 10, 10))),
        labelme_shape("car", one_ring(box(4, 4, 6, 6))),
    ]
    write_json(tmp_path / "a.json", labelme_file(shapes))
    annotations = read("labelme", tmp_path)
    (_, tree), (background, _), (_, car) = objects_of(annotations.images[0])
    assert np.array_equal(tree, box(0, 0, 20, 20) & ~box(2, 2, 10, 10))
    assert np.array_equal(car, box(4, 4, 6, 6))
    assert background == "_background_"


def test_labelme_ignored_shapes_are_unlabelled(tmp_path):
    save_images(tmp_path)
    labels = "tree", "__ignore__"
    shapes = [labelme_shape(label, one_ring(box(0, 0, 20, 20))) for label in labels]
    write_json(tmp_path / "a.json", labelme_file(shapes))
    annotations = read("labelme", tmp_path)
    assert [name for name, _ in objects_of(annotations.images[0])] == ["tree", UNLABELLED]
    assert [row.name for row in annotations.classes] == ["tree"]


def test_labelme_bitmap_begins_at_its_first_point(tmp_path):
    save_images(tmp_path)
    part = np.random.default_rng(0).random((5, 7)) > 0.5
    options = {"mask": base64.b64encode(png(part)).decode()}
    shape = labelme_shape("tree", [[3.0, 4.0], [9.0, 8.0]], "mask", **options)
    write_json(tmp_path / "a.json", labelme_file([shape]))
    expected = np.zeros(SIZE, bool)
    expected[4:9, 3:10] = part
    assert np.array_equal(only_mask(read("labelme", tmp_path)), expected)


def test_labelme_shapes_without_an_area_are_counted(tmp_path):
    save_images(tmp_path)
    shapes = [labelme_shape("tree", one_ring(box(1, 1, 5, 5)))]
    shapes += [labelme_shape("tree", [[1, 1], [2, 2]], kind) for kind in ("line", "linestrip")]
    shapes += [labelme_shape("tree", [[1, 1], [2, 2]])]
    shapes += [labelme_shape("car", [[2, 3], [8, 7]], "rectangle")]
    shapes += [labelme_shape("car", [[10, 10], [10, 15]], "circle")]
    write_json(tmp_path / "a.json", labelme_file(shapes))
    annotations = read("labelme", tmp_path)
    notes = " ".join(annotations.notes)
    assert all(text in notes for text in ("1 line ", "1 linestrip ", "1 polygon ", "1 rectangle"))
    _, (_, rectangle), (_, circle) = objects_of(annotations.images[0])
    assert np.array_equal(rectangle, box(2, 3, 8, 7))
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    distance = np.hypot(x - 10, y - 10)
    assert circle[distance < 4.8].all()
    assert not circle[distance > 5.2].any()


# ---------------------------------------------------------------------------------------- VIA


def via_region(label, shape):
    return {"shape_attributes": shape, "region_attributes": label}


def via_polygon(ring):
    x, y = zip(*ring, strict=True)
    return {"name": "polygon", "all_points_x": x, "all_points_y": y}


def via_images(scenes, *, version=2, attribute="kind"):
    images = {}
    for name, objects in scenes.items():
        rows = [via_region({attribute: k}, via_polygon(one_ring(mask))) for k, mask in objects]
        regions = {str(k): row for k, row in enumerate(rows)} if version == 1 else rows
        row = {"filename": f"{name}.png", "size": 123, "regions": regions, "file_attributes": {}}
        images[f"{name}.png123"] = row
    return images


def write_via(root, **options):
    save_images(root)
    write_json(root / "via_region_data.json", via_images(SCENES, **options))


@pytest.mark.parametrize("version", [1, 2])
def test_via_is_read_exactly(tmp_path, version):
    write_via(tmp_path, version=version)
    assert_equal(read("via", tmp_path))


def test_via_project_is_read_exactly(tmp_path):
    save_images(tmp_path / "images")
    project = {"_via_settings": {"ui": {}}, "_via_img_metadata": via_images(SCENES)}
    write_json(tmp_path / "project.json", project | {"_via_attributes": {"region": {}}})
    assert_equal(read("via", tmp_path))


def test_via_shapes_and_classes(tmp_path):
    save_images(tmp_path)
    regions = [
        via_region({}, {"name": "rect", "x": 2, "y": 3, "width": 6, "height": 4}),
        via_region({}, {"name": "ellipse", "cx": 16, "cy": 12, "rx": 8, "ry": 2, "theta": 1.5708}),
        via_region({}, {"name": "point", "cx": 16, "cy": 12}),
    ]
    content = {"a": {"filename": "a.png", "regions": regions, "file_attributes": {}}}
    write_json(tmp_path / "x.json", content)
    annotations = read("via", tmp_path)
    (name, rectangle), (_, ellipse) = objects_of(annotations.images[0])
    assert name == "object"
    assert np.array_equal(rectangle, box(2, 3, 8, 7))
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    radius = np.hypot((x - 16) / 2, (y - 12) / 8)
    assert ellipse[radius < 0.9].all()
    assert not ellipse[radius > 1.1].any()
    assert any("1 point" in note for note in annotations.notes)


def test_via_check_boxes_name_one_class(tmp_path):
    save_images(tmp_path)
    shape = via_polygon(one_ring(box(1, 1, 5, 5)))
    names = [{"kind": {"tree": True, "car": False}}, {"kind": {"tree": True, "car": True}}, {}]
    regions = [via_region(name, shape) for name in names]
    content = {"a": {"filename": "a.png", "regions": regions, "file_attributes": {}}}
    write_json(tmp_path / "x.json", content)
    annotations = read("via", tmp_path)
    assert [k for k, _ in objects_of(annotations.images[0])] == ["tree"]
    assert any(note.startswith("2 regions") for note in annotations.notes)


def test_via_several_attributes_are_refused(tmp_path):
    save_images(tmp_path)
    region = via_region({"kind": "a", "colour": "b"}, via_polygon(one_ring(box(1, 1, 5, 5))))
    content = {"a": {"filename": "a.png", "regions": [region], "file_attributes": {}}}
    write_json(tmp_path / "x.json", content)
    with pytest.raises(DataError, match=r"x\.json.*kind, colour"):
        read("via", tmp_path)


# ---------------------------------------------------------------------------------- all formats

WRITERS = {"labelme": write_labelme, "via": write_via}


@pytest.mark.parametrize("name", WRITERS)
def test_format_finds_its_own_files_alone(tmp_path, name):
    WRITERS[name](tmp_path)
    files = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)]
    found = [other for other, tool in FORMATS.items() if tool.find(tmp_path, files)]
    assert found == [name]


def test_foreign_files_are_not_claimed(tmp_path):
    save_images(tmp_path)
    (tmp_path / "requirements.txt").write_text("numpy==2.0\ntorch\n")
    (tmp_path / "classes.txt").write_text("tree\ncar\n")
    (tmp_path / "a.txt").write_text("a picture of a tree\n")
    (tmp_path / "train.txt").write_text("a\nb\n")
    (tmp_path / "data.yaml").write_text("lr: 0.1\nnames:\n")
    (tmp_path / "a.xml").write_text("<annotation><object/></annotation>")
    write_json(tmp_path / "package.json", {"name": "x", "shapes": [1], "data": {"image": 1}})
    write_json(tmp_path / "a.json", {"regions": 3, "annotations": [], "objects": []})
    coco_file = {"images": [], "categories": [], "annotations": []}
    write_json(tmp_path / "coco.json", coco_file)
    files = [path.relative_to(tmp_path).as_posix() for path in files_below(tmp_path)]
    found = [name for name, tool in FORMATS.items() if tool.find(tmp_path, files)]
    assert found in ([], ["coco"])
