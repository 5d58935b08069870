"""Masked image inpainting: what is hidden, and what is learned from it."""

import pytest
import torch

import dpt
from dpt.objectives import InpaintingObjective
from dpt.objectives.selfsupervised import draw_hidden
from dpt.training.task import Task
from dpt.types.outputs import HeadOutput

pytestmark = pytest.mark.filterwarnings("ignore:You are trying to `self.log")

SIZE = (32, 48)
VIT = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3], "image_size": SIZE}


def task_of(**options):
    torch.manual_seed(0)
    objective = InpaintingObjective(**{"mask_size": 16, **options})
    model = dpt.create_model("dpt_tiny", heads={"inpainting": {}}, encoder=VIT)
    return Task(model=model, objectives={"inpainting": objective})


def batch_of(count=2, size=SIZE):
    random = torch.Generator().manual_seed(0)
    image = torch.randint(256, (count, 3, *size), generator=random, dtype=torch.uint8)
    return {"image": image, "index": torch.arange(count), "name": ["x"] * count}


# ------------------------------------------------------------------------ what is hidden


@pytest.mark.parametrize(("ratio", "patches"), [(0.6, 14), (0.25, 6), (0.01, 1)])
def test_the_fraction_of_hidden_patches(ratio, patches):
    hidden = draw_hidden(range(5), (64, 96), step=3, ratio=ratio, patch=16)
    assert hidden.shape == (5, 64, 96)
    cells = hidden.unflatten(2, (6, 16)).unflatten(1, (4, 16)).float().mean((2, 4))
    assert set(cells.unique().tolist()) == {0.0, 1.0}  # whole patches
    assert cells.sum((1, 2)).tolist() == [patches] * 5  # of 24


def test_patches_at_the_edge_are_cut_off():
    hidden = draw_hidden([0], (40, 50), step=0, ratio=0.99, patch=32)
    assert hidden.shape == (1, 40, 50)
    assert int((~hidden).sum()) in (32 * 32, 32 * 18, 8 * 32, 8 * 18)  # one of 2 x 2 stays visible
    with pytest.raises(ValueError, match="mask_size=64 hides whole images of 40x50"):
        draw_hidden([0], (40, 50), step=0, ratio=0.5, patch=64)


def test_what_is_hidden_is_a_function_of_step_and_image():
    def hidden(indices, step):
        return draw_hidden(indices, (64, 96), step=step, ratio=0.5, patch=16)

    torch.manual_seed(1)
    together = hidden([4, 7, 9], 2)
    torch.manual_seed(2)
    apart = torch.cat([hidden([4], 2), hidden([7, 9], 2)])  # as on two processes
    assert torch.equal(together, apart)
    assert not torch.equal(together[0], together[1])
    assert not torch.equal(together, hidden([4, 7, 9], 3))


def test_the_model_sees_nothing_of_what_is_hidden():
    task, batch = task_of(), batch_of()
    _, prepared = task._prepare(batch, step=5)
    other = {**batch, "image": torch.where(prepared["hidden"][:, None], 7, batch["image"])}
    assert torch.equal(task._prepare(batch, step=5)[0], task._prepare(other, step=5)[0])
    assert not torch.equal(other["image"], batch["image"])


# ------------------------------------------------------------------------ what is learned


def test_only_hidden_pixels_teach_and_are_scored():
    objective = InpaintingObjective(mask_size=16)
    batch = batch_of()
    _, batch = objective.prepare(torch.zeros(2, 3, *SIZE), batch, step=0)
    hidden = batch["hidden"][:, None].expand(-1, 3, -1, -1)
    output = torch.rand(2, 3, *SIZE, requires_grad=True)
    (loss,) = objective.losses(HeadOutput(output), batch).values()
    loss.backward()
    assert (output.grad[~hidden] == 0).all()
    assert (output.grad[hidden] != 0).all()
    image = batch["image"] / 255
    torch.testing.assert_close(loss, (output - image).abs()[hidden].mean())
    objective.update(HeadOutput(torch.where(hidden, image + 0.25, -9.0)), batch)
    scores = objective.compute()
    assert (scores["rmse"], scores["mae"]) == pytest.approx((0.25, 0.25))
    objective.metrics.reset()
    grey = image[hidden].mean()
    objective.update(HeadOutput(grey.expand_as(image)), batch)
    assert objective.compute()["r2"] == pytest.approx(0, abs=1e-4)


def test_images_off_the_grid_are_padded_and_cropped_back():
    task = task_of().eval()
    outputs, labels = next(task.evaluate_batch(batch_of(size=(41, 50))))
    assert outputs["inpainting"].tensor.shape == (2, 3, 41, 50)
    assert labels["hidden"].shape == (2, 41, 50)
