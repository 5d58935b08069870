"""Every format, task and size of the parity matrix: the same function of the same tensors."""

import pytest
import torch
from parity import all_cases
from peer_cases import bfloat16_ratio, gradient_error, output_error, random_images

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module", params=all_cases(), ids=str)
def pair(request, tmp_path_factory):
    """A case, the peer, ours."""
    return (request.param, *request.param.build(tmp_path_factory.mktemp("case")))


def test_outputs_equal_the_peers(pair):
    case, *models = pair
    for size in case.sizes:
        assert output_error(case, *models, size) <= 1e-5, size
        assert output_error(case, *models, size, torch.float64) <= case.exact, size


def test_bfloat16_is_no_worse_than_the_peers(pair):
    assert bfloat16_ratio(*pair) <= 1.2


def test_gradients_equal_the_peers(pair, tmp_path):
    assert gradient_error(*pair, tmp_path) <= 1e-9


def test_any_size(pair):
    """One patch, one pixel beside a multiple, larger and oblong; an odd batch."""
    case, _, ours = pair
    patch, (height, width) = ours.encoder.pad_multiple, case.sizes[0]
    for size in ((patch, patch), (height + 1, width - 1), (2 * height + 1, patch - 1)):
        with torch.no_grad():
            found = ours(random_images(3, size))[case.task]
        assert (len(found), *found.shape[-2:]) == (3, *size)
        assert found.isfinite().all(), size
