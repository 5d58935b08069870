"""Tiles: no seam, no gap, one scale, and little memory.

Stand-ins whose answer at a pixel depends on that pixel alone (or on it and one number of the whole
picture, as the unknown scale of a relative prediction does) must be predicted by tiles as they are
in one pass.
"""

import numpy as np
import pytest
import torch
from photos import photo_of

import dpt
from dpt.tiling import tile_spans
from dpt.types.outputs import OutputSpec
from dpt.types.preprocessing import Preprocessing

METRIC = OutputSpec("depth", "depth", unit="m")
RELATIVE = OutputSpec("depth", "depth", unit="relative inverse depth")
UP_TO_SCALE = OutputSpec("depth", "depth", unit="relative depth")
PIXELS = Preprocessing(
    image_size=(64, 64), resize="none", multiple_of=1, mean=(0, 0, 0), std=(1, 1, 1)
)


class StandIn:
    """A runtime of one function from normalised images to outputs."""

    calibration, preprocessing, device = None, PIXELS, torch.device("cpu")

    def __init__(self, function, *outputs):
        self.function, self.outputs = function, {spec.name: spec for spec in outputs}

    def __call__(self, inputs):
        return self.function(inputs.images)


def brightness(images):
    return images.mean(1) + 0.1


@pytest.mark.parametrize("size", [(150, 233), (70, 400), (64, 65)])
def test_tiles_leave_no_seam(size):
    model = StandIn(lambda x: {"depth": brightness(x)}, METRIC)
    photo = photo_of(*size)
    tiled = dpt.Predictor(model, tile=64, batch_size=3)(photo).depth
    np.testing.assert_allclose(tiled, dpt.Predictor(model)(photo).depth, rtol=1e-5)


def standardised(images):
    x = brightness(images)
    mean, spread = x.mean((1, 2), keepdim=True), x.std((1, 2), keepdim=True)
    return {"depth": (x - mean) / spread + 5}


def zoomed(images):
    x = brightness(images)
    return {"depth": x / x.mean((1, 2), keepdim=True)}


@pytest.mark.parametrize(
    ("function", "spec"), [(standardised, RELATIVE), (zoomed, METRIC), (zoomed, UP_TO_SCALE)]
)
def test_tiles_have_the_scale_of_the_whole_image(function, spec):
    model, photo = StandIn(function, spec), photo_of(150, 233)
    whole, tiled = dpt.Predictor(model)(photo), dpt.Predictor(model, tile=80)(photo)
    np.testing.assert_allclose(tiled.depth, whole.depth, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(113, 150), (200, 113)])  # of 113, places lie in three tiles
def test_tiles_are_blended_by_their_weights(size, monkeypatch):
    """Against the definition, on answers that depend on the place within the tile."""
    random = torch.Generator().manual_seed(0)
    patterns = torch.randn(4, 64, 64, generator=random)

    def uneven(images):
        x = images.mean(1, keepdim=True)
        return {"segmentation": x * patterns, "depth": (x * patterns[:1])[:, 0] + 5}

    outputs = OutputSpec("segmentation", "logits", 4), METRIC
    photo = photo_of(*size)
    monkeypatch.setattr("dpt.tiling.align_tile", lambda depth, whole, inverse: depth)
    model = StandIn(lambda x: uneven(x) if x.shape[-1] == x.shape[-2] == 64 else whole(x), *outputs)

    def whole(images):
        logits = images.new_zeros((1, 4, *images.shape[-2:]))
        return {"segmentation": logits, "depth": logits[:, 0]}

    prediction = dpt.Predictor(model, tile=64)(photo)
    down, across = tile_spans(size[0], 64), tile_spans(size[1], 64)
    hann = torch.hann_window(66, periodic=False)[1:-1]
    weight, total = hann[:, None] * hann, torch.zeros(size)
    logits, depth = torch.zeros(4, *size), torch.zeros(size)
    images = PIXELS.normalize(torch.from_numpy(photo).permute(2, 0, 1)[None])
    for rows in down:
        for columns in across:
            total[rows, columns] += weight
            out = uneven(images[..., rows, columns])
            logits[:, rows, columns] += weight * out["segmentation"][0]
            depth[rows, columns] += weight * out["depth"][0]
    np.testing.assert_allclose(prediction.depth, depth / total, rtol=1e-5)
    assert prediction.labels.dtype == np.uint8
    assert (prediction.labels == logits.argmax(0).numpy()).mean() > 0.999
