"""Process 1 of a workspace."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import time
import typing

from sandbox.inside.confinement import as_nobody, drop_privileges
from sandbox.inside.files import changed_files, digest, read_file, write_files
from sandbox.inside.holding import Unstoppable, hold, release
from sandbox.inside.processes import ProcessorQueue, cpu_seconds, memory_bytes, running
from sandbox.inside.protocol import (
    BUSY_FACTOR,
    FILE_SECONDS,
    Assembly,
    Connection,
    packed,
    receive,
    receive_within,
    send,
)
from sandbox.inside.repl import become_repl

POLL = 0.05
REPLY = 1 << 18
"""Maximum length of a reply of the REPL, in bytes."""


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

    def __init__(
        self, connection: Connection, limits: dict[str, typing.Any], folder: str, *, in_container: bool
    ) -> None:
        """Work in `folder`. In a container, its user is kept."""
        self.connection, self.limits, self.folder, self.in_container = connection, limits, folder, in_container
        self.repl: int | None = None
        self.held: list[int] = []
        """The threads of the REPL, which are stopped between two cells."""
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
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one signal that Python handles, and code may send
        send(self.connection, {"ready": True})
        try:
            while (request := receive(self.connection)) is not None:
                send(self.connection, operations[request["op"]](request))
                if request["op"] in ("exec", "evaluate"):
                    self._pause()  # after the answer, which need not wait for it; no request is read before it is done
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
        if ended is not None:
            self._kill_all()
        self._drain(kept)
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
                with contextlib.nullcontext() if self.in_container else as_nobody():
                    write_files(self.folder, files, most)
            except (OSError, UnicodeError, ValueError) as error:
                return {"error": f"{type(error).__name__}: {error}"}
            self.original.update({os.path.normpath(path): digest(text) for path, text in files.items()})
            return {}
        return self._as_user(lambda: write_files(self.folder, files, most))

    def read(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        return self._as_user(lambda: read_file(self.folder, request["path"], request["most"]))

    def changes(self, request: dict[str, typing.Any]) -> dict[str, typing.Any]:
        """Return the files that differ from the snapshot, and the deleted ones."""
        return self._as_user(lambda: changed_files(self.folder, self.original))

    def _require_repl(self) -> bool:
        """Start a REPL if there is none. Return whether an earlier one was lost."""
        if self.repl is not None and self.link is not None:
            self._reap()
            self.lost = self.repl is None  # it has died since the last cell
        if self.repl is not None:
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
                become_repl(theirs, sink, self.limits, self.folder, self.in_container)
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
        watched = os.pidfd_open(self.repl)
        sources: list[socket.socket | int] = [self.link, self.output, watched]
        looked, runnable, queue = begun, 0.0, ProcessorQueue()
        number = os.urandom(8).hex()
        outgoing = packed({"op": request["op"], "code": request["code"], "number": number})
        incoming = Assembly(REPLY)
        try:
            with contextlib.suppress(BlockingIOError):
                outgoing = outgoing[self.link.send(outgoing, socket.MSG_DONTWAIT) :]
            self.held = release(self.repl, self.held)  # now that there is something to read
            while True:
                # The link never blocks: its other end may read and write as slowly as it likes, under the limits.
                ready, writable, _ = select.select(sources, [self.link] if outgoing else [], [], POLL)
                if writable:
                    outgoing = outgoing[self.link.send(outgoing, socket.MSG_DONTWAIT) :]
                if self.output in ready and not self._drain(kept, once=True):
                    sources.remove(self.output)  # the cell has closed it: it would be ready for ever
                if self.link in ready:
                    piece = self.link.recv(1 << 16, socket.MSG_DONTWAIT)
                    if not piece:
                        return None, self._why_gone()
                    reply = incoming.add(piece)
                    if reply is not None:
                        if reply.get("number") != number:
                            raise ValueError("reply to no request")
                        return reply, None
                if watched in ready:
                    return None, self._why_gone()
                now = time.monotonic()
                if now - looked < POLL:
                    continue
                if queue.look():
                    runnable += now - looked
                looked, cpu = now, self._cpu_seconds() - before
                # The wall time does not run while others have the processor. Code may arrange to be ready whenever it is
                # looked at, or to queue for a moment: both figures must agree.
                waited = max(0.0, min(runnable - cpu, queue.seconds))
                self.starved = now - begun > BUSY_FACTOR * limits["wall_seconds"]
                if self.starved or now - begun - waited > limits["wall_seconds"]:
                    return None, f"wall time limit of {limits['wall_seconds']:g} s"
                if cpu > limits["cpu_seconds"]:
                    return None, f"CPU time limit of {limits['cpu_seconds']:g} s"
                if memory_bytes() > limits["memory_bytes"]:
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

    def _pause(self) -> None:
        """Stop the REPL, so that nothing runs between two cells, and kill the processes that the cell left behind."""
        self._reap()
        try:
            if self.repl is not None:
                self.held = hold(self.repl)
                self._sweep()
        except (Unstoppable, OSError):
            self._kill_all()
        if self.repl is None:
            self._kill_all()
            self._forget_repl()
            self.lost = True
        else:
            self._drain(Output(0))  # what was left behind does not write into the next cell

    def _sweep(self) -> None:
        """Kill all processes but the REPL, and the REPL too if they do not end."""
        for _ in range(20):
            self._reap()
            others = [pid for pid in running() if pid != self.repl]
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
            if not running():
                break
            time.sleep(0.002)
        self.repl = None

    def _drain(self, kept: Output, *, once: bool = False) -> bool:
        """Read the available output; without `once` at most the content of a pipe. Return whether more may come."""
        if self.output < 0:
            return False
        with contextlib.suppress(BlockingIOError):
            for _ in range(1 if once else 32):
                data = os.read(self.output, 1 << 16)
                if not data:
                    return False
                kept.add(data)
        return True

    def _cpu_seconds(self) -> float:
        """Return the CPU time of all processes of the workspace, including ended ones."""
        own = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own.ru_utime + own.ru_stime + sum(cpu_seconds(pid) for pid in running())

    def _as_user(self, function: typing.Callable[[], dict[str, typing.Any]]) -> dict[str, typing.Any]:
        """Run a file operation in a process with the privileges of the untrusted code.

        The answer is `starved` if it had neither finished nor used its CPU time when its wall time was over.
        """
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            try:
                self.connection.close()
                limits = {**self.limits, "memory_bytes": 1 << 30, "processes": self.limits["processes"] + 1}
                drop_privileges(limits, self.in_container)
                resource.setrlimit(resource.RLIMIT_CPU, (FILE_SECONDS, FILE_SECONDS))
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                try:
                    answer = function()
                except (OSError, UnicodeError, ValueError) as error:
                    answer = {"error": f"{type(error).__name__}: {error}"}
                send(theirs, answer)
            finally:
                os._exit(0)
        theirs.close()
        try:
            reply = receive_within(ours, BUSY_FACTOR * FILE_SECONDS)
        except OSError:  # Python 3.9 has another error for a socket's timeout
            reply = {"starved": True}
        except ValueError:
            reply = None
        ours.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return {"error": "the file operation failed"} if reply is None else reply
