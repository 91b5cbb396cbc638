"""Workspaces on this machine: forked from one warm template process behind bubblewrap."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from typing import Any

from pydantic import BaseModel

from sandbox.errors import NoIsolation, Unusable, WorkspaceLost
from sandbox.inside import receive, send
from sandbox.isolation import template_command
from sandbox.limits import Limits

GRACE = 20.0
"""Seconds beyond a cell's limit after which its workspace counts as lost."""

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
"""A cell whose value lists what is not confined."""


class Observation(BaseModel):
    """What a cell did."""

    output: str
    """What it printed, bounded."""
    seconds: float
    ended: str | None = None
    """Why the REPL was ended, if it was: its variables are lost."""
    restarted: bool = False
    """Whether the cell began in a new REPL because the earlier one was ended."""
    ok: bool = False
    """Whether the cell raised nothing."""
    value: str | None = None
    """The value of an evaluated expression as text."""


class Changes(BaseModel):
    """What was done to the files of a snapshot."""

    changed: dict[str, str] = {}
    deleted: list[str] = []


class LocalWorkspace:
    """Files and a REPL, confined. Not thread-safe: one call at a time."""

    def __init__(self, connection: socket.socket, limits: Limits) -> None:
        self._connection, self._limits = connection, limits

    def exec(self, code: str) -> Observation:
        """Run a cell in the REPL."""
        return Observation.model_validate(self._ask({"op": "exec", "code": code}))

    def evaluate(self, code: str) -> Observation:
        """Run statements that end in an expression; its value as text comes back apart from the output."""
        return Observation.model_validate(self._ask({"op": "evaluate", "code": code}))

    def write_files(self, files: dict[str, str], *, snapshot: bool = False) -> None:
        """Write files by relative path; those of the `snapshot` are what `changes` compares with.

        Raises:
            Unusable: a path leaves the workspace, or a limit is exceeded.
        """
        self._files({"op": "write", "files": files, "snapshot": snapshot})

    def read_file(self, path: str, most: int = 1 << 16) -> str:
        """The beginning of a file. Raises Unusable when there is none."""
        return str(self._files({"op": "read", "path": path, "most": most})["content"])

    def changes(self) -> Changes:
        """What differs from the snapshot. Raises Unusable when it is too much to be a patch."""
        return Changes.model_validate(self._files({"op": "changes"}))

    def close(self) -> None:
        """Destroy the workspace: all processes and files. Returns when they are gone."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(GRACE)
            while self._connection.recv(1 << 16):
                pass
        self._connection.close()

    def _files(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request)
        if "error" in answer:
            raise Unusable(str(answer["error"]))
        return answer

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            self._connection.settimeout(self._limits.wall_seconds + GRACE)
            send(self._connection, request)
            answer = receive(self._connection)
        except (OSError, ValueError) as error:
            raise WorkspaceLost(f"the workspace does not answer ({error})") from None
        if answer is None:
            raise WorkspaceLost("the workspace is gone")
        return answer


class LocalRunner:
    """Opens workspaces. The template process starts with the first one and again if it dies."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._template: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def open(self, files: dict[str, str] | None = None) -> LocalWorkspace:
        """A new workspace that holds `files`.

        Raises:
            NoIsolation: nothing confines it.
            Unusable: the files cannot be written.
        """
        ours, theirs = socket.socketpair()
        ours.settimeout(GRACE)
        try:
            with self._lock:
                control = self._require_template()
                socket.send_fds(control, [json.dumps(self.limits.model_dump()).encode()], [theirs.fileno()])
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
        workspace = LocalWorkspace(ours, self.limits)
        try:
            workspace.write_files(files or {}, snapshot=True)
        except BaseException:
            workspace.close()
            raise
        return workspace

    def require_isolation(self) -> None:
        """Try to get out of a workspace. Raises NoIsolation, which says what is open or missing."""
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
