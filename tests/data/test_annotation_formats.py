"""Files of label tools, written from known objects: each reader gives their pixels exactly."""

import base64
import io
import json
import pickle
import time

import numpy as np
import pytest
from foreign_folders import brush_rle
from label_tool_files import SCENES, SIZE, box, one_ring, save_images
from PIL import Image
from pycocotools import mask as coco

from dpt.data.annotations import FORMATS
from dpt.data.annotations.base import UNLABELLED, NoMasksError, label_maps
from dpt.files import DataError, files_below
from dpt.types.samples import IGNORE_INDEX


def read(name, root, sources=None):
    files = [path.relative_to(root).as_posix() for path in files_below(root)]
    found = FORMATS[name].find(root, files) if sources is None else sources
    return FORMATS[name].read(root, found, files)


def objects_of(image):
    return [
        (annotation.class_name, coco.decode(annotation.encode(SIZE)) > 0)
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


def read_labelme(root, shapes):
    """The annotations of one image with the shapes."""
    save_images(root)
    write_json(root / "a.json", labelme_file(shapes))
    return read("labelme", root)


def write_labelme(root):
    save_images(root)
    for name, objects in SCENES.items():
        shapes = [labelme_shape(label, one_ring(mask)) for label, mask in objects]
        write_json(root / f"{name}.json", labelme_file(shapes, f"{name}.png"))


@pytest.mark.parametrize("image", ["..\\old\\a.png", "/home/me/a.png", "gone.jpg"])
def test_labelme_image_of_another_folder_is_found(tmp_path, image):
    save_images(tmp_path)
    shape = labelme_shape("tree", one_ring(box(1, 1, 5, 5)))
    write_json(tmp_path / "a.json", labelme_file([shape], image))
    assert [i.image.name for i in read("labelme", tmp_path).images] == ["a.png"]


def test_labelme_background_takes_pixels_of_shapes_before_it(tmp_path):
    shapes = [
        labelme_shape("tree", one_ring(box(0, 0, 20, 20))),
        labelme_shape("_background_", one_ring(box(2, 2, 10, 10))),
        labelme_shape("car", one_ring(box(4, 4, 6, 6))),
    ]
    annotations = read_labelme(tmp_path, shapes)
    (_, tree), (background, _), (_, car) = objects_of(annotations.images[0])
    assert np.array_equal(tree, box(0, 0, 20, 20) & ~box(2, 2, 10, 10))
    assert np.array_equal(car, box(4, 4, 6, 6))
    assert background == "_background_"


def test_labelme_many_backgrounds_are_pickled_and_cut_in_time(tmp_path):
    tree = labelme_shape("tree", one_ring(box(0, 0, 20, 20)))
    shapes = [tree]
    for k in range(400):
        shapes.append(labelme_shape("_background_", one_ring(box(0, 0, 1 + k % 19, 2))))
        shapes += [tree] * (k % 40 == 39)
    (image,) = read_labelme(tmp_path, shapes).images
    image = pickle.loads(pickle.dumps(image))
    began = time.process_time()
    objects = objects_of(image)
    assert time.process_time() - began < 20
    assert np.array_equal(objects[0][1], box(0, 0, 20, 20) & ~box(0, 0, 19, 2))
    assert np.array_equal(objects[-1][1], box(0, 0, 20, 20))


def test_labelme_ignored_shapes_are_unlabelled(tmp_path):
    labels = "tree", "__ignore__"
    shapes = [labelme_shape(label, one_ring(box(0, 0, 20, 20))) for label in labels]
    annotations = read_labelme(tmp_path, shapes)
    assert [name for name, _ in objects_of(annotations.images[0])] == ["tree", UNLABELLED]
    assert [row.name for row in annotations.classes] == ["tree"]


@pytest.mark.parametrize(("x", "y"), [(2.6, 4.4), (-2.0, 4.0), (29.0, 21.0)])
def test_labelme_bitmap_begins_at_its_first_point(tmp_path, x, y):
    part = np.random.default_rng(0).random((5, 7)) > 0.5
    options = {"mask": base64.b64encode(png(part)).decode()}
    shape = labelme_shape("tree", [[x, y], [x + 6, y + 4]], "mask", **options)
    wide = np.zeros((SIZE[0] + 40, SIZE[1] + 40), bool)
    left, top = round(x) + 20, round(y) + 20
    wide[top : top + 5, left : left + 7] = part
    mask = only_mask(read_labelme(tmp_path, [shape]))
    assert np.array_equal(mask, wide[20 : 20 + SIZE[0], 20 : 20 + SIZE[1]])


def test_labelme_damaged_bitmap_is_named(tmp_path):
    options = {"mask": base64.b64encode(png(np.eye(9) > 0)[:-30]).decode()}
    shape = labelme_shape("tree", [[2, 3], [10, 11]], "mask", **options)
    (image,) = read_labelme(tmp_path, [shape]).images
    with pytest.raises(DataError, match=f"{image.image}: the mask of object .* cannot be read"):
        image.rasterise(SIZE, "later")


def test_labelme_shapes_without_an_area_are_counted(tmp_path):
    shapes = [labelme_shape("tree", one_ring(box(1, 1, 5, 5)))]
    shapes += [labelme_shape("tree", [[1, 1], [2, 2]], kind) for kind in ("line", "linestrip")]
    shapes += [labelme_shape("tree", [[1, 1], [2, 2]])]
    shapes += [labelme_shape("car", [[2, 3], [8, 7]], "rectangle")]
    shapes += [labelme_shape("car", [[2, 3], [8, 3], [8, 7], [2, 7]], "rectangle")]
    shapes += [labelme_shape("car", [[10, 10], [10, 15]], "circle")]
    annotations = read_labelme(tmp_path, shapes)
    notes = " ".join(annotations.notes)
    assert all(
        text in notes for text in ("1 line ", "1 linestrip ", "1 polygon ", "2 of 4 objects")
    )
    _, (_, rectangle), (_, four_corners), (_, circle) = objects_of(annotations.images[0])
    assert np.array_equal(rectangle, box(2, 3, 8, 7))
    assert np.array_equal(four_corners, rectangle)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    distance = np.hypot(x - 10, y - 10)
    assert circle[distance < 4.8].all()
    assert not circle[distance > 5.2].any()


def test_labelme_classes_have_the_order_of_labels_txt(tmp_path):
    write_labelme(tmp_path)
    shapes = [labelme_shape(k, one_ring(box(1, 1, 5, 5))) for k in (" tree", "ba\u0308r", "b\xe4r")]
    write_json(tmp_path / "b.json", labelme_file(shapes, "b.png"))
    (tmp_path / "labels.txt").write_text("__ignore__\n_background_\ntree\nb\xe4r\nbus\ncar\n")
    names = [row.name for row in read("labelme", tmp_path).classes]
    assert names == ["_background_", "tree", "b\xe4r", "bus", "car"]


# ---------------------------------------------------------------------------------------- VIA


def via_region(label, shape):
    return {"shape_attributes": shape, "region_attributes": label}


def via_polygon(ring):
    x, y = zip(*ring, strict=True)
    return {"name": "polygon", "all_points_x": x, "all_points_y": y}


def via_images(scenes):
    images = {}
    for name, objects in scenes.items():
        regions = [via_region({"kind": k}, via_polygon(one_ring(mask))) for k, mask in objects]
        row = {"filename": f"{name}.png", "size": 123, "regions": regions, "file_attributes": {}}
        images[f"{name}.png123"] = row
    return images


def read_via(root, regions):
    """The annotations of one image with the regions."""
    save_images(root)
    content = {"a": {"filename": "a.png", "regions": regions, "file_attributes": {}}}
    write_json(root / "x.json", content)
    return read("via", root)


def write_via(root):
    save_images(root)
    write_json(root / "via_region_data.json", via_images(SCENES))


def test_via_shapes_and_classes(tmp_path):
    regions = [
        via_region({}, {"name": "rect", "x": 2, "y": 3, "width": 6, "height": 4}),
        via_region({}, {"name": "ellipse", "cx": 16, "cy": 12, "rx": 8, "ry": 2, "theta": 1.5708}),
        via_region({}, {"name": "point", "cx": 16, "cy": 12}),
    ]
    annotations = read_via(tmp_path, regions)
    (name, rectangle), (_, ellipse) = objects_of(annotations.images[0])
    assert name == "object"
    assert np.array_equal(rectangle, box(2, 3, 8, 7))
    y, x = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    radius = np.hypot((x - 16) / 2, (y - 12) / 8)
    assert ellipse[radius < 0.9].all()
    assert not ellipse[radius > 1.1].any()
    assert any("1 point" in note for note in annotations.notes)


def test_via_check_boxes_name_one_class(tmp_path):
    shape = via_polygon(one_ring(box(1, 1, 5, 5)))
    names = [{"kind": {"tree": True, "car": False}}, {"kind": {"tree": True, "car": True}}, {}]
    regions = [via_region(name, shape) for name in names]
    annotations = read_via(tmp_path, regions)
    assert [k for k, _ in objects_of(annotations.images[0])] == ["tree"]
    assert any(note.startswith("2 polygons") for note in annotations.notes)


def test_via_project_beside_its_export_is_read_once(tmp_path):
    write_via(tmp_path)
    write_json(tmp_path / "project.json", {"_via_img_metadata": via_images(SCENES)})
    annotations = read("via", tmp_path)
    assert_equal(annotations)
    assert any(note.startswith("3 rows ") for note in annotations.notes)
    write_json(tmp_path / "project.json", {"_via_img_metadata": via_images({"a": []})})
    with pytest.raises(DataError, match=r"a\.png"):
        read("via", tmp_path)


def test_via_several_attributes_are_refused(tmp_path):
    region = via_region({"kind": "a", "colour": "b"}, via_polygon(one_ring(box(1, 1, 5, 5))))
    with pytest.raises(DataError, match=r"x\.json.*kind, colour"):
        read_via(tmp_path, [region])


# --------------------------------------------------------------------------------------- YOLO

CLASSES = ["tree", "car"]


def yolo_lines(objects):
    for label, mask in objects:
        ring = np.array(one_ring(mask)) / (SIZE[1], SIZE[0])
        yield " ".join([str(CLASSES.index(label)), *(f"{value:.6f}" for value in ring.ravel())])


def write_text(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_yolo(root, *, images="images", labels="labels", settings="names: [tree, car]\n"):
    save_images(root / images)
    for name, objects in SCENES.items():
        write_text(root / labels / f"{name}.txt", "\n".join(yolo_lines(objects)))
    if settings:
        write_text(root / "data.yaml", settings)


@pytest.mark.parametrize(
    ("settings", "names"),
    [("", ["class_0", "class_1"]), ("names: {1: car, 0: tree, 4: 7}\n", ["tree", "car", "7"])],
)
def test_yolo_names_of_classes(tmp_path, settings, names):
    write_yolo(tmp_path, settings=settings)
    assert [row.name for row in read("yolo", tmp_path).classes] == names


def test_yolo_classes_can_be_in_a_text_file(tmp_path):
    write_yolo(tmp_path, settings="")
    paths = ["classes.txt", "images/classes.txt"]
    for path in paths:
        (tmp_path / path).write_text("fir tree\ncar\n\n")
    annotations = read("yolo", tmp_path)
    assert [row.name for row in annotations.classes] == ["fir tree", "car"]
    assert annotations.lists == paths
    (tmp_path / paths[1]).write_text("car\nfir tree\n")
    annotations = read("yolo", tmp_path)
    assert [row.name for row in annotations.classes] == ["class_0", "class_1"]
    assert any(paths[1] in note for note in annotations.notes)
    (tmp_path / paths[1]).unlink()
    (tmp_path / paths[0]).write_text("fir tree\n")
    with pytest.raises(DataError, match=r"a\.txt: .1 0\.5"):
        read("yolo", tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        "train: ../images/train\nval: ../images/val\n",
        "train: /home/me/mine/images/train\nval: C:\\mine\\images\\val\n",
        "train: train.txt\nval: val.txt\n",
    ],
)
def test_yolo_splits_are_those_of_data_yaml(tmp_path, settings):
    for split, name in {"train": "a", "val": "c"}.items():
        save_images(tmp_path / "images" / split)
        text = "\n".join(yolo_lines(SCENES[name]))
        write_text(tmp_path / f"labels/{split}/{name}.txt", text)
        (tmp_path / f"{split}.txt").write_text(f"./images/{split}/{name}.png\n")
    write_text(tmp_path / "data.yaml", f"{settings}names: [tree, car]\n")
    annotations = read("yolo", tmp_path)
    assert {image.image.stem: image.split for image in annotations.images} == {
        "a": "train",
        "c": "val",
    }
    assert not annotations.notes
    assert annotations.lists == (["train.txt", "val.txt"] if "train.txt" in settings else [])


def test_yolo_image_of_several_splits_is_in_the_smallest(tmp_path):
    write_yolo(tmp_path, settings="train: all.txt\nval: val.txt\nnames: [tree, car]\n")
    for k in range(9):
        write_text(tmp_path / f"configs/{k}.yaml", "lr: 1\n")
    write_text(tmp_path / "all.txt", "images/a.png\nimages/b.png\nimages/c.png\n")
    write_text(tmp_path / "val.txt", "images/c.png\n")
    annotations = read("yolo", tmp_path)
    assert [image.split for image in annotations.images] == ["train", "train", "val"]
    assert [row.name for row in annotations.classes] == CLASSES
    assert any("images/c.png" in note for note in annotations.notes)


@pytest.mark.parametrize("line", ["5 0 0 1 0 1 1", "0 0 0 1 0 1 1 1", "0 0 x 1 0 1 1"])
def test_yolo_line_that_is_no_object_is_named(tmp_path, line):
    write_yolo(tmp_path)
    path = tmp_path / "labels/a.txt"
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(DataError, match=r"a\.txt: .[05] 0 "):
        read("yolo", tmp_path)


def test_yolo_keypoints_are_refused(tmp_path):
    write_yolo(tmp_path, settings="names: [tree, car]\nkpt_shape: [3, 2]\n")
    with pytest.raises(DataError, match=r"data\.yaml"):
        read("yolo", tmp_path)


def lines_of(make):
    """Returns lines of three objects, each as ``make`` gives it for its centre and size."""
    places = ((0.3, 0.4, 0.2, 0.2), (0.7, 0.6, 0.3, 0.2), (0.5, 0.5, 0.1, 0.4))
    return "\n".join(f"0 {' '.join(map(str, make(*place)))}" for place in places)


def face(x, y, w, h):
    return [x, y, w, h, x, y, x - w / 4, y, -1, -1, x, y + h / 4, x + w / 3, y - h / 3]


def turned_box(x, y, w, h):
    return [x, y - h / 2, x + w / 2, y, x, y + h / 2, x - w / 2, y]


@pytest.mark.parametrize("make", [face, turned_box, lambda *place: [*place, 0.9]])
def test_yolo_files_of_boxes_are_refused(tmp_path, make):
    write_yolo(tmp_path)
    for path in (tmp_path / "labels").iterdir():
        path.write_text(lines_of(make))
    with pytest.raises(NoMasksError, match="boxes"):
        read("yolo", tmp_path)


def test_yolo_polygons_of_as_many_corners_are_masks(tmp_path):
    def hexagon(x, y, w, h):
        angles = np.arange(6) * np.pi / 3
        corners = np.stack([x + w / 2 * np.cos(angles), y + h / 2 * np.sin(angles)], 1)
        return corners.ravel().tolist()

    for make in (hexagon, lambda x, y, w, h: [*turned_box(x, y, w, h)[:6], x - w / 3, y]):
        write_yolo(tmp_path)
        for path in (tmp_path / "labels").iterdir():
            path.write_text(lines_of(make))
        assert len(read("yolo", tmp_path).images[0].objects) == 3


def test_yolo_confidence_is_named(tmp_path):
    write_yolo(tmp_path)
    (tmp_path / "labels/a.txt").write_text("0 0.1 0.1 0.9 0.1 0.9 0.9 0.87\n")
    with pytest.raises(DataError, match=r"a\.txt: .*confidence"):
        read("yolo", tmp_path)


@pytest.mark.parametrize("ends", [("images_1st_500", "labels_1st_500"), ("a_images", "a_labels")])
def test_yolo_labels_beside_images_of_another_name(tmp_path, ends):
    write_yolo(tmp_path, images=f"train/{ends[0]}", labels=f"train/{ends[1]}")
    assert_equal(read("yolo", tmp_path))


# --------------------------------------------------------------------------------------- CVAT


def cvat_file(images, labels=(("tree", "#00ff7f"), ("car", "#0a0b0c"))):
    rows = [
        f"<label><name>{name}</name><color>{color}</color><attributes/></label>"
        for name, color in labels
    ]
    head = f"<meta><task><size>3</size><labels>{''.join(rows)}</labels></task></meta>"
    start = "<?xml version='1.0' encoding='utf-8'?>\n<annotations>\n  <version>1.1</version>"
    return f"{start}{head}{images}</annotations>"


def cvat_image(name, shapes, **options):
    given = "".join(f' {key}="{value}"' for key, value in options.items())
    size = f'width="{SIZE[1]}" height="{SIZE[0]}"'
    return f'<image id="0" name="{name}" {size}{given}>{"".join(shapes)}</image>'


def cvat_polygon(label, mask, **options):
    points = ";".join(f"{x:.2f},{y:.2f}" for x, y in one_ring(mask))
    given = "".join(f' {key}="{value}"' for key, value in options.items())
    return (
        f'<polygon label="{label}" source="manual" occluded="0" points="{points}"{given}></polygon>'
    )


def test_cvat_order_groups_and_splits(tmp_path):
    save_images(tmp_path)
    one, two = box(1, 1, 5, 5), box(7, 7, 9, 9)
    first = [
        cvat_polygon("car", one, z_order=2, group_id=4),
        cvat_polygon("tree", two, z_order=1),
        cvat_polygon("car", two, z_order=0, group_id=4),
    ]
    images = cvat_image("a.png", first, subset="Train") + cvat_image(
        "b.png", [], subset="Validation"
    )
    write_text(tmp_path / "x.xml", cvat_file(images))
    annotations = read("cvat", tmp_path)
    assert [image.split for image in annotations.images] == ["train", "val"]
    (_, car), (_, tree) = objects_of(annotations.images[0])
    assert np.array_equal(car, one | two)
    assert np.array_equal(tree, two)


def write_coco(root, names):
    size = {"height": SIZE[0], "width": SIZE[1]}
    images = [{"id": k, "file_name": name, **size} for k, name in enumerate(names)]
    ring = np.ravel(one_ring(box(1, 1, 5, 5))).tolist()
    objects = [{"image_id": k, "category_id": 1, "segmentation": [ring]} for k in range(len(names))]
    categories = [{"id": 1, "name": "car"}]
    content = {"images": images, "annotations": objects, "categories": categories}
    write_json(root / "x.json", content)


def write_cvat_names(root, names):
    images = [cvat_image(name, [cvat_polygon("car", box(1, 1, 5, 5))]) for name in names]
    write_text(root / "x.xml", cvat_file("".join(images)))


@pytest.mark.parametrize(
    ("tool", "write"), [("coco", write_coco), ("cvat", write_cvat_names)], ids=["coco", "cvat"]
)
def test_image_of_a_folder_that_is_not_there_is_no_other_of_its_name(tmp_path, tool, write):
    save_images(tmp_path / "images/cam2")
    write(tmp_path, [f"cam{k}/{name}.png" for k in (1, 2, 3) for name in "ab"])
    paths = [image.image.relative_to(tmp_path) for image in read(tool, tmp_path).images]
    there = [path.as_posix() for path in paths if (tmp_path / path).exists()]
    assert there == ["images/cam2/a.png", "images/cam2/b.png"]
    assert len({*paths}) == 6


def test_cvat_shapes(tmp_path):
    save_images(tmp_path)
    shapes = [
        cvat_polygon("tree", box(0, 0, 2, 2)),
        '<box label="car" xtl="2.00" ytl="3.00" xbr="8.00" ybr="7.00"></box>',
        '<ellipse label="car" cx="16.0" cy="12.0" rx="3.0" ry="8.0" rotation="90"></ellipse>',
        '<polyline label="car" points="1,1;2,2"></polyline>',
        '<points label="car" points="1,1;2,2"></points>',
        '<skeleton label="car"><points label="1" points="1,1"></points></skeleton>',
        '<tag label="car"></tag>',
    ]
    write_text(tmp_path / "x.xml", cvat_file(cvat_image("a.png", shapes)))
    annotations = read("cvat", tmp_path)
    _, (_, ellipse) = objects_of(annotations.images[0])
    assert ellipse[11, 9:23].all()
    assert ellipse.sum() == pytest.approx(np.pi * 24, rel=0.03)
    notes = " ".join(annotations.notes)
    assert all(f"1 {kind}" in notes for kind in ("polyline", "points", "skeleton", "rectangle"))


CVAT_BOX = '<mask label="car" rle="RUNS" left="0" top="0" width="BOX" height="8"/>'


@pytest.mark.parametrize(
    ("runs", "width"),
    [(f"{2**63 - 1},{2**63 - 1},66", 8), (2**63, 8), (-1, 8), (64, "1e999"), (64, "nan")],
)
def test_cvat_mask_of_impossible_numbers_is_named(tmp_path, runs, width):
    save_images(tmp_path)
    mask = CVAT_BOX.replace("RUNS", str(runs)).replace("BOX", str(width))
    write_text(tmp_path / "x.xml", cvat_file(cvat_image("a.png", [mask])))
    with pytest.raises(DataError, match=r"(a\.png|x\.xml)"):
        read("cvat", tmp_path).images[0].rasterise(SIZE, "later")


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE x [<!ENTITY a "aaaa">]><annotations><version>&a;</version></annotations>',
        "<annotations>\n<version>1.1</version><track id='0' label='car'/></annotations>",
        cvat_file(cvat_image("a.png", ['<mask label="car" rle="1, x" left="0" top="0"/>'])),
    ],
)
def test_cvat_file_that_cannot_be_used_is_named(tmp_path, text):
    save_images(tmp_path)
    write_text(tmp_path / "x.xml", text)
    with pytest.raises(DataError, match=r"x\.xml"):
        read("cvat", tmp_path, ["x.xml"])


