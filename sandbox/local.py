"""Workspaces on this machine, forked from one warm template process in bubblewrap."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading

from sandbox.errors import NoIsolation, Unusable, WorkspaceLost
from sandbox.inside.protocol import receive
from sandbox.isolation import template_command
from sandbox.limits import Limits
from sandbox.spares import Spares
from sandbox.workspace import GRACE, Image, Workspace

PROBE = """
import ctypes, os, socket
def refused(action):
    try:
        action()
        return False
    except OSError:
        return True
def connect():
    socket.create_connection(("198.51.100.1", 9), timeout=1)
places = ("/", "/usr", "/dev", "/etc")
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
found = {
    "writes outside the workspace": not all(refused(lambda place=place: open(place + "/probe", "w")) for place in places),
    "network": not refused(connect) or len(socket.if_nameindex()) > 1,
    "processes of the host": len(pids) > 2,
    "new namespaces": ctypes.CDLL(None).unshare(0x10000000) == 0,
    "environment of the host": "SANDBOX_PROBE" in os.environ,
}
[name for name, open_ in found.items() if open_]
"""
"""A cell whose value lists missing isolation."""


class LocalRunner:
    """Opens workspaces. The template process starts with the first one and again if it dies.

    Up to `spare` workspaces are started in advance, while nobody asks for one.
    """

    name, images = "bubblewrap", False

    def __init__(self, limits: Limits | None = None, *, spare: int = 0) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._spares = Spares(spare, lambda: self._start(self.limits))

    @property
    def spares_ready(self) -> int:
        """Number of workspaces that have been started in advance."""
        return self._spares.ready

    def open(
        self, files: dict[str, str] | None = None, image: Image | None = None, *, seconds: float | None = None
    ) -> Workspace:
        """Open a new workspace that holds `files`.

        Raises:
            NoIsolation: nothing confines it.
            Unusable: the files cannot be written, or it should begin with an image.
        """
        if image is not None:
            raise Unusable(
                f"image {image.name}: the local runner has no images; start with --set runner=docker or kubernetes"
            )
        limits = self.limits.lasting(seconds)
        if limits == self.limits:
            while (spare := self._spares.take()) is not None:
                with contextlib.suppress(WorkspaceLost):  # it died while it waited
                    return _begun(spare, limits, files)
        return _begun(self._start(limits), limits, files)

    def _start(self, limits: Limits) -> socket.socket:
        """Fork a workspace, and return the connection to its init. Raises NoIsolation."""
        ours, theirs = socket.socketpair()
        ours.settimeout(GRACE)
        try:
            with self._lock:
                control = self._require_template()
                socket.send_fds(control, [json.dumps(limits.model_dump()).encode()], [theirs.fileno()])
            theirs.close()
            answer = receive(ours)
        except OSError as error:
            answer = {"error": str(error)}
        finally:
            theirs.close()
        if answer is None or "error" in answer:
            ours.close()
            why = self._complaint() or (answer or {}).get("error") or "no reason given"
            raise NoIsolation(f"this machine does not let a workspace be confined ({why})")
        return ours

    def require_isolation(self) -> None:
        """Check the isolation by trying to break out of a workspace. Raises NoIsolation, which says what is open or
        missing.
        """
        os.environ["SANDBOX_PROBE"] = "host"
        try:
            workspace = self.open()
            try:
                found = workspace.evaluate(PROBE)
            finally:
                workspace.close()
        finally:
            del os.environ["SANDBOX_PROBE"]
        if found.value != "[]":
            raise NoIsolation(f"workspaces are not confined: {found.value or found.ended}; update bubblewrap")

    def close(self) -> None:
        """End the template and with it every workspace."""
        self._spares.close()
        with self._lock:
            if self._control is not None:
                self._control.close()
            if self._template is not None:
                self._template.kill()
                self._template.wait()
                if self._template.stderr:
                    self._template.stderr.close()
            self._control = self._template = None

    def _require_template(self) -> socket.socket:
        if self._template is not None and self._template.poll() is None and self._control is not None:
            return self._control
        if self._control is not None:
            self._control.close()
        ours, theirs = socket.socketpair()
        command = template_command(theirs.fileno())
        self._template = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self._control = ours
        return ours

    def _complaint(self) -> str:
        """What bubblewrap said before it ended; empty while it runs."""
        template = self._template
        if template is None or template.stderr is None:
            return ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            template.wait(2)
            return template.stderr.read(2000).decode("utf-8", "replace").strip()
        return ""


def _begun(connection: socket.socket, limits: Limits, files: dict[str, str] | None) -> Workspace:
    """Return the workspace at the other end, with `files` in it."""
    workspace = Workspace(connection, limits, lambda: _end(connection))
    try:
        workspace.write_files(files or {}, snapshot=True)
    except BaseException:
        workspace.close()
        raise
    return workspace


def _end(connection: socket.socket) -> None:
    """Tell the init to end the workspace, and wait until all its processes are gone."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(GRACE)
        while connection.recv(1 << 16):
            pass
    connection.close()
