"""The parity matrix: the same function of the same tensors as the peers', in outputs and gradients.

The default tests take each architecture and each file format once, slow ones the whole matrix.
"""

import pytest
import torch
from parity import all_cases
from peer_cases import bfloat16_ratio, default, gradient_error, output_error, random_images

from dpt.types.outputs import tensors_in

pytestmark = pytest.mark.peers
DEFAULT = (
    "MiDaS 3.1, depth, BEiT",
    "MiDaS 3.1, depth, Swin",
    "depth_anything, depth, transformers",
    "depth_anything, depth, v2 .pth",
    "dinov2, depth, hub, DPT head",
    "dinov3, depth, hub, SYNTHMIX",
    "eomt, panoptic, DINOv3",
    "official, depth, hybrid",
    "official, segmentation, ViT",
    "smp, segmentation, ViT",
    "transformers, depth, DINOv2, its depth head",
    "transformers, depth, SwinV2",
    "transformers, depth, ViT, project",
)


def cases(*names):
    return pytest.mark.parametrize("pair", default(all_cases(), *names), indirect=True)


@pytest.fixture(scope="module")
def pair(request, tmp_path_factory):
    """A case, the peer, ours."""
    return (request.param, *request.param.build(tmp_path_factory.mktemp("case")))


@cases(*DEFAULT)
def test_outputs_equal_the_peers(pair):
    case, *models = pair
    assert output_error(case, *models, case.sizes[0]) <= 1e-5
    for size in case.sizes:
        assert output_error(case, *models, size, torch.float64) <= case.exact, size


@cases(*DEFAULT)
def test_gradients_equal_the_peers(pair, tmp_path):
    assert gradient_error(*pair, tmp_path) <= 1e-9


@cases("official, segmentation, ViT")
def test_bfloat16_is_no_worse_than_the_peers(pair):
    assert bfloat16_ratio(*pair) <= 1.2


@cases("dinov2, depth, hub, DPT head", "transformers, depth, SwinV2")
def test_any_size(pair):
    """One patch, one pixel beside a multiple, larger and oblong; an odd batch."""
    case, _, ours = pair
    patch, (height, width) = ours.encoder.pad_multiple, case.sizes[0]
    for size in ((patch, patch), (height + 1, width - 1), (2 * height + 1, patch - 1)):
        with torch.no_grad():
            actual, *_ = tensors_in(ours(random_images(3, size))[case.task])
        assert (len(actual), *actual.shape[-2:]) == (3, *size)
        assert actual.isfinite().all(), size