# ------------------------------------------------------------------------------- Label Studio


def studio_region(kind, label, value, **options):
    region = {"id": "r1", "type": kind, "value": {kind: [label], **value}, "image_rotation": 0}
    return region | {"original_width": SIZE[1], "original_height": SIZE[0]} | options


def studio_polygon(label, mask, **options):
    points = (np.array(one_ring(mask)) * 100 / (SIZE[1], SIZE[0])).tolist()
    return studio_region("polygonlabels", label, {"points": points, "closed": True}, **options)


def studio_brush(label, mask, level=255):
    rgba = np.zeros((*SIZE, 4), np.uint8)
    rgba[mask] = 12, 200, 7, level
    rgba[0, 0, 3] += (rgba[0, 0, 3] == 0) * (level > 1)  # hardly visible
    value = {"format": "rle", "rle": brush_rle(rgba.ravel())}
    return studio_region("brushlabels", label, value)


def studio_imported_brush(label, mask):
    """As Label Studio's converter writes a contour of OpenCV."""
    return studio_brush(label, mask, level=100)


def studio_bitmask(label, mask):
    rgba = np.zeros((*SIZE, 4), np.uint8)
    rgba[mask, 3] = 255
    value = {"imageDataURL": f"data:image/png;base64,{base64.b64encode(png(rgba)).decode()}"}
    return studio_region("bitmasklabels", label, value)


