"""Panoptic and instance runs on a folder in COCO's formats: trained, scored and predicted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from coco_files import write
from pycocotools import mask as rle
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from tiny import ON_CPU, TINY_DATA, TINY_SCENES, call

import dpt
from dpt.data import CocoDataset
from dpt.functional import resize
from dpt.objectives.segmentation import PanopticObjective
from dpt.segments import OBJECT_IDS, instances

SIZE = (32, 48)
QUERIES = "task.num_queries=20"
# until there are masks
LONGER = ("trainer.max_steps=30", "optim.lr=6e-3", "trainer.val_check_interval=30")
EOMT = (
    "model=eomt_small model.encoder.num_blocks=4 model.encoder.out_indices=[1]",
    "model.encoder.num_later_blocks=2 model.encoder.embed_dim=48",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("coco")
    for panoptic in (True, False):
        write(path, panoptic=panoptic, lengths=[("train", 4), ("val", 5)], size=SIZE)
    return path


def train_eomt(folder, *overrides):
    data = () if any(o.startswith("data=") for o in overrides) else TINY_SCENES
    options = (*TINY_DATA, *ON_CPU, *data, f"logger=none run_dir={folder}", QUERIES)
    call("train", *EOMT, "optim=adamw", *options, *overrides)
    return folder


def data_of(folder, task):
    kind = "panoptic" if task == "panoptic" else "instances"
    file = f"annotations/{kind}_%split.json"
    return (
        f"data=coco data.root={folder} data.split_names.train=train",
        f"data.split_names.val=val data.annotations={file}",
    )


@pytest.fixture(scope="module")
def run(folder, train, tmp_path_factory):
    """A run of task=panoptic that is long enough to find segments."""
    return train(
        tmp_path_factory.mktemp("panoptic") / "run",
        "task=panoptic",
        QUERIES,
        "task.objectives.panoptic.threshold=0.1 task.objectives.panoptic.overlap=0.1",
        *LONGER,
        *data_of(folder, "panoptic"),
    )


@pytest.mark.parametrize(
    ("counts", "given", "queries", "named"),
    [
        ([3, 7], None, 50, ""),
        ([3, 70], None, 72, "up to 72 segments"),
        ([3, 375], None, 100, "up to 377 segments; 277 of 382, the smallest"),
        ([3, 70], 400, 400, ""),
        ([], None, 100, ""),
        ([3, 7], 4, 4, "6 of 14, the smallest"),
    ],
)
def test_number_of_queries_follows_from_the_data(folder, counts, given, queries, named, caplog):
    data = CocoDataset(root=folder, split="train")
    data.object_counts = counts
    data.info = replace(data.info, things=(True, False, False))
    data.info = replace(data.info, class_names=("a", "b", "c"))
    caplog.set_level("INFO")
    settings = PanopticObjective.from_data(data, {"num_queries": given})
    assert settings["num_queries"] == queries
    assert named in caplog.text
    assert bool(named) == bool(caplog.text)


def test_a_run_of_few_queries_trains_the_largest_segments(folder, train, metrics, tmp_path, capsys):
    data = data_of(folder, "panoptic")
    run = train(tmp_path / "run", "task=panoptic", "task.num_queries=2", *data)
    assert "task.num_queries=2: " in capsys.readouterr().out
    assert "val/pq" in metrics(run)


def predict(checkpoint, folder, out):
    options = ("--format", "npy,png,json", "--device", "cpu")
    call("predict", checkpoint, folder / "val", "--out", out, *options)


def test_a_run_is_evaluated_and_its_files_score_as_the_model(
    run, folder, evaluate, score_files, scores, tmp_path, refused
):
    data = data_of(folder, "panoptic")
    trained = scores(run)
    found = scores(evaluate(tmp_path / "model", run / "checkpoints/last.ckpt", *data))
    assert {k: found[k] for k in trained} == pytest.approx(trained, nan_ok=True)
    assert found["val/pq"] > 0
    predict(run / "checkpoints/last.ckpt", folder, tmp_path / "out")
    files = scores(score_files(tmp_path / "files", tmp_path / "out", data=data))
    assert files == pytest.approx(found, nan_ok=True)
    file = min((tmp_path / "out/panoptic_npy").iterdir())
    for code in (-2, 10 * OBJECT_IDS):
        np.save(file, np.full(SIZE, code))
        message = refused(score_files, tmp_path / f"files{code}", tmp_path / "out", data=data)
        assert f"{file.name}: holds a class that the data lacks" in message


def test_predicted_files_agree(run, folder, tmp_path):
    """Id maps as panopticapi reads them, and COCO's RLE of the same segments."""
    predict(run, folder, tmp_path)
    names = {k.stem for k in (tmp_path / "panoptic").iterdir()}
    assert len(names) == 5
    for name in names:
        codes = np.load(tmp_path / f"panoptic_npy/{name}.npy")
        ids = dpt.data.formats.io.read_objects(tmp_path / f"panoptic/{name}.png")
        parts = json.loads((tmp_path / f"panoptic_json/{name}.json").read_text())
        assert {p["id"] for p in parts} == set(np.unique(ids)) - {0}
        for part in parts:
            mask = rle.decode(part["segmentation"]).astype(bool)
            assert np.array_equal(mask, ids == part["id"])
            assert np.array_equal(mask, codes == part["category_id"] * OBJECT_IDS + part["id"])
            left, top, width, height = part["bbox"]
            rows, columns = np.nonzero(mask)
            assert (left, top) == (columns.min(), rows.min())
            assert (width, height) == (np.ptp(columns) + 1, np.ptp(rows) + 1)
            assert part["area"] == mask.sum()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["dpt", "eomt"])
