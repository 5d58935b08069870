"""One training step of every task: all parameters take part, labelled or not."""

import lightning as L
import pytest
import torch
from tiny import heads_of, slow_after
from torch import nn
from torch.utils.data import DataLoader

import dpt
from dpt.objectives import (
    ClassificationObjective,
    ContrastiveObjective,
    DepthObjective,
    DinoObjective,
    InpaintingObjective,
    InstanceObjective,
    PanopticObjective,
    RegressionObjective,
    SegmentationObjective,
)
from dpt.objectives.teacher import SelfTeacher
from dpt.training.task import Task
from dpt.types.samples import IGNORE_INDEX, NO_CLASS, RandomViews

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")

SIZE = (32, 48)
TASKS = {
    "depth": lambda: [DepthObjective(max_depth=10.0)],
    "relative": lambda: [DepthObjective(max_depth=10.0, kind="relative")],
    "segmentation": lambda: [SegmentationObjective(num_classes=3)],
    "linear": lambda: [SegmentationObjective(num_classes=3, kind="linear")],
    "no auxiliary": lambda: [SegmentationObjective(num_classes=3, auxiliary_weight=0.0)],
    "classification": lambda: [ClassificationObjective(num_classes=4)],
    "regression": lambda: [RegressionObjective()],
    "joint": lambda: [DepthObjective(max_depth=10.0), SegmentationObjective(num_classes=3)],
    "everything": lambda: [
        DepthObjective(max_depth=10.0),
        SegmentationObjective(num_classes=3),
        ClassificationObjective(num_classes=4),
        RegressionObjective(),
    ],
    "two of masks": lambda: [
        objective(num_classes=3, things=[True] * 3)
        for objective in (PanopticObjective, InstanceObjective)
    ],
}
PRETRAINING = {  # without labels, and without a decoder
    "inpainting": lambda: [InpaintingObjective(mask_size=16)],
    "contrastive": lambda: [ContrastiveObjective()],
    "dino": lambda: [DinoObjective()],
}
VIT = {
    "embed_dim": 48,
    "num_blocks": 4,
    "out_indices": [0, 1, 2, 3],
    "image_size": SIZE,
    "num_register_tokens": 1,
}
ENCODERS = {
    "vit": VIT,
    "early": {**VIT, "num_blocks": 6},  # blocks after the last that is read
    "hybrid": {**VIT, "kind": "hybrid", "out_indices": [1, 3], "num_register_tokens": 0},
    "timm ViT": {"kind": "timm", "name": "test_vit"},
    "timm ConvNeXt": {"kind": "timm", "name": "test_convnext"},
}


def task_of(name, encoder="vit", *, without_randomness=False):
    torch.manual_seed(0)
    objectives = {o.head: o for o in (TASKS | PRETRAINING)[name]()}
    heads = heads_of(*objectives.values())
    settings = {
        "dino": {"num_prototypes": 16},
        "panoptic": {"num_queries": 12},
        "instance": {"num_queries": 12},
        "segmentation": {
            "dropout": 0.0 if without_randomness else 0.1,
            "kind": "linear" if name == "linear" else "dpt",
        },
    }
    for head in heads.keys() & settings.keys():
        heads[head] |= settings[head]
    channels = [8, 8, 16, 16]
    model = dpt.create_model(
        "dpt_hybrid" if encoder == "hybrid" else "dpt_tiny",
        heads=heads,
        encoder=ENCODERS[encoder],
        decoder={
            "reassemble_channels": [None, None, 16, 16] if encoder == "hybrid" else channels,
            "fusion_channels": 16,
        },
    )
    if name == "dino":
        return Task(model=model, objectives=objectives, teacher=SelfTeacher())
    return Task(model=model, objectives=objectives)


