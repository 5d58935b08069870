"""dpt evaluate by protocol, of checkpoints and of predictions on disk: what it writes is right."""

import csv
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser

import cv2
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from photos import save_picture
from PIL import Image

import dpt
from dpt.config.objects import check_arguments
from dpt.data.transforms import EvalTransform
from dpt.evaluation.predictions import PredictionFolder
from dpt.evaluation.report import write_report
from dpt.evaluation.scoring import Scorer, blocks_of
from dpt.files import config_dir
from dpt.metrics import DepthMetrics, Protocol, SegmentationMetrics
from dpt.objectives import (
    ClassificationObjective,
    DepthObjective,
    RegressionObjective,
    SegmentationObjective,
)
from dpt.types import IGNORE_INDEX, Calibration, HeadOutput, OutputSpec

PUBLISHED = {  # largest depth, crop, how predictions are resized
    "nyu_eigen": (10.0, "eigen_nyu", "bilinear_aligned"),
    "kitti_eigen": (80.0, "eigen_kitti", "bilinear_aligned"),
    "kitti_garg": (80.0, "garg", "bilinear_aligned"),
    "dpt": (None, "none", "bicubic"),
    "slide": (None, "none", "bilinear"),
    "multi_scale": (None, "none", "bilinear"),
}
PROTOCOLS = sorted(p.stem for p in (config_dir() / "protocol").glob("[a-z]*.yaml"))


@pytest.fixture(scope="module")
def checkpoint(joint_run):
    return joint_run / "checkpoints/last.ckpt"


def composed(name):
    base = OmegaConf.load(config_dir() / "protocol/_base.yaml")
    own = OmegaConf.load(config_dir() / f"protocol/{name}.yaml")
    del own["defaults"]
    return OmegaConf.to_container(OmegaConf.merge(base, own))


def images_table(run):
    with (run / "per_image.csv").open() as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------- conf/protocol


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_can_be_read(name):
    protocol = Protocol(**check_arguments(Protocol, composed(name), "protocol"))
    assert protocol.name == name
    found = (protocol.max_depth, protocol.crop, protocol.resize)
    assert found == PUBLISHED.get(name, (None, "none", None))
    assert (protocol.min_depth, protocol.alignment, protocol.space) == (1e-3, None, None)


# -------------------------------------------------------------------------- what is written


def test_the_scores_of_images_add_up_to_those_of_the_data_set(joint_scores, metrics):
    rows, found = images_table(joint_scores), metrics(joint_scores)
    assert len(rows) == found["images"] == 5
    assert len({row["name"] for row in rows}) == 5
    for name in ("abs_rel", "rmse", "silog", "delta1"):
        mean = np.mean([float(row[name]) for row in rows])
        assert found[f"val/{name}"] == pytest.approx(mean, rel=1e-6)
    counts = np.loadtxt(joint_scores / "confusion.csv", delimiter=",", skiprows=1, dtype=str)
    counts = counts[:, 1:].astype(int)
    union = counts.sum(1) + counts[:, :-1].sum(0) - counts.diagonal()
    iou = counts.diagonal()[union > 0] / union[union > 0]
    assert found["val/miou"] == pytest.approx(iou.mean())
    assert found["val/pixel_accuracy"] == pytest.approx(counts.diagonal().sum() / counts.sum())


def test_every_score_has_an_interval_that_holds_it(joint_scores, metrics):
    found = metrics(joint_scores)
    for name in ("abs_rel", "rmse_pooled", "miou", "pixel_accuracy"):
        low, high = found[f"ci95_low/{name}"], found[f"ci95_high/{name}"]
        assert low <= found[f"val/{name}"] <= high, name
    assert found["ci95_low/abs_rel"] < found["ci95_high/abs_rel"]


