"""The list of checkpoint formats with this project's own: reading any, converting, merging."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dpt.files import few, require_new
from dpt.types.outputs import prompt_focal
from dpt.validation import Plain
from dpt.weights import base, depth_anything, dinov, eomt, hub, official, smp, transformers
from dpt.weights.files import CheckpointFiles, open_checkpoint, unwrap
from dpt.weights.names import Tensors

CONFIG_KEY = "dpt_config"
"""Key of the model configuration in a Lightning checkpoint."""
_PARTS = {"encoder", "decoder", "heads", "preprocessing"}


class Native(base.Format):
    name = "dpt"
    encoders = ("any",)

    def recognises(self, files: CheckpointFiles) -> bool:
        if not files.config:
            return CONFIG_KEY in files.content
        return "model_type" not in files.config and len(_PARTS & set(files.config)) >= 2

    def read(self, files: CheckpointFiles) -> base.StoredModel:
        if files.config:
            return base.StoredModel(files.config, files.tensors)
        every = files.content["state_dict"].items()
        tensors = unwrap({name: t for name, t in every if name.startswith("model.")})
        return base.StoredModel(files.content[CONFIG_KEY], tensors)

    def write(self, config: Plain, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a folder with ``config.json``, ``model.safetensors`` and a model card."""
        checkpoint = base.Checkpoint(base.StoredModel(config, tensors))
        faults, folder = checkpoint.list_faults(), Path(path)
        if faults:
            raise ValueError(f"could not be loaded again: does not fit model.config: {faults}")
        CheckpointFiles(folder, tensors, config).save()
        card = hub.Card(folder.absolute().name)
        hub.write_card(folder, card.text(checkpoint.network, checkpoint.config))
        return []


FORMATS: tuple[base.Format, ...] = (
    Native(),
    official.Official(),
    transformers.Transformers(),
    eomt.Eomt(),
    depth_anything.DepthAnything(),
    depth_anything.DepthAnything3(),
    dinov.Dinov2(),
    dinov.Dinov3(),
    smp.Smp(),
)
"""Every format. A new one is a module with its class, and an entry here."""
WRITABLE = {f.name: f for f in FORMATS if f.encoders}


def find_format(files: CheckpointFiles) -> base.Format | None:
    """Returns the format of a file or folder; None if it is unknown."""
    return next((f for f in FORMATS if f.recognises(files)), None)


def read(path: str | Path, *, revision: str | None = None) -> base.Checkpoint:
    """Reads the model in a file or folder of any format.

    ``path`` may be ``user/name`` on the Hugging Face hub, at ``revision``.

    Raises:
        ValueError: the file is missing or damaged, its format is unknown, its model is not
            supported, or its tensors do not fit its configuration: each missing, unexpected or
            unfit tensor is listed.
    """
    files = open_checkpoint(hub.locate(path, revision))
    source_format = find_format(files)
    if source_format is not None:
        with base.naming(files.path):
            checkpoint = base.Checkpoint(source_format.read(files), source_format.name)
            if faults := checkpoint.list_faults():
                raise ValueError(f"does not fit its own configuration: {faults}")
            opposite = {"metric": "relative", "relative": "metric"}.get(files.depth_kind or "")
            outputs = checkpoint.network.outputs.values()
            if opposite in {spec.depth_kind for spec in outputs if spec.kind == "depth"}:
                fault = f"records {files.depth_kind} depth, and its format has {opposite} depth"
                raise ValueError(f"{fault}: correct the record or the name of the file")
        return checkpoint
    known, names = ", ".join(f.name for f in FORMATS), sorted(map(str, files.content))
    config = f"model_type {files.config.get('model_type')!r} and " if files.config else ""
    raise ValueError(f"{path}: of no known format ({known}); found {config}{few(names, 8)}")


class Conversion(NamedTuple):
    """Report of a conversion.

    Attributes:
        source_format, target_format: names of the formats.
        tensors: number of tensors of the model.
        unused: tensors of the source that never run, and became zeros where the target has them.
        notes: what the target expresses differently.
    """

    source_format: str
    target_format: str
    tensors: int
    unused: list[str]
    notes: list[str]

    def __str__(self) -> str:
        text = f"{self.source_format} -> {self.target_format}: {self.tensors} tensors"
        if self.unused:
            fate = "are left out, or replaced by zeros"
            text += f"\n{len(self.unused)} unused tensors {fate}: {few(self.unused, 8)}"
        return "\n".join([text, *self.notes])


