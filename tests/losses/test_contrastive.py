"""The contrastive loss of images and texts: equal to transformers', and which pairs count."""

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
    has_text = torch.tensor([0, 1, 3, 5])
    expected = contrastive_loss(images[has_text], texts[has_text], has_text) * 4 / 6
    groups = torch.tensor([10, 11, -1, 13, -1, 15])
    torch.testing.assert_close(contrastive_loss(images, texts, groups), expected)


def test_equal_texts_are_no_negatives():
    """Two of three pairs have one text: each of the two sees the third pair alone."""
    images, texts = pairs(3)
    texts[1] = texts[0]
    loss = contrastive_loss(images, texts, torch.tensor([7, 7, 8]))
    expected = 0.0
    for queries, keys in ((images, texts), (texts, images)):
        for row, compared in enumerate(([0, 2], [1, 2], [0, 1, 2])):
            probabilities = (keys[compared] @ queries[row]).softmax(0)
            expected -= probabilities[compared.index(row)].log() / 6
    torch.testing.assert_close(loss, expected)


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
