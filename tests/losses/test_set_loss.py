"""The set loss: equal to transformers' Mask2Former and EoMT, and right in the cases at the edge."""

from functools import partial

import pytest
import torch

from dpt.losses.masks import SetLoss
from dpt.segments import Segments


def predictions(dtype=torch.float32, batch=3, queries=7, classes=4, size=(16, 20)):
    random = torch.Generator().manual_seed(0)
    masks = torch.randn(batch, 1, queries, *size, generator=random, dtype=dtype) * 3
    logits = torch.randn(batch, 1, queries, classes + 1, generator=random, dtype=dtype)
    return masks.requires_grad_(), logits.requires_grad_()


def segments_of_images(counts=(2, 0, 5), classes=4, size=(24, 32)):
    random = torch.Generator().manual_seed(1)
    images = []
    for n in counts:
        numbers = torch.randint(0, n + 1, (size[0] // 4, size[1] // 4), generator=random)
        numbers = numbers.repeat_interleave(4, 0).repeat_interleave(4, 1)
        masks = numbers == torch.arange(n)[:, None, None]
        ids = torch.randint(0, classes, (n,), generator=random)
        compared, crowds = torch.ones(size, dtype=torch.bool), torch.full(size, -1)
        images.append(Segments(ids, masks, compared, crowds))
    return images


def peer(kind):
    from transformers import EomtConfig, Mask2FormerConfig
    from transformers.models.eomt.modeling_eomt import EomtLoss
    from transformers.models.mask2former.modeling_mask2former import Mask2FormerLoss

    config, loss = {
        "mask2former": (Mask2FormerConfig, Mask2FormerLoss),
        "eomt": (EomtConfig, EomtLoss),
    }[kind]
    weights = {"loss_cross_entropy": 2.0, "loss_mask": 5.0, "loss_dice": 5.0}
    return loss(config(num_labels=4, train_num_points=200), weights)


@pytest.mark.peers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("counts", [(2, 0, 5), (1, 7, 3)], ids=str)
@pytest.mark.parametrize("kind", ["mask2former", "eomt"])
def test_equal_to_transformers(kind, counts, dtype, monkeypatch):
    monkeypatch.setattr(torch, "rand", partial(torch.rand, dtype=dtype))
    theirs = peer(kind).to(dtype)
    theirs.empty_weight[-1] = 0.1  # was rounded to float32
    segments = segments_of_images(counts)
    gradients, terms = [], []
    for ours in (False, True):
        masks, logits = predictions(dtype)
        torch.manual_seed(3)  # the same points
        if ours:
            terms_by_name = SetLoss(num_points=200)(masks, logits, segments)
            values = [terms_by_name[name] for name in ("class", "mask", "dice")]
        else:
            labels = [s.masks.to(dtype) for s in segments], [s.classes for s in segments]
            terms_by_name = theirs(masks[:, 0], logits[:, 0], *labels)
            values = [
                factor * terms_by_name[f"loss_{name}"]
                for factor, name in ((2, "cross_entropy"), (5, "mask"), (5, "dice"))
            ]
        sum(values).backward()
        terms.append(torch.stack(values).detach())
        gradients.append((masks.grad, logits.grad))
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(terms[1], terms[0], rtol=tolerance, atol=tolerance)
    for mine, other in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=tolerance * other.abs().max())


def test_no_object_anywhere_trains_the_classes_alone():
    masks, logits = predictions()
    terms_by_name = SetLoss(num_points=50)(masks, logits, segments_of_images((0, 0, 0)))
    sum(terms_by_name.values()).backward()
    assert terms_by_name["mask"] == terms_by_name["dice"] == 0 < terms_by_name["class"]
    assert masks.grad.count_nonzero() == 0 < logits.grad.count_nonzero()


def test_of_more_segments_than_queries_the_largest_are_trained():
    """The pixels of the others are unknown."""
    (segments,) = segments_of_images((9,))
    kept = segments.largest(7)
    areas = segments.masks.flatten(1).sum(1).tolist()
    assert kept.masks.flatten(1).sum(1).sort().values.tolist() == sorted(areas)[2:]
    assert int((~kept.compared).sum()) == sum(sorted(areas)[:2])
    values = []
    for of_image in (segments, kept):
        torch.manual_seed(0)
        values.append(SetLoss(num_points=50)(*predictions(batch=1), [of_image]))
    assert values[0] == values[1]


def test_images_without_known_pixels_have_no_loss():
    loss, (masks, logits) = SetLoss(num_points=50), predictions()
    segments = segments_of_images()
    segments[1] = segments[1]._replace(compared=torch.zeros(24, 32, dtype=torch.bool))
    terms_by_name = loss(masks, logits, segments)
    sum(terms_by_name.values()).backward()
    assert logits.grad[1].count_nonzero() == masks.grad[1].count_nonzero() == 0
    assert logits.grad[0].count_nonzero() > 0
    none = loss(*predictions(), [segments[1]] * 3)
    assert torch.stack([*none.values()]).tolist() == [0, 0, 0]


def test_layers_are_matched_on_their_own_and_added():
    loss, (masks, logits) = SetLoss(num_points=50), predictions()
    torch.manual_seed(0)
    both = loss(
        torch.cat([masks, -masks], 1), torch.cat([logits, -logits], 1), segments_of_images()
    )
    torch.manual_seed(0)
    one, other = (
        loss(masks, logits, segments_of_images()),
        loss(-masks, -logits, segments_of_images()),
    )
    for name, value in both.items():
        torch.testing.assert_close(value, one[name] + other[name])


def test_unknown_pixels_cost_nothing():
    """Whatever is predicted or labelled there: neither the matching nor the terms change."""
    # uniform points: a changed prediction would move those chosen by uncertainty
    loss, (masks, logits) = SetLoss(num_points=400, importance=0), predictions(size=(24, 32))
    is_known = torch.ones(24, 32, dtype=torch.bool)
    is_known[:, 20:] = False
    values = []
    for logit in (masks, torch.where(is_known, masks.detach(), 50.0)):
        torch.manual_seed(0)
        segments = [s._replace(compared=is_known) for s in segments_of_images()]
        values.append(torch.stack(list(loss(logit, logits, segments).values())))
    torch.testing.assert_close(*values)
    assert loss(masks, logits, segments_of_images())["mask"] != values[0][1]
