"""An error ends its command also while the loaders' workers live, and leaves no process behind."""

import resource

import numpy as np
import pytest
from photos import save_picture
from test_ddp import finish, start
from tiny import ON_CPU, TINY_SCENES, TINY_VIT

pytestmark = pytest.mark.slow
RUN = (
    *("train", "task=depth", *TINY_VIT, *ON_CPU, "logger=none", "trainer.max_steps=2"),
    "data.image_size=[32,48] data.batch_size=2 data.num_workers=2",
)


def ends(*arguments: str, code: int = 1, **options) -> str:
    """The output of ``dpt ARGUMENTS``, once no process holds the pipe any more."""
    out = finish(start("-m", "dpt", *arguments, **options), code, timeout=150)
    assert "Traceback" not in out
    return out


def test_panels_that_cannot_be_written(tmp_path):
    (tmp_path / "panels").write_text("a file in place of the folder")
    assert "panels" in ends(*RUN, *TINY_SCENES, f"run_dir={tmp_path}")


def test_a_full_disk(tmp_path):
    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

    out = ends(*RUN, *TINY_SCENES, f"run_dir={tmp_path}", preexec_fn=limit_files)
    assert "cannot be written" in out


@pytest.mark.parametrize("command", ["train", "pack"])
def test_a_file_that_cannot_be_read(tmp_path, command):
    random = np.random.default_rng(0)
    for i in range(40):  # a truncated one is not among those that are read first
        for split in ("train", "val"):
            for kind, high in (("images", 255), ("depth", 9000)):
                path = tmp_path / f"{kind}/{split}/{i:02}.png"
                values = random.integers(0, high, (48, 64, 3) if kind == "images" else (48, 64))
                save_picture(path, values.astype(np.uint8 if high == 255 else np.uint16))
    for split in ("train", "val"):
        path = tmp_path / f"images/{split}/13.png"
        path.write_bytes(path.read_bytes()[:200])
    data = ("data=folder", f"data.root={tmp_path}", "data.depth=depth", "data.max_depth=10")
    if command == "train":
        out = ends(*RUN, *data, f"run_dir={tmp_path}/run")
    else:
        out = ends("data", "pack", *data, f"out={tmp_path}/out", "data.num_workers=2")
    assert "13.png" in out
