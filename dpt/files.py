"""Safe reading of files from outside the project, atomic writing, and locks.

Only regular files are read, up to a size limit: a FIFO or a device in their place would block or
never end, and a small file can describe data that fill the memory. Code that reads such files uses
these functions, and checks sizes before decoding. After a crash a file that was written atomically
is complete, or absent or as it was before.
"""

import codecs
import csv
import difflib
import errno
import importlib
import io
import json
import math
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

MAX_PIXELS = 175_000_000
"""Largest picture or map that is read: more than any camera's, less than Pillow's own limit."""
MAX_BYTES = 8 * MAX_PIXELS
"""Largest file that is read as a whole, and largest array in a file: 16-bit RGBA, or float64."""
MAX_FILES = 20_000_000
"""Largest number of files and folders below a folder."""
SCHEMES = ("file", "http", "https", "s3", "gs", "az")
"""What an address may begin with."""
MAX_MESSAGE = 4000
"""Largest length of an error's message, which may quote a file."""
COPY_AGAIN = "copy or download it again"
_NOT_ENTERED = ("/proc/", "/sys/")
_MAX_YAML = 1 << 20
_MAX_LEVELS = 50  # of mappings and lists in a YAML file
_WRITTEN_IN_PLACE = ("log.txt", ".lock", "wandb_id.txt", "nonfinite.csv")
_LOGGERS = ("csv", "tensorboard", "wandb")  # whose folders are in that of the run
_MAX_NODES = 50_000  # of a YAML file


_REMEDIES = {
    errno.ENOSPC: "free disk space",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.EPIPE: "the program that reads it has ended",
}


class DataError(ValueError):
    """A mistake in the data or in its configuration: one line with the file and the remedy.

    A DataLoader re-raises a worker's exception as ``type(error)("Caught ... Original Traceback
    ...")``; the message is cut back to the original one.
    """

    def __init__(self, message: str) -> None:
        if message.startswith(f"Caught {type(self).__name__} in ") and "Traceback" in message:
            own_name = f"{type(self).__module__}.{type(self).__qualname__}: "
            message = message.rpartition(own_name)[2].strip()
        super().__init__(" ".join(printable(message).splitlines())[:MAX_MESSAGE])


def data_root(root: str | Path) -> Path:
    """Returns the folder of a data set; DataError if it does not exist."""
    if "://" in str(root):  # an address may hold a password, which a path would show
        raise DataError(f"data.root={root}: data sets are read from folders: download it first")
    path = Path(root).expanduser()
    if not path.is_dir():
        raise missing_path(path, what="folder", remedy="check data.root or paths.data_dir")
    return path


def real_path(path: Path) -> Path:
    """Returns the file that a link leads to; ``Path.resolve`` fails for links in a circle."""
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: not a file name: check the path")
    return Path(os.path.realpath(path))


def path_below(root: Path, name: str, source: str | Path) -> Path:
    """Returns the file that a list or table names by its path from ``root``, or by an absolute
    path.

    Backslashes may separate folders, and the suffix may differ in capitals.

    Raises:
        DataError: the path leads out of ``root``; ``source`` names the list or table.
    """
    path = Path(os.path.normpath(root / name))
    if not os.path.isfile(path):  # False for impossible names, too
        other = Path(os.path.normpath(root / name.replace("\\", "/")))
        stem, suffix = os.path.splitext(other)
        cases = [Path(stem + text) for text in (suffix, suffix.lower(), suffix.upper())]
        path = next((case for case in cases if os.path.isfile(case)), other)
    if Path(os.path.abspath(path)).is_relative_to(os.path.abspath(root)):
        return path
    real, real_root = real_path(path), real_path(root)  # root may be given by a link
    if not real.is_relative_to(real_root):
        raise DataError(f"{source}: {name} is not below {root}: copy the file there")
    return root / real.relative_to(real_root)


def file_identity(path: str | Path) -> tuple[int, int] | None:
    """Returns device and inode of the file that a path leads to, which are the same for all names
    of the file; None if there is no file."""
    with suppress(OSError, ValueError):  # ValueError: a null byte in the name
        status = os.stat(path)
        return status.st_dev, status.st_ino
    return None


