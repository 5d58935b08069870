"""``conf/protocol``: how the model is asked, and how its answers are scored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from dpt.config.objects import check_arguments
from dpt.metrics.depth import PredictionKind
from dpt.metrics.protocols import (
    Alignment,
    Box,
    Crop,
    DepthProtocol,
    Space,
    ValidRule,
    changes,
)
from dpt.nn.tta import Model, augmented


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """The settings of ``conf/protocol/_base.yaml``, which explains them."""

    name: str
    min_depth: float
    max_depth: float | None
    crop: Crop | Box
    kb_crop: bool
    valid_rule: ValidRule
    alignment: Alignment | None
    space: Space | None
    flip: bool
    scales: tuple[float, ...]
    window: tuple[int, int] | None
    stride: tuple[int, int] | None
    boundary: float | None

    def depth(self, *, kind: PredictionKind, max_depth: float) -> DepthProtocol:
        """How depth is scored.

        Args:
            kind: of the prediction.
            max_depth: the data's, in metres, where the protocol sets none.
        """
        own: Alignment = "none" if kind == "metric" else "scale_shift"
        return DepthProtocol(
            min_depth=self.min_depth,
            max_depth=self.max_depth or max_depth,
            crop=self.crop,
            kb_crop=self.kb_crop,
            valid_rule=self.valid_rule,
            alignment=self.alignment or own,
            space=self.space,
        )

    def ask(self, model: Model, *, multiple_of: int) -> Model:
        """``model`` as the protocol asks it."""
        return augmented(
            model,
            flip=self.flip,
            scales=self.scales,
            window=self.window,
            stride=self.stride,
            multiple_of=multiple_of,
        )

    def words(self) -> str:
        """How the model is asked, as a sentence."""
        looks = ["at one scale" if self.scales == (1.0,) else f"at scales {list(self.scales)}"]
        if self.window is not None:
            looks.append("through a window of {}x{} pixels".format(*self.window))
        if self.flip:
            looks.append("and mirrored")
        return f"Images are seen {' '.join(looks)}, and scored at the label's own resolution."


def read_protocol(node: Mapping[str, Any]) -> Protocol:
    """The protocol of plain data; a ValueError names the key that is wrong."""
    return Protocol(**check_arguments(Protocol, node, "protocol"))


def settings(protocol: Protocol, depth: DepthProtocol | None, *, asked: bool) -> dict[str, Any]:
    """What was used, for ``metrics.json``.

    Args:
        protocol: of the run.
        depth: how depth was scored, if it was.
        asked: whether a model was; predictions from files are as they are.
    """
    used: dict[str, Any] = {}
    if asked:
        used = {k: getattr(protocol, k) for k in ("flip", "scales", "window", "stride")}
    if depth is not None:
        used |= asdict(depth)
        used["changed"] = ", ".join(f"{k}={v}" for k, v in changes(depth, protocol.name).items())
    plain = {k: str(list(v)) if isinstance(v, tuple) else v for k, v in used.items()}
    return {"protocol": protocol.name} | {
        f"protocol/{k}": v for k, v in plain.items() if v not in (None, "")
    }
