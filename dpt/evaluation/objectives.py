"""Objectives that score a finished model."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from dpt.config.build import LABEL_NAMES
from dpt.evaluation.protocol import Protocol
from dpt.objectives import OBJECTIVES, Objective
from dpt.types import DatasetInfo

log = logging.getLogger("dpt")


def objectives_of(
    heads: Mapping[str, Mapping[str, Any]], data: Any, protocol: Protocol
) -> dict[str, Objective]:
    """Objectives for scoring predictions on data: one for each head that can be scored.

    Args:
        heads: options of each head, as a finished model's spec has them.
        data: the data set.
        protocol: how to score.
    """
    info: DatasetInfo = data.info
    objectives: dict[str, Objective] = {}
    for name, options in heads.items():
        cls: Any = OBJECTIVES.get(name)
        if cls is None:
            raise ValueError(f"nothing scores the head {name}: add its class to OBJECTIVES")
        if cls.target not in info.targets:
            continue
        if name == "depth":
            rules = protocol.depth(kind=options["kind"], max_depth=info.max_depth or math.inf)
            if info.max_depth is not None and rules.max_depth > info.max_depth:
                log.warning(
                    "protocol.max_depth=%g m, but the data leaves out depths beyond "
                    "data.max_depth=%g m", rules.max_depth, info.max_depth,
                )  # fmt: skip
            objectives[name] = cls(
                kind=options["kind"], max_depth=rules.max_depth, protocol=rules, detailed=True
            )
        elif "num_classes" not in options:
            objectives[name] = cls()
        else:
            is_dense = cls.target == "labels"
            names = info.class_names if is_dense else data.class_id_names
            found = options["num_classes"]
            if len(names) != found:
                raise ValueError(
                    f"the checkpoint's {name} head has {found} classes, but the data has "
                    f"{len(names)}: evaluate on the data it was trained for"
                )
            extra = {}
            if is_dense:
                extra = {"class_names": names, "boundary": protocol.boundary}
            objectives[name] = cls(num_classes=found, **extra)
    if not objectives:
        raise ValueError(
            f"nothing to score: the checkpoint predicts {', '.join(heads)}, the data "
            f"gives {', '.join(LABEL_NAMES[t] for t in info.targets) or 'pictures'}"
        )
    return objectives
