"""Tiny models and photos, and the command line called in this process."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dpt
from dpt.cli import main

TINY = {
    "encoder": {"embed_dim": 32, "num_heads": 2, "num_blocks": 4, "out_indices": [0, 1, 2, 3],
                "image_size": [48, 64]},
    "decoder": {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16},
}  # fmt: skip


def tiny(heads, *, seed=0):
    """A model whose random weights tell places and classes apart."""
    torch.manual_seed(seed)
    model = dpt.create_model("dpt_tiny", heads=heads, **TINY).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("heads.segmentation") and parameter.ndim > 1:
                parameter.mul_(20)
    return model


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def joint():
    return tiny({"depth": {"kind": "relative"}, "segmentation": {"num_classes": 5}})


@pytest.fixture(scope="session")
def metric():
    return tiny({"depth": {"kind": "metric", "max_depth": 10.0}}, seed=1)


@pytest.fixture(scope="session")
def checkpoints(joint, metric, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    joint.save_pretrained(folder / "joint")
    metric.save_pretrained(folder / "metric")
    return {"joint": folder / "joint", "metric": folder / "metric"}


def photo_of(height, width, *, seed=0):
    """Smooth colours, a little noise: uint8 (H, W, 3)."""
    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (5, 6, 3), np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    return np.clip(smooth + random.integers(-9, 10, smooth.shape), 0, 255).astype(np.uint8)


def save_photo(path, height=40, width=57, *, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(photo_of(height, width, seed=seed)).save(path)
    return path


@pytest.fixture
def photos(tmp_path) -> Path:
    """Six photos of three sizes in two folders, some of one name."""
    root = tmp_path / "photos"
    for i in range(6):
        size = ((40, 57), (40, 57), (33, 90))[i % 3]
        save_photo(root / "ab"[i % 2] / f"{i // 2}.png", *size, seed=i)
    return root


@pytest.fixture
def run(monkeypatch, capsys):
    """run(*arguments): (exit code, stdout, stderr) of ``dpt predict ARGUMENTS``."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dpt", "predict", *(str(a) for a in arguments)])
        monkeypatch.delenv("DPT_DEBUG", raising=False)
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        return code, out, err

    return call
