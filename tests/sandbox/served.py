"""Sandbox services that listen in a thread of the test."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from sandbox.app import create_app
from sandbox.containers import ContainerRunner
from sandbox.docker_engine import DockerEngine
from sandbox.doors import server_config
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from sandbox.workspace import Runner
from tests.sandbox.docker_daemon import FakeDaemon


@contextlib.contextmanager
def served(settings: SandboxSettings, runner: Runner) -> Iterator[str]:
    """Yield the base URL of a service."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(create_app(settings, runner)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        thread.join(0.05)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextlib.contextmanager
def served_images(folder: Path, repository: dict[str, Path]) -> Iterator[str]:
    """Yield the base URL of a service whose image `repository:1` has copies of these folders."""
    daemon = FakeDaemon(folder)
    daemon.known["repository:1"] = repository
    settings = SandboxSettings(
        runner="docker", image="plain:1", capacity=4, limits=Limits(wall_seconds=300, cpu_seconds=60)
    )
    with served(settings, ContainerRunner(DockerEngine("here", daemon), settings)) as url:
        yield url
    assert daemon.kept == []
