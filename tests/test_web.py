"""The page without a server: the folder that dpt export --web writes, and the page in Chromium.

Tests in the browser need playwright, Chromium, and onnxruntime-web: the environment variable
DPT_WEB_RUNTIME names the folder dist of its package.
"""

import base64
import hashlib
import json
import os
import shutil
import tarfile
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from photos import photo_of, save_picture, tiny
from PIL import Image
from servers import running, served

from dpt.commands import export as export_command
from dpt.data.view import resize_image
from dpt.demo import Demo, Site, make_server
from dpt.exporting.export import export
from dpt.functional import chunked_argmax, resize
from dpt.predict import Predictor
from dpt.types.preprocessing import Calibration, Interpolation, Preprocessing, ResizeRule
from dpt.validation import to_plain
from dpt.web import PAGE, RUNTIME_FILES, onnx_facts, write_page

HEADS = {"depth": {"kind": "metric", "max_depth": 10.0}, "segmentation": {"num_classes": 5}}


@pytest.fixture(scope="module")
def model():
    return tiny(HEADS)


@pytest.fixture
def runtime(tmp_path):
    """Files with the names of onnxruntime-web's."""
    folder = tmp_path / "package" / "dist"
    folder.mkdir(parents=True)
    for name in RUNTIME_FILES:
        (folder / name).write_text(name)
    return folder


@pytest.fixture
def npm(runtime, tmp_path, monkeypatch):
    """A program npm, which packs these files; the fixture is the hash of the package."""
    package = tmp_path / "runtime.tgz"
    with tarfile.open(package, "w:gz") as archive:
        archive.add(runtime.parent, "package")
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\n[ "$1" = pack ] && cp {package} "$4"/runtime.tgz\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return base64.b64encode(hashlib.sha512(package.read_bytes()).digest()).decode()


# The folder


@pytest.mark.slow
def test_export_web_writes_page_model_and_runtime(model, npm, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dpt.web.RUNTIME_SHA512", npm)
    model.save_pretrained(tmp_path / "model")
    out = tmp_path / "page"
    words = [str(tmp_path / "model"), str(out), "--web"]
    export_command.run(words)
    assert f"serve    python -m http.server --directory {out}" in capsys.readouterr().out
    names = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    own = {path.name for path in PAGE.iterdir()} | {"model.onnx", "model.json"}
    assert names == own | {f"ort/{name}" for name in RUNTIME_FILES}
    facts = json.loads((out / "model.json").read_text())
    assert facts["preprocessing"] == json.loads(json.dumps(vars(model.preprocessing)))
    assert [output["tensor"] for output in facts["outputs"]] == ["depth", "segmentation"]
    with pytest.raises(ValueError, match="page: exists"):
        export_command.run(words)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("hash", "not the file whose hash is known"),
        ("no npm", "--web-runtime"),
        ("missing", RUNTIME_FILES[2]),
        ("bands", "the page has no bands"),
        ("pad", "the page has no resize=pad"),
    ],
)
def test_page_that_cannot_be_had_leaves_nothing(
    fault, expected, model, npm, runtime, tmp_path, monkeypatch
):
    if fault == "no npm":
        monkeypatch.setenv("PATH", str(tmp_path))
    if fault == "missing":
        (runtime / RUNTIME_FILES[2]).unlink()
    if fault in ("bands", "pad"):
        settings = {"resize": "pad"} if fault == "pad" else {"pixels": "bands"}
        rule = Preprocessing(image_size=(48, 48), **settings)
        monkeypatch.setattr(model, "preprocessing", rule)
    given = None if fault in ("hash", "no npm") else runtime
    with pytest.raises(ValueError, match=expected) as refused:
        write_page(model, tmp_path / "page", str, given)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.glob("*page*"))


def test_page_takes_no_masks():
    model = tiny({"panoptic": {"num_classes": 2, "things": [1, 0], "num_queries": 4}})
    with pytest.raises(ValueError, match="panoptic: the page merges no masks"):
        onnx_facts(Predictor(model), "tiny")


