"""``dpt data pack data=NAME out=DIR``: writes a data set as shards that can be streamed."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dpt.config import build
from dpt.config.objects import convert
from dpt.data.shards.pack import pack_split
from dpt.run_log import tracked

log = logging.getLogger("dpt")

MEGABYTE = 10**6


def pack(cfg: Mapping[str, Any]) -> None:
    """Packs splits of a data set into ``out``.

    Args:
        cfg: as plain data (``conf/data_pack.yaml``).

    Raises:
        ValueError: a file that cannot be read, or an ``out`` that holds other data or is full.
    """
    data = cfg.get("data")
    if data is None:
        raise ValueError("which data set? dpt data pack data=NAME out=DIR; see dpt data pack -h")
    settings = build.loader_settings(data)
    splits = [cfg["split"]] if isinstance(cfg["split"], str) else cfg["split"]
    size = convert(cfg["shard_mb"], float, "shard_mb")
    if size <= 0:
        raise ValueError(f"shard_mb={size:g}: must be above 0 megabytes")
    shuffle = convert(cfg["shuffle"], bool, "shuffle")
    folder = Path(convert(cfg["out"], str, "out")).expanduser()
    if "cache" in data:
        data = {**data, "cache": False}  # which may scale photos down
    for split in convert(splits, list[str], "split"):
        dataset = build.make_dataset(data, split)
        index = pack_split(
            dataset,
            folder,
            split=split,
            source=_what(data, split),
            shard_size=int(size * MEGABYTE),
            shuffle_seed=0 if shuffle and split == "train" else None,
            num_workers=settings.num_workers,
            skip_broken=settings.on_error == "skip",
            watch=partial(tracked, title=f"packing {split}"),
        )
        megabytes = sum(shard.size for shard in index.shards) / MEGABYTE
        left_out = f", {len(index.skipped)} left out" if index.skipped else ""
        log.info("%s: %d samples in %d shards, %.1f MB%s",
                 split, index.samples, len(index.shards), megabytes, left_out)  # fmt: skip
    log.info("train from it with data=packed data.root=%s", folder)


def _what(data: Mapping[str, Any], split: str) -> dict[str, Any]:
    """The settings that decide what the samples are."""
    own = {k: v for k, v in data.items() if k not in build.LOADER_KEYS} | (data.get(split) or {})
    return json.loads(json.dumps(own, default=str))