def refuse_inputs(target: Path, inputs: Iterable[str | Path]) -> None:
    """Raises ValueError if ``target``, which is going to be written, is one of the input files."""
    for path in inputs:
        if file_identity(target) == file_identity(path) is not None:
            raise ValueError(f"{target}: is the input {path}, not replaced: give another path")


def require_new(path: Path) -> None:
    """Raises DataError if there is anything at a path to write to but an empty folder."""
    if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
        raise DataError(f"{path}: exists already: give a new path")


def checked_address(address: str) -> str:
    """Returns an address with its scheme in small letters.

    Raises:
        DataError: it is not of a known scheme, or names several places: a chain such as ``zip::``,
            or another scheme of fsspec, may run code of the file that it names.
    """
    scheme, _, rest = address.partition("://")
    if scheme.lower() not in SCHEMES or "::" in address:
        raise DataError(f"{address}: must be an address of {', '.join(SCHEMES)}, without ::")
    return f"{scheme.lower()}://{rest}"


def missing_path(path: Path, *, what: str, remedy: str) -> DataError:
    """Returns the error for a path that does not exist, or not as ``what``, with similar names."""
    if os.path.exists(path):
        return DataError(f"{what} {path} is a {'folder' if path.is_dir() else 'file'}: {remedy}")
    if os.path.islink(path):
        return DataError(f"{what} {path} is a link to {path.readlink()}, which is not there")
    parent = next(folder for folder in path.parents if os.path.isdir(folder))
    names = sorted(p.name for p in parent.iterdir() if not p.name.startswith("."))
    close = difflib.get_close_matches(path.relative_to(parent).parts[0], names, n=5, cutoff=0.5)
    others = [name for name in names if name not in close]
    listed = few([*close, *others], 10) or "nothing"
    return DataError(f"{what} {path} does not exist; {parent} holds {listed}: {remedy}")


def plain_name(name: str) -> str:
    """Returns a name in the composed form of Unicode (NFC); names on macOS may be decomposed."""
    return unicodedata.normalize("NFC", name)


def required_file(path: Path, *, what: str = "file", remedy: str) -> Path:
    """Returns ``path``; DataError if it is no file."""
    if not os.path.isfile(path):
        raise missing_path(path, what=what, remedy=remedy)
    return path


def require(name: str, purpose: str, *, extra: str) -> Any:
    """Returns the optional package ``name``; DataError names the extra that installs it."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # of many types, if it was built for another torch or NumPy
        install = f"pip install 'dense-prediction-transformers[{extra}]'"
        fault = "" if isinstance(error, ModuleNotFoundError) else f", which fails ({reason(error)})"
        raise DataError(f"{purpose} needs {name}{fault}: {install}") from None


def check_pixels(path: str | Path, height: int, width: int) -> None:
    """Raises DataError if a picture or map is larger than ``MAX_PIXELS``."""
    if height * width > MAX_PIXELS:
        fault = f"has more than {MAX_PIXELS / 1e6:g} million pixels, the limit"
        raise DataError(f"{path}: {fault}: cut or shrink it")


def check_bytes(path: str | Path, shape: Sequence[int], item_bytes: int) -> None:
    """Raises DataError if an array in a file is larger than ``MAX_BYTES``."""
    if math.prod(shape) * item_bytes > MAX_BYTES:
        fault = f"{tuple(shape)} takes more than {MAX_BYTES / 1e6:g} MB, the limit"
        raise DataError(f"{path}: {fault}: cut or shrink it")


@contextmanager
def decoding(path: str | Path, kind: str) -> Iterator[None]:
    """Turns an error of any library (OSError, KeyError, zlib.error, ...) into a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        text = re.sub(r"<_io\.\w+ object at \w+>", "by its first bytes", str(error))
        text = " ".join(text.replace(repr(str(path)), "the file").split())
        raise DataError(f"{path}: cannot be read as {kind} ({text}): {COPY_AGAIN}") from None


def few(names: Sequence[str], count: int = 3, separator: str = ", ") -> str:
    """Returns the first ``count`` names, for a message, and the number of further ones."""
    left = f" and {len(names) - count} more" if len(names) > count else ""
    return separator.join(names[:count]) + left


