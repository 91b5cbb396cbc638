"""The policy server in a separate process, started again when it dies or hangs.

The HTTP service thus stays responsive while the model computes, and survives a crash of the model. The policy server
prints one line of JSON, `{"base_url": ..., "capacity": ...}` or `{"error": ...}`. It ends when its standard input is
closed, that is, when this process is gone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from http.client import HTTPException

from training.errors import BadInput
from training.loopback import DIRECT

PROBE_SECONDS = 2.0
PROBE_TIMEOUT_SECONDS = 10.0
HUNG_SECONDS = 120.0
"""A server that has not answered a probe for this long is killed: an engine step takes a second or two."""
START_SECONDS = 1300.0
"""A server that is not ready this long after its start is killed: loading takes seconds to a few minutes, and vLLM up to twenty."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0

logger = logging.getLogger(__name__)


class PolicyProcess:
    """A running policy server. Restarts keep `base_url`; `capacity` is how many conversations it batches."""

    def __init__(self, command: Callable[[int], Sequence[str]]) -> None:
        """Start `command(port)`. The port is 0, which means any free port, and after a restart that of the first start.

        Raises:
            BadInput: the server cannot serve what it was given.
            RuntimeError: the server ended, or did not get ready, without saying why.
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
        """Return whether the server runs and has answered lately. Does not wait for it."""
        return self._up and self._process.poll() is None

    def close(self) -> None:
        """Stop the server; safe to call twice."""
        self._closed.set()
        self._end(self._process)
        self._thread.join(timeout=10)

    def _start(self, port: int) -> tuple[subprocess.Popen[str], str, int]:
        process = subprocess.Popen(
            list(self._command(port)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            line = self._first_line(process)
        except TimeoutError:
            self._end(process)
            raise RuntimeError(f"the policy server was not ready after {START_SECONDS:g} seconds") from None
        said = json.loads(line) if line.startswith("{") else {}
        if "base_url" in said:
            return process, said["base_url"], said["capacity"]
        self._end(process)
        if "error" in said:
            raise BadInput(said["error"])
        raise RuntimeError(f"the policy server ended with status {process.returncode} before it could serve")

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        """Return the line that the process prints, "" when it prints none. Raises TimeoutError, also on `close`."""
        lines: queue.Queue[str] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None, "a pipe"
            with process.stdout as output:
                lines.put(output.readline())

        threading.Thread(target=read, name="policy-start", daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and not self._closed.is_set():
            with contextlib.suppress(queue.Empty):
                return lines.get(timeout=min(PROBE_SECONDS, 0.5))
        raise TimeoutError

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
            if not self._closed.is_set():
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
            with DIRECT.open(url, timeout=PROBE_TIMEOUT_SECONDS) as response:
                return response.status == 200
        except (OSError, HTTPException):
            return False

    def _end(self, process: subprocess.Popen[str]) -> None:
        """Ask the process to end by closing its input. After a few seconds kill it, and what it has started."""
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=3)
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of its group is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
