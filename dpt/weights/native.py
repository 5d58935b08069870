"""This project's own format: a folder written by ``save_pretrained``, or a run's ``.ckpt``."""

from pathlib import Path

from dpt.validation import Plain
from dpt.weights.base import Checkpoint, Format, StoredModel
from dpt.weights.card import Card, write_card
from dpt.weights.files import CheckpointFiles
from dpt.weights.names import Tensors

CONFIG_KEY = "dpt_config"
"""Key of the model configuration in a Lightning checkpoint."""
_PREFIX = "model."
_PARTS = {"encoder", "decoder", "heads", "preprocessing"}


class Native(Format):
    name = "dpt"
    encoders = ("any",)

    def recognises(self, files: CheckpointFiles) -> bool:
        if not files.config:
            return CONFIG_KEY in files.content
        return "model_type" not in files.config and len(_PARTS & set(files.config)) >= 2

    def read(self, files: CheckpointFiles) -> StoredModel:
        if files.config:
            return StoredModel(files.config, files.tensors)
        if "state_dict" not in files.content:
            raise ValueError(f"has {CONFIG_KEY!r} but no 'state_dict'; is it complete?")
        tensors = {k: v for k, v in files.tensors.items() if k.startswith(_PREFIX)}
        return StoredModel(files.content[CONFIG_KEY], tensors, [("*", f"{_PREFIX}*")])

    def write(self, config: Plain, tensors: Tensors, path: str | Path) -> list[str]:
        """Writes a folder with ``config.json``, ``model.safetensors`` and a model card."""
        checkpoint = Checkpoint(StoredModel(config, tensors))
        faults, folder = checkpoint.list_faults(), Path(path)
        if faults:
            raise ValueError(f"could not be loaded again: does not fit model.config: {faults}")
        CheckpointFiles(folder, tensors, config).save()
        write_card(folder, Card(folder.absolute().name).text(checkpoint.network, checkpoint.config))
        return []
