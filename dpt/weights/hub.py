"""Models on the Hugging Face hub, by the name ``user/name``."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dpt.files import reason
from dpt.weights.card import CARD_FILE, is_generated, read_card
from dpt.weights.files import WEIGHT_SUFFIXES

if TYPE_CHECKING:
    from huggingface_hub import HfApi

log = logging.getLogger("dpt")


def is_hub_name(text: str) -> bool:
    """Returns whether a text has the form ``user/name``."""
    return re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", text) is not None


def locate(path: str | Path, revision: str | None = None) -> Path:
    """Returns a local file or folder, or the downloaded folder of ``user/name``.

    See :func:`from_hub` for ``revision``.
    """
    local = Path(path).expanduser()
    if revision is not None and local.exists():
        raise ValueError(f"{path}: is not on the hub, so revision={revision!r} cannot be chosen")
    if is_hub_name(str(path)) and not local.exists() and local.suffix not in WEIGHT_SUFFIXES:
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


def license_of(name: str) -> tuple[bool, str | None]:
    """Returns whether the hub has a model ``user/name``, and the licence that its card states."""
    from huggingface_hub import HfApi

    try:
        card = HfApi().model_info(name, timeout=10).card_data
    except Exception:  # of many libraries: no network, no such model, not a name
        return False, None
    return True, card.license if card else None


def require_token() -> None:
    """Raises ValueError if no token of the hub is set or stored."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise ValueError("no token of the Hugging Face hub: type hf auth login, or set HF_TOKEN")


@contextmanager
def _publishing(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of many libraries
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise ValueError(
            f"{name}: nothing was committed ({reason(cause)}): check the name, what the token may "
            "do, and the network, and type the command again"
        ) from error


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Uploads the files of a model to ``user/name`` in one commit, and returns its address.

    A card on the hub that a person wrote or edited is kept, with a warning.

    Raises:
        ValueError: the upload failed, or ``private`` and a public repository.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _publishing(name):
        exists = api.repo_exists(name)
        is_public = exists and not api.model_info(name).private
    if private and is_public:
        raise ValueError(f"{name}: is public on the hub: make it private there, or leave --private")
    with _publishing(name):
        kept = []
        if not exists:
            api.create_repo(name, private=private or None)
        elif _has_own_card(api, name):
            log.warning("%s: keeps its README.md, which dpt did not write; remove it there", name)
            kept.append(CARD_FILE)
        commit = api.upload_folder(
            repo_id=name,
            folder_path=folder,
            commit_message="Upload a model of dpt",
            ignore_patterns=kept,
        )
    return commit.commit_url


def _has_own_card(api: HfApi, name: str) -> bool:
    """Returns whether a repository has a card with a text that dpt did not write."""
    if not api.file_exists(name, CARD_FILE):
        return False
    with TemporaryDirectory(prefix="dpt-push-") as temporary:
        api.hf_hub_download(name, CARD_FILE, local_dir=temporary)
        card = read_card(Path(temporary))
    text = re.sub(r"\A---\n.*?\n---\s*", "", card, flags=re.DOTALL)
    return bool(text) and not is_generated(card)
