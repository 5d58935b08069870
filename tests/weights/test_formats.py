"""The registry: formats recognised by content, atomic folders, shards, the hub, damaged files."""

import contextlib
import json
import multiprocessing
import os
import pickle
import resource
import zipfile

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file
from tiny import assert_equal, small_model

import dpt
from dpt.training.checkpoints import read_checkpoint
from dpt.weights import formats, load_encoder_weights
from dpt.weights.files import open_checkpoint, unwrap
from dpt.weights.formats import convert, fingerprint


def small(heads=None, **overrides):
    options = {"embed_dim": 64, "num_heads": 1, "position_resize": "bilinear", **overrides}
    return small_model(heads=heads or {"depth": {}}, **options).eval()


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = small()
    model.save_pretrained(tmp_path / "saved")
    return model, tmp_path / "saved"


def assert_same(actual, model):
    assert_equal(actual.state_dict(), model.state_dict())


def test_a_folder_is_whole_or_does_not_open(saved, monkeypatch):
    """A full disk keeps the old model; weights are never read with another configuration."""
    model, folder = saved
    other = small(patch_size=8)
    save_file = safetensors.torch.save_file

    def full_disk(tensors, path, **options):
        save_file(dict(list(tensors.items())[:3]), path, **options)
        raise safetensors.SafetensorError("No space left on device")

    monkeypatch.setattr(safetensors.torch, "save_file", full_disk)
    with pytest.raises(ValueError, match=r"model\.safetensors: cannot be written .*No space left"):
        other.save_pretrained(folder)
    assert_same(dpt.DPT.from_pretrained(folder), model)
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
    ]

    monkeypatch.setattr(safetensors.torch, "save_file", save_file)
    replace, seen = os.replace, []

    def look(source, target):  # a reader at every step, before the last file
        with contextlib.suppress(ValueError):
            if target.name == "README.md":
                assert_same(dpt.DPT.from_pretrained(folder), other)
                return replace(source, target)
            assert_same(dpt.DPT.from_pretrained(folder), model)
            seen.append(target)
        return replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    other.save_pretrained(folder)
    assert not seen
    assert_same(dpt.DPT.from_pretrained(folder), other)


def test_a_fingerprint_is_of_weights_and_configuration(saved):
    model, folder = saved
    code = fingerprint(model.config.to_dict(), model.state_dict())
    copy = dpt.DPT.from_pretrained(folder)
    assert fingerprint(copy.config.to_dict(), copy.state_dict()) == code
    assert fingerprint({**copy.config.to_dict(), "name": "x"}, copy.state_dict()) != code
    with torch.no_grad():
        copy.heads["depth"].conv3.bias.add_(1e-6)
    assert fingerprint(copy.config.to_dict(), copy.state_dict()) != code


@pytest.mark.parametrize("name", ["dpt", "official", "transformers"])
def test_what_each_format_writes_is_recognised_by_it_alone(name, saved, tmp_path):
    model, folder = saved
    target = tmp_path / ("a.pt" if name == "official" else "a")
    report = convert(folder, target, to=name)
    source = open_checkpoint(target)
    assert [f.name for f in formats.FORMATS if f.recognises(source)] == [name]
    assert_same(dpt.DPT.from_pretrained(target), model)
    assert f"{len(model.state_dict())} tensors" in str(report)


