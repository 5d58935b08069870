"""Folders of transformers' EoMTs: what we write opens there as the same function."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from peers_eomt import CASES, Output
from photos import photo_of
from PIL import Image
from safetensors.torch import load_file, save_file

import dpt
from dpt.evaluation.passes import Evaluation
from dpt.functional import resize
from dpt.metrics import Protocol
from dpt.types.outputs import tensors_in, tensors_of
from dpt.weights.eomt import Eomt


@pytest.mark.peers
@pytest.mark.parametrize("case", CASES[2:5], ids=["SwiGLU", "semantic", "DINOv3"])
def test_written_folders_open_in_transformers(case, tmp_path):
    from transformers import AutoModelForUniversalSegmentation

    _, ours = case.build(tmp_path / "theirs")
    config = ours.config.to_dict()
    notes = []
    if case.task == "panoptic":
        config["heads"]["panoptic"] |= {"threshold": 0.4}
        notes = ["heads.panoptic.threshold=0.4 becomes 0.8"]
    written = Eomt().write(config, ours.state_dict(), tmp_path / "written")
    assert [note.partition(":")[0] for note in written] == notes
    theirs, loading = AutoModelForUniversalSegmentation.from_pretrained(
        tmp_path / "written", output_loading_info=True
    )
    assert loading["missing_keys"] <= {"criterion.empty_weight"}
    assert not loading["unexpected_keys"]
    assert type(theirs) is type(case.make().model)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        actual = Output(theirs.eval(), semantic=case.task == "segmentation")(images)
        expected = ours.eval().float()(images, raw=True)[case.task].tensor
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.peers
def test_folders_with_joined_gates_are_read(tmp_path):
    """As transformers before 5.20 writes them."""
    _, ours = CASES[2].build(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    for name in [name for name in tensors if "gate_proj" in name]:
        parts = [tensors.pop(name), tensors.pop(name.replace("gate", "up"))]
        tensors[name.replace("gate_proj", "weights_in")] = torch.cat(parts)
    tensors = {name.replace("down_proj", "weights_out"): value for name, value in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    read = dpt.DPT.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(read[name], value) for name, value in ours.state_dict().items())


@pytest.mark.peers
@pytest.mark.parametrize("size", [(48, 80), (133, 77), (150, 201), (64, 64), (200, 64)], ids=str)
@pytest.mark.parametrize(
    "case", [CASES[0], CASES[3], CASES[4]], ids=["panoptic", "classes", "rope"]
)
def test_images_of_any_shape_as_in_transformers(case, size, tmp_path):
    """Padded to the square, or split into windows, and merged as its image processor does."""
    from transformers import EomtImageProcessor

    theirs, _ = case.build(tmp_path)
    is_split = case.task == "segmentation"
    edges = {"shortest_edge": 64, "longest_edge": None if is_split else 64}
    processor = EomtImageProcessor(size=edges, do_split_image=is_split, do_pad=not is_split)
    processor.save_pretrained(tmp_path)
    predictor, photo = dpt.Predictor(tmp_path), photo_of(*size)
    pixels = predictor.prepare(photo).input  # its own resizing differs by one of 255 levels
    assert pixels.shape[:2] == tuple(resized_by(processor, photo))
    inputs = processor(Image.fromarray(pixels), do_resize=False, return_tensors="pt")
    with torch.no_grad():
        outputs = theirs.model(torch.stack([*inputs["pixel_values"]]))
    if is_split:
        outputs.patch_offsets = inputs["patch_offsets"]
        (expected,) = processor.post_process_semantic_segmentation(
            outputs, [size], return_segmentation_scores=True
        )
        (actual,) = predictor.run([pixels])
        scores = resize(actual["segmentation"].exp(), size)[0]
        torch.testing.assert_close(scores, expected.segmentation_scores, rtol=1e-5, atol=1e-5)
        differs = predictor(photo).labels != expected.segmentation.numpy()
        assert differs.mean() < 1e-3  # ties fall either way
    else:
        masks = F.interpolate(outputs.masks_queries_logits, (64, 64), mode="bilinear")
        (expected,) = processor.unpad_image(masks, [size], processor.size)
        (actual,) = predictor.run([pixels])
        found = resize(actual["panoptic"], size)[0]
        torch.testing.assert_close(
            found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item()
        )
        torch.testing.assert_close(actual["panoptic_classes"], outputs.class_queries_logits)


def resized_by(processor, photo):
    padding = {"do_pad": False, "do_split_image": False}
    return processor(Image.fromarray(photo), **padding)["pixel_values"][0].shape[-2:]


@pytest.mark.parametrize("name", ["panoptic", "segmentation"])
def test_evaluation_sees_what_prediction_sees(name, tmp_path):
    head = {"panoptic": {"things": [True, False, True]}, "segmentation": {"kind": "masks"}}[name]
    sizes = {"embed_dim": 48, "num_heads": 3, "image_size": [64, 64]}
    heads = {name: {"num_classes": 3, "num_queries": 7, **head}}
    model = dpt.create_model("eomt_small", heads=heads, **sizes)
    Eomt().write(model.config.to_dict(), model.state_dict(), tmp_path)
    model, photo = dpt.DPT.from_pretrained(tmp_path).eval(), photo_of(90, 133)
    predictor = dpt.Predictor(model)
    pixels = predictor.prepare(photo).input
    (expected,) = predictor.run([pixels])
    scorer = SimpleNamespace(objectives={}, whole={})
    evaluation = Evaluation(model, Protocol(), scorer)
    with torch.no_grad():
        actual = evaluation(torch.from_numpy(pixels).permute(2, 0, 1)[None])
    for name, tensor in tensors_of(actual, model.outputs).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-4)


THINGS = {"num_classes": 3, "things": [True, False, True]}


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("panoptic", {"num_classes": 80, "things": [True] * 80}),
        ("instance", THINGS),
        ("segmentation", {"num_classes": 3, "kind": "masks"}),
    ],
)
def test_a_named_model_is_written_and_read_back(name, head, tmp_path):
    sizes = {"embed_dim": 48, "num_heads": 3, "image_size": [64, 64]}
    model = dpt.create_model("eomt_small", heads={name: {**head, "num_queries": 7}}, **sizes)
    notes = Eomt().write(model.config.to_dict(), model.state_dict(), tmp_path)
    assert "encoder.position_resize='bilinear' becomes 'bicubic_antialias'" in notes[0]
    again, images = dpt.DPT.from_pretrained(tmp_path), torch.randn(1, 3, 64, 64)
    assert again.outputs == model.outputs
    with torch.no_grad():
        pairs = (tensors_in(net(images)[name]) for net in (again, model.eval()))
        assert all(torch.equal(one, two) for one, two in zip(*pairs, strict=True))
    (tmp_path / "preprocessor_config.json").write_text('{"do_normalize": false}')
    read = dpt.DPT.from_pretrained(tmp_path).preprocessing
    assert (read.mean, read.std) == ((0, 0, 0), (1, 1, 1))
