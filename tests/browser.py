"""A headless Chromium for tests, driven by the DevTools protocol over a pair of pipes."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = """--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --window-size=1400,1300
--remote-debugging-pipe"""


class Browser:
    """One tab. Elements are named by CSS selectors.

    Attributes:
        requests: addresses that the page requested.
        errors: messages of errors in the page.
    """

    def __init__(self, commands: int, answers: int) -> None:
        self.commands, self.answers = commands, answers
        self.count, self.waiting = 0, b""
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.session: dict[str, str] = {}
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Network", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        self.count += 1
        message = {"id": self.count, "method": method, "params": parameters, **self.session}
        os.write(self.commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            event, values = answer.get("method"), answer.get("params", {})
            if event == "Network.requestWillBeSent":
                self.requests.append(values["request"]["url"])
            elif event == "Runtime.exceptionThrown":
                self.errors.append(str(values["exceptionDetails"]))
            elif event == "Log.entryAdded" and values["entry"]["level"] == "error":
                self.errors.append(values["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self.waiting:
            data = os.read(self.answers, 1 << 16)
            assert data, "the browser ended"
            self.waiting += data
        message, _, self.waiting = self.waiting.partition(b"\0")
        return json.loads(message)

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    def wait(self, script: str, *, seconds: float = 60) -> None:
        """Waits until an expression is true."""
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                raise TimeoutError(f"after {seconds} s still not true: {script}")
            time.sleep(0.2)

    def upload(self, selector: str, path: Path) -> None:
        """Chooses a file in a file input."""
        found = self.call("Runtime.evaluate", expression=f"document.querySelector('{selector}')")
        element = found["result"]["objectId"]
        self.call("DOM.setFileInputFiles", files=[str(path)], objectId=element)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


@contextmanager
def open_browser(folder: Path) -> Iterator[Browser]:
    """A browser with its profile in ``folder``; skips the test if there is none."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium")
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()

    def connect() -> None:  # the browser reads from file 3 and writes to file 4
        low, high = os.dup(their_in), os.dup(their_out)
        os.dup2(low, 3)
        os.dup2(high, 4)

    process = subprocess.Popen(
        [chromium, *FLAGS.split(), f"--user-data-dir={folder}"],
        preexec_fn=connect,
        close_fds=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(our_out, our_in)
    finally:
        process.terminate()
        process.wait()
        os.close(our_out)
        os.close(our_in)
