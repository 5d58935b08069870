"""Segments of labels, and what queries predict: as transformers makes it of the same logits."""

import pytest
import torch

from dpt.segments import NO_SEGMENT, instances, panoptic_segments, segments_of


def test_segments_of_labels():
    labels = torch.tensor([[0, 0, 1, 1], [0, 2, 2, 255]], dtype=torch.uint8)
    objects = torch.tensor([[1, 1, 7, 9], [2, 0, 0, 0]])
    actual = segments_of(labels, objects, things=(True, True, False))
    assert actual.classes.tolist() == [0, 0, 1, 1, 2]
    assert actual.masks.flatten(1).sum(1).tolist() == [2, 1, 1, 1, 2]
    assert (~actual.compared).nonzero().tolist() == [[1, 3]]
    crowd = torch.where(objects == 9, 0, objects)  # a thing without an object
    actual = segments_of(labels, crowd, things=(True, True, False))
    assert actual.classes.tolist() == [0, 0, 1, 2]
    assert (~actual.compared).nonzero().tolist() == [[0, 3], [1, 3]]
    assert actual.crowds.tolist() == [[-1, -1, -1, 1], [-1, -1, -1, -1]]


def predictions(seed, queries=12, classes=5, size=(24, 32)):
    """Logits of smooth masks and of sure classes."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.randn(1, queries, 4, 5, generator=random) * 4
    masks = torch.nn.functional.interpolate(coarse, size=size, mode="bicubic")[0]
    return masks, torch.randn(queries, classes + 1, generator=random) * 6


@pytest.mark.peers
@pytest.mark.parametrize("seed", range(6))
def test_panoptic_segments_equals_transformers(seed):
    from transformers.models.eomt.image_processing_eomt import (
        compute_segments,
        remove_low_and_no_objects,
    )

    masks, classes = predictions(seed)
    things = (True, True, False, False, True)
    scores, ids = classes.softmax(-1).max(-1)
    kept = remove_low_and_no_objects(masks, scores, ids, 0.8, 5)
    expected, segments = compute_segments(
        *kept, stuff_classes=[2, 3], overlap_mask_area_threshold=0.2
    )
    actual = panoptic_segments(masks, classes, things, overlap=0.2)
    assert torch.equal(actual.ids, expected)
    assert actual.classes.tolist() == [s["label_id"] for s in segments]
    assert len(segments) > 1
    assert (expected == NO_SEGMENT).any()


@pytest.mark.parametrize(
    ("won", "length", "limit", "kept"),
    [(4, 5, 0.8, True), (3, 5, 0.8, False), (13, 20, 0.65, True), (0, 5, 0, False)],
)
def test_panoptic_segments_keeps_a_segment_of_exactly_the_limit(won, length, limit, kept):
    """As in the code of Mask2Former and EoMT; transformers drops it."""
    masks = torch.full((2, 1, 24), -9.0)
    masks[0, :, :length] = 1.0
    masks[1, :, won:] = 9.0  # covers the rest of the first one
    classes = torch.tensor([[9.0, 0, 0], [0, 9.0, 0]])
    actual = panoptic_segments(masks, classes, (True, True), overlap=limit)
    assert (0 in actual.classes.tolist()) == kept


@pytest.mark.parametrize("size", [None, (12, 15)])
def test_panoptic_segments_without_a_sure_query_is_empty(size):
    masks, classes = torch.randn(4, 6, 8), torch.zeros(4, 3)
    actual = panoptic_segments(masks, classes, (True, False), size=size)
    assert actual.ids.shape == (size or (6, 8))
    assert (actual.codes == NO_SEGMENT).all()
    assert len(actual.classes) == len(actual.scores) == 0


def test_instances_scores_as_transformers():
    """Of the best class of each query; Mask2Former also takes the second best."""
    from transformers import EomtImageProcessor
    from transformers.models.eomt.modeling_eomt import EomtForUniversalSegmentationOutput as Output

    masks, classes = predictions(0, size=(32, 32))
    processor = EomtImageProcessor(size={"shortest_edge": 32, "longest_edge": 32})
    outputs = Output(class_queries_logits=classes[None], masks_queries_logits=masks[None])
    (expected,) = processor.post_process_instance_segmentation(
        outputs, target_sizes=[(32, 32)], threshold=0.0
    )
    objects, ids, scores = instances(masks, classes, (True,) * 5, most=1000)
    actual = {(int(i), round(float(s), 5)) for i, s in zip(ids, scores, strict=True)}
    for segment in expected["segments_info"]:
        assert (segment["label_id"], round(segment["score"], 5)) in actual
    assert len(objects) > len(expected["segments_info"]) > 5
    assert not set(instances(masks, classes, (False, True, False, False, False))[1].tolist()) - {1}
