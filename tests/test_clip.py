import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from dpt.data import ImageTableDataset, ScenesDataset
from dpt.data.shards.samples import decode_sample, encode_sample
from dpt.files import DataError
from dpt.metrics.image import RetrievalMetrics
from dpt.model import create_model


def test_captions_of_scenes_name_kind_and_are_kept_in_shards():
    data = ScenesDataset(length=6, size=(32, 48))
    for k in range(6):
        sample = data[k]
        kind = data.class_id_names[sample["class_id"]]
        assert sample["caption"].startswith(f"a {kind}")
        assert decode_sample(encode_sample(sample), source="s")["caption"] == sample["caption"]


def test_retrieval_counts_ranks():
    metrics = RetrievalMetrics()
    images = F.normalize(torch.eye(6), dim=-1)
    metrics.update(images[:4], images[:4])
    metrics.update(images[4:], 3 * images[[5, 4]])  # two pairs exchanged
    scores = metrics.compute()
    assert scores["image_to_text_r1"].item() == pytest.approx(4 / 6)
    assert scores["text_to_image_r1"].item() == pytest.approx(4 / 6)


def test_equal_embeddings_are_not_found():
    metrics = RetrievalMetrics()
    metrics.update(torch.ones(20, 4) / 2, torch.ones(20, 4))
    assert not any(value.item() for value in metrics.compute().values())


def test_text_embedding_does_not_depend_on_its_batch():
    torch.manual_seed(0)
    head = create_model("dpt_tiny", heads={"clip": {"text_length": 16}}).heads["clip"].eval()
    alone = head.embed_text(["a park"])
    both = head.embed_text(["a park", "a longer text that is cut"])
    torch.testing.assert_close(alone[0], both[0])
    assert both.norm(dim=1).tolist() == pytest.approx([1, 1], rel=1e-5)
    assert not torch.allclose(both[0], both[1])


@pytest.mark.parametrize(
    ("line", "message"),
    [("a.png,", "line 2 has image 'a.png' and caption ''"), ("b.png,a dog", "b.png")],
)
def test_table_without_caption_or_photo(tmp_path, line, message):
    write_table(tmp_path, line)
    with pytest.raises(DataError, match=message):
        ImageTableDataset(root=tmp_path, split="train", caption_column="text")


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
