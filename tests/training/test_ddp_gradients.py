"""What two processes learn in a step is what one learns from both their batches.

Runs as the command line starts them, two through gloo and Lightning's DDP. With plain SGD the first
momentum is the gradient itself, as DDP averaged it, and the checkpoint keeps it.
"""

import pytest
import torch
from photos import save_dense
from test_ddp import RUN, SCENES, assert_close, finish, start
from tiny import checkpoint_of, slow_after

from dpt.data.loading import EpochSampler

# float64, because some gradients are as small as the rounding errors of float32, and some losses
# follow the sign of a residual, which these errors can change
ONE_STEP = (
    "optim=sgd trainer.max_steps=1 trainer.gradient_clip_val=null",
    "trainer.precision=64-true",
)
NO_DROPOUT = ("task.objectives.segmentation.dropout=0",)
BLOCKS = [f"decoder.fusion.{i}.rcu{k}" for i in range(4) for k in (1, 2) if (i, k) != (3, 1)]
NORMS = [f"{block}.bn{j}" for block in BLOCKS for j in (1, 2)]
NORMS += [f"heads.segmentation.{layers}.1" for layers in ("layers", "auxiliary_layers")]
STILL = (f"callbacks.freeze.parts=[{','.join(NORMS)}]",)  # batch norm as in evaluation
PARTIAL = {  # of the four images of the step, by their place in it: rank 0 gets the 1st and 3rd
    "one rank without depth": {"depth": (1, 3), "masks": ()},
    "one rank without masks": {"depth": (1,), "masks": (0, 2)},
    "each with something": {"depth": (0, 1, 2), "masks": (3,)},
}
WITHOUT_SETTINGS = "depth classification regression inpainting clip contrastive dino".split()
TASKS = {name: (f"task={name}",) for name in WITHOUT_SETTINGS}
TASKS |= {name: (f"task={name}", *NO_DROPOUT, *STILL) for name in ("joint", "segmentation")}
TASKS |= {
    "relative depth": ("task=depth", "task.kind=relative"),
    "segmentation, overlap": (*TASKS["segmentation"], "task/segmentation_loss=cross_entropy_dice"),
    "lora": (*TASKS["joint"], "callbacks.lora.rank=4"),
    "sky": ("task=depth", "task.sky=sigmoid"),
    "frozen sky": (
        "task=depth",
        "task.sky=sigmoid",
        "callbacks.freeze.parts=[heads.depth.branches]",
    ),
    "prompts": ("task=depth", "model.decoder.prompts=true"),
    "ibot": ("task=dino", "task.objectives.dino.patch_weight=1"),
}


def gradients(folder):
    """Of every trained parameter, in the optimiser's order, after the one step of a run."""
    checkpoint = checkpoint_of(folder)
    assert checkpoint["global_step"] == 1
    (state,) = checkpoint["optimizer_states"]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    return [state["state"][number]["momentum_buffer"] for number in numbers]


@pytest.fixture
def assert_same_lesson(train, tmp_path):
    """assert_same_lesson(*overrides): two ranks with two images each learn as one with four."""

    def check(*overrides):
        """Returns the folder of the run of two ranks."""
        one, two = tmp_path / "one", tmp_path / "two"
        train(one, *ONE_STEP, "data.batch_size=4", *overrides)
        finish(start(*RUN, *ONE_STEP, "data.batch_size=2", f"run_dir={two}", *overrides))
        alone, shared = gradients(one), gradients(two)
        assert len(alone) == len(shared) > 40
        largest = max(float(gradient.abs().max()) for gradient in alone)
        assert largest > 0
        for expected, found in zip(alone, shared, strict=True):
            size = float(torch.maximum(expected.abs(), found.abs()).max())
            if size > 1e-5 * largest:  # else it is 0 but for rounding, as of attention's key bias
                difference = float((found - expected).abs().max())
                assert difference <= 1e-5 * size, tuple(expected.shape)
        return two

    return check


@pytest.fixture
def partial_data(request, tmp_path):
    """Four training images, of which those at the places in ``request.param`` lack a label."""
    root = tmp_path / "data"
    order = [index for _, index in EpochSampler(4, seed=0, shuffle=True)]
    lacking = {kind: {order[k] for k in places} for kind, places in request.param.items()}
    save_dense(root, {"train": 4}, (40, 60), lacking=lacking)
    save_dense(root, {"val": 5}, (40, 60))
    return (
        f"data=folder data.root={root} data.labels=masks data.num_classes=3",
        "data.depth=depth data.max_depth=10",
    )


@pytest.mark.parametrize("partial_data", slow_after(1, PARTIAL.values()), indirect=True)
def test_gradients_with_partial_labels_equal_on_one_and_two_ranks(
    assert_same_lesson, partial_data, evaluate, scores, tmp_path
):
    """And both score five validation images, of which one rank has three, as one process does."""
    two = assert_same_lesson(*partial_data, *TASKS["joint"])
    alone = scores(evaluate(tmp_path / "scored", two / "checkpoints/last.ckpt", *partial_data))
    assert_close({key: alone[key] for key in scores(two)}, scores(two))


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_gradients_equal_on_one_and_two_ranks(assert_same_lesson, name):
    assert_same_lesson(*SCENES, *TASKS[name])