def test_what_was_used_is_written_down(evaluate, checkpoint, metrics, tmp_path):
    run = evaluate(tmp_path, checkpoint, "protocol=kitti_garg", "protocol.max_depth=500",
                   "protocol.alignment=median", "protocol.space=inverse_depth",
                   "protocol.flip=true", "protocol.scales=[0.75,1]")  # fmt: skip
    found = metrics(run)
    used = {k.partition("/")[2]: v for k, v in found.items() if k.startswith("protocol")}
    assert used[""] == "kitti_garg"
    assert (used["alignment"], used["space"]) == ("median", "inverse_depth")
    assert used["crop"] == "garg"
    assert (used["min_depth"], used["max_depth"]) == (0.001, 500.0)
    assert "the data leaves out depths beyond" in (run / "log.txt").read_text()
    assert (used["flip"], used["scales"]) == (True, "[0.75, 1.0]")
    page = (run / "report.html").read_text()
    assert "kitti_garg" in page
    assert "protocol/max_depth" in page
    assert all(isinstance(v, (str, int, float, type(None))) for v in found.values())  # flat


def test_the_checkpoint_says_how_outputs_are_resized(evaluate, checkpoint, metrics, tmp_path):
    model = dpt.DPT.from_pretrained(checkpoint)
    model.preprocessing = replace(  # inputs of another size than labels
        model.preprocessing,
        image_size=(64, 64),
        resize="stretch",
        interpolation="cubic_float",
        output_interpolation="bicubic",
    )
    model.save_pretrained(tmp_path / "model")
    scores = {}
    for name in ("whole", "dpt", "slide"):
        scores[name] = metrics(evaluate(tmp_path / name, tmp_path / "model", f"protocol={name}"))
    rules = {name: found["protocol/resize"] for name, found in scores.items()}
    assert rules == {"whole": "bicubic", "dpt": "bicubic", "slide": "bilinear"}
    for name in ("val/abs_rel", "val/rmse"):
        assert scores["whole"][name] == scores["dpt"][name] != scores["slide"][name]
    panels = [np.asarray(Image.open(p)) for p in (tmp_path / "whole/panels").glob("*.png")]
    assert panels
    assert all(panel.dtype == np.uint8 for panel in panels)


