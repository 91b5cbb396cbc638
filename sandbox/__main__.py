"""Start the sandbox service: `python -m sandbox --port 8100`."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import threading
from typing import NoReturn

import uvicorn
from pydantic import ValidationError

from sandbox.app import create_app
from sandbox.containers import ContainerRunner
from sandbox.doors import server_config
from sandbox.errors import NoIsolation
from sandbox.local import LocalRunner
from sandbox.settings import SandboxSettings
from sandbox.workspace import Runner

HIGHEST_PORT = 65535


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line without the usage."""
        self.exit(2, f"error: {message}; `{self.prog} --help` explains every option\n")


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= HIGHEST_PORT):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: expected 1 to {HIGHEST_PORT}")
    return int(text)


def main(words: list[str] | None = None) -> int:
    """Run the service. Return the exit code: 2 if a setting is wrong or this machine cannot isolate untrusted code."""
    parser = _Arguments(prog="python -m sandbox", description=__doc__)
    parser.add_argument(
        "--host", default="127.0.0.1", help="the service has no access control: use it in a trusted network only"
    )
    parser.add_argument("--port", type=_port, default=8100)
    parser.add_argument("--fd", type=int, help="an inherited socket to accept on, which --host and --port are of")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of sandbox/settings.py or limits.KEY"
    )
    parser.add_argument("--stop-at-eof", action="store_true", help="stop when standard input ends")
    arguments = parser.parse_args(words)
    values: dict[str, object] = {}
    limits: dict[str, object] = {}
    for word in arguments.set:
        key, _, value = word.partition("=")
        section, _, name = key.rpartition(".")
        (limits if section == "limits" else values)[name if section == "limits" else key] = value
    try:
        settings = SandboxSettings.model_validate({"limits": limits, **values})
    except ValidationError as error:
        first = error.errors()[0]
        reason = "unknown setting" if first["type"] == "extra_forbidden" else first["msg"][0].lower() + first["msg"][1:]
        print(f"error: --set {'.'.join(map(str, first['loc']))}: {reason}; see sandbox/settings.py", file=sys.stderr)
        return 2
    try:
        # Before the runner, which removes the containers of an earlier service of this port: it may still be running.
        sockets = _sockets(arguments.host, arguments.port, arguments.fd)
    except (OSError, ValueError) as error:  # names that no DNS can have are errors of encoding
        place = f"--host {arguments.host} --port {arguments.port}"
        option = place if arguments.fd is None else f"--fd {arguments.fd}"
        print(f"error: {option}: {getattr(error, 'strerror', None) or error}", file=sys.stderr)
        return 2
    try:
        runner = _runner(settings, owner=f"{socket.gethostname()}-{arguments.port}"[-63:].lstrip("-._"))
        runner.require_isolation()
    except (NoIsolation, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.stop_at_eof:
        threading.Thread(target=_stop_at_eof, daemon=True).start()
    server = uvicorn.Server(server_config(create_app(settings, runner)))
    server.run(sockets=sockets)
    return 0 if server.started else 3


def _sockets(host: str, port: int, fd: int | None) -> list[socket.socket]:
    """Return the inherited socket, or listen on every address of a host. Raises OSError, or ValueError for a name that no
    host can have.
    """
    if fd is not None:
        return [socket.socket(fileno=fd)]
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [socket.create_server(address, family=family) for family, *_, address in dict.fromkeys(found)]


def _runner(settings: SandboxSettings, *, owner: str) -> Runner:
    """Return the configured runner. Raises NoIsolation if it is unavailable, ValueError for an unusable pod
    template.
    """
    if settings.runner == "local":
        return LocalRunner(settings.limits, spare=min(settings.spare, settings.capacity))
    if settings.runner == "docker":
        from sandbox.docker_engine import DockerEngine

        return ContainerRunner(DockerEngine(owner), settings)
    from sandbox.kubernetes_engine import KubernetesEngine, PodTemplate

    template = PodTemplate.load(settings.pod_template)
    engine = KubernetesEngine(owner, settings.namespace, template, start_seconds=settings.start_seconds)
    return ContainerRunner(engine, settings)


def _stop_at_eof() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
