"""A Docker daemon that is made of bubblewrap: a container is a process 1 in namespaces of its own."""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from docker.errors import ImageNotFound

from sandbox.isolation import find_bubblewrap
from tests.sandbox.isolated import isolated_runner


def require_bubblewrap() -> None:
    """Skip the test where nothing confines a process."""
    isolated_runner().close()


class FakeContainer:
    """A process behind bubblewrap whose standard streams are framed as Docker frames them."""

    def __init__(self, daemon: FakeDaemon, image: str, command: list[str], options: dict[str, Any]) -> None:
        self.daemon, self.image, self.command, self.options = daemon, image, command, options
        self.process: subprocess.Popen[bytes] | None = None
        self.ours: socket.socket | None = None

    def attach_socket(self, params: dict[str, int]) -> SimpleNamespace:
        assert params == {"stdin": 1, "stdout": 1, "stream": 1}
        theirs, self.ours = socket.socketpair()
        return SimpleNamespace(_sock=theirs)

    def start(self) -> None:
        assert self.ours is not None
        words = [
            find_bubblewrap(),
            "--unshare-all",
            "--as-pid-1",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--clearenv",
        ]
        words += ["--setenv", "PATH", f"{Path(sys.executable).parent}:/usr/bin:/bin"]
        for place in (
            "/usr",
            "/lib",
            "/lib64",
            "/bin",
            sys.prefix,
            sys.base_prefix,
            str(Path(sys.executable).resolve().parents[1]),
        ):
            words += ["--ro-bind-try", place, place]
        words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/work"]
        for inner, outer in self.daemon.known[self.image].items():
            words += ["--bind", str(shutil.copytree(outer, self.daemon.scratch())), inner]
        words += ["--", *self.options["entrypoint"], *self.command]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self._say, daemon=True).start()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.ours is not None and self.process is not None and self.process.stdin is not None
        try:
            while data := self.ours.recv(1 << 16):
                self.process.stdin.write(data)
                self.process.stdin.flush()
            self.process.stdin.close()
        except OSError:
            pass

    def _say(self) -> None:
        assert self.ours is not None and self.process is not None and self.process.stdout is not None
        try:
            while data := self.process.stdout.read1(1 << 16):
                noise = b"a line on standard error"
                self.ours.sendall(struct.pack(">BxxxL", 2, len(noise)) + noise)
                self.ours.sendall(struct.pack(">BxxxL", 1, len(data)) + data)
            self.ours.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def remove(self, *, force: bool, v: bool) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.daemon.kept.remove(self)


class FakeDaemon:
    """The part of docker-py that the engine uses."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.copies = folder, 0
        self.known: dict[str, dict[str, Path]] = {"plain:1": {}}
        self.kept: list[FakeContainer] = []
        self.containers = SimpleNamespace(create=self.create, list=self.list)
        self.api = SimpleNamespace(pull=self.pull)

    def ping(self) -> None: ...

    def scratch(self) -> Path:
        self.copies += 1
        return self.folder / f"copy-{self.copies}"

    def create(self, image: str, command: list[str], **options: Any) -> FakeContainer:
        if image not in self.known:
            raise ImageNotFound(f"no such image: {image}")
        self.kept.append(FakeContainer(self, image, command, options))
        return self.kept[-1]

    def pull(self, image: str, *, stream: bool, decode: bool) -> Iterator[dict[str, str]]:
        raise ImageNotFound(f"manifest for {image} not found")

    def list(self, *, all: bool, filters: dict[str, Any]) -> list[FakeContainer]:
        wanted = dict(label.split("=") for label in filters["label"])
        return [each for each in self.kept if wanted.items() <= each.options["labels"].items()]
