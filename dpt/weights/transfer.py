"""Another model's weights as the start of a new one: what fits is kept, and the rest is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Size, Tensor, nn

from dpt.weights.encoder import LoadReport, fit_encoder, only_encoder, saved_grid
from dpt.weights.naming import list_faults
from dpt.zoo import Spec

PART = re.compile(r"heads\.\w+\.auxiliary_layers|heads\.\w+|decoder")


@dataclass(frozen=True)
class TransferReport:
    """What of a file went into a model.

    Attributes:
        source: the file.
        encoder: what of it went into the encoder.
        kept: parts beside the encoder that were taken over, but for their ``outputs``.
        outputs: final layers that stay at random, with their numbers of outputs there and here.
        added: parts that the file has not; they stay at random.
        unused: parts of the file that the model has not.
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
    model: nn.Module, spec: Spec, state: Mapping[str, Tensor], *, source: str
) -> TransferReport:
    """Loads the encoder, the decoder and the heads that ``model`` shares with another one.

    A part that only one of the two has is left alone, and so is a head's layer that differs in its
    number of outputs alone: that is how a model goes on to other classes.

    Args:
        model: an encoder, a decoder or None, and heads, under our names.
        spec: of the other model.
        state: its tensors.
        source: where they come from, for messages.

    Raises:
        ValueError: a part that both have is missing tensors, has further ones, or ones of another
            shape; ``model`` is then untouched.
    """
    own = {k: v.shape for k, v in model.state_dict().items() if PART.match(k)}
    given = {k: v for k, v in state.items() if PART.match(k)}
    own_parts, given_parts = _parts(own), _parts(given)
    shared = [part for part in own_parts if part in given_parts]
    wanted = {k: v for k, v in own.items() if _part(k) in shared}
    fitting = {k: v for k, v in given.items() if _part(k) in shared}
    other = {k for k, v in fitting.items() if k in wanted and _other_outputs(k, v, wanted[k])}
    faults = list_faults(
        {k: v for k, v in wanted.items() if k not in other},
        {k: v for k, v in fitting.items() if k not in other},
    )
    if faults:
        raise ValueError(f"{source}: another architecture: {faults}")
    encoder = fit_encoder(model.get_submodule("encoder"), only_encoder(state), saved_grid(spec),
                          source)  # fmt: skip
    model.load_state_dict({k: v for k, v in fitting.items() if k not in other}, strict=False)
    outputs = {
        k.rpartition(".")[0]: f"{k.rpartition('.')[0]} ({len(fitting[k])} to {wanted[k][0]})"
        for k in sorted(other)
    }
    return TransferReport(
        source=source,
        encoder=encoder,
        kept=shared,
        outputs=list(outputs.values()),
        added=[part for part in own_parts if part not in given_parts],
        unused=[part for part in given_parts if part not in own_parts],
    )


def _part(name: str) -> str:
    match = PART.match(name)
    assert match is not None
    return match[0]


def _parts(names: Mapping[str, object]) -> list[str]:
    return list(dict.fromkeys(map(_part, names)))


def _other_outputs(name: str, value: Tensor, wanted: Size) -> bool:
    """Whether a head's tensor differs in its first axis, the outputs', and in nothing else."""
    differs = value.shape != wanted and value.shape[1:] == wanted[1:]
    return name.startswith("heads.") and differs