def plural(count: int, noun: str) -> str:
    """Returns ``1 image``, ``3 images``, ``3 classes`` or ``3 entries``."""
    plural_noun = re.sub("(?<![aeiou])y$", "ie", noun) + ("es" if noun.endswith("s") else "s")
    return f"{count} {noun if count == 1 else plural_noun}"


def reason(error: Exception) -> str:
    """Returns the class and message of another library's error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def explain(error: OSError) -> str:
    """Returns the message of an error of the system: the file, the fault and a remedy."""
    if error.errno is None:  # one of ours
        return str(error)
    source = error.filename2 or error.filename  # the target of a renaming
    if source is None:
        is_folder = error.errno in (errno.ENOENT, errno.ESTALE)
        source = "the working folder" if is_folder else "standard output or a file"
    remedy = _REMEDIES.get(error.errno, "check the path and permissions")
    return printable(f"{source}: {error.strerror}: {remedy}")


@contextmanager
def open_file(path: str | Path, *, limit: int | None = None) -> Iterator[BufferedReader]:
    """Opens a regular file, or the one that a link leads to, for reading.

    Raises:
        DataError: it does not exist, cannot be read, has more than ``limit`` bytes, or is a folder,
            a FIFO, a socket or a device.
    """
    if "\0" in str(path):
        raise DataError(f"{str(path)!r}: not a file name: check the path")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            kind = "folder" if stat.S_ISDIR(status.st_mode) else "FIFO, a socket or a device"
            raise DataError(f"{path}: is a {kind}, not a file: check the path")
        if limit is not None and status.st_size > limit:
            raise DataError(f"{path}: has more than {limit} bytes: check that it is the right file")
        with open(path, "rb") as file:
            yield file
    except (FileNotFoundError, NotADirectoryError):
        raise missing_path(Path(path), what="file", remedy="check the path") from None
    except OSError as error:
        error.filename = error.filename or str(path)
        raise DataError(explain(error)) from None


def read_bytes(path: str | Path, *, limit: int = MAX_BYTES) -> bytes:
    """Returns the content of a file; errors as :func:`open_file`."""
    with open_file(path, limit=limit) as file:
        return file.read()


def read_text(path: str | Path, *, limit: int = MAX_BYTES) -> str:
    """Returns the content of a file in UTF-8; errors as :func:`open_file`."""
    try:
        return read_bytes(path, limit=limit).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}: not a text file in UTF-8: save it as UTF-8") from None


def parse_json(text: str | bytes, source: str | Path) -> Any:
    """Returns plain data from JSON; DataError with ``source`` for other texts and for too deep
    nesting."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}: not usable JSON ({error})") from None


def parse_as(kind: Any, text: bytes, source: str | Path, *, what: str, remedy: str) -> Any:
    """Returns data of the type of a pydantic ``TypeAdapter`` from JSON; DataError names the wrong
    key."""
    from pydantic import ValidationError  # not needed by most users of this module

    try:
        return kind.validate_json(text.removeprefix(codecs.BOM_UTF8))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        fault = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise DataError(f"{source}: not {what} ({fault}): {remedy}") from None


def read_yaml(path: str | Path) -> Any:
    """Returns the plain data of a YAML file, see :func:`parse_yaml`; it is at most a megabyte."""
    return parse_yaml(read_text(path, limit=_MAX_YAML), path)


def parse_yaml(text: str, path: str | Path) -> Any:
    """Returns the plain data of YAML: mappings, lists, texts, numbers, booleans and null.

    Raises:
        DataError: it is not YAML, is nested too deep, has too many values, a key twice, tags or
            dates, or holds aliases, with which a short text can describe data of any size; ``path``
            names its file.
    """
    import yaml  # not needed by most users of this module

    level, count = 0, 0
    try:
        for event in yaml.parse(text, yaml.SafeLoader):
            count += 1
            level += isinstance(event, yaml.CollectionStartEvent)
            level -= isinstance(event, yaml.CollectionEndEvent)
            is_alias = isinstance(event, yaml.AliasEvent)
            if is_alias or level > _MAX_LEVELS or count > _MAX_NODES:
                fault = f"holds an alias, more than {_MAX_LEVELS} levels or {_MAX_NODES} values"
                raise DataError(f"{path}: {fault}: write fewer values, without aliases")
        return yaml.load(text, _plain_loader())
    except (yaml.YAMLError, ValueError) as error:  # ValueError: of numbers with too many digits
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from None


