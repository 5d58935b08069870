"""data=mix from the command line: sets added one by one."""

MASKS = ("data.sets.masks.root={0} data.sets.masks.labels=masks data.sets.masks.num_classes=3",)
DEPTH = (
    "data.sets.near.root={0} data.sets.near.depth=depth data.sets.near.max_depth=10",
    "data.sets.near.missing=skip",
)


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