def studio_task(name, regions, key="annotations"):
    works = [{"id": 1, "completed_by": 1, "result": regions, "was_cancelled": False}]
    return {"id": 1, key: works, "predictions": [], "data": {"image": name}}


def write_label_studio(root, region=studio_polygon):
    save_images(root)
    tasks = [
        studio_task(f"/data/upload/1/0123abcd-{name}.png", [region(*row) for row in objects])
        for name, objects in SCENES.items()
    ]
    write_json(root / "project-1.json", tasks)


def studio_polygon_without_size(label, mask):
    return studio_polygon(label, mask, original_width=None, original_height=None)


@pytest.mark.parametrize(
    "region", [studio_imported_brush, studio_bitmask, studio_polygon_without_size]
)
def test_label_studio_is_read_exactly(tmp_path, region):
    write_label_studio(tmp_path, region)
    annotations = read("labelstudio", tmp_path)
    assert_equal(annotations)
    assert annotations.images[0].size == (None if "without" in region.__name__ else SIZE)


@pytest.mark.parametrize(
    "name",
    [
        "/data/local-files/?d=photos%2Fa.png",
        "https://bucket.s3.amazonaws.com/x/a.png?X-Amz-Signature=1f",
        "a.png",
    ],
)
def test_label_studio_image_is_found(tmp_path, name):
    save_images(tmp_path / "photos")
    task = studio_task(name, [studio_polygon("car", box(1, 1, 5, 5))], "completions")
    write_json(tmp_path / "x.json", [task])
    assert [i.image.name for i in read("labelstudio", tmp_path).images] == ["a.png"]


