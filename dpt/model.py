"""The public model: built by name, saved to a folder, loaded from one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dpt import nn as parts
from dpt.types import Preprocessing
from dpt.weights.native import CONFIG_FILE, WEIGHTS_FILE, read_native
from dpt.zoo import Spec, build, make_spec


class DPT(parts.DPT):
    """A Dense Prediction Transformer that knows its own spec.

    Attributes:
        spec: plain data from which an equal model can be built.
        preprocessing: how pictures become inputs.
    """

    def __init__(self, spec: Spec) -> None:
        encoder, decoder, heads = build(spec)
        super().__init__(encoder=encoder, decoder=decoder, heads=heads)
        settings = {"multiple_of": self.encoder.pad_multiple, **spec["preprocessing"]}
        self.preprocessing = Preprocessing.from_dict(settings)
        self.spec = {**spec, "preprocessing": self.preprocessing.to_dict()}

    @classmethod
    def from_pretrained(cls, path: str | Path) -> DPT:
        """Loads a folder written by :meth:`save_pretrained`, or a run's ``.ckpt``.

        The model comes in evaluation mode.

        Raises:
            ValueError: the file is missing, damaged, or does not fit its own spec.
        """
        spec, state = read_native(path)
        try:
            model = cls(_without_downloads(spec))
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise ValueError(
                f"{path}: its spec describes no model ({type(error).__name__}: {reason})"
            ) from error
        model.load_checked(state, source=str(path))
        return model.eval()

    def load_checked(self, state: Mapping[str, Tensor], *, source: str) -> None:
        """Loads every tensor or none; what is missing, unexpected or misshapen is listed."""
        own = self.state_dict()
        faults = [f"missing {k}" for k in own if k not in state]
        faults += [f"unexpected {k}" for k in state if k not in own]
        faults += [
            f"{k} is {tuple(state[k].shape)}, not {tuple(own[k].shape)}"
            for k in own
            if k in state and state[k].shape != own[k].shape
        ]
        if faults:
            more = f" and {len(faults) - 8} more" if len(faults) > 8 else ""
            raise ValueError(f"{source} does not fit this model: {'; '.join(faults[:8])}{more}")
        self.load_state_dict(dict(state))

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes ``config.json`` and ``model.safetensors`` into ``folder``."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG_FILE).write_text(json.dumps(self.spec, indent=2) + "\n", encoding="utf-8")
        state = {k: v.detach().cpu().contiguous() for k, v in self.state_dict().items()}
        save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})


def _without_downloads(spec: Spec) -> Spec:
    """The spec for loading saved weights: a timm encoder must not fetch its own first."""
    encoder = {k: v for k, v in spec["encoder"].items() if k != "pretrained"}
    return {**spec, "encoder": encoder}


def create_model(name: str, *, heads: Mapping[str, Mapping[str, Any]], **overrides: Any) -> DPT:
    """Builds a model by name with random weights.

    Args:
        name: one of :func:`dpt.list_models`.
        heads: for example ``{"depth": {"kind": "metric", "max_depth": 10.0},
            "segmentation": {"num_classes": 150}}``; also ``classification`` and ``regression``.
        **overrides: ``encoder={...}``, ``decoder={...}``, ``preprocessing={...}``, or their
            arguments directly, as ``patch_size=8, readout="add"``; see :func:`dpt.zoo.make_spec`.

    Returns:
        A model in training mode, for images of any size.
    """
    return DPT(make_spec(name, heads=heads, **overrides))
