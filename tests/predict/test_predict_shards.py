"""``dpt predict`` by several workers: parts, restarts, and joining of what they wrote."""

import filelock
import pytest
from benchmarks import shards
from photos import save_photo
from prediction_files import files_of, records_of

COUNT = 3


@pytest.fixture
def whole(predict, photos, tmp_path):
    """The folder of one undisturbed run."""
    folder = tmp_path / "whole"
    predict(photos, "--format", "png,overlay", model="joint", to=folder)
    return folder


@pytest.fixture
def shard(run, photos):
    """shard(number): (exit code, stdout, stderr) of one worker."""
    return lambda number, *more: run(
        photos, "--format", "png,overlay", "--shard", f"{number}/{COUNT}", *more, model="joint"
    )


def contents_of(folder):
    """Of all files but locks."""
    names = [name for name in files_of(folder) if not name.endswith(".lock")]
    return {name: (folder / name).read_bytes() for name in names}


def test_predict_merge_equals_one_run(shard, run, photos, whole, out):
    for number in (2, 1, 3):
        code, said, _ = shard(number)
        assert (code, f"shard {number}/3: 2 images" in said) == (0, True)
    assert not (out / "predictions.jsonl").exists()
    code, said, err = run(photos, "--format", "png,overlay", "--merge", model="joint")
    assert (code, err) == (0, "")
    assert contents_of(out) == contents_of(whole)
    code, said, _ = shard(1)  # a worker that the cluster starts once more
    assert "0 images" in said
    assert "2 were done before" in said


def test_predict_merge_names_the_command_of_a_missing_shard(shard, run, photos, out):
    shard(1)
    shard(3)
    (out / "depth/a/0.png").unlink()
    before = contents_of(out)
    code, _, err = run(photos, "--format", "png,overlay", "--merge", model="joint")
    assert code == 1
    assert "3 of 6 inputs" in err
    assert "a/0" in err
    assert err.rstrip().endswith("--shard 1/3, --shard 2/3")
    assert contents_of(out) == before


def test_predict_merge_lists_inputs_that_failed(shard, run, predict, photos, tmp_path, out):
    (photos / "a/0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert [shard(number)[0] for number in (1, 2, 3)] == [1, 0, 0]
    merge = photos, "--format", "png,overlay", "--merge"
    code, said, err = run(*merge, model="joint")
    assert (code, "5 inputs" in said) == (1, True)
    assert f"{photos}/a/0.png" in err
    assert len(records_of(out)) == 5
    assert not (out / "shards").exists()
    save_photo(photos / "a/0.png")
    shard(1)
    assert "6 inputs" in predict(*merge, model="joint")


def test_predict_shards_of_another_number_go_on(shard, run, predict, photos, whole, out):
    shard(1)
    for number in (1, 2):
        run(photos, "--format", "png,overlay", "--shard", f"{number}/2", model="joint")
    predict(photos, "--format", "png,overlay", "--merge", model="joint")
    assert contents_of(out) == contents_of(whole)


@pytest.mark.parametrize("options", [("--shard", "1/3"), ("--shard", "1/2"), ()], ids=" ".join)
def test_predict_refuses_inputs_of_a_live_worker(shard, refusal, photos, out, options):
    shard(1)
    with filelock.FileLock(out / "shards/1-of-3.lock"):
        before = contents_of(out)
        said = refusal(photos, "--format", "png,overlay", *options, model="joint")
        assert str(out / "shards/1-of-3.lock") in said
        assert contents_of(out) == before
        assert shard(2)[0] == 0


@pytest.mark.parametrize("text", ["0/4", "5/4", "slurm", "1/3/5"])
def test_a_shard_is_k_of_n(refusal, photos, text):
    assert f"--shard {text}: " in refusal(photos, "--shard", text)


def test_predict_merge_takes_the_latest_record_of_an_input(shard, run, predict, photos, out):
    """Not the one of a division that was given up, whose journal has a later name."""
    shard(1)
    save_photo(photos / "a/0.png", 30, 20)
    for number in (1, 2):
        run(photos, "--format", "png,overlay", "--shard", f"{number}/2", model="joint")
    predict(photos, "--format", "png,overlay", "--merge", model="joint")
    assert records_of(out)["a/0"]["modified"][1] == (photos / "a/0.png").stat().st_size


@pytest.mark.slow
def test_predict_shards_that_are_killed_equal_one_run(tmp_path):
    shards.run(["--images", "400", "--kills", "4", "--folder", str(tmp_path)])