def test_label_studio_takes_the_image_on_which_regions_are_drawn(tmp_path):
    save_images(tmp_path)
    task = studio_task("b.png", [studio_polygon("car", box(1, 1, 5, 5), to_name="image")])
    task["data"] = {"before": "a.png", "image": "b.png", "name": "b.png"}
    write_json(tmp_path / "x.json", [task])
    assert [i.image.name for i in read("labelstudio", tmp_path).images] == ["b.png"]
    task["data"] = {"before": "a.png", "after": "b.png"}
    write_json(tmp_path / "x.json", [task])
    with pytest.raises(DataError, match=r"1 task left out.*a\.png"):
        read("labelstudio", tmp_path)


def test_label_studio_regions_without_pixels_are_counted(tmp_path):
    save_images(tmp_path)
    regions = [
        studio_polygon("car", box(1, 1, 5, 5)),
        studio_polygon("car", box(1, 1, 5, 5), image_rotation=90),
        studio_region("rectanglelabels", "car", {"x": 1, "y": 1, "width": 5, "height": 5}),
        studio_region("keypointlabels", "car", {"x": 1, "y": 1, "width": 5}),
        studio_region("choices", "car", {}),
        {"type": "relation", "from_id": "r1", "to_id": "r2"},
    ]
    ellipse = {"x": 50, "y": 50, "radiusX": 25, "radiusY": 12.5, "rotation": 0}
    regions.append(studio_region("ellipselabels", "car", ellipse))
    regions.append(studio_region("ellipselabels", "car", ellipse, original_width=10**400))
    write_json(tmp_path / "x.json", [studio_task("a.png", regions), studio_task("b.png", [])])
    annotations = read("labelstudio", tmp_path)
    notes = " ".join(annotations.notes)
    assert all(f"1 {kind} " in notes for kind in ("rectangle", "keypoint", "polygon", "ellipse"))
    _, (_, mask) = objects_of(annotations.images[0])
    assert mask.sum() == pytest.approx(np.pi * 24, rel=0.03)


