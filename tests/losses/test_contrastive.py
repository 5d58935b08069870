import pytest
import torch
import torch.nn.functional as F
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from dpt.losses.contrastive import contrastive_loss

ALL = torch.arange(6)


def pairs(count=6):
    torch.manual_seed(0)
    images, texts = F.normalize(torch.randn(2, count, 8), dim=-1)
    return images, 14.0 * texts


def test_equals_transformers_clip_loss():
    images, texts = pairs()
    assert contrastive_loss(images, texts, ALL).item() == pytest.approx(
        image_text_contrastive_loss(texts @ images.T).item(), rel=1e-6
    )


def test_pairs_without_text_are_no_negatives():
    images, texts = pairs()
    known = torch.tensor([0, 1, 3, 5])
    expected = contrastive_loss(images[known], texts[known], known) * 4 / 6
    groups = torch.tensor([10, 11, -1, 13, -1, 15])
    torch.testing.assert_close(contrastive_loss(images, texts, groups), expected)


def test_equal_texts_are_no_negatives():
    """Two of three pairs have one text: each of the two sees the third pair alone."""
    images, texts = pairs(3)
    texts[1] = texts[0]
    found = contrastive_loss(images, texts, torch.tensor([7, 7, 8]))
    terms = [
        F.cross_entropy(images[:1] @ texts[[0, 2]].T, torch.tensor([0])),
        F.cross_entropy(images[1:2] @ texts[[1, 2]].T, torch.tensor([0])),
        F.cross_entropy(images[2:] @ texts.T, torch.tensor([2])),
        F.cross_entropy(texts[:1] @ images[[0, 2]].T, torch.tensor([0])),
        F.cross_entropy(texts[1:2] @ images[[1, 2]].T, torch.tensor([0])),
        F.cross_entropy(texts[2:] @ images.T, torch.tensor([2])),
    ]
    torch.testing.assert_close(found, sum(terms) / 6)


def test_no_text_gives_zero_and_finite_gradients():
    images, texts = pairs()
    images.requires_grad_()
    loss = contrastive_loss(images, texts, torch.full((6,), -1))
    loss.backward()
    assert loss.item() == 0
    assert not images.grad.any()


def test_one_pair_is_refused():
    with pytest.raises(ValueError, match=r"raise data\.batch_size"):
        contrastive_loss(*pairs(1), ALL[:1])


def test_autocast_leaves_the_logits_in_float32():
    images, texts = pairs()
    with torch.autocast("cpu", torch.bfloat16):
        found = contrastive_loss(images, texts, ALL)
    assert torch.equal(found, contrastive_loss(images, texts, ALL))
