"""The recipes of ``conf/experiment``: each at full size without weights, and two tiny steps."""

import json
import shutil
from pathlib import Path

import depth_trees
import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from photos import save_picture
from tiny import ON_CPU, TINY_MODEL, call, checkpoint_of, slow_after

import dpt
from dpt.config.build import make_model, make_objectives
from dpt.config.schema import RunConfig
from dpt.files import config_dir

RECIPES = sorted(p.stem for p in (config_dir() / "experiment").glob("*.yaml"))
NO_DOWNLOADS = ("model.encoder.weights=null",)
STEM = ("model.encoder.out_indices=[2,3]", "model.decoder.reassemble_channels=[null,null,16,16]")
STEMS = dict.fromkeys(("camvid", "dpt_ade20k", "panoptic", "rgbd"), STEM)
DEFAULT = "midas_mix"
"""The recipe that the default tier trains."""


@pytest.fixture(scope="session")
def trees(tmp_path_factory) -> Path:
    """Stand-ins of every data set that a recipe names, laid out as ``paths.data_dir``."""
    root = tmp_path_factory.mktemp("trees")
    random = np.random.default_rng(0)

    def save(path: str, array: np.ndarray) -> None:
        save_picture(root / path, array)

    def photo(path: str, size: tuple[int, int] = (40, 48)) -> None:
        save(path, random.integers(0, 255, (*size, 3), np.uint8))

    depth_trees.hypersim(root / "hypersim")
    depth_trees.vkitti2(root / "vkitti2")
    for scene in ("Scene02", "Scene06", "Scene18"):
        shutil.copytree(root / "vkitti2/Scene01", root / "vkitti2" / scene)
    depth_trees.sunrgbd(root / "sunrgbd")
    depth_trees.tum(root / "tum", tuple(f"freiburg{i}" for i in range(12)))
    for split, name in (("training", "train"), ("validation", "val")):
        for i in range(3):
            ade = "ADEChallengeData2016"
            photo(f"{ade}/images/{split}/ADE_{name}_{i}.jpg")
            save(
                f"{ade}/annotations/{split}/ADE_{name}_{i}.png",
                random.integers(0, 151, (40, 48)).astype(np.uint8),
            )
            photo(f"camvid/images/{name}/{i}.png")
            save(f"camvid/masks/{name}/{i}.png", random.integers(0, 12, (40, 48)).astype(np.uint8))
            photo(f"rgbd/images/{name}/{i}.png", (36, 48))  # the aspect of its intrinsics
            depth = random.integers(500, 9000, (36, 48)).astype(np.uint16)
            save(f"rgbd/depth/{name}/{i}.png", depth)
    return root


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_builds_its_model_at_full_size(recipe, trees):
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        cfg = compose(
            "train", [f"experiment={recipe}", f"paths.data_dir={trees}", "run_dir=x", *NO_DOWNLOADS]
        )
    config = RunConfig.read(OmegaConf.to_container(cfg, resolve=True))
    settings = config.data.loader
    objectives = make_objectives(config.task, config.data.make("train"))
    with torch.device("meta"):
        model = make_model(config.model, objectives, settings, NO_DOWNLOADS)
        shape = (2, 3, *settings.image_size)
        outputs = model(torch.zeros(shape))
    assert outputs.keys() >= objectives.keys()
    assert model.preprocessing.image_size == settings.eval_size
    if recipe.startswith("dinov2"):  # whose codes are resized as they were in pretraining
        assert model.encoder.grid == (37, 37)


@pytest.mark.parametrize(
    "recipe", slow_after(1, sorted(RECIPES, key=lambda recipe: recipe != DEFAULT))
)
def test_every_recipe_runs_two_steps(recipe, trees, tmp_path):
    size = "[28,42]" if "dinov2" in recipe or "anything" in recipe else "[32,48]"
    tiny = (*TINY_MODEL, *(STEMS.get(recipe, ())))
    folder = tmp_path / "run"
    sizes = f"data.image_size={size} data.eval_size={size}"
    run = f"experiment={recipe} debug=tiny paths.data_dir={trees} run_dir={folder}"
    call("train", run, *tiny, *ON_CPU, *NO_DOWNLOADS, sizes)
    content = checkpoint_of(folder)
    assert content["global_step"] == 2
    metrics = json.loads((folder / "metrics.json").read_text())
    assert any(k.startswith("val/") for k in metrics)
    model = dpt.DPT.from_pretrained(folder / "checkpoints/last.ckpt")
    assert all(p.isfinite().all() for p in model.parameters())
    parts = {g["name"].partition("_")[0] for g in content["optimizer_states"][0]["param_groups"]}
    assert parts == ({"decoder"} if recipe.startswith("dinov2") else {"encoder", "decoder"})