def convert(src: str | Path, dst: str | Path, *, to: str) -> Conversion:
    """Reads ``src`` in any format and writes it to ``dst`` in the format ``to``.

    Raises:
        ValueError: ``src`` cannot be read, or ``to`` cannot express its model.
    """
    dst = Path(dst).expanduser()
    require_new(dst)
    checkpoint = read(src)
    if checkpoint.config.calibration and to != "dpt":
        fault = "has no place for a calibration, so depth would no longer be in metres"
        raise ValueError(f"the {to} format {fault}: convert the checkpoint that was calibrated")
    notes = WRITABLE[to].write(checkpoint.config.to_dict(), checkpoint.tensors, dst)
    return Conversion(checkpoint.format, to, len(checkpoint.tensors), checkpoint.unused, notes)


def merge(paths: Sequence[str | Path], folder: str | Path) -> dict[str, str]:
    """Joins models over one frozen encoder into one with all of their heads, and saves it.

    Each head's predictions stay equal to the bit. A decoder that a model's heads share becomes each
    head's own, except the first that several heads share: it stays the shared one.

    Args:
        paths: two or more, each as for :meth:`dpt.DPT.from_pretrained`.
        folder: written as :meth:`dpt.DPT.save_pretrained` does.

    Returns:
        The file of each head.

    Raises:
        ValueError: encoders, preprocessing or the cameras of sparse depth differ, or two models
            have a head of the same name.
    """
    models = {str(path): read(path) for path in paths}
    sources = _sources_of_heads(models)
    sharing = {path: _sharing_heads(model) for path, model in models.items()}
    kept = next((path for path, heads in sharing.items() if len(heads) > 1), "")
    tensors: dict[str, Tensor] = {}
    config = deepcopy(models[kept or next(iter(models))].config)
    config.heads, config.calibration = {}, None
    for path, model in models.items():
        tensors |= model.tensors if path == kept else _with_own_decoders(model, sharing[path])
        config.heads |= model.config.heads
        config.calibration = config.calibration or model.config.calibration
    Native().write(config.to_dict(), tensors, folder)
    return sources


def _with_own_decoders(model: base.Checkpoint, heads: Sequence[str]) -> dict[str, Tensor]:
    """Returns the tensors of a model whose ``heads`` get decoders of their own, and changes it."""
    for name in heads:
        model.config.heads[name].decoder = deepcopy(model.config.decoder)
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.tensors.items():
        shared, _, rest = name.partition("decoder.")
        names = [name] if shared else [f"decoders.{head}.{rest}" for head in heads]
        tensors |= dict.fromkeys(names, tensor)
    return tensors


def _sources_of_heads(models: Mapping[str, base.Checkpoint]) -> dict[str, str]:
    """Returns the file of each head; ValueError for models that cannot become one."""
    first = next(iter(models))
    sources: dict[str, str] = {}
    for path, model in models.items():
        if fault := _difference(model, models[first]):
            remedy = "train both with callbacks.freeze.parts=[encoder] from the same model.weights"
            raise ValueError(f"{path}: {fault} in {first}: {remedy}")
        if twice := [name for name in model.config.heads if name in sources]:
            raise ValueError(f"{path}: has a head {twice[0]}, as {sources[twice[0]]} has")
        sources |= dict.fromkeys(model.config.heads, path)
    prompted = {p: m.network.outputs for p, m in models.items() if m.network.takes_prompts}
    focals = {path: prompt_focal(outputs) for path, outputs in prompted.items()}
    if len({*focals.values()}) > 1:
        listed = few([f"{focal} in {path}" for path, focal in focals.items()])
        raise ValueError(f"prompts are for the canonical_focal {listed}: train both with the same")
    return sources


def _sharing_heads(model: base.Checkpoint) -> list[str]:
    """Returns the names of heads that read the shared decoder."""
    heads = model.network.heads.items()
    return [n for n, h in heads if h.uses_decoder and model.config.heads[n].decoder is None]


def _difference(model: base.Checkpoint, other: base.Checkpoint) -> str:
    """Returns the first difference of encoder or preprocessing; empty if there is none."""
    for key, values in base.differences(model.config.to_dict(), other.config.to_dict()).items():
        is_training = key == "encoder.drop_path"
        if key.startswith(("encoder.", "preprocessing.")) and not is_training:
            return f"{key}={values[0]!r}, but {values[1]!r}"
    names = [name for name in model.tensors if name.startswith("encoder.")]
    differing = [n for n in names if not torch.equal(model.tensors[n], other.tensors[n])]
    counts = f"{len(differing)} of {len(names)} tensors"
    return f"{counts} of the encoder, first {differing[0]}, differ from those" if differing else ""


def fingerprint(config: Plain, state: Tensors) -> str:
    """Returns a short code of a configuration and weights, equal for every copy of a model."""
    code = hashlib.blake2b(json.dumps(config, sort_keys=True).encode(), digest_size=8)
    for name, tensor in sorted(state.items()):
        code.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        code.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return code.hexdigest()
