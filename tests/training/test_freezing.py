"""Frozen parts stay bit for bit as they were, and the rest learns."""

import pytest
import torch
from test_ddp import train as train_two_ranks
from tiny import checkpoint_of, slow_after, small_model

import dpt
from dpt.training.token_cache import TokenCache

ENCODER = "callbacks.freeze.parts=[encoder]"
RUN = ("task=segmentation", "data.train.length=12", "trainer.val_check_interval=1")


@pytest.fixture(scope="module")
def start(train, tmp_path_factory):
    """The tensors that every run of this seed begins with."""
    return tensors(train(tmp_path_factory.mktemp("start") / "run", *RUN, "optim.lr=0"))


def tensors(run):
    return dpt.DPT.from_pretrained(run / "checkpoints/last.ckpt").state_dict()


def changed(run, start):
    """Names of parameters that differ from the start's; batch statistics moved at rate 0 too."""
    found, buffers = tensors(run), ("running_mean", "running_var", "num_batches_tracked")
    return {k for k, v in start.items() if not torch.equal(found[k], v) and not k.endswith(buffers)}


def groups_with_state(run):
    """Names of the optimiser's groups, and of those with momenta."""
    (optimizer,) = checkpoint_of(run)["optimizer_states"]
    groups = optimizer["param_groups"]
    known = {g["name"] for g in groups}
    return known, {g["name"] for g in groups if set(g["params"]) & set(optimizer["state"])}


def test_a_frozen_encoder_for_a_whole_run(train, start, tmp_path):
    run = train(tmp_path / "run", *RUN, ENCODER, "trainer.max_steps=3", "optim.weight_decay=0.5")
    names = changed(run, start)
    assert not [n for n in names if n.startswith("encoder.")]
    assert {"decoder.layer_rn.0.weight", "heads.segmentation.layers.4.weight"} <= names
    assert groups_with_state(run) == ({"decoder", "decoder_no_decay"},) * 2
    assert "frozen: encoder (0." in (run / "log.txt").read_text()


def test_the_first_layers_of_the_encoder(train, start, tmp_path):
    options = ("callbacks.freeze.layers=3", "trainer.max_steps=3", "optim.layer_decay=0.8")
    run = train(tmp_path / "run", *RUN, *options)
    of_encoder = {n for n in changed(run, start) if n.startswith("encoder.")}
    assert "encoder.blocks.2.mlp.fc1.weight" in of_encoder
    first = ("patch_embed.", "cls_token", "pos_embed", "blocks.0.", "blocks.1.")
    assert not [n for n in of_encoder if n.startswith(tuple(f"encoder.{part}" for part in first))]
    known, used = groups_with_state(run)
    assert used == known
    assert not known & {f"encoder_{n}" for n in range(3)}


def test_tokens_of_a_frozen_encoder_are_stored(train, metrics, tmp_path):
    plain = (*RUN, ENCODER, "augment=none", "trainer.max_steps=4")
    expected = train(tmp_path / "run", *plain)
    cached = (*plain, f"callbacks.freeze.cache={tmp_path / 'tokens'}")
    run = train(tmp_path / "first", *cached)
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").iterdir()}
    assert 12 <= len(files) <= 17  # of 12 images in train and 5 in val
    again = train(tmp_path / "again", *cached)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").iterdir()} == files
    for found in (run, again):
        assert not changed(found, tensors(expected))
        assert metrics(found) == metrics(expected)
    other = (*plain, "model.encoder.position_resize=dinov2", "data.eval_size=[48,64]")
    expected = train(tmp_path / "other", *other)
    run = train(tmp_path / "other_again", *other, f"callbacks.freeze.cache={tmp_path / 'tokens'}")
    assert metrics(run) == metrics(expected)  # of other settings, whose weights are the same
    assert len([*(tmp_path / "tokens").iterdir()]) > len(files)


def test_a_damaged_file_of_tokens_is_named(train, tmp_path, capsys):
    options = (*RUN, ENCODER, "augment=none", f"callbacks.freeze.cache={tmp_path / 'tokens'}")
    train(tmp_path / "run", *options)
    for path in (tmp_path / "tokens").iterdir():
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SystemExit):
        train(tmp_path / "again", *options)
    line = capsys.readouterr().err.splitlines()[-1]
    assert "tokens/" in line
    assert line.endswith(": delete it")


def test_tokens_of_other_settings_are_other_files(tmp_path):
    heads = {"depth": {"kind": "relative"}}
    model = small_model(heads=heads, num_heads=4).eval()
    other = small_model(heads=heads, num_heads=2).eval()
    other.load_state_dict(model.state_dict())
    images = torch.randn(2, 3, 32, 48)
    for net in (model, other, model):
        settings = net.config.to_dict()["encoder"]
        cache = TokenCache(net.encoder, settings, tmp_path, 100)
        with torch.no_grad():
            expected = net.encoder(images)
        for found in (cache(images), cache(images)):
            assert found.grids == expected.grids
            assert all(map(torch.equal, found.levels, expected.levels))
    assert len([*tmp_path.iterdir()]) == 4


def test_a_cache_of_tokens_is_not_filled_by_random_images(train, tmp_path):
    options = (ENCODER, "augment=strong", "trainer.max_steps=12")
    run = train(tmp_path / "run", *RUN, *options, f"callbacks.freeze.cache={tmp_path / 'tokens'}")
    assert "callbacks.freeze.cache: images are new in each step" in (run / "log.txt").read_text()
    assert len([*(tmp_path / "tokens").iterdir()]) == 2 * (12 + 5)
    with pytest.raises(SystemExit):
        train(tmp_path / "all", *RUN, f"callbacks.freeze.cache={tmp_path / 'tokens'}")


@pytest.mark.slow
def test_batch_statistics_are_frozen_too(train, start, tmp_path):
    run = train(tmp_path / "run", *RUN, "callbacks.freeze.parts=[decoder]", "trainer.max_steps=3")
    assert not [n for n in changed(run, start) if n.startswith("decoder.")]
    moved = {k: bool(v.any()) for k, v in tensors(run).items() if k.endswith("running_mean")}
    assert len(moved) > 2
    assert all(value == k.startswith("heads.") for k, value in moved.items())


@pytest.mark.slow
def test_several_processes(tmp_path):
    folder, _ = train_two_ranks(tmp_path, "task=segmentation", ENCODER, "trainer.max_steps=3")
    known, used = groups_with_state(folder)
    assert used == known
    assert "encoder" not in used


@pytest.mark.parametrize("task", slow_after(1, ["contrastive", "dino", "panoptic"]))
def test_a_frozen_head_gives_the_outputs_of_its_loss(train, tmp_path, task):
    arguments = (f"task={task}", f"callbacks.freeze.parts=[heads.{task}]")
    start, run = (train(tmp_path / str(n), *arguments, f"trainer.max_steps={n}") for n in (1, 3))
    names = changed(run, tensors(start))
    assert names
    assert not [n for n in names if n.startswith("heads.")]
