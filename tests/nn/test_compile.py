"""torch.compile takes the whole model in one graph, at any size, in training and in evaluation."""

import pytest
import torch

import dpt

HEADS = {"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5, "dropout": 0.0}}
TINY = {
    "embed_dim": 32,
    "num_heads": 2,
    "num_blocks": 4,
    "out_indices": [0, 1, 2, 3],
    "image_size": [64, 64],
}
DECODER = {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}


@pytest.fixture
def model():
    torch.manual_seed(0)
    torch._dynamo.reset()
    return dpt.create_model("dpt_tiny", heads=HEADS, encoder=TINY, decoder=DECODER)


def graphs(function, counts):
    def backend(graph, _):
        counts.append(1)
        return graph.forward

    return torch.compile(function, backend=backend, fullgraph=True, dynamic=True)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_one_graph_for_every_size(model, training):
    model.train(training)
    counts = []
    compiled = graphs(model, counts)
    with torch.set_grad_enabled(training):
        for size in ((64, 64), (96, 128), (80, 112)):
            images = torch.randn(2, 3, *size)
            torch.manual_seed(1)
            found = compiled(images)
            torch.manual_seed(1)
            wanted = model(images)
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5)
    assert len(counts) <= 2  # the first size may be compiled for itself
