"""The policy server in a process of its own, started again when it dies or hangs.

A process of its own keeps the HTTP service responsive while the model computes, and lets it outlive the model. The started
program says where it listens by one line of JSON on its standard output, `{"base_url": ..., "capacity": ...}` or
`{"error": ...}`, and ends when its standard input does: that is when this process is gone.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException
from urllib.request import urlopen

from training.errors import BadInput

PROBE_SECONDS = 2.0
PROBE_TIMEOUT_SECONDS = 10.0
HUNG_SECONDS = 120.0
"""A server that has not answered a probe for this long is killed: an engine step takes a second or two."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class PolicyProcess:
    """A running policy server. `base_url` stays the same over restarts; `capacity` is how many conversations it batches."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        """Start `command(port)`; 0 is any free port, and after a restart the port is the first one's.

        Raises:
            BadInput: the server says that it cannot serve what it was given.
            RuntimeError: it ended without a word.
        """
        self._command = command
        self._closed = threading.Event()
        self._process, self.base_url, self.capacity = self._start(0)
        self._answered = time.monotonic()
        self.restarts = 0
        self._up = True
        self._thread = threading.Thread(target=self._watch, name="policy-watch", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def healthy(self) -> bool:
        """Whether the server runs and has answered lately. Does not wait for it."""
        return self._up and self._process.poll() is None

    def close(self) -> None:
        """Stop the server; safe to call twice."""
        self._closed.set()
        self._end(self._process)
        self._thread.join(timeout=5)

    def _start(self, port: int) -> tuple[subprocess.Popen[str], str, int]:
        process = subprocess.Popen(
            list(self._command(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stdout is not None, "a pipe"
        with process.stdout as output:
            line = output.readline()
        said = json.loads(line) if line.startswith("{") else {}
        if "base_url" in said:
            return process, said["base_url"], said["capacity"]
        self._end(process)
        if "error" in said:
            raise BadInput(said["error"])
        raise RuntimeError(f"the policy server ended with status {process.returncode} before it could serve")

    def _watch(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.wait(PROBE_SECONDS):
            if self._process.poll() is None and self._probe():
                self._answered, self._up, pause = time.monotonic(), True, FIRST_PAUSE_SECONDS
                continue
            if self._process.poll() is None and time.monotonic() - self._answered < HUNG_SECONDS:
                continue
            self._up = False
            self._end(self._process)
            if self._closed.is_set():
                return
            logger.error("policy server died", extra={"fields": {"status": self._process.returncode, "pause": pause}})
            if self._closed.wait(pause):
                return
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            self._restart()

    def _restart(self) -> None:
        port = int(self.base_url.rsplit(":", 1)[1].split("/")[0])
        try:
            process, self.base_url, self.capacity = self._start(port)
        except (BadInput, RuntimeError, OSError, ValueError) as error:
            logger.error("policy server did not start", extra={"fields": {"reason": str(error)[:300]}})
            return
        self._process = process
        if self._closed.is_set():
            self._end(process)
            return
        self.restarts += 1
        self._answered, self._up = time.monotonic(), True
        logger.warning("policy server restarted", extra={"fields": {"pid": process.pid, "restarts": self.restarts}})

    def _probe(self) -> bool:
        try:
            url = f"{self.base_url.removesuffix('/v1')}/health"
            with urlopen(url, timeout=PROBE_TIMEOUT_SECONDS) as response:
                return response.status == 200
        except (OSError, HTTPException):
            return False

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Ask the process to end by ending its input, then insist."""
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
