import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch

from dpt.data import (
    DataError,
    Dataset,
    EvalTransform,
    TrainTransform,
    collate_eval,
    collate_train,
    loading,
    make_loader,
)
from dpt.data.loading import LoaderSettings
from dpt.process import lack_of_memory
from dpt.types.preprocessing import Preprocessing
from dpt.types.samples import IGNORE_INDEX, NO_CLASS, DatasetInfo, Sample

TARGETS = ("labels", "depth")


class Noise(Dataset):
    """Samples of random content; some lack labels, some lack depth."""

    info = DatasetInfo(targets=TARGETS, class_names=("a", "b"), max_depth=10)

    def __init__(self, length: int = 11, *, broken: int = -1, sizes: bool = False) -> None:
        self.length = length
        self.broken = broken
        self.sizes = sizes
        self.preloaded = 0

    def __len__(self) -> int:
        return self.length

    def preload(self) -> None:
        self.preloaded += 1

    def __getitem__(self, index: int) -> Sample:
        if index == self.broken:
            raise DataError(f"frame_{index}.png: the file is truncated: copy it again")
        random = np.random.default_rng(index)
        size = (40, 50 + (index if self.sizes else 0))
        sample: Sample = {
            "image": random.integers(0, 256, (*size, 3), dtype=np.uint8),
            "name": f"frame_{index}.png",
        }
        if index % 3 != 1:
            sample["labels"] = random.integers(0, 2, size, dtype=np.uint8)
        if index % 3 != 2:
            sample["depth"] = random.uniform(1, 9, size).astype(np.float32)
            sample["valid"] = random.random(size) < 0.8
            sample["depth"][~sample["valid"]] = 0
        return sample


def loader(dataset=None, *, training=True, num_workers=0, **options):
    if training:
        transform = TrainTransform(image_size=[32, 32], zoom=[0.8, 2], rotate=5.0, color=1.0)
    else:
        transform = EvalTransform(Preprocessing(image_size=(32, 32)))
    settings = LoaderSettings(**{"batch_size": 4, "num_workers": num_workers} | options)
    dataset = dataset or Noise()
    return make_loader(dataset, transform, settings, TARGETS, training=training, seed=7)


def epochs(loader, count: int = 2) -> list[list[dict]]:
    batches = []
    for epoch in range(count):
        loader.sampler.set_epoch(epoch)
        batches.append(list(loader))
    return batches


def equal(first, second) -> bool:
    if isinstance(first, torch.Tensor):
        return first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    return first == second


@pytest.fixture(scope="module")
def without_workers():
    return epochs(loader())


