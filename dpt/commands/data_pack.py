"""``dpt data pack data=NAME out=DIR``: writes a data set as shards that can be streamed."""

import logging
from pathlib import Path

from dpt.config.data import loader_settings, make_dataset
from dpt.data.shards.packed import pack_split
from dpt.files import plural
from dpt.validation import PlainMapping, validate

log = logging.getLogger("dpt")

MEGABYTE = 10**6


def pack(cfg: PlainMapping) -> None:
    """Packs splits of a data set into ``out``; ``cfg`` is plain data (``conf/data_pack.yaml``)."""
    data = cfg.get("data")
    if data is None:
        raise ValueError("data must be given: dpt data pack data=NAME out=DIR (see -h)")
    settings = loader_settings(data)
    splits = [cfg["split"]] if isinstance(cfg["split"], str) else cfg["split"]
    size = validate(float, cfg["shard_mb"], "shard_mb")
    if not 0 < size < 1e9:
        raise ValueError(f"shard_mb={size:g}: must be above 0 megabytes and below 1e9")
    folder = Path(validate(str, cfg["out"], "out")).expanduser()
    if "cache" in data:
        data = {**data, "cache": False}  # a cache may scale images down
    for split in validate(list[str], splits, "split"):
        index = pack_split(
            make_dataset(data, split),
            folder,
            split=split,
            shard_size=int(size * MEGABYTE),
            shuffle=split == "train",  # video frames are then not neighbours
            num_workers=settings.num_workers,
            skip_broken=settings.on_error == "skip",
        )
        samples = sum(shard.samples for shard in index.shards)
        megabytes = sum(s.size for s in index.shards) / MEGABYTE
        content = f"{plural(samples, 'sample')} in {plural(len(index.shards), 'shard')}"
        log.info("%s: %s, %.1f MB", split, content, megabytes)
    log.info("train with data=packed data.root=%s", folder)