def test_label_studio_takes_the_annotation_that_is_ground_truth(tmp_path):
    save_images(tmp_path)
    masks = [box(1, 1, 5, 5), box(2, 2, 9, 9), box(3, 3, 4, 4)]
    task = studio_task("a.png", [])
    task["annotations"] = [
        {"result": [studio_polygon("car", mask)], "was_cancelled": k == 2, "ground_truth": k == 0}
        for k, mask in enumerate(masks)
    ]
    write_json(tmp_path / "x.json", [task])
    assert np.array_equal(only_mask(read("labelstudio", tmp_path)), masks[0])
    task["annotations"][0]["ground_truth"] = False
    write_json(tmp_path / "x.json", [task])
    annotations = read("labelstudio", tmp_path)
    assert np.array_equal(only_mask(annotations), masks[1])
    assert any("1 annotation " in note for note in annotations.notes)


# ---------------------------------------------------------------------- pictures of masks


def write_picture(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(pixels))


def write_object_masks(root):
    for name, objects in SCENES.items():
        write_picture(root / f"stage1_train/{name}/images/{name}.png", np.zeros((*SIZE, 3), "u1"))
        for k, (_, mask) in enumerate(objects):
            write_picture(root / f"stage1_train/{name}/masks/{k}.png", mask * np.uint8(255))