class Page(HTMLParser):
    """Counts tags and complains of such as reach for the network or are left open."""

    VOID = ("meta", "img", "br")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        for name, value in attributes:
            assert name not in ("src", "href") or value.startswith("data:image/")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_report_is_one_whole_page(joint_scores):
    text = (joint_scores / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.seen.count("img") == 5 + 8  # examples, and four of the worst by each of two heads
    headings = ("Examples", "Worst images by abs_rel", "Worst images by miou", "Scores", "Classes",
                "Largest confusions", "Settings")  # fmt: skip
    assert [text.index(f">{heading}<") for heading in headings] == sorted(
        text.index(f">{heading}<") for heading in headings
    )
    assert "better than nearest photo" in text
    assert not re.search(r">-?0\.[1-9]\d{3,}<", text)  # three digits


def test_a_broken_file_counts_nowhere(
    evaluate, checkpoint, dense_folder, metrics, refused, tmp_path
):
    broken = tmp_path / "data"
    shutil.copytree(dense_folder, broken)
    (broken / "images/val/2.png").write_bytes(b"no picture")
    data = ("data=folder", f"data.root={broken}", "data.depth=depth", "data.max_depth=10",
            "data.missing=skip", "data.on_error=skip")  # fmt: skip
    run = evaluate(tmp_path / "run", checkpoint, *data)
    assert "images/val/2.png" in (run / "log.txt").read_text()
    rows = images_table(run)
    assert len(rows) == metrics(run)["images"] > 0
    assert not any("2.png" in row["name"] or row["abs_rel"] == "" for row in rows)
    assert "no baselines" not in (run / "log.txt").read_text()
    mean = np.mean([float(row["abs_rel"]) for row in rows if row["abs_rel"]])
    assert metrics(run)["val/abs_rel"] == pytest.approx(mean, rel=1e-6)
    for photo in (broken / "images/val").iterdir():
        photo.write_bytes(b"no picture")
    assert "no image was scored" in refused(evaluate, tmp_path / "none", checkpoint, *data)


def report_of(objectives, outputs, labels, tmp_path):
    """The page for three images, one batch."""
    specs = {"segmentation": OutputSpec("segmentation", "logits")}
    scorer = Scorer(objectives, specs)
    labels |= {"index": torch.arange(3), "name": ["<a>", "b", "c"]}
    scorer.add(outputs, labels, torch.zeros(3, 3, 8, 9, dtype=torch.uint8))
    intervals = scorer.intervals(blocks_of("abc", None))
    write_report(
        tmp_path / "report.html", scorer, scorer.scores(), intervals, baselines={}, settings={}
    )
    text = (tmp_path / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    return text, page


def test_a_report_of_many_classes(tmp_path, monkeypatch):
    monkeypatch.setattr("dpt.evaluation.scoring.WORST_IMAGES", 2)
    objective = SegmentationObjective(num_classes=60)
    truth = torch.randint(60, (3, 8, 9), dtype=torch.uint8)
    labels = {"labels": list(truth)}
    outputs = {"segmentation": HeadOutput((truth + 1) % 60)}
    text, page = report_of({"segmentation": objective}, outputs, labels, tmp_path)
    assert "Largest confusions" in text
    assert page.seen.count("img") == 2
    assert "&lt;a&gt;: miou" in text


def test_a_report_of_a_head_without_maps(tmp_path):
    objective = ClassificationObjective(num_classes=3)
    labels = {"class_id": torch.tensor([0, 1, 2])}
    outputs = {"classification": HeadOutput(torch.eye(3))}
    text, page = report_of({"classification": objective}, outputs, labels, tmp_path)
    assert "accuracy" in text
    assert "img" not in page.seen


# ------------------------------------------------------------------------------ protocols


def predicted(checkpoint, folder):
    """Depth and labels of the model for each photo of ``folder``, at the photo's size, in NumPy."""
    model = dpt.DPT.from_pretrained(checkpoint)
    for path in sorted(folder.glob("*.png")):
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        small = EvalTransform(model.preprocessing)({"image": image})["image"]
        batch = torch.from_numpy(small).permute(2, 0, 1)[None]
        with torch.no_grad():
            out = model(model.preprocessing.normalize(batch))
        size = {"size": image.shape[:2], "mode": "bilinear", "align_corners": True}
        depth = torch.nn.functional.interpolate(out["depth"][:, None], **size)[0, 0].numpy()
        logits = torch.nn.functional.interpolate(out["segmentation"], **size)
        yield path.stem, depth, logits[0].argmax(0).to(torch.uint8).numpy()


@pytest.fixture(scope="module")
def folder_run(train, dense_data, tmp_path_factory):
    return train(tmp_path_factory.mktemp("folder") / "run", "task=joint", *dense_data)


@pytest.fixture(scope="module")
def files(folder_run, dense_folder, tmp_path_factory):
    """A folder of that run's predictions: depth/*.npy and labels/*.png."""
    root = tmp_path_factory.mktemp("predictions")
    (root / "depth").mkdir()
    last = folder_run / "checkpoints/last.ckpt"
    for stem, depth, labels in predicted(last, dense_folder / "images/val"):
        np.save(root / f"depth/{stem}.npy", depth)
        save_picture(root / f"labels/{stem}.png", labels)
    return root


@pytest.fixture(scope="module")
def scored_files(score_files, files, tmp_path_factory):
    """Those files by the protocol that is used if none is named."""
    return score_files(tmp_path_factory.mktemp("scored") / "run", files)


BOX = "[4,28,6,40]"


@pytest.mark.parametrize(
    "protocol",
    [
        (f"protocol.crop={BOX}", "protocol.max_depth=6"),
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(
            ("protocol.alignment=scale_shift", "protocol.space=inverse_depth"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_files_score_as_their_model(
    evaluate, score_files, files, folder_run, dense_data, metrics, tmp_path, protocol
):
    model = evaluate(tmp_path / "model", folder_run / "checkpoints/last.ckpt", *dense_data,
                     "data.batch_size=1", *protocol)  # fmt: skip
    found = metrics(score_files(tmp_path / "files", files, *protocol))
    expected = {k: v for k, v in metrics(model).items() if k.startswith(("val/", "ci95"))}
    assert expected.keys() <= found.keys()
    for key, value in expected.items():
        assert found[key] == value or found[key] == pytest.approx(value, rel=1e-4), key
    assert [r["name"] for r in images_table(tmp_path / "files")] == [
        r["name"] for r in images_table(tmp_path / "model")
    ]


def test_a_crop_is_what_the_metric_sees(score_files, files, dense_folder, metrics, tmp_path):
    """Against the metrics fed by hand."""
    found = metrics(score_files(tmp_path, files, "protocol=depth", f"protocol.crop={BOX}"))
    depth = DepthMetrics(max_depth=10.0)
    labels = SegmentationMetrics(3)
    for path in sorted((dense_folder / "depth/val").glob("*.png")):
        truth = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)[4:28, 6:40].astype(np.float32) / 1000
        guess = np.load(files / f"depth/{path.stem}.npy")[4:28, 6:40]
        truth = torch.from_numpy(truth)
        depth.update(torch.from_numpy(guess), truth, truth > 0)
    for path in sorted((dense_folder / "masks/val").glob("*.png")):
        pair = [np.asarray(Image.open(p)) for p in (files / f"labels/{path.name}", path)]
        labels.update(*(torch.from_numpy(p.copy()) for p in pair))
    for metric in (depth, labels):
        for name, value in metric.compute().items():
            assert found[f"val/{name.replace('/', '/class_')}"] == pytest.approx(float(value))


FORMS = {
    "flip": ("protocol.flip=true",),
    "scales": ("protocol=multi_scale", "protocol.scales=[1,1.5]", "protocol.flip=false"),
    "slide": ("protocol=slide", "protocol.window=[32,32]", "protocol.stride=[16,16]"),
}


@pytest.mark.parametrize(
    "form", ["slide", *(pytest.param(f, marks=pytest.mark.slow) for f in ("flip", "scales"))]
)
def test_flip_scales_and_windows_reach_the_model(
    evaluate, checkpoint, joint_scores, scores, tmp_path, form
):
    found, plain = scores(evaluate(tmp_path, checkpoint, *FORMS[form])), scores(joint_scores)
    assert found["val/abs_rel"] != plain["val/abs_rel"]
    assert found["val/abs_rel"] == pytest.approx(plain["val/abs_rel"], rel=0.5)


@pytest.mark.slow
def test_images_that_fit_into_the_window_are_seen_whole(
    evaluate, checkpoint, joint_scores, scores, tmp_path
):
    found = scores(evaluate(tmp_path, checkpoint, "protocol=slide"))
    for name in ("val/abs_rel", "val/rmse", "val/miou"):
        assert found[name] == pytest.approx(scores(joint_scores)[name], rel=1e-6)


# ---------------------------------------------------------------------- predictions on disk


def test_sixteen_bits_with_a_scale(score_files, scored_files, files, metrics, tmp_path):
    for path in (files / "depth").iterdir():
        value = np.rint(np.load(path) * 256).astype(np.uint16)
        save_picture(tmp_path / f"png/depth/{path.stem}.png", value)
    scale = "predictions_scale=0.00390625"
    found = metrics(score_files(tmp_path / "png_run", tmp_path / "png", scale))
    assert found["val/abs_rel"] == pytest.approx(metrics(scored_files)["val/abs_rel"], rel=1e-2)
    assert "val/miou" not in found  # there are no labels among them
    assert found["predictions_kind"] == "metric"


def test_ids_of_files_that_are_no_class_are_shown_as_none():
    palette = [(10, 0, 0), (20, 0, 0), (30, 0, 0)]
    objective = SegmentationObjective(num_classes=3, palette=palette)
    ids = torch.tensor([[[0, 1, -7, 7]]])
    labels = {"labels": [torch.tensor([[0, 1, 2, 2]], dtype=torch.uint8)]}
    photo = np.full((1, 4, 3), 200, np.uint8)

    def shown(ids):
        spec = OutputSpec("segmentation", "logits", channels=3)
        return objective.panel(photo, HeadOutput(ids), labels, spec)

    assert np.array_equal(shown(ids), shown(torch.where(ids.abs() == 7, IGNORE_INDEX, ids)))


def test_the_manifest_of_dpt_predict_says_the_scale(
    score_files, files, dense_folder, metrics, tmp_path
):
    """Relative depth stretched to 16 bits, each picture by a scale and offset of its own."""
    root, lines = tmp_path / "out", []
    for path in sorted((files / "depth").iterdir()):
        inverse = 1 / np.load(path)
        low, scale = float(inverse.min()), float(np.ptp(inverse)) / 65535
        value = np.rint((inverse - low) / scale).astype(np.uint16)
        save_picture(root / f"depth/{path.stem}.png", value)
        lines.append(json.dumps({
            "name": path.stem, "source": f"{dense_folder}/images/val/{path.stem}.png",
            "depth": {"scale": scale, "offset": low, "unit": "relative inverse depth"},
            "files": [f"depth/{path.stem}.png", f"depth_color/{path.stem}.png"],
        }))  # fmt: skip
    (root / "predictions.jsonl").write_text("\n".join([*lines, '{"name": "cut sho']))
    with (root / "predictions.jsonl").open("a") as file:  # numbers that no file has
        for scale in ("-1", "NaN", "1" + "0" * 400):
            depth = f'{{"unit": "m", "scale": {scale}, "offset": 0}}'
            file.write(f'\n{{"name": "x", "source": "x", "files": [], "depth": {depth}}}')
    found = metrics(score_files(tmp_path / "run", root))
    assert found["predictions_kind"] == "relative"
    assert found["protocol/alignment"] == "scale_shift"
    exact = ("protocol.alignment=scale_shift", "protocol.space=inverse_depth")
    expected = metrics(score_files(tmp_path / "exact", files, *exact))
    assert found["val/abs_rel"] == pytest.approx(expected["val/abs_rel"], rel=1e-3)


def test_files_that_the_manifest_does_not_name_are_not_scored(
    score_files, scored_files, mistake, files, metrics, tmp_path
):
    """Such as exact values of an earlier model; of each image the last record counts."""
    root, lines = tmp_path / "out", []
    shutil.copytree(files / "depth", root / "depth")
    shutil.copytree(files / "labels", root / "labels")
    shutil.copytree(files / "depth", root / "depth_npy")
    for path in sorted((root / "depth_npy").iterdir()):
        np.save(path, np.ones_like(np.load(path)))  # the earlier model's
        for folder in ("depth_npy", "depth"):
            record = {"name": path.stem, "source": "x", "files": [f"{folder}/{path.name}"]}
            lines.append(json.dumps(record))
    journal = root / "predictions.jsonl"
    journal.write_text("\n".join(lines))
    found = metrics(score_files(tmp_path / "found", root))
    assert found["val/abs_rel"] == metrics(scored_files)["val/abs_rel"]
    assert "val/miou" not in found
    journal.write_text(json.dumps({"name": "1", "source": "x", "files": ["depth_color/1.png"]}))
    says = r"predictions\.jsonl: names no file in depth_npy, depth, labels_npy, labels: predict"
    assert re.search(says, mistake(root))


@pytest.fixture
def metres(files, dense_folder, tmp_path):
    """A folder of metric depth as dpt predict writes it: depth/*.png in millimetres."""
    root, lines = tmp_path / "metres", []
    for path in sorted((files / "depth").iterdir()):
        value = np.rint(np.load(path) * 1000).astype(np.uint16)
        save_picture(root / f"depth/{path.stem}.png", value)
        lines.append(json.dumps({
            "name": path.stem, "source": f"{dense_folder}/images/val/{path.stem}.png",
            "depth": {"scale": 0.001, "offset": 0.0, "unit": "metres"},
            "files": [f"depth/{path.stem}.png"],
        }))  # fmt: skip
    (root / "predictions.jsonl").write_text("\n".join(lines))
    return root


def test_class_names_of_the_manifest_are_compared(score_files, mistake, files, tmp_path):
    root = tmp_path / "out"
    shutil.copytree(files, root)
    settings, classes = {"written": ["labels"]}, ["class_0", "lawn", "class_2"]
    (root / "predictions.json").write_text(json.dumps({**settings, "classes": {"labels": classes}}))
    run = score_files(tmp_path / "named", root)
    assert "(and of the data): lawn (class_1)" in (run / "log.txt").read_text()
    many = {"labels": [*classes, "d"], "overlay": 5}
    (root / "predictions.json").write_text(json.dumps({**settings, "classes": many}))
    assert "segmentation head has 4 classes, but the data has 3" in mistake(root)


def test_zeros_of_metric_files_are_no_depth(mistake, metres, metrics, tmp_path):
    """dpt predict writes 0 for metres that do not fit into 16 bits."""
    path = metres / "depth/0.png"
    value = np.array(Image.open(path))
    value[0] = 0
    Image.fromarray(value).save(path)
    assert "val/0.png" in mistake(metres)
    assert metrics(tmp_path / "run")["nonfinite_predictions"] == 1


def test_keys_that_the_manifest_states_are_refused(mistake, metres):
    says = f"{metres}/predictions.jsonl states the unit: leave it out"
    for given in ("predictions_kind=relative", "predictions_scale=0.001"):
        assert f"{given}: {says}" in mistake(metres, given)


def prediction_folder(root, names, samples):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return PredictionFolder(root, target="depth", names=[f"/data/images/{s}" for s in samples])


VAL = ["val/a/1.png", "val/b/1.png"]


@pytest.mark.parametrize("front", ["", "val/", "images/val/"])
def test_predictions_have_the_whole_relative_paths_of_their_images(tmp_path, front):
    names = [f"{front}a/1.npy", f"{front}b/1.npy", "train/a/1.npy"]
    folder = prediction_folder(tmp_path, names, VAL)
    assert folder[0] == tmp_path / names[0]
    assert folder[1] == tmp_path / names[1]


def test_folders_may_be_left_out_where_names_differ(tmp_path):
    samples = ["val/a/a_1.png", "val/b/b_1.png"]
    folder = prediction_folder(tmp_path, ["a_1.npy", "b_1.png.npy"], samples)
    assert [folder[k].name for k in (0, 1)] == ["a_1.npy", "b_1.png.npy"]


def test_names_may_have_another_form_in_unicode(tmp_path):
    folder = prediction_folder(tmp_path, ["a\u0308/o\u0308.npy"], ["\u00e4/\u00f6.png"])
    assert folder[0].is_file()
    with pytest.raises(ValueError, match="are predictions of one image"):
        prediction_folder(tmp_path, ["\u00e4/\u00f6.npy"], ["\u00e4/\u00f6.png"])[0]


def test_another_file_is_not_taken_where_one_is_missing(tmp_path):
    folder = prediction_folder(tmp_path, ["val/a/1.npy", "train/b/1.npy", "val/1.npy"], VAL)
    says = r"/data/images/val/b/1\.png: no file b/1\.\* in .*\(1 of 2 images have none\)"
    with pytest.raises(ValueError, match=says):
        folder[1]


def test_predictions_of_another_split_or_without_folders_are_no_predictions(tmp_path):
    folder = prediction_folder(tmp_path, ["train/a/1.npy", "train/b/1.npy", "1.npy"], VAL)
    with pytest.raises(ValueError, match=r"no file a/1\.\* in .*\(2 of 2 images have none\)"):
        folder[0]


@pytest.mark.parametrize("names", [["2.npy", "val/2.npy"], ["2.npy", "2.png"]])
def test_two_predictions_of_one_image_are_an_error(tmp_path, names):
    with pytest.raises(ValueError, match="are predictions of one image: remove one"):
        prediction_folder(tmp_path, names, ["val/2.png"])[0]


def test_images_that_differ_only_in_zeros_are_an_error(tmp_path):
    with pytest.raises(ValueError, match="differ only in the suffix or in zeros"):
        prediction_folder(tmp_path, ["7.npy"], ["7.png", "07.png"])


def test_samples_of_one_file_have_files_of_their_numbers(tmp_path):
    folder = prediction_folder(tmp_path, ["0012.npy", "7.npy"], ["nyu.mat#12", "nyu.mat#13"])
    assert folder[0] == tmp_path / "0012.npy"
    with pytest.raises(ValueError, match=r"nyu\.mat#13: no file"):
        folder[1]


def test_files_of_other_images_are_refused_by_the_manifest(mistake, files, dense_folder, tmp_path):
    """The same names, but predicted for the photos of the train split."""
    root = tmp_path / "out"
    shutil.copytree(files, root)
    lines = [json.dumps({"name": f"{k}", "source": f"{dense_folder}/images/train/{k}.png",
                         "files": [f"depth/{k}.npy"]}) for k in range(5)]  # fmt: skip
    (root / "predictions.jsonl").write_text("\n".join(lines))
    assert re.search(r"was predicted from \S+train/0\.png, which is not \S+val/", mistake(root))


def test_an_impossible_source_in_the_manifest_is_none(score_files, files, tmp_path, metrics):
    root = shutil.copytree(files, tmp_path / "out")
    lines = [json.dumps({"name": f"{k}", "source": "a" * 5000, "files": [f"depth/{k}.npy"]})
             for k in range(5)]  # fmt: skip
    (root / "predictions.jsonl").write_text("\n".join(lines))
    assert "val/rmse" in metrics(score_files(tmp_path / "run", root))


@pytest.mark.parametrize("orientation", [3, 6])
def test_photos_that_dpt_predict_turned_are_refused(
    mistake, files, dense_folder, tmp_path, orientation
):
    """Data sets turn them if asked: sideways ones differ in size, those upside down in nothing."""
    data, root = tmp_path / "data", tmp_path / "out"
    shutil.copytree(dense_folder, data)
    shutil.copytree(files, root)
    photo, exif = data / "images/val/0.png", Image.Exif()
    exif[0x0112] = orientation
    Image.open(photo).save(photo, exif=exif)
    lines = [json.dumps({"name": f"{k}", "source": f"{data}/images/val/{k}.png",
                         "files": [f"depth/{k}.npy"]}) for k in range(5)]  # fmt: skip
    (root / "predictions.jsonl").write_text("\n".join(lines))
    depth = ("data=folder", f"data.root={data}", "data.depth=depth", "data.max_depth=10",
             "data.missing=skip")  # fmt: skip
    says = rf"val/0\.png: has the EXIF orientation {orientation}, .*data\.exif=apply"
    assert re.search(says, mistake(root, data=depth))


@pytest.fixture
def mistake(score_files, tmp_path, refused):
    """mistake(predictions, *overrides): the one line that is printed."""
    return partial(refused, score_files, tmp_path / "run")


def test_missing_and_misshapen_files_are_named(mistake, files, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(files, broken)
    np.save(broken / "depth/2.npy", np.ones((7, 9), np.float32))
    workers = "data.num_workers=1"
    says = r"2\.npy: 9x7 pixels \(width x height\), but its truth has 48x32"
    assert re.search(says, mistake(broken, workers))
    (broken / "depth/0.npy").unlink()
    assert re.search(r"val/0\.png: no file 0\.\* in \S+depth \(1 of 5", mistake(broken))


def test_mistakes_about_predictions(mistake, files, dense_folder, image_folder, tmp_path):
    assert "no such folder" in mistake(tmp_path / "nowhere")
    assert "split=['val']: must be a valid string" in mistake(tmp_path, "split=[val]")
    (tmp_path / "empty").mkdir()
    flat = mistake(tmp_path / "empty")
    assert "put predicted depth into" in flat
    only_depth = ("data=folder", f"data.root={dense_folder}", "data.depth=depth",
                  "data.max_depth=10", "data.missing=skip")  # fmt: skip
    assert "no file with a suffix of .png" in mistake(tmp_path / "empty", data=only_depth)
    for path in (files / "depth").iterdir():
        ones = np.ones(np.load(path).shape, np.uint16)
        save_picture(tmp_path / f"png/depth/{path.stem}.png", ones)
    assert "predictions_scale=0.001 for millimetres" in mistake(tmp_path / "png")
    photos = ("data=imagefolder", f"data.root={image_folder}")
    assert "scores depth maps and class masks" in mistake(files, data=photos)
    assert "'metric' or 'relative'" in mistake(files, "predictions_kind=disparity")
    assert "predictions_scale=" in mistake(files, "predictions_scale=0")
    assert "one of the two" in mistake(files, "checkpoint=some.ckpt")


SLOW_KEYS = ("protocol.flip=true", "protocol=slide", "protocol.scales=[2]",
             "trainer.limit_val_batches=1")  # fmt: skip


@pytest.mark.parametrize(
    "key", ["image_size=[64,64]", *(pytest.param(k, marks=pytest.mark.slow) for k in SLOW_KEYS)]
)
def test_keys_without_effect_on_predictions(mistake, files, key):
    assert "no effect on predictions=DIR" in mistake(files, key)


def test_the_log_says_that_a_calibration_is_not_used(evaluate, checkpoint, tmp_path):
    model = dpt.DPT.from_pretrained(checkpoint)
    model.calibration = Calibration(scale=2.0, space="depth")
    model.save_pretrained(tmp_path / "metres")
    run = evaluate(tmp_path / "scores", tmp_path / "metres")
    assert "the calibration of the model is not used" in (run / "log.txt").read_text()


# ------------------------------------------------------------------------ blocks of images


def scorer_of(names):
    scorer = Scorer({"classification": ClassificationObjective(num_classes=3)}, {})
    count = len(names)
    labels = {"class_id": torch.zeros(count).long(), "index": torch.arange(count), "name": names}
    right = torch.arange(count) < count // 2  # the first half: one video is easy, the other hard
    logits = torch.stack([right.float(), 0.5 * torch.ones(count), torch.zeros(count)], 1)
    outputs = {"classification": HeadOutput(logits)}
    scorer.add(outputs, labels, torch.zeros(count, 3, 2, 2, dtype=torch.uint8))
    return scorer


def test_two_heads_with_a_score_of_one_name_are_refused_before_images_are_scored():
    heads = {"depth": DepthObjective(max_depth=10.0), "regression": RegressionObjective()}
    with pytest.raises(ValueError, match="head regression has a score rmse, as another head does"):
        Scorer(heads, {})


def test_intervals_resample_blocks():
    names = [f"/data/{video}/{video}_{k}.png" for video in "ab" for k in range(50)]
    scorer = scorer_of(names)
    low, high = scorer.intervals(blocks_of(names, None))["accuracy"]
    assert 0.35 < low < 0.45 < 0.55 < high < 0.65
    for rule in ("folder", "/[ab]_"):
        blocks = blocks_of(names, rule)
        assert blocks.tolist() == [0] * 50 + [1] * 50
        assert scorer.intervals(blocks)["accuracy"] == (0, 1)  # of two videos little is known
    assert np.isnan(scorer.intervals(blocks_of(names, "data"))["accuracy"]).all()  # one block


def test_names_without_a_match_are_blocks_of_their_own():
    blocks = blocks_of([f"/data/{k}.png" for k in ("a_1", "a_2", "3", "4")], "[a-z]_")
    assert len(set(blocks.tolist())) == 3


def test_a_wrong_rule_of_blocks_is_refused_before_scoring(mistake, files):
    assert "blocks=(: is not a regular expression" in mistake(files, "blocks='('")
    says = r"blocks=video_: matches no image's name, such as \S+val/0\.png"
    assert re.search(says, mistake(files, "blocks=video_"))
