"""``dpt push`` and the model card, with a stand-in for the hub."""

import json
import shutil

import pytest
import torch
import yaml
from hub import TOKEN, running_hub
from huggingface_hub import constants
from huggingface_hub.utils import disable_progress_bars, enable_progress_bars
from tiny import assert_equal, call, small_model

import dpt
from dpt.commands.push import initial_weights, scores_of, shared_overrides
from dpt.weights.hub import Card, Training, is_generated, license_in

LICENSE = ("--license", "cc-by-4.0")
FILES = ["README.md", "config.json", "model.safetensors"]


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with running_hub() as hub:
        template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        disable_progress_bars()
        yield hub
        enable_progress_bars()


@pytest.fixture
def saved(tmp_path):
    """A model and the folder it is saved in."""
    model = small_model().eval()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def front_matter(card):
    return yaml.safe_load(card.split("---\n")[1])


def test_pushed_run_comes_back_with_equal_outputs_and_a_card(joint_run, hub):
    call("push", joint_run, "me/rooms", *LICENSE)
    assert hub.commits == ["me/rooms"]
    files = hub.files["me/rooms"]
    assert sorted(files) == FILES
    model, again = dpt.DPT.from_pretrained(joint_run), dpt.DPT.from_pretrained("me/rooms")
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        assert_equal(again(images), model(images))
    card = files["README.md"].decode()
    assert is_generated(card)
    facts = front_matter(card)
    assert facts["license"] == license_in(card) == "cc-by-4.0"
    assert facts["pipeline_tag"] == "depth-estimation"
    assert facts["tags"] == ["dpt", "image-segmentation"]
    assert facts["datasets"] == ["scenes"]
    assert 'from_pretrained("me/rooms")' in card
    command = next(line for line in card.splitlines() if line.startswith("dpt train "))
    assert {"task=joint", "model=dpt_tiny"} <= {*command.split()}
    assert str(joint_run) not in card
    scores = json.loads((joint_run / "metrics.json").read_text())
    results = facts["model-index"][0]["results"]
    listed = {m["name"]: (r["task"]["type"], m["value"]) for r in results for m in r["metrics"]}
    assert listed["rmse"] == ("depth-estimation", scores["val/rmse"])
    assert listed["miou"] == ("image-segmentation", scores["val/miou"])
    assert not any("/" in name for name in listed)
    assert "| iou/sky |" in card.replace("\\", "")


def test_scores_of_an_evaluation_have_intervals_and_those_of_others_are_refused(
    joint_run, evaluate, hub, refused, saved, tmp_path
):
    folder = evaluate(tmp_path / "scores", joint_run, "data.val.length=5")
    model = dpt.DPT.from_pretrained(joint_run)
    scores = scores_of(joint_run, model, folder)
    facts = json.loads((folder / "metrics.json").read_text())
    rmse = next(row for row in scores.rows if row.name == "rmse")
    assert rmse == ("rmse", facts["val/rmse"], facts["ci95_low/rmse"], facts["ci95_high/rmse"])
    assert scores.notes["protocol"] == "whole"
    assert scores.notes["intervals over"] == "5 images"
    text = Card("me/rooms", scores=scores).text(model, model.config)
    assert f"| rmse | {rmse.value:.4g} | {rmse.low:.4g} | {rmse.high:.4g} |" in text
    run = shutil.copytree(joint_run, tmp_path / "run")
    shutil.copytree(folder, run / "evaluation")  # as dpt fit leaves it
    assert scores_of(run, model, None) == scores
    message = refused(call, "push", saved[1], "me/rooms", *LICENSE, "--scores", folder)
    assert f"{folder}/metrics.json" in message
    assert hub.files == {}


