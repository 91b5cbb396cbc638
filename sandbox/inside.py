"""The part of the sandbox that runs inside the isolation: a template process, and one init process per workspace.

bubblewrap gives the template a read-only root, no network, no host processes and no environment. The template has imported
everything already. For each workspace it forks a child that enters namespaces of its own (processes, mounts, network, IPC) and
becomes their init. The init is trusted and talks to the service; the REPL that it forks is not, and has no capabilities.

In a container there is no template: the init is process 1 of the container, and talks over its standard input and output.

Uses the standard library only, and is started by path: nothing of the project is visible in here.
"""

from __future__ import annotations

import ast
import base64
import collections
import contextlib
import ctypes
import dataclasses
import datetime
import decimal
import functools
import hashlib
import io
import itertools
import json
import math
import os
import random
import re
import resource
import select
import shutil
import signal
import socket
import statistics
import string
import struct
import subprocess
import sys
import textwrap
import time
import traceback
import types
import typing
import unittest

WARM = (
    base64,
    collections,
    dataclasses,
    datetime,
    decimal,
    functools,
    io,
    itertools,
    math,
    random,
    re,
    statistics,
    string,
)
ALSO_WARM = (subprocess, textwrap, typing, unittest)
"""Modules that code under repair often imports; each import costs more than the isolation."""

WORK = "/work"
IN_CONTAINER = False
"""Whether this workspace is in a container, and keeps the container's user. `container` sets this and `WORK`."""
SKIPPED = frozenset(["__pycache__", ".git", ".venv"])
"""Folders whose content does not count as a change of a workspace."""
NOBODY = 65534
MESSAGE = 64 << 20
"""Maximum length of a message, in bytes."""
CHANGED_FILES, CHANGED_BYTES = 500, 1 << 20
"""Maximum number of files, and of bytes, in the changes of a workspace."""
POLL = 0.05
STARVED_SHARE = 0.1
"""Share of a cell's wall time that it may wait for a processor before the limit says nothing about the code."""
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
READ_ONLY, NOSUID, NODEV, NOEXEC, REC, PRIVATE = 1, 2, 4, 8, 16384, 1 << 18
SET_DUMPABLE, DROP_FROM_BOUNDING_SET = 4, 24
libc = ctypes.CDLL(None, use_errno=True)


class Connection(typing.Protocol):
    """A stream of bytes to the other side and back."""

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


def call(name: str, *arguments: object) -> None:
    """Call a function of libc. Raises OSError."""
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def mount(kind: str, place: str, flags: int, options: str = "") -> None:
    call("mount", kind.encode(), place.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())


