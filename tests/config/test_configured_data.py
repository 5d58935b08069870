"""From parts of the configuration to the parts of a run."""

import re
import shlex
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dpt.config.build import make_model, make_objectives, make_train_loader
from dpt.config.objects import read_part, read_settings
from dpt.config.overrides import as_argument, as_text, parse
from dpt.config.resumed_config import data_of_evaluation
from dpt.config.run_folder import save_config
from dpt.config.schema import DataConfig, ModelSettings, TaskConfig
from dpt.data import ScenesDataset, TrainTransform
from dpt.data.loading import LoaderSettings
from dpt.evaluation.passes import objectives_of
from dpt.files import config_dir, read_yaml
from dpt.metrics import Protocol
from dpt.types.samples import DatasetInfo

pytestmark = pytest.mark.filterwarnings("ignore:The ``compute`` method")

DATA = {"image_size": [32, 48], "eval_size": None, "batch_size": 4, "num_workers": 0}
SCENES = {
    **DATA,
    "kind": "scenes",
    "size": [32, 48],
    "seed": 0,
    "train": {"length": 6},
    "val": {"length": 3, "seed": 5},
}
DEPTH = {"head": "depth", "kind": "metric", "max_depth": None}
SEGMENTATION = {"head": "segmentation", "num_classes": None}
CLASSES = {"head": "classification", "num_classes": None}
ENCODER = {
    "kind": "vit",
    "weights": None,
    "image_size": None,
    "num_heads": 3,
    "embed_dim": 48,
    "num_blocks": 4,
    "out_indices": [0, 1, 2, 3],
}
DECODER = {"reassemble_channels": [8, 8, 16, 16], "fusion_channels": 16}
MODEL = ModelSettings(name="dpt_tiny", encoder=ENCODER, decoder=DECODER)
SETTINGS = LoaderSettings(image_size=(32, 48), eval_size=(64, 96), batch_size=4, num_workers=0)


def task(**objectives):
    values = {"name": "mine", "objectives": objectives, "teacher": {"kind": "none"}}
    return read_settings(TaskConfig, values, "task")


@pytest.fixture
def scenes():
    return DataConfig.read(SCENES).make("train")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image_size": [0, 48]}, r"data\.image_size\.0=0: must be greater"),
        ({"eval_size": [1, 10**9]}, r"data\.eval_size\.1=1000000000: must be less"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"batch_size": "x"}, r"data\.batch_size='x'"),
    ],
)
def test_wrong_loader_settings(change, says):
    assert DataConfig.read(SCENES).loader.eval_size == (32, 48)
    with pytest.raises(ValueError, match=says):
        DataConfig.read({**SCENES, **change})


def test_each_split_has_its_own_arguments():
    train, val = (DataConfig.read(SCENES).make(split) for split in ("train", "val"))
    assert isinstance(train, ScenesDataset)
    assert (train.split, len(train), train.seed) == ("train", 6, 0)
    assert (val.split, len(val), val.seed) == ("val", 3, 5)
    assert len(DataConfig.read({**SCENES, "length": 7}).make("test")) == 7


def test_objectives_take_what_is_unset_from_the_data(scenes):
    made = make_objectives(
        task(depth=DEPTH, segmentation=SEGMENTATION, classification=CLASSES), scenes
    )
    assert made["depth"].max_depth == 20.0
    assert made["segmentation"].num_classes == len(scenes.info.class_names)
    assert "iou/sky" in made["segmentation"].compute()  # the data's names
    assert made["classification"].num_classes == len(scenes.class_id_names)


def test_what_is_set_wins_over_the_data(scenes):
    made = make_objectives(task(depth={**DEPTH, "max_depth": 7.5}), scenes)
    assert made["depth"].max_depth == 7.5
    assert made["depth"].head_settings["max_depth"] == 7.5


def test_a_class_count_other_than_the_datas(scenes):
    with pytest.raises(ValueError, match="num_classes=3, but the data has 10 classes"):
        make_objectives(task(segmentation={**SEGMENTATION, "num_classes": 3}), scenes)
    count = len(scenes.class_id_names)
    with pytest.raises(ValueError, match=rf"num_classes=99, but the data has {count} classes"):
        make_objectives(task(classification={**CLASSES, "num_classes": 99}), scenes)