def test_scores_of_an_earlier_best_checkpoint_are_those_it_was_chosen_by(joint_run, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(joint_run, run)
    best = torch.load(run / "checkpoints/best.ckpt", weights_only=True)
    best["global_step"] -= 1
    best["callbacks"]["RunCheckpoints"] |= {"monitor": "val/miou", "best_score": 0.75}
    torch.save(best, run / "checkpoints/best.ckpt")
    scores = scores_of(run, dpt.DPT.from_pretrained(run), None)
    assert [row[:2] for row in scores.rows] == [("miou", 0.75)]
    assert scores.notes["weights chosen by"] == "the run's best val/miou"


def test_existing_repository_gets_a_commit_and_keeps_a_card_that_a_person_wrote(saved, hub, caplog):
    hub.files["me/rooms"] = {"README.md": b"---\nlicense: mit\n---\n"}  # as the hub's page makes it
    call("push", saved[1], "me/rooms", *LICENSE)
    first = hub.files["me/rooms"]["README.md"]
    call("push", saved[1], "me/rooms", "--license", "mit")
    assert hub.files["me/rooms"]["README.md"] != first
    assert hub.commits == ["me/rooms"] * 2
    edited = hub.files["me/rooms"]["README.md"].replace(b"## Limits", b"## My limits")
    hub.files["me/rooms"] = {"README.md": edited}
    call("push", saved[1], "me/rooms", *LICENSE)
    assert sorted(hub.files["me/rooms"]) == FILES
    assert hub.files["me/rooms"]["README.md"] == edited
    assert "me/rooms" in caplog.text


def test_private_repository_is_created_and_a_public_one_is_refused(saved, hub, refused):
    call("push", saved[1], "me/hidden", *LICENSE, "--private")
    assert hub.private == {"me/hidden"}
    call("push", saved[1], "me/hidden", *LICENSE, "--private")
    call("push", saved[1], "me/open", *LICENSE)
    assert "me/open" in refused(call, "push", saved[1], "me/open", *LICENSE, "--private")
    assert hub.commits == ["me/hidden", "me/hidden", "me/open"]


def test_upload_that_breaks_off_commits_nothing_and_can_be_repeated(
    saved, hub, refused, monkeypatch
):
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between attempts
    hub.breaks_off = True
    message = refused(call, "push", saved[1], "me/rooms", *LICENSE)
    assert "me/rooms: nothing was committed" in message
    assert hub.commits == []
    assert hub.files["me/rooms"] == {}
    hub.breaks_off = False
    call("push", saved[1], "me/rooms", *LICENSE)
    assert sorted(hub.files["me/rooms"]) == FILES


@pytest.mark.parametrize(
    ("arguments", "token", "named"),
    [
        (["saved", "me/rooms", *LICENSE], None, "nothing was committed"),
        (["saved", "me/rooms", *LICENSE], "hf_wrong", "me/rooms: nothing was committed"),
        (["saved", "me/rooms"], TOKEN, "--license"),
        (["saved", "rooms", *LICENSE], TOKEN, "rooms"),
        (["empty", "me/rooms", *LICENSE], TOKEN, "empty"),
    ],
    ids=["no token", "wrong token", "no licence", "no user", "not a run"],
)
def test_push_refuses_in_one_line(
    saved, hub, refused, monkeypatch, tmp_path, arguments, token, named
):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    assert named in refused(call, "push", *arguments)
    assert hub.files == {}


def test_card_of_a_person_is_published_as_it_is(saved, hub, refused):
    path = saved[1] / "README.md"
    for text in ("My model.\n", "---\nlicense: mit\n---\nMy model.\n"):
        path.write_text(text)
        assert str(path) in refused(call, "push", saved[1], "me/rooms", *LICENSE)
    call("push", saved[1], "me/rooms")
    assert hub.files["me/rooms"]["README.md"] == path.read_bytes()


def test_save_pretrained_keeps_a_card_that_a_person_wrote_or_edited(saved, caplog):
    model, folder = saved
    path = folder / "README.md"
    written = path.read_text()
    assert is_generated(written)
    model.save_pretrained(folder)
    assert path.read_text() == written
    assert caplog.text == ""
    for text in (written.replace("## Limits", "## My limits"), "My model.\n", ""):
        path.write_text(text)
        model.save_pretrained(folder)
        assert path.read_text() == text
        assert str(path) in caplog.text
        caplog.clear()


def test_card_escapes_names_and_lists_outputs():
    names = ["a_b", "c|d", "<x>\n- `q`"]
    heads = {
        "depth": {"kind": "relative"},
        "segmentation": {"num_classes": 3, "class_names": names},
    }
    model = small_model(heads=heads)
    text = Card("my model").text(model, model.config)
    assert r"0 a\_b, 1 c\|d, 2 \<x\> - \`q\`." in text
    assert "| depth | depth of each pixel | relative inverse depth | - |" in text
    assert "dpt predict 'my model' photos" in text
    assert "license" not in front_matter(text)
    assert "model-index" not in front_matter(text)


def test_overrides_in_a_card_name_no_folder_of_the_machine():
    same = ["data.labels=masks/fine", "data.group_by=([^/_]+)_[^/]*$", "task/teacher=ema"]
    same += ["model.encoder.weights=hf:user/name", "data.split_names.val=.*/val/.*"]
    paths = {
        "data.root=/home/me/photos": "data.root=photos",
        "data.roots=[/home/me/a,/home/me/b]": "data.roots=[a,b]",
        "data.sets={a:/home/me/x,b: /home/me/y}": "data.sets={a:x,b: y}",
        "data.pair=(/home/me/x)": "data.pair=(x)",
        "data.pair=a:/home/me/x": "data.pair=a:x",
        "data.root='~me/my photos/x'": "data.root='x'",
        "data.root=../me/x": "data.root=x",
        "data.url=file:///home/me/x": "data.url=x",
        "data.root=C:\\Users\\me\\x": "data.root=x",
        "data.url=https://token@host/me/x?sig=token": "data.url=x?***",
        "data.shards=s3://KEY:to/ken@bucket/part": "data.shards=part",
    }
    left_out = ["run_dir=/home/me/run", "logger=wandb", "+paths.data_dir=/data"]
    assert list(shared_overrides([*paths, *same, *left_out])) == [*paths.values(), *same]


def test_push_publishes_no_text_behind_a_link(saved, hub, refused, tmp_path):
    (tmp_path / "private.md").write_text("---\nlicense: mit\n---\nmy diary\n")
    (saved[1] / "README.md").unlink(missing_ok=True)
    (saved[1] / "README.md").symlink_to(tmp_path / "private.md")
    assert "README.md" in refused(call, "push", saved[1], "me/rooms")
    assert hub.files == {}


def test_a_command_in_a_card_cannot_end_its_block():
    command = "dpt train a=b\r```\r# Injected\u2028x"
    training = Training("`a`\rb", "data", None, None, command, None)
    model = small_model()
    text = Card("me/x", license="`x`", training=training).text(model, model.config)
    assert "dpt train a=b ``` # Injected x\n```\n" in text
    assert not any(character in text for character in "\r\u2028")
    assert r"Task \`a\` b on" in text
    assert r"\`x\`, as stated" in text


def test_initial_weights_state_their_licence(hub, saved):
    dinov3 = "timm:vit_small_patch16_dinov3.lvd1689m"
    weights = initial_weights(dinov3)
    assert weights == (dinov3, "timm/vit_small_patch16_dinov3.lvd1689m", "dinov3-license")
    hub.files["them/depth"], hub.cards["them/depth"] = {}, {"license": "cc-by-nc-4.0"}
    assert initial_weights("them/depth") == ("them/depth", "them/depth", "cc-by-nc-4.0")
    assert initial_weights("hf:them/depth") == ("them/depth", "them/depth", "cc-by-nc-4.0")
    assert initial_weights("hf:them/none") == ("them/none", None, None)
    (saved[1] / "README.md").write_text("---\nlicense: mit\n---\n")
    assert initial_weights(str(saved[1])) == ("saved", None, "mit")
    assert initial_weights("/data/a.pt") == ("a.pt", None, None)