def test_instances_score_as_pycocotools_scores_them(folder, train, scores, tmp_path, model):
    data = (*data_of(folder, "instance"), "data.split_names.val=train", "augment=none")
    start = train if model == "dpt" else train_eomt
    run = start(
        tmp_path / "run", "task=instance", QUERIES, "trainer.max_steps=300 optim.lr=3e-3", *data
    )
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt").eval()
    val = CocoDataset(root=folder, split="train", annotations="annotations/instances_%split.json")
    truth = COCO(folder / "annotations/instances_train.json")
    results = []
    for index, sample in enumerate(val):
        photo = torch.from_numpy(sample["image"]).permute(2, 0, 1)[None]
        with torch.no_grad():
            masks, logits = model(model.preprocessing.normalize(photo))["instance"]
        masks, classes, values = instances(resize(masks, SIZE)[0], logits[0], val.info.things)
        for mask, k, value in zip(masks, classes, values, strict=True):
            code = rle.encode(np.asfortranarray(mask.numpy().astype(np.uint8)))
            results.append(
                {
                    "image_id": index + 1,
                    "category_id": truth.getCatIds()[int(k)],
                    "segmentation": code,
                    "score": float(value),
                }
            )
    reference = COCOeval(truth, truth.loadRes(results), "segm")
    reference.evaluate()
    reference.accumulate()
    reference.summarize()
    found = scores(run)
    names = ("ap", "ap50", "ap75", "ap_small")  # there is no larger object
    wanted = dict(zip(names, reference.stats[:4], strict=True))
    assert wanted["ap50"] > 0.1
    assert {k: found[f"val/{k}"] for k in wanted} == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("task", ["panoptic", pytest.param("segmentation", marks=pytest.mark.slow)])
def test_mask_shares_of_eomt_decrease_in_training(tmp_path, task):
    """Of two blocks: the first in the second quarter, the other in the third."""
    run = train_eomt(tmp_path / "run", f"task={task}", "trainer.max_steps=8")
    model = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt")
    assert model.heads[task].mask_shares.tolist() == [0, 0]
