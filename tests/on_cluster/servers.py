"""The servers that a stack needs in addition to a cluster, on loopback: ZenML and S3, each in a separate process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.ports import free_port

START_SECONDS = 600
PASSWORD = "of-the-test"
KEY = "of-the-test"
"""Both halves of the S3 server's credentials; it takes any."""


@contextlib.contextmanager
def started(command: list[str], url: str, log: Path, environment: dict[str, str]) -> Iterator[None]:
    """The command as a process, from when `url` answers until the context ends. Raises with the log's end if it never does."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command} did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait(timeout=300)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=30):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def zenml_server(folder: Path) -> Iterator[str]:
    """URL of a ZenML server with a database of its own; user `default`, password `PASSWORD`."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZENML_")} | {
        "ZENML_SERVER": "true",
        # The client's folder would give the server the client's identity, and then it counts as local.
        "ZENML_CONFIG_PATH": str(folder / "server"),
        "ZENML_SERVER_AUTO_ACTIVATE": "true",
        "ZENML_SERVER_DEPLOYMENT_TYPE": "other",
        "ZENML_DEFAULT_USER_PASSWORD": PASSWORD,
        "ZENML_ANALYTICS_OPT_IN": "false",
    }
    command = [sys.executable, "-m", "uvicorn", "zenml.zen_server.zen_server_api:app", "--host", "127.0.0.1"]
    with started([*command, "--port", str(port)], f"{url}/health", folder / "zenml-server.log", environment):
        yield url


@contextlib.contextmanager
def s3_server(folder: Path, port: int | None = None) -> Iterator[str]:
    """URL of an empty S3 server."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with started(command, url, folder / "s3-server.log", dict(os.environ)):
        yield url
