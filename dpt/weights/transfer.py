"""Starting a model from the weights of another one. A report names the parts that differ."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from dpt.weights.encoders import LoadReport, encoder_tensors, fit_encoder, saved_grid
from dpt.weights.format import Config, list_faults

PART = re.compile(r"heads\.\w+\.auxiliary_layers|heads\.\w+|decoder")


@dataclass(frozen=True)
class TransferReport:
    """Use of a file's tensors in a model.

    Attributes:
        source: the file.
        encoder: use in the encoder.
        kept: parts beside the encoder that were loaded, but for their ``outputs``.
        outputs: final layers that stay at random, with their numbers of outputs there and here.
        added: parts that are not in the file; they stay at random.
        unused: parts of the file that the model does not have.
    """

    source: str
    encoder: LoadReport
    kept: list[str]
    outputs: list[str]
    added: list[str]
    unused: list[str]

    def __str__(self) -> str:
        lines = [f"{self.encoder}; also kept: {', '.join(self.kept) or 'nothing'}"]
        if self.outputs:
            lines.append(f"left at random, of another size: {', '.join(self.outputs)}")
        if self.added:
            lines.append(f"left at random, not in the file: {', '.join(self.added)}")
        if self.unused:
            lines.append(f"in the file, not used: {', '.join(self.unused)}")
        return "; ".join(lines)


def load_model_weights(
    model: nn.Module, config: Config, state: Mapping[str, Tensor], *, source: str
) -> TransferReport:
    """Loads the encoder, the decoder and the heads that ``model`` shares with another one.

    A part that only one of the two has is left as it is, and so is a head's layer that differs only
    in its number of outputs: a model for other classes.

    Args:
        model: an encoder, a decoder or None, and heads, with our names.
        config: configuration of the other model.
        state: its tensors.
        source: where they come from, for messages.

    Raises:
        ValueError: a part that both have misses tensors, has further ones, or ones of another
            shape; ``model`` is then unchanged.
    """
    own = _by_part(model.state_dict())
    given = _by_part(state)
    shared = [part for part in own if part in given]
    wanted = {k: v for part in shared for k, v in own[part].items()}
    fitting = {k: v for part in shared for k, v in given[part].items()}
    other = {k for k, v in fitting.items() if k in wanted and _other_outputs(k, v, wanted[k])}
    outputs = {}
    for name in sorted(other):
        layer = name.rpartition(".")[0]
        outputs[layer] = f"{layer} ({len(fitting.pop(name))} to {len(wanted.pop(name))})"
    if faults := list_faults({k: v.shape for k, v in wanted.items()}, fitting):
        raise ValueError(f"{source}: another architecture: {faults}")
    report = fit_encoder(
        model.get_submodule("encoder"), encoder_tensors(state), saved_grid(config), source
    )
    model.load_state_dict(fitting, strict=False)
    return TransferReport(
        source=source,
        encoder=report,
        kept=shared,
        outputs=list(outputs.values()),
        added=[part for part in own if part not in given],
        unused=[part for part in given if part not in own],
    )


def _by_part(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors of the decoder and of each head."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        if match := PART.match(name):
            parts.setdefault(match[0], {})[name] = value
    return parts


def _other_outputs(name: str, given: Tensor, wanted: Tensor) -> bool:
    """Whether a head's tensor differs only in its first axis, that of the outputs."""
    differs = given.shape != wanted.shape and given.shape[1:] == wanted.shape[1:]
    return name.startswith("heads.") and differs
