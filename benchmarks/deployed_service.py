"""Provide a benchmark with a service: a running one, or one deployed from a checkpoint for the benchmark."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from benchmarks.output import progress

ROOT = Path(__file__).parents[1]
REQUEST_SECONDS = 400
"""Timeout of a request, longer than the service's own limits on waiting and answering."""
FIRST_PORT = 8600


@dataclass(frozen=True)
class Reply:
    """One response. `status` is 0 when there was none, and `error` then names the reason."""

    status: int
    content: bytes = b""
    retry_after: int = 0
    error: str = ""

    @property
    def json(self) -> Any:
        """The decoded body; `None` when it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError:
            return None

    def events(self) -> list[tuple[str, Any]]:
        """Return the server-sent events of the body, by name and data; none when it is something else."""
        found = []
        for block in self.content.decode("utf-8", "replace").split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.splitlines() if line.startswith(("event: ", "data: ")))
            with contextlib.suppress(KeyError, ValueError):
                found.append((fields["event"], json.loads(fields["data"])))
        return found


class Service:
    """Requests to one service."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self.address = urlsplit(url).hostname or "", urlsplit(url).port or 80
        self._host = urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: dict[str, str] | None = None,
        timeout: float = REQUEST_SECONDS,
    ) -> Reply:
        """Send one request on a connection of its own. A `body` that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection(self._host, timeout=timeout)
        sent = dict(self._headers)
        if body is not None:
            sent["Content-Type"] = "application/json"
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            connection.request(method, path, body, sent | (headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.read(), int(response.headers.get("Retry-After") or 0))
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, error=type(error).__name__)
        finally:
            connection.close()

    def model(self) -> dict[str, Any]:
        """Return the service's description of its model. Raises SystemExit if it does not answer."""
        reply = self.request("GET", "/model", timeout=30)
        if reply.status != 200:
            said = (reply.json or {}).get("error") if reply.status else f"nothing answers there ({reply.error})"
            sys.exit(f"error: http://{self._host}: {said}")
        return reply.json

    def inboxes(self) -> list[str]:
        """Return up to 200 inboxes, those with the most mail first."""
        return self.request("GET", "/inboxes?limit=200").json["inboxes"]

    def questions(self) -> list[dict[str, str]]:
        """Return every example question of these inboxes. Raises SystemExit when there are none."""
        first = self.request("GET", "/examples").json["examples"]
        inboxes = dict.fromkeys([*(question["inbox_address"] for question in first), *self.inboxes()])
        found = [
            question
            for inbox in inboxes
            for question in self.request("GET", f"/examples?inbox={quote(inbox)}").json["examples"]
        ]
        if not found:
            sys.exit("error: the service has no example questions: its checkpoint was trained in another ZenML store")
        return found


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which service is asked."""
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--url", help="of a service that runs (http://127.0.0.1:8080)")
    target.add_argument(
        "--checkpoint", type=Path, help="folder of a checkpoint: deploy it first, and delete it at the end"
    )
    parser.add_argument("--key", help="access key, where the service has keys")


@contextlib.contextmanager
def target(arguments: argparse.Namespace) -> Iterator[Service]:
    """Yield the service that the options name."""
    if arguments.checkpoint is None:
        yield Service(arguments.url or "http://127.0.0.1:8080", arguments.key)
        return
    name = f"benchmark-{uuid.uuid4().hex[:8]}"
    zenml = str(Path(sys.executable).with_name("zenml"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the service is deleted then, too
    with tempfile.TemporaryDirectory() as feedback:
        command = [sys.executable, "run.py", "--pipeline", "deploy", "--name", name]
        command += ["--checkpoint", str(arguments.checkpoint.resolve())]
        command += ["--set", f"port={FIRST_PORT}", "--set", f"feedback_folder={feedback}"]
        progress(f"deploying {arguments.checkpoint} as {name} ...")
        try:
            deployed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            url = re.search(r"(http://\S+)/invoke", deployed.stdout)
            if url is None:
                sys.exit(f"error: the service did not start: {(deployed.stderr or deployed.stdout).strip()[-500:]}")
            yield Service(url[1])
        finally:
            subprocess.run([zenml, "deployment", "delete", name, "--yes"], cwd=ROOT, capture_output=True)