@cache
def _plain_loader() -> Any:
    """Returns the class of a YAML loader that knows plain data alone, and refuses repeated keys."""
    import yaml

    class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            values = super().construct_mapping(node, deep=True)
            if len(values) < len(node.value):
                raise yaml.YAMLError(f"a key stands twice {node.start_mark}")
            return values

    known = yaml.SafeLoader.yaml_constructors
    tags = ("null", "bool", "int", "float", "str", "seq", "map")
    PlainLoader.yaml_constructors = {
        tag: known[tag] for tag in (None, *(f"tag:yaml.org,2002:{name}" for name in tags))
    }
    return PlainLoader


def config_dir() -> Path:
    """Returns the folder of configuration files: the repository's in an editable install, otherwise
    the package's."""
    package = Path(__file__).parent
    for folder in (package.parent / "conf", package / "conf"):
        if (folder / "train.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no configuration files beside {package}: reinstall the package")


def run_folder(path: Path) -> Path:
    """Returns the folder of a run; ``path`` is that folder or a checkpoint in it."""
    return path.absolute().parent.parent if path.suffix == ".ckpt" else path


def require_own_files(folder: Path) -> None:
    """Refuses a run's folder through which files elsewhere would be changed.

    Raises:
        DataError: it holds a link that leads out of it, something that is no file or folder, or a
            log or lock that is a hard link, so that it is also a file elsewhere. If it is not the
            folder of a run yet, only log, lock and the folders of loggers are looked at.
    """
    inside = real_path(folder)
    is_run = (folder / "config.yaml").exists() or (folder / "checkpoints").exists()
    written = (folder / name for name in (*_WRITTEN_IN_PLACE, *_LOGGERS))
    for path in folder.rglob("*") if is_run else filter(os.path.lexists, written):
        # W&B links its own log in the folder of each start, in which no later one writes
        is_of_wandb = path.parent.parent != folder and folder / "wandb" in path.parents
        fault = "" if is_of_wandb else _leads_out(path, folder, inside)
        if fault:
            raise DataError(f"{path}: {fault}: remove it, or replace it by a copy")


def _leads_out(path: Path, folder: Path, inside: Path) -> str:
    """Returns why a file in a run's folder may not be there; empty if it may."""
    if path == folder / "wandb/settings":  # read by W&B if the command is started there
        return "W&B would take its server and its key from it"
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return "" if real_path(path).is_relative_to(inside) else "is a link out of the run's folder"
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return "is no file"
    is_shared = path.name in _WRITTEN_IN_PLACE and status.st_nlink > 1 and path.is_file()
    return "is also a file elsewhere (a hard link)" if is_shared else ""


def without_passwords(text: str) -> str:
    """Replaces by ``***`` what may be secret in addresses: ``name:word`` or a token before ``@``,
    and what follows a question mark."""
    text = re.sub(r"(\w://)([^\s/'\"]+|[^\s/:]+:(?!\d+/)[^\s@]+)@", r"\1***@", text)
    return re.sub(r"(\w://[^\s?'\"]*\?)[^\s'\")\]}]*[^\s'\")\]}:,]", r"\1***", text)


def printable(text: str | Path) -> str:
    """Returns a path or a text as UTF-8 can store it: other bytes become ``\\udcNN``."""
    return str(text).encode(errors="backslashreplace").decode()


def files_below(
    folder: Path, suffixes: Sequence[str] = ("",), *, limit: int = MAX_FILES
) -> list[Path]:
    """Returns the files of a folder and its sub-folders in order, without hidden ones.

    Links to folders are followed, but not to ``/proc`` and ``/sys``. A folder that is reached in
    several ways is entered once, if possible without a link.

    Raises:
        DataError: there are more than ``limit`` files and folders.
    """
    paths: list[Path] = []
    entered: set[tuple[int, int]] = set()
    starts = [str(folder)]
    for start in starts:  # the links to folders come last
        for parent, folders, names in os.walk(start):
            identity = file_identity(parent)
            is_system = f"{os.path.realpath(parent)}/".startswith(_NOT_ENTERED)
            if identity is None or identity in entered or is_system:  # None: was removed
                folders.clear()
                continue
            entered.add(identity)
            folders[:] = sorted(name for name in folders if name[0] != ".")
            starts += filter(os.path.islink, (os.path.join(parent, name) for name in folders))
            kept = (n for n in names if n[0] != "." and n.lower().endswith(tuple(suffixes)))
            paths += (Path(parent, name) for name in kept)
            if len(paths) + len(entered) > limit:
                raise DataError(f"{folder}: more than {limit} files: give one data set's folder")
    return sorted(paths)