def test_targets_that_the_data_lacks(scenes):
    scenes.info = DatasetInfo(targets=("depth",), max_depth=20.0)
    with pytest.raises(ValueError, match=r"task=mine needs class masks.*only depth maps.*data="):
        make_objectives(task(depth=DEPTH, segmentation=SEGMENTATION), scenes)


def test_the_model_has_a_head_for_each_objective(scenes):
    objectives = make_objectives(task(depth=DEPTH, segmentation=SEGMENTATION), scenes)
    with torch.device("meta"):
        model = make_model(MODEL, objectives, SETTINGS)
    depth, segmentation = model.config.heads["depth"], model.config.heads["segmentation"]
    assert (depth.kind, depth.max_depth, depth.activation) == ("metric", 20.0, "sigmoid")
    assert segmentation.num_classes == 10
    assert model.outputs["segmentation"].class_names == scenes.info.class_names


@pytest.mark.parametrize(
    ("key", "value"), [("activation", "exp"), ("max_depth", 9.0), ("min_depth", 0.5)]
)
def test_settings_of_a_head_without_effect(scenes, caplog, key, value):
    model = replace(MODEL, heads={"depth": {key: value}})
    typed = f"model.heads.depth.{key}={value}"
    with torch.device("meta"):
        made = make_model(model, make_objectives(task(depth=DEPTH), scenes), SETTINGS, [typed])
    assert f"model.heads.depth.{key}" in caplog.text
    assert getattr(made.config.heads["depth"], key) != value


def test_settings_of_the_head_of_a_resumed_run_give_way_to_the_task(scenes):
    objectives = make_objectives(task(depth=DEPTH), scenes)
    stored = replace(MODEL, heads={"depth": {"max_depth": 9.0}})
    model = make_model(stored, objectives, SETTINGS, ["model=dpt_tiny"])
    assert model.config.heads["depth"].max_depth == 20.0


def test_bins_that_end_before_the_depth_of_the_data(scenes, caplog):
    model = replace(MODEL, heads={"depth": {"bins": {"max_depth": 5.0}}})
    with torch.device("meta"):
        make_model(model, make_objectives(task(depth=DEPTH), scenes), SETTINGS)
    assert "depth.bins.max_depth=5: depth above, up to 20 m" in caplog.text


def test_a_setting_that_the_task_decides(scenes, caplog):
    made = make_objectives(task(depth={**DEPTH, "activation": "exp"}), scenes)
    assert made["depth"].head_settings["activation"] == "sigmoid"
    assert "task.objectives.depth.activation=exp has no effect" in caplog.text


def test_the_model_is_made_for_the_size_of_the_training_images(scenes, caplog):
    objectives = make_objectives(task(depth=DEPTH), scenes)
    given = replace(MODEL, encoder={**ENCODER, "image_size": [8, 8]})
    model = make_model(given, objectives, SETTINGS, ["model.encoder.image_size=[8,8]"])
    assert "model.encoder.image_size=[8, 8] has no effect" in caplog.text
    assert model.preprocessing.image_size == (64, 96)  # of whole images, in evaluation
    assert model.encoder.pos_embed.shape[1] == 1 + 2 * 3
    assert len(model.encoder.blocks) == 4


@pytest.mark.parametrize("name", ["a.b", "", "items", "depth${oc.env:X}"])
def test_names_that_no_objective_can_have(name):
    node = {"head": "depth", "kind": "metric"}
    with pytest.raises(ValueError, match=r"task\.objectives\."):
        task(**{name: node})


def test_objectives_of_a_finished_model(scenes):
    objectives = make_objectives(
        task(depth={**DEPTH, "kind": "relative"}, segmentation=SEGMENTATION), scenes
    )
    model = make_model(MODEL, objectives, SETTINGS)
    settings = OmegaConf.to_container(OmegaConf.load(config_dir() / "protocol/_base.yaml"))
    heads, protocol = model.outputs, Protocol(**settings | {"name": "x"})
    scored = objectives_of(heads, scenes, protocol)
    assert set(scored) == {"depth", "segmentation"}
    assert scored["depth"].kind == "relative"
    scenes.info = DatasetInfo(targets=("depth",), max_depth=20.0)
    assert set(objectives_of(heads, scenes, protocol)) == {"depth"}
    scenes.info = DatasetInfo(targets=("value",))
    with pytest.raises(ValueError, match=r"predicts depth, segmentation, the data gives a number"):
        objectives_of(heads, scenes, protocol)
    scenes.info = DatasetInfo(targets=("labels",), class_names=("a", "b"))
    with pytest.raises(ValueError, match=r"segmentation head has 10 classes, but the data has 2"):
        objectives_of(heads, scenes, protocol)


