"""Provide a step with a sandbox service: the one that a setting names, or a new local one."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tasks.coding.sandbox_client import require_sandbox
from training.errors import BadInput

ROOT = Path(__file__).parents[2]
START_SECONDS = 180.0
RESTART_SECONDS = 1.0
"""Pause before a service that died is started again."""


@contextmanager
def sandbox_service(
    url: str | None, *, capacity: int, images: bool = False, say: Callable[[str], None] = print
) -> Iterator[str]:
    """Yield the base URL of a running sandbox service. Without a `url`, start one here, again whenever it dies, and stop
    it afterwards.

    Raises:
        BadInput: the named service does not answer or has no `images` although they are needed, or nothing confines
            untrusted code on this machine.
    """
    if url is not None:
        url = url.rstrip("/")
        require_sandbox(url, images=images)
        yield url
        return
    # Bound here and kept, so that nobody else takes the port before the service listens or while it is started again.
    with tempfile.TemporaryFile() as said, socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
        words = ["--port", str(port), "--fd", str(door.fileno()), "--stop-at-eof", "--set", f"capacity={capacity}"]
        service = _Supervised([sys.executable, "-m", "sandbox", *words], said, door, say)
        try:
            base_url = f"http://127.0.0.1:{port}"
            _wait_for(service.process, base_url, said)
            require_sandbox(base_url, images=images)
            service.watch()
            yield base_url
        finally:
            service.stop()


class _Supervised:
    """A service in a process of its own. Once it is watched, it is started again whenever it dies."""

    def __init__(self, command: list[str], said: IO[bytes], door: socket.socket, say: Callable[[str], None]) -> None:
        self._command, self._said, self._door, self._say = command, said, door, say
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._watching = threading.Thread(target=self._restart, name="sandbox service", daemon=True)
        self.process = self._start()

    def watch(self) -> None:
        self._watching.start()

    def stop(self) -> None:
        with self._lock:
            self._stopping.set()
        self.process.terminate()
        self.process.communicate()
        if self._watching.is_alive():
            self._watching.join()

    def _start(self) -> subprocess.Popen[bytes]:
        # It stops when its standard input ends, also when this process is killed.
        passed = [self._door.fileno()]
        return subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.PIPE, stderr=self._said, pass_fds=passed)

    def _restart(self) -> None:
        while True:
            code = self.process.wait()
            if self._stopping.wait(RESTART_SECONDS):
                return
            with self._lock:
                if self._stopping.is_set():
                    return
                self._say(f"the sandbox service ended with code {code} and is started again")
                if self.process.stdin is not None:
                    self.process.stdin.close()
                self.process = self._start()


def _wait_for(process: subprocess.Popen[bytes], base_url: str, said: IO[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None:
            said.seek(0)
            why = said.read(2000).decode("utf-8", "replace").strip().removeprefix("error: ")
            raise BadInput(f"the sandbox does not start: {why or 'no reason given'}")
        try:
            require_sandbox(base_url)
            return
        except BadInput:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
