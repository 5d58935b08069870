"""Damaged and hostile files of every kind that is read: a value, or one line that says what is
wrong.

``DPT_SECRET=SECRET python tests/test_fuzz.py FOLDER SEED COUNT [TARGET [CASE]]`` repeats a fault.
"""

import faulthandler
import io as bytes_io
import json
import logging
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import traceback
import warnings
import zipfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import depth_trees as trees
import foreign_folders
import numpy as np
import pytest
import scipy.io
import torch
import yaml
from coco_files import write, write_objects
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from photos import save_picture
from PIL import Image
from tiny import ON_CPU, TINY_DATA, TINY_SCENES, TINY_VIT, save_checkpoint, small_model

from dpt import files
from dpt.calibrate import read_points
from dpt.config.build import make_eval_loader, make_objectives
from dpt.config.overrides import keys_of, parse
from dpt.config.resumed_config import resumed_config
from dpt.config.run_folder import save_config
from dpt.config.schema import RunConfig
from dpt.data import CocoDataset, DataError, FolderDataset, ScenesDataset
from dpt.data.annotations import FORMATS
from dpt.data.datasets.archive import extract
from dpt.data.datasets.filelist import FileListDataset
from dpt.data.datasets.imagefolder import ImageTableDataset
from dpt.data.datasets.indoor import NYUv2Dataset, SunRgbdDataset, TumDataset
from dpt.data.formats import arrays, io, pictures
from dpt.data.formats.video import VideoReader, VideoWriter
from dpt.data.layouts import Folder, detect
from dpt.data.layouts.values import read_class_file, read_masks
from dpt.data.shards.packed import PackedDataset, pack_split
from dpt.evaluation.predictions import PredictedDataset
from dpt.files import config_dir, files_below
from dpt.model import DPT
from dpt.predict.folder import OutputFolder
from dpt.predict.records import PredictionSettings
from dpt.predict.sources import find_inputs
from dpt.predict.writers import all_kinds
from dpt.process import lack_of_memory
from dpt.training.resume import fault_of
from dpt.training.trainer import make_task_and_loader, make_trainer
from dpt.types.outputs import OutputSpec
from dpt.weights import load_encoder_weights

SECRET = "s3cr3t-of-the-environment"
SECONDS = 20  # for one file
MEGABYTES = 1500  # beside what libraries take
KEYS = {field.name for field in fields(RunConfig)} - {"values"}
NAMED = (  # what a message names beside the file
    r"^(classes|names)\.|^scenes: |KEY=VALUE|: cannot read |: has no value: |4300 digits|"
    rf"interpolation|\b({'|'.join(KEYS)})\b"
)
NUMBERS = "-1 0 0.5 1e308 -1e999 NaN Infinity null true 1_0 ٣ '1' 65536 4294967296".split()
NUMBERS += ["", "9" * 400, "9" * 5000]
TEXTS = (
    "${oc.env:DPT_SECRET} $\\x7boc.env:DPT_SECRET} ../ ../../outside/secret.png / \\ \" '".split()
)
TEXTS += [*"#,;={[\0\n\u202e\ud800\u2028", "%split", "???", "\x1b[31m", "\r\n", "&a [*a, *a]"]
TEXTS += ["!!python/object/apply:os.system [id]\n", "a" * 5000, "[" * 3000]
VALUES = [None, True, -1, 0, 0.5, 1e308, -1e308, 10**30, float("nan"), float("inf"), *TEXTS]
VALUES += [10**400, [], {}, [[]], {"a": {"a": [1]}}]


# ---------------------------------------------------------------------------------- mutations


def changed_bytes(data, choose):
    """Changes bytes, mostly of the header; or cuts, removes or repeats a part."""
    if not data:
        return data
    end = len(data) if choose.random() < 0.4 else min(len(data), 700)
    start, stop = sorted((choose.randrange(end), choose.randrange(end)))
    kind, place = choose.randrange(6), choose.randrange(len(data))
    if kind == 0:
        return data[:place]
    if kind == 1:
        return data[:place] + data[start:stop] + data[place:]
    if kind == 2:
        return data[:start] + data[stop:]
    data = bytearray(data)
    for _ in range(choose.randint(1, 4)):
        k = choose.randrange(end)
        data[k] = choose.choice([0, 1, 14, 127, 128, 255, choose.randrange(256), data[k] ^ 4])
    return bytes(data)