@pytest.mark.parametrize("num_workers", [2, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_loader_batches_do_not_depend_on_workers(without_workers, num_workers):
    assert equal(epochs(loader(num_workers=num_workers)), without_workers)


def test_loader_epochs_differ_in_order_and_augmentation(without_workers):
    first, second = (torch.cat([b["index"] for b in epoch]) for epoch in without_workers)
    assert not torch.equal(first, second)
    images = [
        {int(i): image for b in epoch for i, image in zip(b["index"], b["image"], strict=True)}
        for epoch in without_workers
    ]
    common = images[0].keys() & images[1].keys()
    assert len(common) >= 5
    assert not any(torch.equal(images[0][i], images[1][i]) for i in common)


def test_loader_evaluation_does_not_depend_on_workers_or_epoch():
    alone = epochs(loader(training=False))
    assert equal(alone[0], alone[1])
    assert equal(epochs(loader(training=False, num_workers=2), 1)[0], alone[0])
    assert torch.cat([b["index"] for b in alone[0]]).tolist() == list(range(11))


def test_loader_training_batch(without_workers):
    batch = without_workers[0][0]
    assert batch["image"].shape == (4, 3, 32, 32)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert (batch["labels"].dtype, batch["labels"].shape) == (torch.uint8, (4, 32, 32))
    assert (batch["depth"].dtype, batch["valid"].dtype) == (torch.float32, torch.bool)
    assert len(without_workers[0]) == 2  # 11 samples, the last 3 dropped
    for epoch in without_workers:
        for batch in epoch:
            for row, index in enumerate(batch["index"].tolist()):
                assert batch["name"][row] == f"frame_{index}.png"
                assert (batch["labels"][row] == IGNORE_INDEX).all() == (index % 3 == 1)
                assert (~batch["valid"][row]).all() == (index % 3 == 2)


def test_loader_global_random_state_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    next(iter(loader()))
    assert torch.equal(torch.get_rng_state(), before)


def test_loader_evaluation_batches():
    batch = next(iter(loader(training=False)))
    assert batch["image"].shape == (4, 3, 32, 32)
    assert [tuple(t.shape) for t in batch["labels"]] == [(40, 50), (32, 32), (40, 50), (40, 50)]
    assert (batch["labels"][1] == IGNORE_INDEX).all()
    assert not batch["valid"][2].any()
    assert torch.equal(batch["depth"][0], torch.from_numpy(Noise()[0]["depth"]))
    several = next(iter(loader(Noise(sizes=True), training=False, batch_size=11)))
    assert {tuple(i.shape) for i in several["image"]} == {(3, 32, 32), (3, 32, 48)}
    assert [t.shape[1] for t in several["labels"]][::3] == [50, 53, 56, 59]


def test_collate_cached_read_only_arrays_are_copied(recwarn):
    sample = Noise()[0]
    sample["labels"].setflags(write=False)
    batch = collate_eval([sample], TARGETS)
    batch["labels"][0][:] = 9
    assert not (sample["labels"] == 9).any()
    assert not recwarn.list


def test_collate_image_level_targets():
    image = np.zeros((4, 5, 3), np.uint8)
    samples: list[Sample] = [{"image": image, "class_id": 3, "value": 0.5}, {"image": image}]
    for collate in (collate_train, collate_eval):
        batch = collate(samples, ("class_id", "value"))
        assert batch["class_id"].tolist() == [3, NO_CLASS]
        assert batch["class_id"].dtype == torch.int64
        assert batch["value"][0] == 0.5
        assert batch["value"].isnan().tolist() == [False, True]
        assert batch["value"].dtype == torch.float32
        assert "labels" not in batch


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_loader_errors_read_the_same_with_and_without_workers(num_workers):
    broken = loader(Noise(broken=3), training=False, num_workers=num_workers)
    with pytest.raises(DataError) as caught:
        list(broken)
    assert str(caught.value) == "frame_3.png: the file is truncated: copy it again"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_loader_cache_is_filled_before_workers_start(num_workers):
    dataset = Noise()
    loader(dataset, num_workers=num_workers)
    assert dataset.preloaded == num_workers


@pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_workers_ignore_stop_signals(number):
    """Ctrl-C, ``timeout`` and SLURM tell all processes of a job, perhaps more than once."""
    batches = loader(num_workers=1)
    iterator = iter(batches)
    next(iterator)
    (worker,) = batches._iterator._workers
    for _ in range(2):
        subprocess.run(["kill", f"-{number}", str(worker.pid)], check=True)
    assert len(list(iterator)) == 1
    assert worker.is_alive()


class Dying(Noise):
    """Its worker hangs or is killed at the seventh sample."""

    how = "hangs"

    def __getitem__(self, index):
        if index == 6:
            _ = time.sleep(1000) if self.how == "hangs" else os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.parametrize(
    ("how", "says"),
    [("dies", "DataLoader"), pytest.param("hangs", "DataLoader timed", marks=pytest.mark.slow)],
)
def test_lost_batch_is_an_error_that_a_command_explains(monkeypatch, how, says):
    monkeypatch.setattr(loading, "TIMEOUT", 1)
    monkeypatch.setattr(Dying, "how", how)
    with pytest.raises(RuntimeError) as raised:
        list(loader(Dying(), training=False, num_workers=1))
    assert lack_of_memory(raised.value).startswith(says)


LIVING_WORKERS = """if True:
    import os, resource, signal, sys, time
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    sys.path.insert(0, {tests!r})
    from test_loading import Noise, loader

    large = loader(Noise(96, sizes=True), training=False, num_workers=2, batch_size=32)
    print(len(list(large)))

    class Hangs(Noise):
        def __getitem__(self, index):
            return super().__getitem__(index) if index < 4 else time.sleep(1000)

    batches = iter(loader(Hangs(), training=False, num_workers=2))
    next(batches)
    print("a batch", flush=True)
    {end}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of Linux")
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("raise SystemExit(3)", 3),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", -9, marks=pytest.mark.slow),
        pytest.param("del batches", 0, marks=pytest.mark.slow),
    ],
)
def test_few_open_files_suffice_and_workers_end_with_their_process(end, code):
    """Also those that hang: nobody waits for them, and none is left."""
    script = LIVING_WORKERS.format(tests=str(Path(__file__).parent), end=end)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, _ = process.communicate(timeout=90)  # the workers hold the pipe, too
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out) == (code, "3\na batch\n")
