"""From parts of the configuration to the parts of a run."""

import re
import shlex
from random import Random

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from dpt.config.data import (
    LoaderSettings,
    data_of_evaluation,
    loader_settings,
    make_dataset,
    make_train_loader,
)
from dpt.config.models import make_model
from dpt.config.objectives import make_objectives
from dpt.config.overrides import as_argument, as_text, parse
from dpt.config.run_folder import save_config
from dpt.data import ScenesDataset
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
MODEL = {"name": "dpt_tiny", "encoder": ENCODER, "decoder": DECODER}
SETTINGS = LoaderSettings(image_size=(32, 48), eval_size=(64, 96), batch_size=4, num_workers=0)


def task(**objectives):
    return {"name": "mine", "objectives": objectives}


@pytest.fixture
def scenes():
    return make_dataset(SCENES, "train")


def test_loader_settings():
    settings = loader_settings(SCENES)
    assert (settings.image_size, settings.batch_size, settings.num_workers) == ((32, 48), 4, 0)
    assert settings.eval_size == (32, 48)
    assert loader_settings({**DATA, "eval_size": [64, 96]}).eval_size == (64, 96)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"image_size": [0, 48]}, r"data\.image_size\.0=0: must be greater"),
        ({"image_size": [100_000, 100_000]}, r"data\.image_size\.0=100000: must be less"),
        ({"eval_size": [1, 10**9]}, r"data\.eval_size\.1=1000000000: must be less"),
        ({"num_workers": 10**6}, r"data\.num_workers=1000000: must be less"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_workers": -1}, "num_workers=-1"),
        ({"image_size": [32, 48, 3]}, r"data\.image_size"),
        ({"batch_size": "x"}, r"data\.batch_size='x'"),
    ],
)
def test_wrong_loader_settings(change, says):
    with pytest.raises(ValueError, match=says):
        loader_settings({**DATA, **change})


def test_each_split_has_its_own_arguments():
    train, val = (make_dataset(SCENES, split) for split in ("train", "val"))
    assert isinstance(train, ScenesDataset)
    assert (train.split, len(train), train.seed) == ("train", 6, 0)
    assert (val.split, len(val), val.seed) == ("val", 3, 5)
    assert len(make_dataset({**SCENES, "length": 7}, "test")) == 7


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
    with pytest.raises(ValueError, match=r"num_classes=3, but the data has 10 classes \(ground"):
        make_objectives(task(segmentation={**SEGMENTATION, "num_classes": 3}), scenes)
    count = len(scenes.class_id_names)
    with pytest.raises(ValueError, match=rf"num_classes=99, but the data has {count} classes"):
        make_objectives(task(classification={**CLASSES, "num_classes": 99}), scenes)


def test_a_value_out_of_range(scenes):
    with pytest.raises(ValueError, match=r"task\.objectives\.classification\.label_smoothing=1\.5"):
        make_objectives(task(classification={**CLASSES, "label_smoothing": 1.5}), scenes)


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
    "typed",
    [
        "model.heads.depth.activation=exp",
        "model.heads.depth.max_depth=9.0",
        "model.heads.depth.min_depth=0.5",  # of the activation relu
        "model.preprocessing.image_size=[32,48]",
        "model.encoder.image_size=[32,48]",
    ],
)
def test_settings_of_the_model_without_effect(scenes, typed):
    (override,) = parse([typed])
    _, part, *keys = override.key.split(".")
    given = {keys[-1]: override.value}
    model = {
        **MODEL,
        part: {"depth": given} if part == "heads" else {**MODEL.get(part, {}), **given},
    }
    objectives = make_objectives(task(depth=DEPTH), scenes)
    with pytest.raises(ValueError, match=re.escape(override.key)):
        make_model(model, objectives, SETTINGS, [typed])


def test_settings_of_the_head_of_a_resumed_run_give_way_to_the_task(scenes):
    objectives = make_objectives(task(depth=DEPTH), scenes)
    stored = {**MODEL, "heads": {"depth": {"max_depth": 9.0}}}
    model = make_model(stored, objectives, SETTINGS, ["model=dpt_tiny"])
    assert model.config.heads["depth"].max_depth == 20.0


def test_settings_of_a_head_that_are_no_mapping(scenes):
    objectives = make_objectives(task(depth=DEPTH), scenes)
    with pytest.raises(ValueError, match=r"model\.heads\.depth=5"):
        make_model({**MODEL, "heads": {"depth": 5}}, objectives, SETTINGS)