def test_mask_of_another_size_is_named(tmp_path):
    write_object_masks(tmp_path)
    write_picture(tmp_path / "stage1_train/a/masks/0.png", np.zeros((5, 5), np.uint8))
    with pytest.raises(DataError, match=r"a/masks/0\.png"):
        objects_of(read("object_masks", tmp_path).images[0])


# ---------------------------------------------------------------------------------- all formats


def test_ids_of_things_do_not_count_parts_of_stuff():
    classes = [(0, False)] * 70_000 + [(1, False)] * 3  # more than 16 bits hold
    positions = np.array([[0, 1, 70_000], [70_001, 70_002, 70_003]])
    labels, ids = label_maps(positions, classes, {1}, IGNORE_INDEX)
    assert labels.tolist() == [[IGNORE_INDEX, 0, 0], [1, 1, 1]]
    assert ids.tolist() == [[0, 0, 0], [1, 2, 3]]


def test_images_outside_the_folder_are_not_read(tmp_path):
    save_images(tmp_path)
    shape = labelme_shape("tree", one_ring(box(1, 1, 5, 5)))
    for name in ("../a.png", str(tmp_path / "a.png"), "x/../../a.png"):
        write_json(tmp_path / "data/a.json", labelme_file([shape], name))
        with pytest.raises(DataError, match=r"data/a\.png"):
            read("labelme", tmp_path / "data")


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
