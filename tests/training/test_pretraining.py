"""task=inpainting: a run on photos alone, and the dense run that its encoder starts."""

import pytest
import torch

import dpt


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


@pytest.mark.slow
def test_its_encoder_starts_a_dense_run(inpainting_run, train, tmp_path):
    source = inpainting_run / "checkpoints/last.ckpt"
    run = train(tmp_path, "task=depth", f"model.encoder.weights={source}", "optim.lr=0")
    pretrained = dpt.DPT.from_pretrained(source).encoder.state_dict()
    count = len(pretrained)
    assert f"{source}: {count} encoder tensors loaded\n" in (run / "log.txt").read_text()
    dense = dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt").encoder.state_dict()
    assert list(dense) == list(pretrained)
    assert [n for n, tensor in pretrained.items() if not torch.equal(dense[n], tensor)] == []


def test_it_is_scored_in_training_alone(inpainting_run, evaluate, photos, tmp_path, capsys):
    with pytest.raises(SystemExit):
        evaluate(tmp_path, inpainting_run / "checkpoints/last.ckpt", *photos)
    error = capsys.readouterr().err
    assert "nothing to score: the checkpoint predicts inpainting" in error
    assert "inpainting is scored in training alone" in error


@pytest.mark.slow
def test_resume_is_exact(train, photos, tmp_path):
    weights = []
    for name, *parts in (("once", 4), ("twice", 2, 4)):
        for steps in parts:
            train(
                tmp_path / name, "task=inpainting", *photos, f"trainer.max_steps={steps}",
                "schedule=constant", "data.batch_size=2",
                *(["resume=auto"] if steps != parts[0] else []),
            )  # fmt: skip
        model = dpt.DPT.from_pretrained(tmp_path / name / "checkpoints/last.ckpt")
        weights.append(model.state_dict())
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
