"""What a folder of unknown contents holds, for ``dpt fit``.

A layout is a function from a :class:`Folder` to the settings of ``data`` that read it. ``LAYOUTS``
lists them and the first match wins. Two readings that would train different models are a question
to the user: a DataError that names the settings that decide.
"""

from pathlib import Path

from dpt.data.layouts.coco import match_coco
from dpt.data.layouts.folder import Detected, Folder, Layout, Row
from dpt.data.layouts.pairs import match_pairs
from dpt.files import DataError, files_below, printable
from dpt.validation import PlainMapping

__all__ = ["LAYOUTS", "Detected", "Folder", "Layout", "Row", "detect"]

LAYOUTS: tuple[Layout, ...] = (match_coco, match_pairs)
_MAX_FILES = 500_000


def detect(root: Path, given: PlainMapping) -> Detected:
    """Finds out what the folder holds.

    Args:
        given: keys of ``data`` that are set already.

    Raises:
        DataError: no image, labels without images, a file that cannot be read, or two readings that
            would give different results.
    """
    if not root.is_dir():
        fault = "is a file, not a folder" if root.exists() else "does not exist"
        raise DataError(f"{root}: {fault}: give the folder that holds the images")
    folder = Folder(root, _paths_of_data(root), given)
    for match in LAYOUTS:
        detected = match(folder)
        if detected is not None:
            return detected
    raise DataError(f"{root}: no known layout: give the folder that holds images and labels")


def _paths_of_data(root: Path) -> list[str]:
    """Returns the paths below a folder, those of upper folders first, without those of runs."""
    files = files_below(root, limit=_MAX_FILES)
    runs = set()
    for config in (path for path in files if path.name == "config.yaml"):
        if (config.parent / "checkpoints").is_dir():
            runs.add(config.parent)
        run = config.parent.parent  # of dpt fit that ended before training
        if config.parent.name == "data_check" and (run / "pairs.csv").is_file():
            runs.add(run)
    paths = [p.relative_to(root).as_posix() for p in files if runs.isdisjoint(p.parents)]
    for path in paths:
        if printable(path) != path:
            raise DataError(f"{root}: {printable(path)}: the name is not UTF-8: rename the file")
    return sorted(paths, key=lambda path: (path.count("/"), path))