def changed_text(text, choose):
    """Replaces a number, removes or repeats a line, or inserts a text."""
    numbers, lines = list(re.finditer(r"-?\d+(\.\d+)?", text)), text.splitlines(keepends=True)
    kind, place = choose.randrange(5), choose.randint(0, len(text))
    if kind < 2 and numbers:
        start, stop = choose.choice(numbers).span()
        return text[:start] + choose.choice(NUMBERS) + text[stop:]
    if kind == 2 and lines:
        k = choose.randrange(len(lines))
        lines[k : k + 1] = choose.choice(([], 2 * lines[k : k + 1], lines[::-1]))
        return "".join(lines)
    return text[:place] + choose.choice(TEXTS) + text[place:]


def changed_values(values, choose):
    """Removes, renames, nests or replaces one of the values at any depth."""
    root = {"root": values}
    nodes = [root]
    for node in nodes:
        below = node.values() if isinstance(node, dict) else node
        nodes += [part for part in below if isinstance(part, dict | list) and part]
    node = choose.choice(nodes)
    key = choose.choice([*node] if isinstance(node, dict) else range(len(node)))
    value, kind = node[key], choose.randrange(6)
    if kind == 0 and node is not root:
        del node[key]
    elif kind == 1 and isinstance(node, dict):
        node[f"{key}{choose.choice(TEXTS)}"] = value
    elif kind == 2:
        node[key] = choose.choice(([value], {"a": value}, [value] * 3))
    elif kind == 3 and isinstance(value, str):
        node[key] = changed_text(value, choose)
    else:
        node[key] = choose.choice(VALUES)
    return root["root"]