def test_shards_and_torch_files_are_read(saved):
    model, folder = saved
    state = load_file(folder / "model.safetensors")
    names = sorted(state)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002.safetensors": names[1::2]}
    for file, keys in parts.items():
        save_file({k: state[k] for k in keys}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {k: f for f, keys in parts.items() for k in keys}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_same(dpt.DPT.from_pretrained(folder), model)

    (folder / "model-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002\.safetensors: no such file"):
        dpt.DPT.from_pretrained(folder)
    index = {"weight_map": dict.fromkeys(names, "../elsewhere.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="outside of the folder"):
        dpt.DPT.from_pretrained(folder)

    (folder / "model.safetensors.index.json").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert_same(dpt.DPT.from_pretrained(folder), model)


def test_wrappers_and_prefixes_are_taken_off():
    tensors = {"a.b": torch.ones(1)}
    assert unwrap(tensors) == tensors
    assert unwrap({"model": tensors, "optimizer": {}, "epoch": 3}) == tensors
    assert unwrap({"state_dict": {"module.a.b": tensors["a.b"]}}) == tensors
    assert unwrap({"model": {"state_dict": tensors}}).keys() == tensors.keys()
    assert unwrap({"epoch": 3}) == {}
    for prefix in ("_orig_mod.", "module._orig_mod.", "model.module.", "model._orig_mod.model."):
        names = {f"{prefix}a.b": tensors["a.b"], "n_averaged": torch.tensor(3)}
        assert unwrap({"state_dict": names}) == tensors
    assert unwrap({"a._orig_mod.b": tensors["a.b"]}) == tensors
    two_models = {"model.a": torch.ones(1), "module.a": torch.ones(1)}
    assert unwrap(two_models) == two_models


def test_conversions_that_cannot_be(saved, tmp_path):
    _, folder = saved
    file = folder / "model.safetensors"
    for src, dst in ((folder, folder), (folder, file), (file, folder)):
        with pytest.raises(ValueError, match="exists already"):
            convert(src, dst, to="official")
    state = load_file(folder / "model.safetensors")
    state["more"] = state.pop("encoder.cls_token")
    save_file(state, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"missing encoder\.cls_token; unexpected more"):
        convert(folder, tmp_path / "a", to="official")
    assert not (tmp_path / "a").exists()


# The hub


def test_a_hub_name_is_fetched(saved, monkeypatch, tmp_path):
    import huggingface_hub

    model, folder = saved
    requested = []

    def download(name, *, revision, allow_patterns):
        requested.append((name, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert_same(dpt.DPT.from_pretrained("someone/depth", revision="v1"), model)
    assert requested == [("someone/depth", "v1", ["*.json", "*.safetensors"])]
    tensors = formats.read("someone/depth").tensors  # as training reads model.weights
    assert tensors.keys() == model.state_dict().keys()
    assert convert("someone/depth", tmp_path / "copy", to="dpt").tensors == len(tensors)


def test_the_users_own_folder(saved, tmp_path, monkeypatch):
    model, _ = saved
    monkeypatch.setenv("HOME", str(tmp_path))
    model.save_pretrained("~/mine")
    assert_same(dpt.DPT.from_pretrained(tmp_path / "mine"), model)
    assert load_encoder_weights(model.encoder, "~/mine").missing == []
    convert("~/mine", "~/copy", to="dpt")
    assert_same(dpt.DPT.from_pretrained(tmp_path / "copy"), model)
    with pytest.raises(ValueError, match="exists already"):
        convert("~/mine", tmp_path / "mine", to="dpt")
    with pytest.raises(ValueError, match="mine: is not on the hub, so revision='v1' cannot"):
        dpt.DPT.from_pretrained("~/mine", revision="v1")


def test_without_a_network_one_line_says_so(monkeypatch):
    import huggingface_hub

    def download(name, **_):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(
        ValueError, match=r"someone/depth: no such file.*cannot be fetched"
    ) as error:
        dpt.DPT.from_pretrained("someone/depth")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "target"),
    [("dpt", "a"), ("official", "a.pt"), ("official", "a.safetensors"), ("transformers", "a")],
)
def test_an_encoder_takes_its_weights_from_any_format(name, target, saved, tmp_path):
    model, folder = saved
    target = tmp_path / target
    convert(folder, target, to=name)
    other = small(image_size=[96, 96])
    report = load_encoder_weights(other.encoder, target)
    assert report.resized == ["pos_embed 4x4 to 6x6"]
    assert report.missing == []
    actual, expected = other.encoder.state_dict(), model.encoder.state_dict()
    assert all(torch.equal(actual[k], v) for k, v in expected.items() if k != "pos_embed")


def chain(kind, levels=40, width=2):
    """A value of width^levels values: lists or tuples of references to the next one."""
    value = kind([1])
    for _ in range(levels):
        value = kind([value] * width)
    return value


def circle():
    values = []
    values.append(values)
    return values


def body(value):
    """The operations that make a value, without the protocol and the end."""
    return pickle.dumps(value, protocol=2)[2:-1]


BOMBS = {
    "lists": pickle.dumps({"dpt_config": {"name": chain(list)}, "state_dict": {}}, protocol=2),
    "tuples": pickle.dumps({"a": chain(tuple)}, protocol=2),
    "a function": b"\x80\x02" + body(chain(list)) + b")R.",
    "depth": b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".",
    "a key": b"\x80\x02})" + b"\x85" * 1_000_000 + b"Ns.",
    # lists that are filled after others refer to them, the last one first
    "filled late": b"".join(
        [
            b"\x80\x02(",
            *(b"]q%c" % i for i in range(40)),
            *(b"h%c(h%ch%ce" % (i, i + 1, i + 1) for i in range(39)),
            b"l.",
        ]
    ),
}


def write_bomb(path, name, form):
    torch.save({"a": torch.zeros(1)}, path)
    if "legacy" in form:  # three short pickles are in front
        pickles = [pickle.dumps(value, protocol=2) for value in (0x1950A86A20F9469CFC6C, 1001, {})]
        behind = path.read_bytes() if form.endswith("zip") else b""
        path.write_bytes(b"".join([*pickles, BOMBS[name], pickle.dumps([], protocol=2), behind]))
    else:
        with zipfile.ZipFile(path) as archive:
            records = {record.filename: archive.read(record) for record in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for record, content in records.items():
                is_data = record.endswith("data.pkl")
                name_there = record.replace("data.pkl", form)
                archive.writestr(name_there, BOMBS[name] if is_data else content)


@pytest.mark.parametrize("form", ["data.pkl", "DATA.PKL", "legacy", "legacy before a zip"])
@pytest.mark.parametrize("name", sorted({*BOMBS} - {"a key"}))
def test_a_small_file_with_endless_plain_data_is_refused(tmp_path, name, form):
    path = tmp_path / "a.pt"
    write_bomb(path, name, form)
    with pytest.raises(ValueError, match=r"^\S*a\.pt: .*\Z"):
        formats.read(path)
    assert read_checkpoint(path) is None


def test_a_deeply_nested_key_does_not_end_the_process(tmp_path):
    write_bomb(tmp_path / "a.pt", "a key", "data.pkl")

    def read():
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        with pytest.raises(ValueError, match=r"a\.pt: "):
            formats.read(tmp_path / "a.pt")

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_huge_configuration_is_not_read(saved):
    (saved[1] / "config.json").write_text('{"name": ' + " " * (1 << 24) + "1}")
    with pytest.raises(ValueError, match=r"config\.json: has more than"):
        formats.read(saved[1])


def test_shared_and_long_plain_data_are_read(tmp_path):
    betas = (0.9, 0.999)
    shared = {f"{i}": (i, [torch.ones(1)]) for i in range(40)}
    content = {"losses": [0.5] * 10_000, "groups": [{"betas": betas}] * 500, "a": torch.ones(3)}
    content |= {"first": shared, "second": shared, "third": dict(shared)}
    for is_zip in (True, False):
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
        actual = open_checkpoint(tmp_path / "a.pt").content
        assert torch.equal(actual.pop("a"), torch.ones(3))
        assert all(actual[name] == content[name] for name in content if name != "a")