def batch_of(count, *, labelled=True, seed=0):
    random = torch.Generator().manual_seed(seed)
    image = torch.randint(256, (count, 3, *SIZE), generator=random, dtype=torch.uint8)
    depth = torch.rand(count, *SIZE, generator=random) * 8 + 1
    batch = {
        "image": image,
        "depth": depth,
        "valid": depth > 2,
        "labels": torch.randint(3, (count, *SIZE), generator=random, dtype=torch.uint8),
        "objects": torch.ones(count, *SIZE, dtype=torch.int32),
        "class_id": torch.randint(4, (count,), generator=random),
        "value": torch.rand(count, generator=random) * 5,
    }
    if not labelled:
        nothing = {"depth": 0, "valid": False, "labels": IGNORE_INDEX, "objects": -1}
        nothing |= {"class_id": NO_CLASS, "value": float("nan")}
        batch |= {key: torch.full_like(batch[key], value) for key, value in nothing.items()}
    return batch


def step(task, batch):
    """The loss, and the gradient of each parameter by its name."""
    task.zero_grad()
    loss = task.training_step(batch, 0)
    loss.backward()
    return float(loss.detach()), {n: p.grad for n, p in task.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("labelled", [True, False], ids=["labelled", "unlabelled"])
@pytest.mark.parametrize("name", TASKS)
def test_every_parameter_has_a_gradient(name, labelled):
    """So DDP needs no find_unused_parameters, whatever labels a rank happens to meet."""
    task = task_of(name)
    loss, gradients = step(task, batch_of(2, labelled=labelled))
    assert gradients
    assert [n for n, g in gradients.items() if g is None] == []
    assert all(g.isfinite().all() for g in gradients.values())
    total = sum(float(g.abs().sum()) for g in gradients.values())
    if labelled:
        assert loss > 0
        for part in ("model.encoder.", "model.heads."):
            assert sum(float(g.abs().sum()) for n, g in gradients.items() if part in n) > 0
    else:
        assert loss == 0
        assert total == 0


@pytest.mark.parametrize("name", ["joint", "classification"])
@pytest.mark.parametrize("encoder", [e for e in ENCODERS if e != "vit"])
def test_every_parameter_of_other_encoders_has_one_too(name, encoder):
    _, gradients = step(task_of(name, encoder), batch_of(2))
    assert [n for n, g in gradients.items() if g is None] == []


@pytest.mark.parametrize("name", PRETRAINING)
@pytest.mark.parametrize("encoder", slow_after(1, ENCODERS))
def test_every_parameter_has_one_in_pretraining(name, encoder):
    task, size = task_of(name, encoder), (64, 96) if "timm" in encoder else SIZE
    batch = {"image": torch.randint(256, (3, 3, *size)), "index": torch.arange(3)}
    if name != "inpainting":
        large, small = (torch.randint(256, (3, count, 3, *size)) for count in (2, 1))
        batch["views"] = RandomViews(large, small)
    _, gradients = step(task, batch)
    assert [n for n, g in gradients.items() if g is None] == []
    assert task.model.decoder is None


@pytest.mark.parametrize("name", ["joint", "relative", "everything"])
@pytest.mark.parametrize("partial", [False, True])
def test_two_halves_of_a_batch_teach_what_the_whole_does(name, partial):
    """The mean over ranks is what one process computes, though one rank's half lacks labels."""
    task = task_of(name, without_randomness=True)
    for module in task.modules():
        if isinstance(module, nn.BatchNorm2d):  # its statistics are those of the half
            module.eval()
    halves = [batch_of(2, seed=1), batch_of(2, seed=2, labelled=not partial)]
    halves[0]["valid"][1] = False  # an image without depth among images with
    whole = {key: torch.cat([half[key] for half in halves]) for key in halves[0]}
    loss, gradients = step(task, whole)
    parts = []
    for half in halves:
        value, gradient = step(task, half)
        parts.append((value, {n: g.clone() for n, g in gradient.items()}))
    assert loss == pytest.approx(sum(value for value, _ in parts) / 2, rel=1e-5)
    _, gradients = step(task, whole)
    scale = max(float(g.abs().max()) for g in gradients.values())
    for key, gradient in gradients.items():
        mean = sum(part[key] for _, part in parts) / 2
        assert (mean - gradient).abs().max() <= 1e-4 * scale, key


def dead_starts():
    """Seeds of four with which a relative model starts at zero everywhere."""
    dead = []
    for seed in range(4):
        torch.manual_seed(seed)
        heads = {"depth": {"kind": "relative"}}
        model = dpt.create_model("dpt_tiny", heads=heads, image_size=SIZE)
        with torch.no_grad():
            images = model.preprocessing.normalize(batch_of(2)["image"])
            if float((model(images)["depth"] > 0).float().mean()) < 0.01:
                dead.append(seed)
    return dead


def test_relative_depth_can_learn_from_every_seed():
    """Behind a ReLU that passes nothing there is no gradient, for the whole of the run."""
    assert dead_starts() == []


def trainer_of(folder, **settings):
    return L.Trainer(
        **settings,
        logger=False,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


class NormBeforeStep(L.Callback):
    """Norm of all gradients as the optimiser finds them."""

    def on_before_zero_grad(self, trainer, pl_module, optimizer):
        grads = [p.grad for p in pl_module.parameters() if p.grad is not None]
        self.norm = float(torch.nn.utils.get_total_norm(grads)) if grads else None


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("fused", [True, False])
def test_gradients_are_clipped_in_every_precision(tmp_path, precision, fused):
    task, seen = task_of("depth"), NormBeforeStep()
    task.optimizer_factory = lambda m: torch.optim.AdamW(m.parameters(), fused=fused)
    settings = {"precision": precision, "gradient_clip_val": 1e-3, "callbacks": [seen]}
    trainer = trainer_of(tmp_path, max_steps=2, **settings)
    trainer.fit(task, DataLoader([batch_of(2), batch_of(2, seed=1)], batch_size=None))
    assert seen.norm == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("accumulated", "passes"), [(1, 1), (2, 1), (1, 3)])
def test_statistics_of_the_first_steps_are_those_of_their_batches(tmp_path, accumulated, passes):
    """Otherwise a model would be scored by the statistics of its initialisation."""
    task = task_of("segmentation")
    task.optimizer_factory = lambda m: torch.optim.SGD(m.parameters(), lr=1e-3)
    norm = next(m for m in task.model.modules() if isinstance(m, nn.BatchNorm2d))
    means = []

    def note(module, inputs):
        if module.momentum:  # not when it is recomputed
            means.append(inputs[0].mean((0, 2, 3)))

    @torch.no_grad()
    def again(module, inputs, output):
        for _ in range((passes - 1) * bool(module.momentum)):  # as for several views of an image
            module.forward(inputs[0])
            note(module, inputs)

    norm.register_forward_pre_hook(note)
    norm.register_forward_hook(again)
    trainer = trainer_of(tmp_path, max_steps=4, accumulate_grad_batches=accumulated)
    batches = [batch_of(2, seed=seed) for seed in range(4 * accumulated)]
    trainer.fit(task, DataLoader(batches, batch_size=None))
    # of several batches of a step, BatchNorm multiplies the earlier ones by 1 - its momentum
    of_step = 0.9 ** torch.arange(accumulated * passes).flip(0)
    weights = (of_step / of_step.sum()).repeat(4) / 4
    expected = (torch.stack(means) * weights[:, None]).sum(0)
    torch.testing.assert_close(norm.running_mean, expected, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------ evaluation


def evaluation_batch(sizes):
    images = [torch.full((3, *size), i, dtype=torch.uint8) for i, size in enumerate(sizes)]
    return {
        "image": torch.stack(images) if len(set(sizes)) == 1 else images,
        "labels": [torch.full((4, 4), i, dtype=torch.uint8) for i in range(len(sizes))],
        "index": torch.arange(len(sizes)),
        "name": [f"n{i}" for i in range(len(sizes))],
    }


def test_labels_stay_with_their_images():
    """Each image's own number comes back at its own label, however the batch is grouped."""
    task = task_of("segmentation").eval()
    batch = evaluation_batch([(16, 16), (16, 32), (16, 16), (32, 16)])
    with torch.no_grad():
        for outputs, labels in task.evaluate_batch(batch):
            logits = outputs["segmentation"].tensor
            for output, index in zip(logits, labels["index"], strict=True):
                alone = task(batch["image"][int(index)][None])["segmentation"][0]
                assert torch.allclose(output, alone, atol=1e-5)