def changed_archive(data, choose):
    """Changes a member of a zip or tar file, or its name; checksums are right."""
    source, target = bytes_io.BytesIO(data), bytes_io.BytesIO()
    if is_zip := data[:2] == b"PK":
        with zipfile.ZipFile(source) as file:
            members = {name: file.read(name) for name in file.namelist()}
    else:
        with tarfile.open(fileobj=source) as file:
            members = {info.name: file.extractfile(info).read() for info in file}
    name = choose.choice([*members])
    content, names = members.pop(name), ["../x", "/x", f"{name}x", "a" * 300, "\x1b", name[1:]]
    members[choose.choice(names) if choose.random() < 0.15 else name] = changed(content, choose)
    with zipfile.ZipFile(target, "w") if is_zip else tarfile.open(None, "w", target) as file:
        for name, content in sorted(members.items()):
            if is_zip:
                file.writestr(name, content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                file.addfile(info, bytes_io.BytesIO(content))
    return target.getvalue()


def changed(data, choose):
    """The content of a file with a change that suits its format."""
    if choose.random() < 0.25:
        return changed_bytes(data, choose)
    try:
        if data[:2] == b"PK" or data[257:262] == b"ustar":
            return changed_archive(data, choose)
        if data[8:9] == b"{":  # safetensors: the length of the header comes first
            end = 8 + int.from_bytes(data[:8], "little")
            header = changed(data[8:end], choose)
            return len(header).to_bytes(8, "little") + header + data[end:]
        text = data.decode()
        values = json.loads(text) if text[:1] in ("[", "{") else yaml.safe_load(text)
        if isinstance(values, dict | list) and choose.random() < 0.6:
            return json.dumps(changed_values(values, choose)).encode()
    except UnicodeDecodeError:
        return changed_bytes(data, choose)
    except Exception:  # it was damaged before
        text = data.decode(errors="surrogateescape")
    return changed_text(text, choose).encode(errors="surrogatepass")


# ------------------------------------- targets: each writes valid files, and returns their readers


def samples(dataset):
    return [dataset[i] for i in range(len(dataset))]


def photo(path):
    return save_picture(path, np.arange(192, dtype=np.uint8).reshape(8, 8, 3) + len(str(path)))


def mask(path, values=3, dtype=np.uint8):
    return save_picture(path, np.arange(64, dtype=dtype).reshape(8, 8) % values)


def picture_files(folder):
    from test_file_formats import depth_file

    values, exif = np.arange(1, 601, dtype=np.uint16).reshape(20, 30), Image.Exif()
    small, exif[0x0112] = values.astype(np.uint8), 6
    for suffix in (".png", ".tif", ".bmp", ".webp", ".pgm", ".jpg"):
        depth_file(folder / f"grey{suffix}", small)
    for suffix in (".png", ".tiff", ".exr", ".h5", ".npy", ".npz", ".pfm", ".mat"):
        depth_file(folder / f"deep{suffix}", values)
    cells = {
        "depth": values * 1.0,
        "s": {"a": "b", "c": np.arange(3)},
        "d": np.array([values, "a"], object),
    }
    scipy.io.savemat(folder / "v5.mat", cells)
    scipy.io.savemat(folder / "packed.mat", cells, do_compression=True)
    rgba = Image.fromarray(np.stack([small, small // 2, small // 3, small // 255], 2))
    palette = Image.fromarray(small % 4).convert("P")
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    frames = [Image.fromarray(small), Image.fromarray(small // 2)]
    for suffix in (".png", ".tif", ".webp"):
        rgba.save(folder / f"rgba{suffix}")
        rgba.convert("RGB").save(folder / f"turned{suffix}", exif=exif)
        palette.save(folder / f"palette{suffix}", transparency=0)
        frames[0].save(folder / f"pages{suffix}", save_all=True, append_images=frames[1:])
    rgba.convert("RGB").save(folder / "turned.jpg", exif=exif)
    frames[0].save(folder / "pages.gif", save_all=True, append_images=frames[1:])
    part = io.FilePart(bands=[0], image_max=600.0)
    readers = (
        io.read_image,
        io.read_labels,
        io.read_raw_depth,
        io.read_objects,
        io.read_depth,
        io.label_values,
        pictures.read_size,
        pictures.exif_orientation,
        partial(io.read_image, exif=True, part=part),
        partial(io.read_labels, colors=[[0, 0, 0], [9, 9, 9]], distance=9),
    )
    return {path: [partial(read, path) for read in readers] for path in sorted(folder.iterdir())}


def videos(folder):
    path = folder / "a.mp4"
    writer = VideoWriter(path, fps=8.0)
    for value in (0, 90, 200):
        writer.write(np.full((32, 48, 3), value, np.uint8))
    writer.close()
    return {path: [lambda: len(list(VideoReader(path)))]}


def tables(folder):
    lines = ["split,image,mask,depth,value,x,y,depth_m"]
    for i in range(12):
        photo(folder / f"{i}.png")
        mask(folder / f"m/{i}.png")
        mask(folder / f"d/{i}.png", 5000, np.uint16)
        split = ("train", "val")[i > 8]
        lines.append(f"{split},{i}.png,m/{i}.png,d/{i}.png,{i}.5,{i % 8},2,{i + 1}.25")
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    options = {"root": folder, "split": "train"}
    both = {"split_files": {"train": path.name, "val": path.name}}
    return {
        path: [
            lambda: samples(ImageTableDataset(**options, table=path.name)),
            lambda: read_points(path),
            lambda: samples(FolderDataset(**options, **both, labels=".", num_classes=3, depth="d")),
            lambda: detect(folder, {"depth_scale": 0.001}),
        ]
    }


def lists(folder):
    for i in range(6):
        photo(folder / f"images/{i}.png")
        mask(folder / f"masks/{i}.png")
        mask(folder / f"depth/{i}.png", 5000, np.uint16)
    for name, numbers in {"train": range(4), "val": range(4, 6)}.items():
        lines = [f"{i}.png {i}.png 518.8579\n" for i in numbers]
        (folder / f"{name}.txt").write_text("".join(lines))
    options = {"root": folder, "split_files": {"train": "train.txt", "val": "val.txt"}}
    options |= {"depth": "depth", "split": "train"}
    readers = [
        lambda: samples(FileListDataset(**options)),
        lambda: samples(FolderDataset(**options, labels="masks", num_classes=3)),
        lambda: detect(folder, {"depth_scale": 0.001}),
    ]
    return {folder / "train.txt": readers, folder / "val.txt": readers}


def depth_sets(folder):
    found = {}
    trees.tum(folder / "tum")
    trees.sunrgbd(folder / "sun")
    trees.sunrgbd_masks(folder / "sun")
    trees.nyuv2(folder / "nyu")
    trees.nyu40_mapping(folder / "nyu")
    names = [str(i) for i in range(40)]
    for name, make_set in {
        "tum": TumDataset,
        "sun": partial(SunRgbdDataset, class_names=names[:37]),
        "nyu": partial(NYUv2Dataset, class_names=names),
    }.items():
        read = partial(make_set, root=folder / name, split="train")
        for path in sorted((folder / name).rglob("*.[mt][ax]t")):
            found[path] = [lambda read=read: samples(read())]
    return found


def classes(folder):
    rows = [
        {"id": 0, "name": "void", "color": "#000000"},
        {"id": 1, "name": "road", "color": [1, 2, 3]},
    ]
    for name, text in {
        "classes.txt": "void 0 0 0\nroad 128 64 128\ncar 0 0 142\n",
        "classes.csv": "id,name,r,g,b\n0,void,0,0,0\n1,road,128,64,128\n",
        "classes.json": json.dumps({"classes": rows, "ignore_index": 255}),
        "names.json": '{"0": "void", "1": "road"}',
    }.items():
        (folder / name).write_text(text)
    masks = [mask(folder / f"masks/{i}.png", 2) for i in range(4)]
    return {
        path: [
            lambda p=path: read_masks(
                masks, read_class_file(Folder(folder, [p.name], {})), {}
            ).settings()
        ]
        for path in sorted(folder.glob("*.*"))
    }


def coco(folder):
    def read(root, **options):
        dataset = CocoDataset(root=root, split="train", **options)
        return samples(dataset)

    sizes, few = {"lengths": (("train", 2), ("val", 1)), "size": (32, 48)}, folder / "few"
    write(folder, **sizes)
    write(folder, panoptic=False, **sizes)
    names = [photo(few / name).name for name in ("a.png", "b.png")]
    write_objects(few / "train.json", names, {3: "cat", 7: "dog"})
    panoptic, picture = "annotations/panoptic_train", "annotations/panoptic_train/000000.png"
    instances = "annotations/instances_train.json"
    return {
        folder / f"{panoptic}.json": [lambda: read(folder), lambda: detect(folder, {})],
        folder / picture: [lambda: read(folder)],
        folder / instances: [lambda: read(folder, annotations=instances)],
        few / "train.json": [
            lambda: read(few, images=".", annotations="train.json"),
            lambda: detect(few, {}),
        ],
    }


def label_tools(folder):
    def read(root, name):
        dataset = FolderDataset(root=root, split="train", annotations=name, exif="apply")
        return samples(dataset)

    pictures = foreign_folders.scene_pictures(2, 1)
    solid = [picture.solid() for picture in pictures]
    found = {}
    for name, write_folder, drawn in (
        ("labelme", foreign_folders.labelme, pictures),
        ("via", foreign_folders.via, solid),
        ("yolo", foreign_folders.yolo, solid),
        ("cvat", foreign_folders.cvat, pictures),
        ("labelstudio", foreign_folders.label_studio, solid),
        ("labelstudio", foreign_folders.label_studio_brush, solid),
        ("object_masks", foreign_folders.mask_per_object, solid),
    ):
        root = folder / write_folder.__name__
        write_folder(root, drawn)
        paths = [path.relative_to(root).as_posix() for path in files_below(root)]
        sources = FORMATS[name].find(root, paths)
        for source in sorted({sources[0], sources[-1]}):
            found[root / source] = [partial(read, root, name)]
    return found


def shards(folder):
    def read():
        values, shard = json.loads(index), folder / "train-000000.tar"
        values["shards"][0]["size"] = shard.stat().st_size  # as an attacker would write it
        (folder / "train.json").write_text(json.dumps(values))
        return samples(PackedDataset(root=str(folder), split="train"))

    data = ScenesDataset(split="train", length=3, size=(24, 32))
    pack_split(data, folder, split="train", shard_size=1 << 20)
    index = (folder / "train.json").read_text()
    plain = partial(PackedDataset, root=str(folder), split="train")
    return {folder / "train-000000.tar": [read], folder / "train.json": [lambda: samples(plain())]}


def runs(folder):
    """The configuration of a run, and all that is made of it before it is continued."""
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        tiny = (*TINY_VIT, *TINY_DATA, *TINY_SCENES, *ON_CPU)
        cfg = compose("train", [*tiny, "task=joint", "logger=csv", f"run_dir={folder}"])
    values = OmegaConf.to_container(cfg, resolve=True)
    save_config(values | {"overrides": ["task=joint"], "follows": {}}, folder)

    def built():
        values = resumed_config(folder, ["optim.lr=0.1"])
        config = RunConfig.read(values)
        settings = config.data.loader
        train, val = (config.data.make(split) for split in ("train", "val"))
        objectives = make_objectives(config.task, train)
        task, _ = make_task_and_loader(config, train, objectives, config.task.teacher.build())
        make_eval_loader(val, settings, task.model.preprocessing, task.targets)
        make_trainer(config, 4, [], [])

    return {folder / "config.yaml": [partial(resumed_config, folder, []), built]}


def overrides(folder):
    def read():
        lines = path.read_text(errors="surrogateescape").replace("oc.env", "x").splitlines()
        return keys_of(lines), parse(lines)

    path, lists = folder / "overrides.txt", "[1,2,{c:d}]\n~x\ndata.class_names=['a','b, c']"
    path.write_text(f"task=joint\noptim.lr=0.1\n+a.b={lists}\n++x.y=null\n")
    return {path: [read]}


def checkpoints(folder):
    heads = {"depth": {"kind": "metric", "max_depth": 10.0}}
    heads["segmentation"] = {"num_classes": 3, "class_names": ["a", "b", "c"]}
    model = small_model(heads=heads, embed_dim=16, image_size=[32, 32])
    encoder, saved = small_model(embed_dim=16, image_size=[32, 32]).encoder, folder / "model"
    model.save_pretrained(saved)
    save_checkpoint(model, folder / "a.ckpt")
    torch.save({"encoder": model.encoder.state_dict()}, folder / "b.pt")
    old = {"_use_new_zipfile_serialization": False}
    torch.save(torch.load(folder / "a.ckpt", weights_only=True), folder / "old.pth", **old)
    files = [saved / "config.json", saved / "model.safetensors"]
    found = {path: [lambda: DPT.from_pretrained(saved).config] for path in files}
    for path in (folder / "a.ckpt", folder / "b.pt", folder / "old.pth"):
        found[path] = [
            lambda p=path: DPT.from_pretrained(p).outputs,
            partial(fault_of, path),
            partial(load_encoder_weights, encoder, path),
        ]
    return found


def predictions(folder):
    spec = OutputSpec("segmentation", "logits", channels=3, class_names=("a", "b", "c"))
    (product,) = (p for p in all_kinds({"segmentation": spec})["png"] if p.folder == "labels")
    settings = PredictionSettings(weights="w", checkpoint="c", classes={"labels": ["a", "b", "c"]})

    def predict(root, overwrite):
        """Writes as ``dpt predict`` does."""
        sources = find_inputs([root / "photos"], out=root / "out")
        folders = ["labels", "overlay"]
        options = {"overwrite": overwrite, "settings": settings}
        out = OutputFolder(root / "out", inputs=sources, folders=folders, **options)
        with out.held():
            todo = [source for source in sources if not out.is_done(source, [product])]
            out.start()
            for source in todo:
                with out.files(source, [product], {}) as places:
                    shutil.copy(root / f"masks/{source.name}.png", places[product])
            out.finish()

    def again(overwrite):
        copy = shutil.copytree(folder, folder.with_name("copy"))
        try:
            predict(copy, overwrite)
        finally:
            shutil.rmtree(copy)

    def score():
        settings = SimpleNamespace(predictions_scale=None, predictions_kind=None)
        pairs = PredictedDataset(data, folder / "out", settings)
        return pairs.outputs, [pairs.read(i) for i in range(len(data))]

    for i in range(2):
        photo(folder / f"photos/{i}.png")
        mask(folder / f"masks/{i}.png")
    predict(folder, False)
    options = {"images": "photos", "labels": "masks", "num_classes": 3}
    data = FolderDataset(root=folder, split="train", fractions={"train": 1.0}, **options)
    readers = [
        score,
        partial(find_inputs, [folder], out=folder / "new"),
        partial(again, False),
        partial(again, True),
    ]
    return {folder / f"out/predictions.json{end}": readers for end in ("", "l")}


def archives(folder):
    def read(path):
        target = path.with_name("unpacked")
        target.mkdir()
        try:
            return extract(path, target, {"data": "."})
        finally:
            shutil.rmtree(target)

    photo(folder / "data/a.png")
    for kind in ("zip", "tar"):
        shutil.make_archive(folder / "a", kind, folder, "data")
    return {path: [partial(read, path)] for path in (folder / "a.zip", folder / "a.tar")}


TARGETS = (
    picture_files,
    videos,
    tables,
    lists,
    depth_sets,
    classes,
    coco,
    label_tools,
    shards,
    runs,
    overrides,
    checkpoints,
    predictions,
    archives,
)


# ------------------------------------------------------------------------------------ the run


def fault(read, folder):
    """What is wrong with the outcome of reading a file; None for a value or one clear line."""
    try:
        outcome = str(read())
    except Exception as error:
        if lack_of_memory(error):
            return None
        outcome = str(error)
        is_plain = type(error).__name__ in ("ValueError", "DataError", "NoMasksError")
        is_named = str(folder) in outcome or re.search(NAMED, outcome)
        # the command line makes one line of other errors
        is_line = not isinstance(error, DataError) or len(outcome.splitlines()) == 1
        is_line = is_line and len(outcome) <= 4000
        if not (is_plain and is_named and is_line):
            return f"{type(error).__name__}: {outcome[:400]!r}\n{traceback.format_exc(limit=-3)}"
    return f"leaks {outcome}" if SECRET in outcome else None


def run(folder, seed, count, only="", case=-1):
    """Reads ``count`` changed copies of each file of each target; returns the number of faults."""
    warnings.simplefilter("ignore")
    logging.disable()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)
    secret, places, faults = photo(folder / "outside/secret.png"), {}, 0
    before = secret.read_bytes()
    for target in TARGETS:
        if target.__name__.startswith(only):
            (folder / target.__name__).mkdir()
            places |= target(folder / target.__name__)
    files.MAX_PIXELS, files.MAX_BYTES, arrays._MAX_UNPACKED = 1 << 20, 1 << 24, 1 << 24
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    faulthandler.enable()
    names = sorted(path.name for path in folder.iterdir())
    for path, readers in places.items():
        whole, name = path.read_bytes(), path.relative_to(folder).as_posix()
        for number in range(count) if case < 0 else [case]:
            choose = random.Random(f"{seed} {name} {number}")
            data = whole
            for _ in range(choose.randint(1, 3)):
                data = changed(data, choose)
            path.write_bytes(data)
            for k, read in enumerate(readers):
                label = f"seed {seed}, {name}, case {number}, reader {k}"
                print(label, file=sys.stderr)
                faulthandler.dump_traceback_later(SECONDS, exit=True)
                if problem := fault(read, folder):
                    faults += 1
                    print(f"{label}: {problem}", flush=True)
                faulthandler.cancel_dump_traceback_later()
        path.write_bytes(whole)
    assert names == sorted(path.name for path in folder.iterdir())
    assert before == secret.read_bytes()
    return faults


def fuzz(folder, seed, count, seconds):
    command = [sys.executable, __file__, folder, str(seed), str(count)]
    environment = {**os.environ, "DPT_SECRET": SECRET}
    # libraries print bytes of the changed files
    options = {"capture_output": True, "text": True, "errors": "backslashreplace"}
    options |= {"timeout": seconds, "env": environment}
    done = subprocess.run(command, check=False, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-800:]


def test_changed_files_end_in_one_line(tmp_path):
    fuzz(tmp_path, 0, 1, 120)


@pytest.mark.slow
def test_many_changed_files_end_in_one_line(tmp_path):
    fuzz(tmp_path, 1, 60, 300)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "data"))
    place, seed, count, *rest = sys.argv[1:]
    raise SystemExit(run(Path(place), int(seed), int(count), *rest[:1], *map(int, rest[1:])) > 0)