def read_list(path: Path) -> list[str]:
    """Returns the lines of a text file that are neither blank nor comments (``#``)."""
    lines = (line.strip() for line in read_text(path).splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def read_cells(path: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Reads a CSV file whose first line is a header.

    Commas, semicolons or tabs separate the cells.

    Yields:
        The position of each line for messages, ``FILE: line N``, and the texts of its cells; as
        many as those of the header, "" where the line is too short.
    """
    with decoding(path, "a table"):
        text = read_text(path)
        separator = max(",;\t", key=text.partition("\n")[0].count)
        source = io.StringIO(text, newline="")
        rows = csv.reader(source, delimiter=separator, skipinitialspace=True, strict=True)
        count = 0  # of the cells of the header
        for row in rows:
            where = f"{path}: line {rows.line_num}"
            count = count or len(row)
            lines = [line for cell in row for line in cell.splitlines()[1:]]
            if any(row[count:]) or any(line.count(separator) >= count - 1 for line in lines):
                fault = f"{len(row)} cells for {count} columns, or a cell that holds further rows"
                raise DataError(f"{where}: {fault}: put texts with {separator!r} in closed quotes")
            if row:
                cells = [cell.strip() for cell in row[:count]]
                yield where, cells + [""] * (count - len(cells))


def read_table(
    path: str | Path, columns: Sequence[str], *, remedy: str
) -> Iterator[tuple[str, list[str]]]:
    """Reads ``columns`` of a CSV file as :func:`read_cells` does, without the header."""
    rows = read_cells(path)
    _, header = next(rows, ("", []))
    names = [cell.lower() for cell in header]
    absent = [column for column in columns if column.lower() not in names]
    repeated = [column for column in columns if names.count(column.lower()) > 1]
    if absent or repeated:
        fault = f"no column {', '.join(absent)}" if absent else f"several columns {repeated[0]}"
        raise DataError(f"{path}: {fault} (it has {few(header, 6)}): {remedy}")
    positions = [names.index(column.lower()) for column in columns]
    for where, cells in rows:
        yield where, [cells[k] for k in positions]


def parse_number(text: str) -> float:
    """Returns a number in plain ASCII; ValueError for others that ``float`` reads, as 1_0."""
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is not a plain number")
    return float(text)


@contextmanager
def replacing(path: Path, *, writer: str = "") -> Iterator[Path]:
    """Yields a temporary file name next to ``path``; after the block the file replaces ``path``.

    The temporary name is ``.part.`` + ``writer`` + ``path.name``; processes that may write one file
    at the same time need different writers. It keeps the suffix, because some writers
    derive the format from it. A temporary file of a killed process is removed first. If the block
    raises, the temporary file is removed. Missing folders are created. Symbolic links are
    replaced, never followed. Permissions are those of the umask, whatever the writer sets.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".part.{writer}{path.name}")
    temporary.unlink(missing_ok=True)
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        if temporary.stat().st_mode != mode:  # safetensors writes 0600
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk, a limit of a file
            error.filename = str(path)
        raise


def write_bytes(path: Path, data: bytes, *, writer: str = "") -> None:
    """Writes ``data`` to ``path`` atomically, see :func:`replacing`."""
    with replacing(path, writer=writer) as temporary:
        temporary.write_bytes(data)


@contextmanager
def locked(path: Path, *, fault: str = "", seconds: float = -1) -> Iterator[FileLock]:
    """Holds a lock file, which no other process can hold meanwhile.

    Args:
        fault: what the error says if another process still holds it after ``seconds``.
        seconds: to wait; for ever below 0.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise DataError(f"{path}: {fault}: wait until it has ended, or stop it") from None
    try:
        yield lock
    finally:
        lock.release()
