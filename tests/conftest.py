"""Fixtures for all tests."""

import logging
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets beside the checkout; skips where it is absent."""
    folder = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"needs the real data sets in {folder}")
    return folder


@pytest.fixture(autouse=True)
def _fresh_log() -> None:
    """The project's log as an import leaves it: runs in earlier tests send it to their folders."""
    log = logging.getLogger("dpt")
    log.disabled, log.propagate = False, True
    log.setLevel(logging.INFO)  # Hydra leaves the root at ERROR
    log.handlers.clear()