def send(connection: Connection, message: dict[str, typing.Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("!I", len(body)) + body)


def receive(connection: Connection, most: int = MESSAGE) -> dict[str, typing.Any] | None:
    """Return the next message; `None` if the other side is gone. Raises ValueError if it is too long or malformed."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    (length,) = struct.unpack("!I", head)
    if length > most:
        raise ValueError("message too long")
    body = _exactly(connection, length)
    if body is None:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("message is not an object")
    return message


def _exactly(connection: Connection, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def template(control: socket.socket) -> None:
    """Fork a workspace for each connection that arrives, until the service is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, handles, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        if os.fork() == 0:
            control.close()
            try:
                _enter(socket.socket(fileno=handles[0]), json.loads(message))
            finally:
                os._exit(1)
        os.close(handles[0])


def _enter(connection: socket.socket, limits: dict[str, typing.Any]) -> None:
    """Enter new namespaces and fork their init."""
    user, group = os.geteuid(), os.getegid()
    spaces = NEWNS | NEWPID | NEWNET | NEWIPC | NEWUTS
    try:
        call("unshare", spaces if user == 0 else spaces | NEWUSER)
        if user != 0:
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                _write_setting(f"/proc/self/{name}", text)
        if os.fork() != 0:
            os._exit(0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
        call("mount", None, b"/", None, ctypes.c_ulong(REC | PRIVATE), None)
        mount("proc", "/proc", NOSUID | NODEV | NOEXEC)
        size = f"size={limits['disk_bytes']},nr_inodes=20000,mode=0777"
        mount("tmpfs", WORK, NOSUID | NODEV, size)
        mount("tmpfs", "/tmp", NOSUID | NODEV, size)
        mount("tmpfs", "/dev/shm", NOSUID | NODEV | NOEXEC, "size=1m,nr_inodes=64,mode=0777")
        mount(
            "tmpfs", "/dev/pts", READ_ONLY | NOSUID | NODEV | NOEXEC
        )  # terminals would be shared with other workspaces
        for name, value in (("shmall", 256), ("msgmni", 0), ("sem", "0 0 0 0")):
            with contextlib.suppress(OSError):
                _write_setting(f"/proc/sys/kernel/{name}", str(value))
        os.chdir(WORK)
    except OSError as error:
        send(connection, {"error": str(error)})
        os._exit(1)
    Init(connection, limits).serve()


class Pipes:
    """Standard input and output as a connection."""

    def recv(self, most: int) -> bytes:
        return os.read(0, most)

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def close(self) -> None:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)


def container() -> None:
    """Run as the init of a container. The first message has the limits, the folder and the container's maximum age."""
    global WORK, IN_CONTAINER
    connection = Pipes()
    order = receive(connection)
    if order is None:
        return
    if os.getpid() != 1:  # this function kills every process that it sees
        send(connection, {"error": "not process 1 of a container"})
        return
    WORK, IN_CONTAINER = order["folder"], True
    until = time.monotonic() + order["seconds"]
    # The workspace may send this signal too, which does no harm.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0) if time.monotonic() >= until else None)
    signal.setitimer(signal.ITIMER_REAL, order["seconds"], 1.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    for name in [name for name in os.environ if name.startswith("KUBERNETES_")]:
        del os.environ[name]
    try:
        os.makedirs(WORK, exist_ok=True)
        os.chdir(WORK)
        for hidden in order["hidden"]:
            if os.path.isdir(hidden) and not os.path.islink(hidden):
                shutil.rmtree(hidden)
            elif os.path.lexists(hidden):
                os.unlink(hidden)
        init = Init(connection, order["limits"])
        init.original = {path: _digest(text) for path, text in _texts() if text is not None}
    except OSError as error:
        send(connection, {"error": str(error)})
        return
    init.serve()


def _write_setting(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def drop_privileges(limits: dict[str, typing.Any]) -> None:
    """Drop every privilege that untrusted code must not have."""
    if IN_CONTAINER:
        with contextlib.suppress(OSError):  # most container runtimes forbid it, and remove the network themselves
            call("unshare", NEWUSER | NEWNET)
            _write_setting("/proc/sys/user/max_user_namespaces", "0")
    else:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        call("unshare", NEWUSER)  # so that the number of processes is counted for this workspace alone
        _write_setting("/proc/sys/user/max_user_namespaces", "0")
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"] * 2),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        resource.setrlimit(kind, (value, value))
    for capability in range(41):
        libc.prctl(DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
    header = struct.pack("Ii", 0x20080522, 0)
    call("capset", header, bytes(24))
    libc.prctl(SET_DUMPABLE, 1, 0, 0, 0)
    os.setsid()


class Output:
    """The beginning and the end of a stream."""

    def __init__(self, most: int) -> None:
        self._half, self._head, self._tail, self._count = most // 2, bytearray(), bytearray(), 0

    def add(self, data: bytes) -> None:
        self._count += len(data)
        room = self._half - len(self._head)
        self._head += data[:room] if room > 0 else b""
        self._tail = (self._tail + (data[room:] if room > 0 else data))[-self._half :]

    def text(self) -> str:
        left_out = self._count - len(self._head) - len(self._tail)
        gap = f"\n... {left_out} bytes left out ...\n" if left_out else ""
        return self._head.decode("utf-8", "replace") + gap + self._tail.decode("utf-8", "replace")


class Init:
    """Process 1 of a workspace: executes the service's requests and enforces the limits."""

    def __init__(self, connection: Connection, limits: dict[str, typing.Any]) -> None:
        self.connection, self.limits = connection, limits
        self.repl: int | None = None
        self.link: socket.socket | None = None
        self.output = -1
        self.original: dict[str, str] = {}
        self.lost = False
        """Whether the REPL has ended, its variables are lost, and no new one has started."""
        self.untouched = True
        """Whether no untrusted code has run yet. Files can then be written directly, without a separate process."""
        self.starved = False
        """Whether the last cell ran out of wall time because other processes had the processor."""

    def serve(self) -> typing.NoReturn:
        operations = {
            "exec": self.execute,
            "evaluate": self.execute,
            "write": self.write,
            "read": self.read,
            "changes": self.changes,
        }
        send(self.connection, {"ready": True})
        try:
            while (request := receive(self.connection)) is not None:
                send(self.connection, operations[request["op"]](request))
        finally:
            self._kill_all()
            os._exit(0)

    def execute(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Run a cell, or evaluate an expression, in the REPL."""
        begun = time.monotonic()
        self.untouched = self.starved = False
        restarted = self._require_repl()
        kept = Output(self.limits["output_bytes"])
        reply, ended = self._converse(request, kept, begun)
        if ended is None:
            self._sweep()
        if ended is not None or self.repl is None:
            self._kill_all()
        else:
            os.kill(self.repl, signal.SIGSTOP)  # nothing runs between two cells, not even a thread
        self._drain(kept)
        if self.repl is None:
            self._forget_repl()
            self.lost = True
        answer = {"output": kept.text(), "seconds": time.monotonic() - begun, "ended": ended, "restarted": restarted}
        reply = reply or {}
        answer["ok"] = ended is None and reply.get("ok") is True
        answer["starved"] = self.starved
        if request["op"] == "evaluate":
            answer["value"] = str(reply["value"]) if ended is None and isinstance(reply.get("value"), str) else None
        return answer

    def write(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        files: dict[str, str] = request["files"]
        most = self.limits["file_bytes"]
        if self.untouched and request["snapshot"]:
            try:
                with _as_nobody():
                    _write_files(files, most)
            except (OSError, UnicodeError, ValueError) as error:
                return {"error": f"{type(error).__name__}: {error}"}
            self.original.update({path: _digest(text) for path, text in files.items()})
            return {}
        return self._as_user(lambda: _write_files(files, most))

    def read(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        return self._as_user(lambda: _read_file(request["path"], request["most"]))

    def changes(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the files that differ from the snapshot, and the deleted ones."""
        return self._as_user(lambda: _changed_files(self.original))

    def _require_repl(self) -> bool:
        """Start a REPL or wake the existing one. Return whether an earlier one was lost."""
        if self.repl is not None and self.link is not None:
            self._reap()
        if self.repl is not None:
            os.kill(self.repl, signal.SIGCONT)
            return False
        lost, self.lost = self.lost, False
        self._forget_repl()
        ours, theirs = socket.socketpair()
        output, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.connection.close()
                ours.close()
                os.close(output)
                _become_repl(theirs, sink, self.limits)
            finally:
                os._exit(1)
        theirs.close()
        os.close(sink)
        os.set_blocking(output, False)
        self.repl, self.link, self.output = pid, ours, output
        return lost

    def _forget_repl(self) -> None:
        if self.link is not None:
            self.link.close()
        if self.output >= 0:
            os.close(self.output)
        self.link, self.output = None, -1

    def _converse(
        self, request: dict[str, typing.Any], kept: Output, begun: float
    ) -> tuple[dict[str, typing.Any] | None, str | None]:
        """Let the REPL execute the request. Return its reply, or the reason why it was ended."""
        assert self.link is not None and self.repl is not None
        limits, before = self.limits, self._cpu_seconds()
        self.link.settimeout(1.0)
        watched = os.pidfd_open(self.repl)
        sources: list[socket.socket | int] = [self.link, self.output, watched]
        looked, runnable = begun, 0.0
        try:
            number = os.urandom(8).hex()
            send(self.link, {"op": request["op"], "code": request["code"], "number": number})
            while True:
                ready, _, _ = select.select(sources, [], [], POLL)
                if self.output in ready:
                    self._drain(kept, once=True)
                if self.link in ready:
                    reply = receive(self.link, 1 << 16)
                    if reply is None:
                        return None, self._why_gone()
                    if reply.get("number") != number:
                        raise ValueError("reply to no request")
                    return reply, None
                if watched in ready:
                    return None, self._why_gone()
                now = time.monotonic()
                if now - begun > limits["wall_seconds"]:
                    waited = runnable - (self._cpu_seconds() - before)
                    self.starved = waited > STARVED_SHARE * limits["wall_seconds"]
                    return None, f"wall time limit of {limits['wall_seconds']:g} s"
                if now - looked < POLL:
                    continue
                if any(map(_is_runnable, _processes())):
                    runnable += now - looked
                looked = now
                if self._cpu_seconds() - before > limits["cpu_seconds"]:
                    return None, f"CPU time limit of {limits['cpu_seconds']:g} s"
                if _memory_bytes() > limits["memory_bytes"]:
                    return None, f"memory limit of {limits['memory_bytes'] >> 20} MiB"
        except (OSError, ValueError, RecursionError):
            return None, "the REPL broke its protocol"
        finally:
            os.close(watched)

    def _why_gone(self) -> str:
        until = time.monotonic() + 1.0
        while (status := self._reap()) is None:
            if time.monotonic() > until:
                return "the REPL closed its connection"
            time.sleep(0.002)
        if os.WIFSIGNALED(status):
            return f"the REPL was ended by signal {os.WTERMSIG(status)}"
        return f"the REPL exited with code {os.waitstatus_to_exitcode(status)}"

    def _reap(self) -> int | None:
        """Reap every process that has ended. Return the status of the REPL if it is one of them."""
        found = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == self.repl:
                    found, self.repl = status, None
        return found

    def _sweep(self) -> None:
        """Kill the processes that a cell left behind."""
        for _ in range(20):
            self._reap()
            others = [pid for pid in _processes() if pid != self.repl]
            if not others:
                return
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)
        self._kill_all()

    def _kill_all(self) -> None:
        """Kill every process of the workspace except this one."""
        for _ in range(1000):
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            self._reap()
            if not _processes():
                break
            time.sleep(0.002)
        self.repl = None

    def _drain(self, kept: Output, *, once: bool = False) -> None:
        """Read the available output; without `once` at most the content of a pipe."""
        if self.output < 0:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(1 if once else 32):
                data = os.read(self.output, 1 << 16)
                if not data:
                    return
                kept.add(data)

    def _cpu_seconds(self) -> float:
        """Return the CPU time of all processes of the workspace, including ended ones."""
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + sum(_cpu_of(pid) for pid in _processes())

    def _as_user(self, function: typing.Callable[[], dict[str, typing.Any]]) -> dict[str, typing.Any]:
        """Run a file operation in a process with the privileges of the untrusted code."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self.connection.close()
                drop_privileges({**self.limits, "memory_bytes": 1 << 30, "processes": self.limits["processes"] + 1})
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                try:
                    answer = function()
                except (OSError, UnicodeError, ValueError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                send(theirs, answer)
            finally:
                os._exit(0)
        theirs.close()
        ours.settimeout(10.0)
        try:
            reply = receive(ours)
        except (OSError, ValueError):
            reply = None
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return {"error": "the file operation failed"} if reply is None else reply


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def _cpu_of(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / TICK


def _is_runnable(pid: int) -> bool:
    """Return whether a thread of the process runs or waits for a processor, instead of sleeping."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "R":
                    return True
    except OSError:
        pass  # it ended meanwhile
    return False


def _memory_bytes() -> int:
    """Return the unshared memory of all processes and their anonymous files."""
    total = 0
    for pid in _processes():
        with contextlib.suppress(OSError, ValueError):
            with open(f"/proc/{pid}/statm") as file:
                _, resident, shared = file.read().split()[:3]
            total += (int(resident) - int(shared)) * PAGE
            for handle in os.listdir(f"/proc/{pid}/fd"):
                place = f"/proc/{pid}/fd/{handle}"
                if os.readlink(place).startswith("/memfd:"):
                    total += os.stat(place).st_blocks * 512
    return total


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _inside(path: str) -> str:
    """Return the absolute path of a relative one. Raises ValueError if it leaves the workspace."""
    place = os.path.realpath(os.path.join(WORK, path))
    if os.path.isabs(path) or not place.startswith(WORK + "/"):
        raise ValueError(f"{path}: not a path inside the workspace")
    return place


@contextlib.contextmanager
def _as_nobody() -> typing.Iterator[None]:
    """Create files that belong to the untrusted code, even if this process is root."""
    if os.geteuid() != 0 or IN_CONTAINER:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _write_files(files: dict[str, str], most: int) -> dict[str, typing.Any]:
    for path, text in files.items():
        place = _inside(path)
        if len(text.encode("utf-8", "surrogateescape")) > most:
            raise ValueError(f"{path}: more than {most} bytes")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
    return {}


def _read_file(path: str, most: int) -> dict[str, typing.Any]:
    place = _inside(path)
    if not os.path.isfile(place):
        raise ValueError(f"{path}: no such file")
    with open(place, "rb") as file:
        data = file.read(most + 1)
    return {"content": data[:most].decode("utf-8", "replace"), "truncated": len(data) > most}


def _texts() -> typing.Iterator[tuple[str, str | None]]:
    """Return every file below the working folder: relative path -> text, or `None` for a file that is not text."""
    for folder, folders, names in os.walk(WORK):
        folders[:] = [
            name for name in folders if name not in SKIPPED and not os.path.islink(os.path.join(folder, name))
        ]
        for name in sorted(names):
            place = os.path.join(folder, name)
            if os.path.islink(place) or not os.path.isfile(place):
                continue
            try:
                with open(place, "rb") as file:
                    text: str | None = file.read(CHANGED_BYTES + 1).decode("utf-8", "strict")
            except (OSError, UnicodeError):
                text = None
            yield os.path.relpath(place, WORK), text


def _changed_files(original: dict[str, str]) -> dict[str, typing.Any]:
    changed: dict[str, str] = {}
    seen, total = set(), 0
    for path, text in _texts():
        seen.add(path)
        if text is None or original.get(path) == _digest(text):
            continue
        total += len(text)
        if len(changed) == CHANGED_FILES or total > CHANGED_BYTES:
            raise ValueError(f"more than {CHANGED_FILES} files or {CHANGED_BYTES >> 20} MiB were changed")
        changed[path] = text
    return {"changed": changed, "deleted": sorted(set(original) - seen)}


def _become_repl(link: socket.socket, sink: int, limits: dict[str, typing.Any]) -> None:
    drop_privileges(limits)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)
    sys.argv, sys.path[:0] = [""], [WORK]
    sys.dont_write_bytecode = True
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    while (request := receive(link)) is not None:
        if request["op"] == "evaluate":
            reply = _evaluate(request["code"], module.__dict__)
        else:
            reply = {"ok": _run_cell(request["code"], module.__dict__)}
        send(link, {**reply, "number": request["number"]})


def _run_cell(code: str, names: dict[str, typing.Any]) -> bool:
    """Run a cell and print the value of a last expression. Return whether it raised nothing."""
    try:
        tree = ast.parse(code, "<cell>")
        last = typing.cast(ast.Expr, tree.body.pop()) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "<cell>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                print(repr(value))
        return True
    except BaseException as error:
        try:
            shown = error.__traceback__.tb_next if error.__traceback__ else None
            traceback.print_exception(type(error), error, shown, limit=-6)
        except BaseException:
            print(type(error).__name__)
        return False
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()


def _evaluate(code: str, names: dict[str, typing.Any]) -> dict[str, typing.Any]:
    """Return the value of the last expression as text, after running the statements before it; for an exception its
    class.
    """
    try:
        tree = ast.parse(code, "<check>")
        last = tree.body.pop()
        assert isinstance(last, ast.Expr)
        exec(compile(tree, "<check>", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "<check>", "eval"), names)
        return {"ok": True, "value": repr(value)[:20_000]}
    except BaseException as error:
        return {"ok": False, "value": f"raises {type(error).__name__}"}
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()


if __name__ == "__main__":
    template(socket.socket(fileno=int(sys.argv[1])))
elif __name__ == "__container__":
    container()
