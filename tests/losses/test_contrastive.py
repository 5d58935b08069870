import pytest
import torch
import torch.nn.functional as F
from transformers.models.clip.modeling_clip import image_text_contrastive_loss

from dpt.losses.contrastive import contrastive_loss


def pairs(count=6):
    torch.manual_seed(0)
    images, texts = F.normalize(torch.randn(2, count, 8), dim=-1)
    return images, 14.0 * texts


def test_equals_transformers_clip_loss():
    images, texts = pairs()
    assert contrastive_loss(images, texts).item() == pytest.approx(
        image_text_contrastive_loss(texts @ images.T).item(), rel=1e-6
    )


def test_pairs_without_text_are_no_negatives():
    images, texts = pairs()
    known = torch.tensor([True, True, False, True, False, True])
    expected = contrastive_loss(images[known], texts[known]) * 4 / 6
    torch.testing.assert_close(contrastive_loss(images, texts, known), expected)


def test_no_text_gives_zero_and_finite_gradients():
    images, texts = pairs()
    images.requires_grad_()
    loss = contrastive_loss(images, texts, torch.zeros(6, dtype=torch.bool))
    loss.backward()
    assert loss.item() == 0
    assert not images.grad.any()


def test_the_wrong_order_costs_more():
    images, _ = pairs()
    right, wrong = 14 * images, 14 * images.roll(1, 0)
    assert contrastive_loss(images, right) < 0.1 < contrastive_loss(images, wrong)
