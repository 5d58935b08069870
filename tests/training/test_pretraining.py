"""Pretraining without labels: runs on photos, and the dense run that its encoder starts."""

import pytest
import torch
from tiny import checkpoint_of, slow_after

import dpt

SMALL = {
    "contrastive": ("task=contrastive",),
    "dino": ("task=dino", "task.objectives.dino.num_prototypes=64"),
    "ibot": (
        "task=dino task.objectives.dino.num_prototypes=64",
        "task.objectives.dino.patch_weight=1",
    ),
}


@pytest.mark.parametrize("task", slow_after(1, SMALL))
def test_a_run_and_its_encoder(train, evaluate, metrics, tmp_path, task):
    run = train(tmp_path / "pre", *SMALL[task])
    assert {"val/knn_accuracy", "val/linear_accuracy"} <= set(metrics(run))
    source = run / "checkpoints/last.ckpt"
    found = metrics(evaluate(tmp_path / "scores", source))
    assert found["val/knn_accuracy"] == metrics(run)["val/knn_accuracy"]
    dense = train(tmp_path / "run", "task=depth", f"model.encoder.weights={source}", "optim.lr=0")
    pretrained = dpt.DPT.from_pretrained(source).encoder.state_dict()
    log = (dense / "log.txt").read_text()
    assert f"{source}: {len(pretrained)} encoder tensors loaded\n" in log
    found = dpt.DPT.from_pretrained(dense / "checkpoints/last.ckpt").encoder.state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in pretrained.items())


@pytest.mark.slow
@pytest.mark.parametrize("task", SMALL)
def test_a_run_on_photos_without_classes(train, dense_folder, metrics, tmp_path, task):
    """best.ckpt is that of the last validation."""
    run = train(
        tmp_path, *SMALL[task], f"data=folder data.root={dense_folder} trainer.val_check_interval=1"
    )
    assert not {"val/knn_accuracy"} & {k for k, v in metrics(run).items() if v is not None}
    best = checkpoint_of(run, "best")
    assert best["global_step"] == 2


@pytest.fixture(scope="module")
def photos(dense_folder):
    """Overrides of a folder of photos, without a word of labels."""
    return ("data=folder", f"data.root={dense_folder}")


@pytest.fixture(scope="module")
def inpainting_run(train, photos, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inpainting") / "run"
    return train(folder, "task=inpainting", *photos)


def test_a_run_on_photos_alone(inpainting_run, metrics):
    found = metrics(inpainting_run)
    assert {"val/rmse", "val/mae", "val/r2"} <= set(found)
    assert list((inpainting_run / "panels").glob("*.png"))


def test_it_is_scored_in_training_alone(inpainting_run, evaluate, photos, tmp_path, refused):
    error = refused(evaluate, tmp_path, inpainting_run / "checkpoints/last.ckpt", *photos)
    assert "nothing to score: the checkpoint predicts inpainting" in error


WASTE = {  # settings, and what is said about them
    "model.encoder.patch_size=8": "patches of 16 pixels are resized: model.encoder.patch_size=16",
    "model.preprocessing.mean=[0.5,0.5,0.5]": "model.preprocessing.mean=[0.485,0.456,0.406]",
    "optim.encoder_lr=0.001": "optim.encoder_lr=0.001: above about 0.0003",
}


def test_settings_that_waste_pretrained_weights_are_named(train, tmp_path):
    heads, sizes = {"depth": {"kind": "relative"}}, {"num_blocks": 4, "embed_dim": 48}
    options = {"layer_scale": 1.0, "out_indices": [0, 1, 2, 3], "reassemble_channels": [8] * 4}
    source = dpt.create_model("dpt_tiny", heads=heads, **sizes, **options)
    source.save_pretrained(tmp_path / "source")
    good = ["mean=[0.485,0.456,0.406]", "std=[0.229,0.224,0.225]"]
    arguments = ["task=depth", f"model.encoder.weights={tmp_path / 'source'}", "optim.lr=0.002"]
    arguments += ["model.encoder.layer_scale=1.0", *(f"model.preprocessing.{key}" for key in good)]
    run = train(tmp_path / "good", *arguments)
    log = (run / "log.txt").read_text()
    assert "pretrained encoder: its rate is optim.encoder_lr=0.0002\n" in log
    (groups,) = (s["param_groups"] for s in checkpoint_of(run)["optimizer_states"])
    assert {g["name"].split("_")[0]: g["initial_lr"] for g in groups} == {
        "encoder": 0.0002,
        "decoder": 0.002,
    }
    bad = train(tmp_path / "bad", *arguments, *WASTE)
    text = (bad / "log.txt").read_text()
    assert [said for said in WASTE.values() if said in log] == []
    assert [said for said in WASTE.values() if said not in text] == []
