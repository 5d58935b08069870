"""A headless Chromium for tests, driven through chromedriver's own HTTP (W3C WebDriver)."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync",
         "--window-size=1400,1300")  # fmt: skip
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that the standard gives an element's id


class Browser:
    """One tab. Elements are named by CSS selectors."""

    def __init__(self, driver: str, folder: Path) -> None:
        self.session = driver
        self.downloads = folder / "downloads"
        chromium = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, f"--user-data-dir={folder / 'profile'}"],
            "prefs": {"download.default_directory": str(self.downloads)},
        }
        log = {"performance": "ALL", "browser": "ALL"}
        capabilities = {"alwaysMatch": {"goog:chromeOptions": chromium, "goog:loggingPrefs": log}}
        started = self.call("POST", "/session", capabilities=capabilities)
        self.session = f"{driver}/session/{started['sessionId']}"

    def call(self, method: str, path: str, **body: Any) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(self.session + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def open(self, address: str) -> None:
        self.call("POST", "/url", url=address)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a JavaScript function's body."""
        return self.call("POST", "/execute/sync", script=script, args=arguments)

    def wait(self, script: str, *arguments: Any, seconds: float = 60) -> Any:
        """Runs a script until its value is true; the value."""
        end = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            if time.monotonic() > end:
                raise TimeoutError(f"after {seconds} s there is still no {script}")
            time.sleep(0.2)
        return value

    def type(self, selector: str, text: str) -> None:
        """Types into an element; into a file input, the path of the file to upload."""
        self.call("POST", f"/element/{self._find(selector)}/value", text=text)

    def click(self, selector: str) -> None:
        self.call("POST", f"/element/{self._find(selector)}/click")

    def download(self, selector: str, *, seconds: float = 30) -> Path:
        """Clicks and waits for the file that comes of it."""
        before = set(self.downloads.glob("*"))
        self.click(selector)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for path in set(self.downloads.glob("*")) - before:
                if path.suffix not in (".crdownload", ".tmp") and not path.name.startswith("."):
                    return path
            time.sleep(0.2)
        raise TimeoutError(f"after {seconds} s nothing was downloaded from {selector}")

    def _find(self, selector: str) -> str:
        return self.call("POST", "/element", using="css selector", value=selector)[ELEMENT]

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", "/screenshot")))

    def requests(self) -> list[str]:
        """Addresses that the page asked for since the last call."""
        entries = self.call("POST", "/se/log", type="performance")
        events = [json.loads(entry["message"])["message"] for entry in entries]
        return [e["params"]["request"]["url"] for e in events
                if e["method"] == "Network.requestWillBeSent"]  # fmt: skip

    def errors(self) -> list[str]:
        """What the page complained of in its console."""
        entries = self.call("POST", "/se/log", type="browser")
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]


@contextmanager
def open_browser(folder: Path, *, port: int) -> Iterator[Browser]:
    """A browser that keeps what it has in ``folder``; skips the test where there is none."""
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        pytest.skip("needs chromium and chromedriver")
    driver = subprocess.Popen(
        ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 30
        while True:
            try:
                urllib.request.urlopen(f"{address}/status", timeout=5).close()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
        browser = Browser(address, folder)
        try:
            yield browser
        finally:
            browser.call("DELETE", "")
    finally:
        driver.terminate()
        driver.wait()
