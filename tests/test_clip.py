import pytest
import torch
from PIL import Image

import dpt
from dpt.data import ImageTableDataset, ScenesDataset
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.files import DataError
from dpt.metrics import image as metrics_module
from dpt.metrics.image import RetrievalMetrics
from dpt.model import create_model
from dpt.objectives.image import caption_ids

TINY = {"embed_dim": 48, "num_blocks": 4, "out_indices": [0, 1, 2, 3]}


def make_head(**settings):
    torch.manual_seed(0)
    return create_model("dpt_tiny", heads={"clip": settings}, encoder=TINY).heads["clip"]


@pytest.fixture(scope="module")
def clip_run(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("clip") / "run", "task=clip")


def test_captions_of_scenes_name_kind_and_are_kept_in_shards():
    data = ScenesDataset(length=6, size=(32, 48))
    for k in range(6):
        sample = data[k]
        kind = data.class_id_names[sample["class_id"]]
        assert sample["caption"].startswith(f"a {kind}")
        assert decode_sample(encode_sample(sample), source="s")["caption"] == sample["caption"]


@pytest.mark.parametrize("table", [1, 2**20])
def test_retrieval_counts_ranks(monkeypatch, table):
    monkeypatch.setattr(metrics_module, "_MAX_TABLE", table)  # row by row, or all at once
    metrics, images = RetrievalMetrics(), torch.eye(6)
    metrics.update(images[:4], images[:4], torch.arange(4))
    metrics.update(images[4:], 3 * images[[5, 4]], torch.arange(4, 6))  # two pairs exchanged
    scores = metrics.compute()
    assert scores["image_to_text_r1"].item() == pytest.approx(4 / 6)
    assert scores["text_to_image_r1"].item() == pytest.approx(4 / 6)
    assert scores["image_to_text_r5"].item() == 1  # behind one text, and in the middle of four


def test_an_equal_text_of_another_image_is_found():
    metrics, images = RetrievalMetrics(), torch.eye(6)
    metrics.update(images, images[[1, 0, 2, 3, 4, 5]], torch.tensor([0, 0, 2, 3, 4, 5]))
    assert all(value.item() == 1 for value in metrics.compute().values())


@pytest.mark.parametrize("value", [1.0, torch.nan])
def test_equal_or_unknown_embeddings_are_not_found(value):
    metrics = RetrievalMetrics()
    metrics.update(torch.full((20, 4), value), torch.ones(20, 4), torch.arange(20))
    assert not any(score.item() for score in metrics.compute().values())


def test_equal_captions_have_one_number():
    captions = ["a park", "", "a room", "a park with a box"]  # 6 bytes are read
    ids = caption_ids(captions, 6).tolist()
    assert ids[0] == ids[3] != ids[2]
    assert ids[1] == -1 < min(ids[0], ids[2])


def test_text_embedding_does_not_depend_on_its_batch():
    head = make_head(text_length=16).eval()
    alone = head.embed_text(["a park"])
    both = head.embed_text(["a park", "a longer text that is cut"])
    torch.testing.assert_close(alone[0], both[0])
    assert both.norm(dim=1).tolist() == pytest.approx([1, 1], rel=1e-5)
    assert not torch.allclose(both[0], both[1])
    assert head.embed_text([]).shape == (0, 128)
    with pytest.raises(TypeError, match=r"a list of texts: \['a park'\]"):
        head.embed_text("a park")
    torch.testing.assert_close(head.embed_classes(["park"]), alone)
    with pytest.raises(ValueError, match="prompt='a park'"):
        make_head(prompt="a park")


def test_the_temperature_leaves_its_limit_again():
    head = make_head().train()
    with torch.no_grad():
        head.log_scale.fill_(5.3)  # 200
    texts = head.scaled_text(["a park"])
    assert texts.norm().item() == pytest.approx(100, rel=1e-5)
    assert head.log_scale.exp().item() == pytest.approx(100, rel=1e-5)
    texts.norm().backward()
    assert head.log_scale.grad.item() == pytest.approx(100, rel=1e-4)


def test_evaluation_scores_as_the_run_did(clip_run, evaluate, scores, tmp_path):
    found = scores(clip_run)
    assert {"val/image_to_text_r5", "val/text_to_image_r1", "val/zero_shot_accuracy"} <= set(found)
    assert scores(evaluate(tmp_path, clip_run / "checkpoints/last.ckpt")) == found
    page = (tmp_path / "report.html").read_text()
    assert '<div class="card">image_to_text_r1' in page
    assert "resamples" not in page
    assert "baselines" not in page


def test_class_folders_are_named_without_captions(clip_run, evaluate, scores, tmp_path):
    for kind, colour in (("park", (20, 160, 40)), ("room", (180, 170, 150))):
        for k, split in enumerate(("val", "val", "train")):
            path = tmp_path / f"photos/{split}/{kind}/{k}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (64 + k, 48), colour).save(path)
    checkpoint = clip_run / "checkpoints/last.ckpt"
    folder = ("data=imagefolder", f"data.root={tmp_path / 'photos'}", "data.image_size=[48,64]")
    found = scores(evaluate(tmp_path / "scored", checkpoint, *folder))
    model = dpt.DPT.from_pretrained(checkpoint)
    texts = model.heads["clip"].embed_classes(["park", "room"])
    images = [
        dpt.Predictor(model)(path) for path in sorted((tmp_path / "photos/val").rglob("*.png"))
    ]
    guesses = [(texts @ torch.from_numpy(i.arrays["clip"])).argmax().item() for i in images]
    right = sum(a == b for a, b in zip(guesses, (0, 0, 1, 1), strict=True))
    assert found["val/zero_shot_accuracy"] == right / 4


def test_data_without_captions_are_refused(train, dense_folder, tmp_path, refused):
    data = ("data=folder", f"data.root={dense_folder}")
    assert "a caption for each image" in refused(train, tmp_path / "run", "task=clip", *data)


def test_table_of_captions(tmp_path):
    write_table(tmp_path, "a.png,a dog")
    data = ImageTableDataset(root=tmp_path, split="train", caption_column="text")
    assert data[0]["caption"] == "a dog"
    assert data.info.targets == ("caption",)
    with pytest.raises(DataError, match=r"no column words .*data.caption_column"):
        ImageTableDataset(root=tmp_path, split="train", caption_column="words")


def write_table(folder, line):
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    (folder / "labels_train.csv").write_text(f"image,text\n{line}\n")
