"""What ``dpt predict`` reads and writes: videos, and the files of an output folder."""

import json

import cv2
from photos import photo_of

RECORDS = {"predictions.json", "predictions.jsonl"}


def files_of(folder):
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}


def predictions_of(folder):
    """The files of predictions in an output folder."""
    return {name for name in files_of(folder) - RECORDS if not name.startswith("shards/")}


def records_of(out):
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return {record["name"]: record for record in map(json.loads, lines)}


def save_video(path, frames, size=(48, 64)):
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 12.5, size[::-1])
    for i in range(frames):
        writer.write(photo_of(*size, seed=i))
    writer.release()
    return path