@pytest.mark.parametrize(("end", "is_told"), [(5.0, True), (20.0, False)])
def test_bins_that_end_before_the_depth_of_the_data(scenes, caplog, end, is_told):
    heads = {"depth": {"bins": {"max_depth": end}}}
    with torch.device("meta"):
        make_model({**MODEL, "heads": heads}, make_objectives(task(depth=DEPTH), scenes), SETTINGS)
    assert ("depth.bins.max_depth=5: depth above, up to 20 m" in caplog.text) == is_told


def test_a_setting_that_the_task_decides(scenes):
    with pytest.raises(ValueError, match=r"task\.objectives\.depth\.activation=exp.*sigmoid"):
        make_objectives(task(depth={**DEPTH, "activation": "exp"}), scenes)


def test_the_model_is_made_for_the_size_of_the_training_images(scenes):
    objectives = make_objectives(task(depth=DEPTH), scenes)
    model = make_model(MODEL, objectives, SETTINGS)
    assert model.preprocessing.image_size == (64, 96)  # of whole images, in evaluation
    assert model.encoder.pos_embed.shape[1] == 1 + 2 * 3
    assert len(model.encoder.blocks) == 4


@pytest.mark.parametrize("name", ["a.b", "", "items", "depth${oc.env:X}"])
def test_names_that_no_objective_can_have(scenes, name):
    node = {"head": "depth", "kind": "metric"}
    with pytest.raises(ValueError, match=r"task\.objectives\."):
        make_objectives({"name": "x", "objectives": {name: node}}, scenes)


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
    settings = loader_settings(SCENES)
    augment = {"hflip": 0.5}
    loader = make_train_loader(scenes, settings, augment, 0, ["depth"])
    batch = next(iter(loader))
    assert {"image", "depth", "valid"} <= set(batch)
    assert "labels" not in batch
    assert batch["image"].shape == (4, 3, 32, 48)
    with pytest.raises(ValueError, match=r"no augment\.hflp\. Did you mean hflip\?"):
        make_train_loader(scenes, settings, {"hflp": 1}, 0, ["depth"])
    with pytest.raises(ValueError, match=r"no augment\.image_size"):
        make_train_loader(scenes, settings, {"image_size": [8, 8]}, 0, ["depth"])


@pytest.mark.parametrize("given", ["{}", "here"])
def test_the_data_of_a_run_that_was_moved(tmp_path, caplog, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    place, former = tmp_path / "here", tmp_path / "there"
    (place / "checkpoints").mkdir(parents=True)
    data = {**SCENES, "split_files": {"val": f"{former}/pairs.csv"}, "root": "/data"}
    OmegaConf.save({"run_dir": str(former), "data": data}, place / "config.yaml")
    checkpoint = given.format(place)
    found = data_of_evaluation({"overrides": [], "checkpoint": checkpoint})
    assert found == {**data, "split_files": {"val": f"{place}/pairs.csv"}}
    assert "trained on" not in caplog.text
    cfg = {"overrides": ["data.seed=1"], "checkpoint": str(place), "data": {"seed": 1}}
    assert data_of_evaluation(cfg)["seed"] == 1
    assert "trained on" not in caplog.text
    cfg = {"overrides": ["+data.fold=1"], "checkpoint": str(place), "data": {"fold": 1}}
    assert data_of_evaluation(cfg)["fold"] == 1
    assert "data.fold: the run may have been trained on images of this split" in caplog.text


@pytest.mark.parametrize("value", ["/runs/a", "/runs/a b, 1", "it's", "=3", "a=b"])
def test_a_typed_value_is_read_back(value):
    assert [o.value for o in parse(shlex.split(as_argument("run_dir", value)))] == [value]


@pytest.mark.parametrize("value", ["(", "a b(c", "/a=b", "ü", "~/x", "f(1)", "${x", "(it's)"])
def test_an_unreadable_value_has_a_remedy_that_is_read(value):
    with pytest.raises(ValueError, match=r"^blocks: ") as error:
        parse([f"blocks={value}"])
    remedy = str(error.value).rpartition(" write ")[2]
    assert [o.value for o in parse(shlex.split(remedy))] == [value]


@pytest.mark.parametrize("text", ["data.class_names=[a,b", "data.class_names=[a b, c#d]"])
def test_an_unreadable_list_names_its_key(text):
    with pytest.raises(ValueError, match=r"^data\.class_names: "):
        parse([text])


@pytest.mark.parametrize("text", ["blocks", "a b=3", "-x"])
def test_an_override_without_key_or_value_is_named(text):
    with pytest.raises(ValueError, match=rf"^{text}: .* write "):
        parse([text])


def test_several_values_are_no_value():
    with pytest.raises(ValueError, match="run_dir=a, b: has several values"):
        parse(["run_dir=a, b"])


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