def test_loaders_carry_the_targets_that_are_asked_for(scenes):
    augment = read_part({"hflip": 0.5}, "augment", TrainTransform)
    config = SimpleNamespace(data=DataConfig.read(SCENES), augment=augment, seed=0)
    loader = make_train_loader(config, scenes, ["depth"])
    batch = next(iter(loader))
    assert {"image", "depth", "valid"} <= set(batch)
    assert "labels" not in batch
    assert batch["image"].shape == (4, 3, 32, 48)


@pytest.mark.parametrize("given", ["{}", "here"])
def test_the_data_of_a_run_that_was_moved(tmp_path, caplog, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    place, former = tmp_path / "here", tmp_path / "there"
    (place / "checkpoints").mkdir(parents=True)
    data = {**SCENES, "split_files": {"val": f"{former}/pairs.csv"}, "root": "/data"}
    OmegaConf.save({"run_dir": str(former), "data": data}, place / "config.yaml")
    checkpoint = given.format(place)
    found = data_of_evaluation({"overrides": [], "checkpoint": checkpoint, "predictions": None})
    assert found == {**data, "split_files": {"val": f"{place}/pairs.csv"}}
    assert "trained on" not in caplog.text
    values = {"checkpoint": str(place), "predictions": None, "overrides": ["data.seed=1"]}
    assert data_of_evaluation(values)["seed"] == 1
    assert "trained on" not in caplog.text
    assert data_of_evaluation(values | {"overrides": ["+data.fold=1"]})["fold"] == 1
    assert "data.fold: the run may have been trained on images of this split" in caplog.text


@pytest.mark.parametrize("value", ["/runs/a", "/runs/a b, 1", "it's", "=3", "a=b"])
def test_a_typed_value_is_read_back(value):
    assert [o.value for o in parse(shlex.split(as_argument("run_dir", value)))] == [value]


@pytest.mark.parametrize("text", ["blocks", "a b=3", "run_dir=a, b", "blocks=(", "a=[b c, d#e]"])
def test_an_unreadable_override_is_named(text):
    with pytest.raises(ValueError, match=rf"^{re.escape(text)}: .* (write|quote) "):
        parse([text])


TEXTS = (
    "${oc.env:DPT_SECRET} \\${oc.env:DPT_SECRET} $\x7b a\\b it's \\' [1] 1e-3 null true ~".split()
)
TEXTS += 'é\udc80|=x|a=b|line\\\n|\x1b[31m|#|"|a\nb\t|a, b|{a: 1}|| '.split("|")
TEXTS += ["x" * 5000]


def texts():
    random = Random(0)
    letters = [
        *"ab ${}:\\'\"\n\t,=[]()#~?\x00\x1b\x85\u2028é\udc80.-0%!&*|>",
        "${",
        "\\${",
        "${oc.env:X}",
    ]
    return [*TEXTS, *("".join(random.choices(letters, k=random.randrange(8))) for _ in range(800))]


def test_text_comes_back_from_hydra_unchanged():
    names = [text for text in texts() if text != "???"]
    plain = {"names": names, "deep": {"list": [names[:3], 1.5, None, True, -2]}, "inf": 1e308}
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        overrides = [f"+own.{key}={as_text(value)}" for key, value in plain.items()]
        cfg = compose("train", overrides=overrides)
    assert OmegaConf.to_container(cfg.own, resolve=True, throw_on_missing=True) == plain
    assert [o.value for o in parse([f"a={as_text(name)}" for name in TEXTS])] == TEXTS


def test_text_comes_back_from_config_yaml_unchanged(tmp_path):
    plain = {"names": texts(), "numbers": [1e-05, 1e308, 5, True, None], "map": {0: "a", "b": []}}
    save_config(plain, tmp_path)
    assert read_yaml(tmp_path / "config.yaml") == plain


@pytest.mark.parametrize("value", ["???", ["a", "???"], {"a b": 1}, {"${x}": 1}])
def test_as_text_refuses_what_hydra_cannot_read(value):
    with pytest.raises(ValueError):
        as_text(value)
