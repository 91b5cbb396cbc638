"""Workspaces on this machine, forked from one warm template process in bubblewrap."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import threading

from sandbox.errors import NoIsolation, Unusable, WorkspaceLost
from sandbox.inside.protocol import STARTED, receive_within
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
    "system calls": not refused(lambda: os.memfd_create("probe")),
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

    def _start(self, limits: Limits) -> Started:
        """Fork a workspace. Raises NoIsolation."""
        ours, theirs = socket.socketpair()
        ours.settimeout(GRACE)
        init = -1
        try:
            with self._lock:
                control = self._require_template()
                socket.send_fds(control, [json.dumps(limits.model_dump()).encode()], [theirs.fileno()])
            theirs.close()
            first, handles, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if first == STARTED:
                init = handles[0]
            answer = receive_within(ours, GRACE) if first else None
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        finally:
            theirs.close()
        if answer is None or "error" in answer:
            ours.close()
            if init >= 0:
                os.close(init)
            why = self._complaint() or (answer or {}).get("error") or "no reason given"
            raise NoIsolation(f"this machine does not let a workspace be confined ({why})")
        return Started(ours, init)

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


class Started:
    """The init of a workspace: a connection to it, and a handle of its process."""

    def __init__(self, connection: socket.socket, init: int) -> None:
        self.connection, self._init, self._lock = connection, init, threading.Lock()

    def kill(self) -> None:
        """End the init, and with it its PID namespace. Return when all processes are gone.

        Raises:
            WorkspaceLost: they do not end.
        """
        with self._lock:
            if self._init < 0:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
            # An init ends after all processes of its namespace.
            gone = select.poll()
            gone.register(self._init, select.POLLIN)
            if not gone.poll(GRACE * 1000):
                raise WorkspaceLost(f"the processes of the workspace have not ended {GRACE:g} s after they were killed")
            os.close(self._init)
            self._init = -1

    def close(self) -> None:
        """End a workspace that nobody has taken."""
        self.kill()
        self.connection.close()


def _begun(started: Started, limits: Limits, files: dict[str, str] | None) -> Workspace:
    """Return a started workspace, with `files` in it."""
    workspace = Workspace(started.connection, limits, started.kill)
    try:
        workspace.write_files(files or {}, snapshot=True)
    except BaseException:
        workspace.close()
        raise
    return workspace
