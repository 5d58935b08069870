"""Frames of a video: noise and changes of scale are averaged, motion and cuts are kept."""

import cv2
import numpy as np
import pytest
import torch
from photos import photo_of, tiny
from prediction_files import predictions_of, records_of, save_video

import dpt
from dpt.predict.steady import Steady
from dpt.types.outputs import OutputSpec

METRES = {"depth": OutputSpec("depth", "depth", unit="m")}
INVERSE = {"depth": OutputSpec("depth", "depth", unit="relative inverse depth")}
CLASSES = {"segmentation": OutputSpec("segmentation", "logits", channels=3)}


def texture(seed=0):
    noise = np.random.default_rng(seed).integers(0, 255, (40, 60, 3)).astype(np.uint8)
    return cv2.resize(noise, (480, 320), interpolation=cv2.INTER_CUBIC)


def frame_at(step, image=None):
    """A window of a picture that moves by two pixels a frame."""
    image = texture() if image is None else image
    return image[20:220, 20 + 2 * step : 276 + 2 * step]


def plane(step):
    """Depth of the same windows, (1, 1, 200, 256)."""
    columns = torch.arange(20, 276) + 2 * step
    return (2 + torch.sin(columns / 60)).expand(1, 1, 200, 256).clone()


def steadied(outputs, maps, frames):
    steady = Steady(outputs)
    (name,) = outputs
    return steady, [steady({name: m}, f)[name] for m, f in zip(maps, frames, strict=True)]


def error(found, truth):
    pairs = zip(found[10:], truth[10:], strict=True)
    return np.mean([(a - b)[..., 20:-20, 20:-20].abs().mean() for a, b in pairs])


@pytest.mark.parametrize("outputs", [METRES, INVERSE], ids=["metres", "inverse"])
def test_noise_of_depth_is_averaged_along_the_motion(outputs):
    torch.manual_seed(0)
    truth = [plane(t) for t in range(30)]
    noisy = [d * (1 + 0.03 * torch.randn(())) + 0.1 * torch.randn_like(d) for d in truth]
    steady, found = steadied(outputs, noisy, [frame_at(t) for t in range(30)])
    assert error(found, truth) < 0.55 * error(noisy, truth)
    changes, before = ([a - b for a, b in zip(m[1:], m, strict=False)] for m in (found, noisy))
    assert error(changes, [0 * c for c in changes]) < 0.6 * error(before, [0 * c for c in before])
    assert steady.cuts == 0
    assert torch.equal(found[0], noisy[0])


def test_a_camera_that_comes_closer_is_followed():
    truth = [plane(t) * 0.99**t for t in range(60)]
    _, found = steadied(METRES, truth, [frame_at(t) for t in range(60)])
    assert error(found[40:], truth[40:]) < 0.02 * truth[50].mean()


def test_classes_are_a_vote_of_the_frames():
    torch.manual_seed(0)
    truth = [(plane(t) > 2).long()[:, 0] for t in range(30)]
    exact = [torch.nn.functional.one_hot(c, 3).permute(0, 3, 1, 2).float() for c in truth]
    noisy = [2 * m + torch.randn_like(m) for m in exact]
    _, found = steadied(CLASSES, noisy, [frame_at(t) for t in range(30)])
    wrong, before = (
        np.mean([(m.argmax(1) != c).float().mean() for m, c in zip(maps, truth, strict=True)][10:])
        for maps in (found, noisy)
    )
    assert wrong < 0.3 * before


def test_a_cut_starts_anew_and_a_change_of_exposure_does_not():
    maps = [torch.rand(1, 1, 200, 256) + 1 for _ in range(4)]
    frames = [frame_at(0), (frame_at(1) * 0.7).astype(np.uint8), texture(1)[:200, :256]]
    steady, found = steadied(METRES, maps, [*frames, texture(1)[:200, 1:257]])
    assert steady.cuts == 1
    assert not torch.equal(found[1], maps[1])
    assert torch.equal(found[2], maps[2])
    assert not torch.equal(found[3], maps[3])


def test_another_size_begins_a_new_shot():
    maps = [torch.rand(1, 1, 200, 256) + 1, torch.rand(1, 1, 100, 256) + 1]
    steady, found = steadied(METRES, maps, [frame_at(0), frame_at(1)[:100]])
    assert steady.cuts == 1
    assert torch.equal(found[1], maps[1])


def test_a_black_frame_is_no_error():
    maps = [torch.rand(1, 1, 200, 256) + 1 for _ in range(3)]
    dark = np.zeros((200, 256, 3), np.uint8)
    _, found = steadied(METRES, maps, [frame_at(0), dark, dark])
    assert all(m.isfinite().all() for m in found)


def test_the_predictor_yields_frames_without_delay(joint):
    predictor = dpt.Predictor(joint)
    first = predictor(frame_at(0))
    frames = iter([frame_at(0), frame_at(1)])
    video = predictor.video(frames)
    np.testing.assert_array_equal(next(video).depth, first.depth)
    assert len(list(frames)) == 1  # the second was not read yet
    video.close()
    again = predictor(frame_at(0))
    np.testing.assert_array_equal(again.depth, first.depth)


def test_a_video_of_the_command(predict, tmp_path, out):
    options = ("--steady", "--overwrite")
    predict(save_video(tmp_path / "clip.mp4", 5), *options, model="joint")
    record = records_of(out)["clip"]
    assert record["frames"] == 5
    assert record["cuts"] >= 3  # random pictures
    predict(save_video(tmp_path / "one.mp4", 1), *options, model="joint")
    assert records_of(out)["one"]["cuts"] == 0


def save_as(path, frames, size, code):
    """A video in another container; MJPG's in AVI states no rate."""
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 12.5, size[::-1])
    for seed in range(frames):
        writer.write(photo_of(*size, seed=seed))
    writer.release()
    data = bytearray(path.read_bytes())
    if code == "MJPG":
        for start, count in ((data.find(b"avih") + 8, 4), (data.find(b"strh") + 28, 8)):
            data[start : start + count] = bytes(count)
    return bytes(data)


def test_clips_without_a_rate_of_two_sizes_and_cut_short(predict, run, tmp_path, out):
    sizes = [save_as(tmp_path / f"{s[0]}.ts", 4, s, "mp4v") for s in ((48, 64), (64, 96))]
    (tmp_path / "sizes.avi").write_bytes(b"".join(sizes))
    (tmp_path / "rate.avi").write_bytes(save_as(tmp_path / "a.avi", 4, (48, 64), "MJPG"))
    predict(tmp_path / "sizes.avi", tmp_path / "rate.avi", "--steady")
    records = records_of(out)
    assert (records["sizes"]["frames"], records["rate"]["frames"]) == (8, 4)
    assert (records["rate"]["fps"], records["sizes"]["cuts"] > 0) == (25, True)
    before = predictions_of(out)
    data = save_video(tmp_path / "whole.mp4", 30).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    code, _, err = run(tmp_path / "cut.mp4", "--steady")
    assert (code, err.count("\n")) == (1, 2)
    assert "cut.mp4" in err
    assert predictions_of(out) == before


def test_other_outputs_are_left_as_they_are():
    heads = {"panoptic": {"num_classes": 2, "num_queries": 5, "things": [True, False]}}
    predictor = dpt.Predictor(tiny(heads))
    found = [p.panoptic for p in predictor.video([frame_at(0), frame_at(1)])]
    np.testing.assert_array_equal(found[1], predictor(frame_at(1)).panoptic)
