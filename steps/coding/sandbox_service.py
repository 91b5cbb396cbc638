"""Provide a step with a sandbox service: the one that a setting names, or a new local one."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from steps.project import ROOT
from tasks.coding.sandbox_client import require_sandbox
from training.errors import BadInput

START_SECONDS = 180.0


@contextmanager
def sandbox_service(url: str | None, *, capacity: int, images: bool = False) -> Iterator[str]:
    """Yield the base URL of a running sandbox service. Without a `url`, start one here and stop it afterwards.

    Raises:
        BadInput: the named service does not answer or has no `images` although they are needed, or nothing confines
            untrusted code on this machine.
    """
    if url is not None:
        require_sandbox(url, images=images)
        yield url.rstrip("/")
        return
    port = free_port()
    with tempfile.TemporaryFile() as said:
        # It stops when its standard input ends, also when this process is killed.
        process = subprocess.Popen(
            [sys.executable, "-m", "sandbox", "--port", str(port), "--stop-at-eof", "--set", f"capacity={capacity}"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stderr=said,
        )
        try:
            base_url = f"http://127.0.0.1:{port}"
            _wait_for(process, base_url, said)
            require_sandbox(base_url, images=images)
            yield base_url
        finally:
            process.terminate()
            process.communicate()


def free_port() -> int:
    """Return an unused port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
