"""Full-size logits a band of rows at a time, against making them whole."""

import pytest
import torch
import torch.nn.functional as F

from dpt import functional
from dpt.functional import chunked_argmax, chunked_cross_entropy
from dpt.losses import CrossEntropyLoss

SIZES = [((4, 5), (8, 10)), ((3, 7), (13, 9)), ((6, 6), (6, 6)), ((1, 1), (3, 4)), ((5, 4), (2, 3))]


@pytest.fixture(autouse=True, params=["bands", "one band", "few classes"])
def way(request, monkeypatch):
    if request.param != "few classes":
        monkeypatch.setattr(functional, "FEW_CLASSES", 1)
    if request.param == "bands":
        monkeypatch.setitem(functional.VALUES_AT_ONCE, "cpu", 30)


def whole(logits, size):
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=True)


@pytest.mark.parametrize(("low", "high"), SIZES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_argmax(low, high, layout):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, *low, dtype=torch.float64).to(memory_format=layout)
    assert torch.equal(chunked_argmax(logits, high), whole(logits, high).argmax(1))


def test_few_classes_of_a_large_picture_are_not_held_whole(monkeypatch):
    logits = torch.randn(1, 3, 4, 5, dtype=torch.float64)
    wanted = whole(logits, (8, 10)).argmax(1)
    monkeypatch.setattr(functional, "MOST_AT_ONCE", 10)
    monkeypatch.setattr(functional, "upsample", None)
    found = chunked_argmax(logits, (8, 10), dtype=torch.uint8)
    assert found.dtype == torch.uint8
    assert torch.equal(found.long(), wanted)


@pytest.mark.parametrize(("low", "high"), SIZES)
@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
def test_cross_entropy_is_that_of_the_whole(low, high, weights):
    torch.manual_seed(0)
    logits = torch.randn(2, 3, *low, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(3, (2, *high))
    labels[0, 0] = 255
    labels[1] = torch.where(torch.rand(high) < 0.3, 255, labels[1])
    found = CrossEntropyLoss(class_weights=weights, label_smoothing=0.1)(logits, labels)
    (grad,) = torch.autograd.grad(found, logits)
    factors = None if weights is None else torch.tensor(weights, dtype=torch.float64)
    wanted = sum(
        F.cross_entropy(
            whole(logits[i : i + 1], high),
            labels[i : i + 1],
            weight=factors,
            ignore_index=255,
            label_smoothing=0.1,
        )
        for i in range(2)
    )
    if (labels[0] == 255).all():  # F.cross_entropy makes NaN of an image without labels
        return
    torch.testing.assert_close(found, wanted / 2)
    torch.testing.assert_close(grad, torch.autograd.grad(wanted / 2, logits)[0])


def test_gradcheck():
    torch.manual_seed(0)
    logits = torch.randn(2, 3, 3, 2, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(3, (2, 5, 4))
    assert torch.autograd.gradcheck(
        lambda x: chunked_cross_entropy(
            x,
            labels,
            scale=torch.tensor([0.5, 0.1], dtype=torch.float64),
            class_weights=None,
            ignore_index=255,
            label_smoothing=0.0,
        ),
        (logits,),
    )


def test_an_image_without_labels_counts_nothing():
    logits = torch.randn(2, 3, 4, 4, requires_grad=True)
    labels = torch.full((2, 8, 8), 255)
    loss = CrossEntropyLoss()(logits, labels)
    loss.backward()
    assert loss == 0
    assert torch.equal(logits.grad, torch.zeros_like(logits))
