"""The page of ``dpt demo``, and a folder with it that any web server can serve.

The page (``dpt/templates/demo``) has two back ends: a server's :class:`dpt.Predictor`, or the model
as ONNX in onnxruntime-web. Which one, and what the model predicts, is in ``model.json`` beside it.
"""

import base64
import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from dpt.exporting import files
from dpt.files import reason, required_file, write_bytes
from dpt.model import DPT
from dpt.predict import Predictor, writers
from dpt.predict.prediction import first_output
from dpt.types.outputs import OutputSpec, tensor_specs
from dpt.types.preprocessing import Preprocessing
from dpt.validation import Plain, to_plain
from dpt.viz import color_table, output_palette
from dpt.weights.files import writing

MAX_PIXELS = 50_000_000  # of an image that is predicted; dpt.files limits what is decoded
MAX_BYTES = 30_000_000  # of an uploaded file
PAGE = Path(__file__).parent / "templates" / "demo"
RUNTIME = "onnxruntime-web@1.30.0"
RUNTIME_SHA512 = (  # of the package, in base64, as npm states it
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
MAX_SECONDS = 600  # for npm to fetch the package
_REMEDY = f"give --web-runtime DIR, the folder dist of {RUNTIME}"


def page_facts(backend: str, name: str, outputs: Mapping[str, OutputSpec]) -> Plain:
    """Returns the content of ``model.json`` for the back end ``server`` or ``onnx``.

    Args:
        name: of the model.
    """
    return {
        "backend": backend,
        "name": name,
        "title": " and ".join(outputs).capitalize(),
        "max_bytes": MAX_BYTES,
        "max_pixels": MAX_PIXELS,
        "colors": {key: color_table(key).tolist() for key in ("inferno", "viridis")},
    }


def output_facts(spec: OutputSpec, folder: str) -> Plain:
    """Returns what the page must know of an output; ``folder`` names its downloads."""
    palette, is_inverse = output_palette(spec).tolist(), spec.is_inverse_depth
    declared = asdict(replace(spec, record=None, extra=()))
    return declared | {"folder": folder, "palette": palette, "is_inverse_depth": is_inverse}


def write_page(
    model: DPT, folder: Path, write: Callable[[Path], str], runtime: Path | None = None
) -> str:
    """Writes the page, the model and onnxruntime-web into a new folder.

    Args:
        model: what ``write`` exports.
        folder: does not exist yet, or is empty.
        write: exports the model, or some of its heads, to the path of an ``.onnx`` file, and
            returns a report.
        runtime: a folder with the files of onnxruntime-web's ``dist``; None fetches the package
            by npm, and compares its hash.

    Returns:
        The report, and how to serve the folder.

    Raises:
        ValueError: the page cannot run such a model, or something cannot be had or written.
            Nothing is left behind then.
    """
    _check_preprocessing(model.preprocessing)
    with files.folder_beside(folder) as temporary:
        page = temporary / folder.name
        with writing(folder):
            shutil.copytree(PAGE, page)
            _copy_runtime(runtime, page / "ort")
        report = write(page / "model.onnx").replace(str(temporary), str(folder.parent))
        facts = onnx_facts(Predictor(page / "model.onnx"), model.config.name)
        write_bytes(page / "model.json", json.dumps(facts).encode())
    return f"{report}\n  serve    python -m http.server --directory {folder}"


def onnx_facts(predictor: Predictor, name: str) -> Plain:
    """Returns ``model.json`` for an exported file; ValueError if the page cannot merge an output's
    masks."""
    declared, sky = predictor.outputs, predictor.sky_output
    masks = [n for n, spec in declared.items() if spec.kind == "masks"]
    if masks:
        raise ValueError(f"{masks[0]}: the page merges no masks: use dpt demo, or --task")
    depth, folders = first_output(declared, "depth"), writers.folder_names(declared)
    outputs = []
    for tensor, network in tensor_specs(predictor.runtime.predictions).items():
        array = network.array.name
        facts = output_facts(declared[array], folders.get(array, array))
        facts |= {"tensor": tensor, "network_range": network.array.value_range}
        outputs.append(facts | {"is_log_variance": network.kind == "log_variance"})
    return page_facts("onnx", name, declared) | {
        "preprocessing": to_plain(predictor.preprocessing),
        "calibration": to_plain(predictor.calibration),
        "depth": depth and depth.name,  # that the calibration and the sky are for
        "sky": sky and {"name": sky.name, "threshold": sky.threshold},
        "outputs": outputs,
    }


def _check_preprocessing(rule: Preprocessing) -> None:
    """Raises ValueError for models whose images the page cannot prepare."""
    if not rule.is_rgb or rule.is_framed:
        fault = f"resize={rule.resize}" if rule.is_rgb else "bands"
        raise ValueError(f"--web: the page has no {fault}, which this model needs: use dpt demo")


def _copy_runtime(source: Path | None, target: Path) -> None:
    """Copies onnxruntime-web from the folder ``source``, or from npm's package, to ``target``."""
    target.mkdir()
    with TemporaryDirectory() as folder:
        source = source or _fetch_runtime(Path(folder))
        for name in RUNTIME_FILES:
            shutil.copyfile(required_file(source / name, remedy=_REMEDY), target / name)


def _fetch_runtime(folder: Path) -> Path:
    """Returns the folder ``dist`` of onnxruntime-web, from npm by way of ``folder``."""
    # on Windows it is a .cmd
    command = [shutil.which("npm") or "npm", "pack", RUNTIME, "--pack-destination", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=MAX_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError(
            f"npm pack {RUNTIME}: {reason(error)}: install npm, or {_REMEDY}"
        ) from None
    (package,) = folder.glob("*.tgz")
    digest = base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()
    if digest != RUNTIME_SHA512:
        raise ValueError(f"npm pack {RUNTIME}: not the file whose hash is known: {_REMEDY}")
    shutil.unpack_archive(package, folder, filter="data")
    return folder / "package" / "dist"
