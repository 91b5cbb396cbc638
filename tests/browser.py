"""A headless Chromium that a test drives over its debugging protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import websocket

from tests.chromium import headless


class Tab:
    """One page."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, suppress_origin=True, timeout=600)
        self._ids = itertools.count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"]["exception"].get("description", "error"))
            if message.get("method") == "Log.entryAdded":
                entry = message["params"]["entry"]
                if entry["level"] == "error" and entry["source"] != "network":  # a refused key is no fault of the page
                    self.errors.append(entry["text"])
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]

    def open(self, url: str, width: int, height: int) -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of a script, whose promise is awaited."""
        result = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until the script `condition` is true."""
        deadline = time.monotonic() + 300
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < deadline, f"{condition}: {self.run('document.body.innerText')} {self.errors}"
            time.sleep(0.1)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int, modifiers: int = 0, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, modifiers=modifiers, **more
            )

    def screenshot(self, file: Path) -> None:
        shot = self.send("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Tab]:
    """A new browser with one tab, and a profile of its own in `folder`."""
    command = headless("--remote-debugging-port=0", f"--user-data-dir={folder}", "about:blank")
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        ports = folder / "DevToolsActivePort"
        while not (ports.exists() and len(ports.read_text().splitlines()) > 1):
            assert process.poll() is None, "the browser ended"
            time.sleep(0.1)
        port = ports.read_text().splitlines()[0]
        while not (pages := [t for t in json.load(urlopen(f"http://127.0.0.1:{port}/json")) if t["type"] == "page"]):
            time.sleep(0.1)
        yield Tab(pages[0]["webSocketDebuggerUrl"])
    finally:
        process.terminate()
        process.wait()
