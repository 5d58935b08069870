"""data=mix from the command line: sets added one by one, or in a file of one's own."""

MASKS = ("data.sets.masks.root={0} data.sets.masks.labels=masks data.sets.masks.num_classes=3",)
DEPTH = (
    "data.sets.near.root={0} data.sets.near.depth=depth data.sets.near.max_depth=10",
    "data.sets.near.missing=skip",
)
OWN = """
defaults:
  - mix
  - folder@sets.masks
  - folder@sets.near
  - _self_

sets:
  masks:
    root: {0}
    labels: masks
    num_classes: 3
    missing: skip
  near:
    root: {0}
    depth: depth
    max_depth: 10
    missing: skip
weights: {{near: 3}}
length: 8
"""


def test_partial_labels_train_joint(train, metrics, dense_folder, tmp_path):
    overrides = [o.format(dense_folder) for o in (*MASKS, *DEPTH)]
    run = train(
        tmp_path / "run",
        "task=joint data=mix +data@data.sets.masks=folder +data@data.sets.near=folder",
        "+data.weights.near=3 data.length=8 data.sets.masks.missing=skip",
        *overrides,
    )
    found = metrics(run)
    assert found["val/miou"] is not None
    assert found["val/abs_rel"] is not None