# The page in the browser


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("needs Chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    flags = ["--no-sandbox", "--use-fake-device-for-media-stream", "--enable-unsafe-swiftshader"]
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=program, args=flags)


@pytest.fixture(scope="module")
def real_runtime():
    if "DPT_WEB_RUNTIME" not in os.environ:
        pytest.skip("needs onnxruntime-web: DPT_WEB_RUNTIME=DIR")
    return Path(os.environ["DPT_WEB_RUNTIME"])


class Visit:
    """An open page; ``requests`` are the addresses that it asked for."""

    def __init__(self, browser, address, **context):
        self.page = browser.new_context(**context).new_page()
        self.requests = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#inputs:visible")

    def array(self, name):
        with self.page.expect_download() as started:
            self.page.locator(f"[id='file_{name}_npy.npy']").click()
        return np.load(started.value.path())

    def check(self, photo, expected):
        """Compares what the page predicts."""
        self.page.set_input_files("#image", photo)
        self.page.wait_for_selector("#outputs figure")
        depth, scale = self.array("depth"), np.nanmax(np.abs(expected.depth))
        np.testing.assert_allclose(depth, expected.depth, rtol=0, atol=1e-3 * scale)
        assert (self.array("labels") == expected.labels).mean() >= 0.999

    def wait_for_status(self, text):
        self.page.locator("#status", has_text=text).wait_for()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["metric", "relative"])
def test_static_page_predicts_as_python(kind, browser, real_runtime, tmp_path):
    depth = HEADS["depth"] | {"sky": "sigmoid", "log_variance": True}
    model = tiny(HEADS | {"depth": depth if kind == "metric" else {"kind": "relative"}})
    if kind == "relative":
        model.calibration = Calibration(scale=0.3, shift=0.1)
    else:
        torch.nn.init.normal_(model.heads["depth"].branches["sky"].conv3.weight)
    write_page(model, tmp_path / "page", lambda p: str(export(model, p)), real_runtime)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    photo = save_picture(tmp_path / "photo.jpg", photo_of(70, 111), exif=exif, quality=95)
    expected = Predictor(model)(photo)
    assert expected.depth.shape == (111, 70)
    with served(tmp_path / "page") as address:
        visit = Visit(browser, f"{address}/")
        visit.check(photo, expected)
    assert "WASM, threads: 1" in visit.page.inner_text("#runtime")  # without the headers for more
    own = (f"{address}/", f"blob:{address}/", "data:")
    assert [url for url in visit.requests if not url.startswith(own)] == []


@pytest.mark.slow
def test_demo_shows_one_page_with_two_back_ends(model, browser, real_runtime, tmp_path):
    write_page(model, tmp_path / "page", lambda p: str(export(model, p)), real_runtime)
    photo = save_picture(tmp_path / "photo.png", photo_of(90, 120))
    predictor, shown = Predictor(model), []
    expected = predictor(photo)
    for site in (Demo(predictor, name="tiny"), Site(tmp_path / "page")):
        server = make_server(site, host="127.0.0.1", port=0)
        with running(server):
            visit = Visit(browser, f"http://127.0.0.1:{server.server_port}/")
            visit.check(photo, expected)
            page = visit.page
            page.locator("#output_depth canvas").hover(position={"x": 241, "y": 181})
            page.click("#output_depth .space")
            assert "field of view 60°, assumed" in page.inner_text("#output_depth .view")
            shown.append([page.inner_text(name) for name in (".value", ".ticks", ".class")])
            assert page.evaluate("crossOriginIsolated")
    assert shown[0] == shown[1]
    place, _, value = shown[0][0].partition(": ")
    assert place == "x 60, y 45"
    assert float(value.removesuffix(" m")) == pytest.approx(expected.depth[45, 60], abs=1e-3)
    cores = min(8, page.evaluate("navigator.hardwareConcurrency"))
    assert f"WASM, threads: {cores}" in page.inner_text("#runtime")


