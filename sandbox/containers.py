"""Workspaces in containers, one each. Process 1 of a container is the init of `inside/`."""

from __future__ import annotations

import json
import math
import secrets
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from sandbox.errors import NoIsolation, NotStarted, Unusable
from sandbox.inside.protocol import BUSY_FACTOR, Timed, packed, receive_within, send
from sandbox.isolation import INSIDE
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from sandbox.workspace import GRACE, Image, Workspace

APP = "sandbox-workspace"
"""Label of every container, in addition to the label of the service that started it."""

PROBE = """
import os, socket
def reached(place):
    try:
        socket.create_connection(place, timeout=2).close()
        return True
    except OSError:
        return False
def readable(place):
    try:
        return bool(open(place).read())
    except OSError:
        return False
def capabilities():
    lines = open("/proc/self/status").read().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("CapEff", "CapBnd", "CapPrm")))
found = {{
    "network": any(map(reached, {places!r})) or ({bare!r} and len(socket.if_nameindex()) > 1),
    "processes of the host": len([name for name in os.listdir("/proc") if name.isdigit()]) > 2,
    "capabilities": capabilities(),
    "process 1": readable("/proc/1/environ"),
}}
[name for name, open_ in found.items() if open_]
"""
"""A cell whose value lists missing isolation. `places` must be unreachable; `bare`: no interface except loopback."""

_SHIPPED = ("protocol", "system_calls", "confinement", "files", "processes", "holding", "repl", "init", "container")
"""The modules of `inside/` for a container. Each imports earlier ones only."""

_LOADER = """
import json, os, sys, types
def take(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            raise SystemExit
        data += part
    return data
for name, text in json.loads(take(int(take(8)))).items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
sys.modules["sandbox.inside.container"].container()
"""
"""Reads a length as eight digits from standard input, then modules as JSON, imports them in order and runs the init."""


@dataclass
class Container:
    """A running container whose standard input and output are a connection."""

    connection: Timed
    remove: Callable[[], None]
    """End the container. Does nothing if it is gone already."""


class Engine(Protocol):
    """Starts containers."""

    name: str

    @property
    def places(self) -> list[tuple[str, int]]:
        """Hosts and ports that a workspace must not reach."""
        ...

    @property
    def bare(self) -> bool:
        """Whether a workspace has no network interface but loopback."""
        ...

    def start(self, image: str, command: list[str], limits: Limits, *, name: str, seconds: int) -> Container:
        """Start a container that ends `seconds` from now at the latest.

        Raises:
            NoIsolation: the engine does not answer, or does not allow what the workspace needs.
            NotStarted: it does not start at the moment, or not in time.
            Unusable: there is no such image, or it cannot be started.
        """
        ...

    def reap(self) -> int:
        """Remove the containers that an earlier service of the same address left behind. Returns their number.

        Raises:
            NoIsolation: the engine does not list them.
        """
        ...


class ContainerRunner:
    """Opens a container per workspace."""

    images = True

    def __init__(self, engine: Engine, settings: SandboxSettings) -> None:
        self._engine, self._settings, self.name = engine, settings, engine.name
        self._open: dict[str, Container] = {}
        self._lock = threading.Lock()

    def open(
        self, files: dict[str, str] | None = None, image: Image | None = None, *, seconds: float | None = None
    ) -> Workspace:
        """Open a new workspace; see `Runner.open`."""
        chosen = image or Image(name=self._settings.image)
        limits = self._settings.limits.lasting(seconds)
        name = f"sandbox-{secrets.token_hex(8)}"
        # The service's own limit comes first; this one applies if the service is gone.
        call = BUSY_FACTOR * max(limits.wall_seconds, self._settings.test_seconds)
        longest = self._settings.lifetime_seconds + call + GRACE
        container = self._engine.start(
            chosen.name, _command(chosen.folder), limits, name=name, seconds=math.ceil(longest)
        )
        with self._lock:
            self._open[name] = container
        workspace = Workspace(container.connection, limits, lambda: self._end(name))
        try:
            self._begin(container.connection, chosen, limits, longest)
            if files:
                workspace.write_files(files, snapshot=True)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def require_isolation(self) -> None:
        """Remove the containers of an earlier service, and check the isolation by trying to break out of a workspace.

        Raises:
            NoIsolation: what is open or missing.
        """
        self._engine.reap()
        try:
            workspace = self.open()
        except (NotStarted, Unusable) as error:
            raise NoIsolation(f"no workspace can be started: {error}") from None
        try:
            found = workspace.evaluate(PROBE.format(places=self._engine.places, bare=self._engine.bare))
        finally:
            workspace.close()
        if found.value != "[]":
            raise NoIsolation(f"workspaces are not confined by {self.name}: {found.value or found.ended}")

    def close(self) -> None:
        """End every workspace."""
        for name in list(self._open):
            self._end(name)

    def _begin(self, connection: Timed, image: Image, limits: Limits, seconds: float) -> None:
        program = _program()
        order = {"limits": limits.model_dump(), "folder": image.folder, "hidden": image.hidden, "seconds": seconds}
        try:
            connection.settimeout(self._settings.start_seconds)
            connection.sendall(b"%08d" % len(program) + program)
            send(connection, order)
            answer = receive_within(connection, self._settings.start_seconds)
        except (OSError, ValueError) as error:
            raise NotStarted(f"the container of {image.name} does not answer ({error})") from None
        if answer is None:
            raise NotStarted(f"the container of {image.name} ended before it answered")
        if "error" in answer:
            raise Unusable(f"image {image.name}: {answer['error']}")

    def _end(self, name: str) -> None:
        with self._lock:
            container = self._open.pop(name, None)
        if container is not None:
            try:
                container.remove()
            finally:
                container.connection.close()


def _program() -> bytes:
    """Return the modules for the loader: name -> text."""
    texts = {f"sandbox.inside.{name}": (INSIDE / f"{name}.py").read_text() for name in _SHIPPED}
    return json.dumps(texts).encode()


def _command(folder: str) -> list[str]:
    """Run the loader with the first Python that is new enough: the repository's own, else the image's.

    Without one, answer in its place, once something has arrived: what is printed before anybody is attached is lost.
    """
    tried = f"{folder}/.venv/bin/python python3 /usr/bin/python3 python"
    asked = "import sys; sys.exit(sys.version_info < (3, 9))"
    answer = "".join(f"\\{byte:03o}" for byte in packed({"error": "it has no Python of 3.9 or newer"}))
    script = f'for p in {tried}; do "$p" -c "{asked}" 2>/dev/null && exec "$p" -I -c "$0"; done; '
    script += f"dd bs=1 count=1 >/dev/null 2>&1; printf '{answer}'; cat >/dev/null; exit 127"
    return ["sh", "-c", script, _LOADER]


class DockerFrames:
    """The connection of an attached container: Docker puts a header of 8 bytes before each piece of output."""

    def __init__(self, stream: Timed) -> None:
        self._stream, self._ready = stream, b""

    def settimeout(self, seconds: float | None) -> None:
        self._stream.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        self._stream.sendall(data)

    def recv(self, most: int) -> bytes:
        while not self._ready:
            header = self._exactly(8)
            if header is None:
                return b""
            kind, length = struct.unpack(">BxxxL", header)
            piece = self._exactly(length)
            if piece is None:
                return b""
            if kind == 1:  # standard output
                self._ready = piece
        part, self._ready = self._ready[:most], self._ready[most:]
        return part

    def close(self) -> None:
        self._stream.close()

    def _exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self._stream.recv(count - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)
