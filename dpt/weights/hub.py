"""Models on the Hugging Face hub, by the name ``user/name``."""

import re
from pathlib import Path

from dpt.files import reason
from dpt.weights.files import WEIGHT_SUFFIXES


def locate(path: str | Path, revision: str | None = None) -> Path:
    """Returns a local file or folder, or the downloaded folder of ``user/name``.

    See :func:`from_hub` for ``revision``.
    """
    local = Path(path).expanduser()
    if revision is not None and local.exists():
        raise ValueError(f"{path}: is not on the hub, so revision={revision!r} cannot be chosen")
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(path))
    if is_name and not local.exists() and local.suffix not in WEIGHT_SUFFIXES:
        return from_hub(str(path), revision)
    return local


def from_hub(name: str, revision: str | None = None) -> Path:
    """Downloads ``user/name`` at a branch, tag or commit, and returns the folder.

    Raises:
        ValueError: there is no such repository, no permission or no network.
    """
    from huggingface_hub import snapshot_download

    try:
        for weights in ("*.safetensors", "*.bin"):
            patterns = ["*.json", weights]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
            if any(folder.glob(weights)):
                break
    except Exception as error:  # of many libraries
        raise ValueError(
            f"{name}: no such file or folder here, and it cannot be fetched from the hub "
            f"({reason(error)}): check the name and the network, or give a local folder or file"
        ) from error
    return folder


def has_hub_file(name: str, file: str) -> bool:
    """Whether a file of ``user/name`` is in the cache, or the hub offers it within 3 s."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, file), str):
        return True
    try:
        get_hf_file_metadata(hf_hub_url(name, file), timeout=3.0)
    except Exception:  # of many libraries: no network, no such file, offline mode
        return False
    return True