@pytest.mark.slow
def test_demo_page_says_what_is_wrong_in_a_line(model, browser, tmp_path):
    server = make_server(Demo(Predictor(model), name="<b>tiny"), host="127.0.0.1", port=0)
    with running(server):
        address = f"http://127.0.0.1:{server.server_port}/"
        visit = Visit(browser, address, permissions=[])
        assert visit.page.inner_text("#model").startswith("<b>tiny. ")
        visit.page.click("#camera")
        visit.wait_for_status("camera: ")
        assert "allow it in the browser, or choose an image" in visit.page.inner_text("#status")
        (tmp_path / "bad.png").write_bytes(b"no picture")
        visit.page.set_input_files("#image", tmp_path / "bad.png")
        visit.wait_for_status("bad.png: image")

        page = Visit(browser, address, permissions=["camera"]).page
        page.click("#camera")
        page.wait_for_selector("#output_depth canvas")
        page.click("#camera")
        assert page.inner_text("#camera") == "Camera"
    page.goto((PAGE / "index.html").as_uri())
    page.locator("#serve", has_text="python -m http.server").wait_for()  # visible


CALL = """async ([name, first, ...given]) =>
  Array.from((await import("/resample.js"))[name](Float32Array.from(first), ...given))"""
SIZES = [((50, 70), (32, 48)), ((20, 30), (32, 48)), ((64, 96), (32, 48))]


@pytest.fixture
def javascript(browser):
    """Calls a function of resample.js with an array and further arguments."""
    with served(PAGE) as address:
        page = browser.new_page()
        page.goto(f"{address}/page.css")
        yield lambda name, array, *given: page.evaluate(
            CALL, [name, array.ravel().tolist(), *given]
        )


@pytest.mark.slow
@pytest.mark.parametrize("rule", get_args(Interpolation))
def test_page_resizes_images_as_python(rule, javascript):
    for size, target in SIZES:
        image = np.dstack([photo_of(*size), np.full(size, 255, np.uint8)])
        found = np.reshape(javascript("resizeImage", image, size, target, rule), (*target, 4))
        expected = resize_image(np.ascontiguousarray(image[..., :3]), target, rule)
        off = np.abs(found[..., :3] - expected)
        assert off.max() <= (0.01 if rule == "cubic_float" else 1)  # rounded at other places
        assert off.mean() < 0.15


@pytest.mark.slow
def test_page_resizes_maps_as_python(javascript):
    maps = torch.randn(1, 6, 9, 12)
    for rule in ("bilinear_aligned", "bilinear", "bicubic"):
        found = javascript("resample", maps[0, 0].numpy(), [9, 12], [31, 20], 1, rule)
        np.testing.assert_allclose(found, resize(maps[:, :1], (31, 20), rule).ravel(), atol=1e-5)
    found = javascript("argmax", maps.numpy(), 6, [9, 12], [31, 20], "bilinear_aligned")
    assert found == chunked_argmax(maps, (31, 20)).flatten().tolist()


@pytest.mark.slow
@pytest.mark.parametrize("resize_rule", sorted({*get_args(ResizeRule)} - {"pad", "windows"}))
def test_page_chooses_the_size_of_the_input_as_python(resize_rule, browser):
    code = "async ([rule, sizes]) => { const m = await import('/resample.js'); "
    code += "return sizes.map(size => m.inputSize(rule, size)); }"
    rule = Preprocessing(image_size=(370, 518), resize=resize_rule, multiple_of=14)
    sizes = np.random.default_rng(0).integers(40, 2000, (300, 2)).tolist()
    with served(PAGE) as address:
        page = browser.new_page()
        page.goto(f"{address}/page.css")
        found = page.evaluate(code, [to_plain(rule), sizes])
    assert found == [list(rule.input_size(*size)) for size in sizes]
