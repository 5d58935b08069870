"""dpt evaluate by protocol: what conf/protocol says reaches the model and the metrics."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from PIL import Image

import dpt
from dpt.config.compose import config_dir
from dpt.config.objects import read_settings
from dpt.metrics import DepthMetrics, Protocol, SegmentationMetrics
from dpt.objectives import DepthObjective, SegmentationObjective

PUBLISHED = {  # largest depth, crop, how predictions are resized
    "nyu_eigen": (10.0, "eigen_nyu", "bilinear_aligned"),
    "kitti_eigen": (80.0, "eigen_kitti", "bilinear_aligned"),
    "kitti_garg": (80.0, "garg", "bilinear_aligned"),
    "dpt": (None, "none", "bicubic"),
    "slide": (None, "none", "bilinear"),
    "multi_scale": (None, "none", "bilinear"),
}
PROTOCOLS = sorted(p.stem for p in (config_dir() / "protocol").glob("[a-z]*.yaml"))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_protocol_files_are_as_published(name):
    base, changed = (OmegaConf.load(config_dir() / f"protocol/{n}.yaml") for n in ("_base", name))
    del changed["defaults"]
    settings = OmegaConf.to_container(OmegaConf.merge(base, changed))
    protocol = read_settings(Protocol, settings, "protocol")
    assert protocol.name == name
    keys = (protocol.max_depth, protocol.crop, protocol.resize)
    assert keys == PUBLISHED.get(name, (None, "none", None))
    assert (protocol.min_depth, protocol.alignment, protocol.space) == (1e-3, None, None)


def test_protocol_is_written_down(evaluate, checkpoint, metrics, tmp_path):
    changed = {
        "max_depth": "500",
        "alignment": "median",
        "space": "inverse_depth",
        "flip": "true",
        "scales": "[0.75,1]",
    }
    overrides = [f"protocol.{key}={value}" for key, value in changed.items()]
    run = evaluate(tmp_path, checkpoint, "protocol=kitti_garg", *overrides)
    values = metrics(run)
    used = {k.partition("/")[2]: v for k, v in values.items() if k.startswith("protocol")}
    assert used == {
        "": "kitti_garg",
        "min_depth": 0.001,
        "max_depth": 500.0,
        "crop": "garg",
        "alignment": "median",
        "space": "inverse_depth",
        "resize": "bilinear_aligned",
        "flip": True,
        "scales": "[0.75, 1.0]",
    }
    assert "data.max_depth" in (run / "log.txt").read_text()
    assert "protocol/max_depth" in (run / "report.html").read_text()
    assert all(isinstance(v, str | int | float | None) for v in values.values())  # flat


BOX = "[4,28,6,40]"


ALIGNED = ("protocol.alignment=scale_shift", "protocol.space=inverse_depth")


@pytest.mark.parametrize(
    "protocol",
    [
        (f"protocol.crop={BOX}", "protocol.max_depth=6"),
        *(pytest.param(keys, marks=pytest.mark.slow) for keys in ((), ALIGNED)),
    ],
)
def test_files_score_as_their_model(
    evaluate, score_files, files, folder_run, dense_data, images_table, metrics, tmp_path, protocol
):
    last = folder_run / "checkpoints/last.ckpt"
    model = evaluate(tmp_path / "model", last, *dense_data, "data.batch_size=1", *protocol)
    values = metrics(score_files(tmp_path / "files", files, *protocol))
    for key, value in metrics(model).items():
        if key.startswith(("val/", "ci95")):
            assert values[key] == value or values[key] == pytest.approx(value, rel=1e-4), key
    names = [[row["name"] for row in images_table(run)] for run in (tmp_path / "files", model)]
    assert names[0] == names[1]


def test_crop_is_what_the_metric_sees(score_files, files, dense_folder, metrics, tmp_path):
    """Against the metrics fed by hand."""
    values = metrics(score_files(tmp_path, files, "protocol=depth", f"protocol.crop={BOX}"))
    depth, labels = DepthMetrics(max_depth=10.0), SegmentationMetrics(3)
    for path in sorted((dense_folder / "depth/val").glob("*.png")):
        target = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[4:28, 6:40].astype(np.float32) / 1000
        prediction = torch.from_numpy(np.load(files / f"depth/{path.stem}.npy")[4:28, 6:40])
        depth.update(prediction, torch.from_numpy(target), torch.from_numpy(target > 0))
    for path in sorted((dense_folder / "masks/val").glob("*.png")):
        pair = [np.asarray(Image.open(p)) for p in (files / f"labels/{path.name}", path)]
        labels.update(*(torch.from_numpy(p.copy()) for p in pair))
    for metric in (depth, labels):
        for name, value in metric.scores().items():
            assert values[f"val/{name.replace('/', '/class_')}"] == pytest.approx(value)


VIEWS = {
    "flip": ("protocol.flip=true",),
    "scales": ("protocol=multi_scale", "protocol.scales=[1,1.5]", "protocol.flip=false"),
    "slide": ("protocol=slide", "protocol.window=[32,32]", "protocol.stride=[16,16]"),
}


@pytest.mark.parametrize(
    "views", ["slide", *(pytest.param(v, marks=pytest.mark.slow) for v in ("flip", "scales"))]
)
def test_views_reach_the_model(evaluate, checkpoint, joint_scores, scores, tmp_path, views):
    run = evaluate(tmp_path, checkpoint, *VIEWS[views])
    changed, plain = (scores(folder)["val/abs_rel"] for folder in (run, joint_scores))
    assert changed != plain
    assert changed == pytest.approx(plain, rel=0.5)


RESIZE = {
    "bilinear_aligned": {"mode": "bilinear", "align_corners": True},
    "bilinear": {"mode": "bilinear", "align_corners": False},
    "bicubic": {"mode": "bicubic", "align_corners": False},
}


@pytest.mark.parametrize("rule", RESIZE)
@pytest.mark.parametrize("classes", [5, 70])
def test_predictions_are_resized_by_the_rule(rule, classes):
    logits = torch.randn(1, classes, 7, 9)
    segmentation = SegmentationObjective(num_classes=classes)
    segmentation.resize = rule
    expected = F.interpolate(logits, (20, 31), **RESIZE[rule]).argmax(1)
    assert torch.equal(segmentation.predict(logits, (20, 31)), expected)
    depth = DepthObjective(max_depth=10.0)
    depth.resize = rule
    maps = logits[:, 0].exp()
    expected = F.interpolate(maps[:, None], (20, 31), **RESIZE[rule])[:, 0]
    assert torch.equal(depth.predict(maps, (20, 31)), expected)


def test_checkpoint_decides_how_outputs_are_resized(evaluate, checkpoint, metrics, tmp_path):
    model = dpt.DPT.from_pretrained(checkpoint)
    model.preprocessing = replace(  # inputs of another size than labels
        model.preprocessing,
        image_size=(64, 64),
        resize="stretch",
        interpolation="cubic_float",
        output_interpolation="bicubic",
    )
    model.save_pretrained(tmp_path / "model")
    keys = {"bicubic": (), "bilinear": ("protocol.resize=bilinear",)}
    scores = {}
    for rule, overrides in keys.items():
        scores[rule] = metrics(evaluate(tmp_path / rule, tmp_path / "model", *overrides))
        assert scores[rule]["protocol/resize"] == rule
    assert scores["bicubic"]["val/abs_rel"] != scores["bilinear"]["val/abs_rel"]
