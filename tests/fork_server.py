"""Start `run.py` or `zenml` from a process that has imported the third-party packages: 5 to 20 s of processor time less.

The server imports what the project's modules name at their top, but none of the project's own modules, for a checkout has
copies of these. A started process has the folder, environment, output and signals that it would have by itself. It differs
in three ways:

* Variables that libraries read at their import (`READ_AT_IMPORT`) are the server's, so that other values get another server.
* The random seed of `hash` is the server's.
* It is no child of the tests' process.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

ROOT = Path(__file__).parents[1]

READ_AT_IMPORT = (
    "HF_HOME",  # huggingface_hub, like the other two
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "LITELLM_LOCAL_MODEL_COST_MAP",  # litellm, which ART imports: where its price list is
    "OMP_NUM_THREADS",  # torch
    "IMPORT_UNSLOTH",  # art
    "TRANSFORMERS_VERBOSITY",
    "ZENML_ANALYTICS_OPT_IN",
    "ZENML_DEBUG",
    "ZENML_LOGGING_VERBOSITY",
)

# Not named at the top of a module of ours, but imported by every run.
_IMPORTED_LATER = (
    "zenml.cli.cli",
    "zenml.integrations.registry",
    "zenml.orchestrators.local.local_orchestrator",
    "zenml.zen_stores.sql_zen_store",
    "peft",
    "pyarrow.parquet",
    "transformers.models.llama.modeling_llama",
)


@dataclass
class Started:
    """A process that the server has started. Its methods do what those of `subprocess.Popen` do."""

    args: list[str]
    pid: int
    _status: socket.socket
    _output: IO[bytes]
    _errors: IO[bytes] | None
    returncode: int | None = field(default=None, init=False)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            said = self._status.recv(64)
            assert said, "the fork server has ended"
            self.returncode = int(said)
        return self.returncode

    def communicate(self) -> tuple[str, str | None]:
        """Return output and errors of the ended process, or both as output if they were not to be told apart."""
        self.wait()
        return self.printed(), None if self._errors is None else _text(self._errors)

    def printed(self) -> str:
        """Return the output so far."""
        return _text(self._output)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    words: list[str],
    *,
    folder: Path,
    environment: dict[str, str],
    background: bool = False,
    program: str = "run.py",
) -> Started:
    """Start a program of `folder`, or ZenML's command, `zenml`.

    With `background`, as a script's `&` has it: SIGINT ignored, errors in the output.
    """
    output = tempfile.TemporaryFile()  # noqa: SIM115 - the process outlives this function
    errors = None if background else tempfile.TemporaryFile()  # noqa: SIM115
    request: dict[str, Any] = {"program": program, "words": words, "folder": str(folder)}
    request |= {"environment": environment, "background": background}
    theirs, ours = socket.socketpair()
    with theirs:
        control = _server(tuple(environment.get(name) for name in READ_AT_IMPORT))
        descriptors = [theirs.fileno(), output.fileno(), (errors or output).fileno()]
        length = len(text := json.dumps(request).encode())
        socket.send_fds(control, [length.to_bytes(8, "big")], descriptors)
        control.sendall(text)
    pid = ours.recv(64)
    assert pid, "the fork server has ended: see what it printed"
    return Started([program, *words], int(pid), ours, output, errors)


def _text(file: IO[bytes]) -> str:
    # A child that is still at work shares the place in the file at which it writes, which a plain read would move.
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


@cache
def _server(read_at_import: tuple[str | None, ...]) -> socket.socket:
    """Return the socket of the server for these values of `READ_AT_IMPORT`. Both end with this process."""
    theirs, ours = socket.socketpair()
    folder = tempfile.mkdtemp(prefix="zenml-fork-server-")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZENML_")}
    for name, value in zip(READ_AT_IMPORT, read_at_import, strict=True):
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    environment["ZENML_CONFIG_PATH"] = folder
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        server = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)

    def end() -> None:
        ours.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return ours


def _import_third_party() -> None:
    """Import the third-party packages. They read the variables that run.py sets for them."""
    runpy.run_path(str(ROOT / "run.py"), run_name="fork_server")["quiet_third_parties"]()
    for name in (*sorted(_named_at_the_top()), *_IMPORTED_LATER):
        with contextlib.suppress(ImportError):  # an attribute of a package, or a package for GPUs only
            importlib.import_module(name)
    importlib.import_module("sqlalchemy.orm").configure_mappers()  # of ZenML's tables: a second of every command
    assert threading.active_count() == 1, f"threads would be lost in the children: {threading.enumerate()}"
    gc.collect()
    gc.freeze()  # the collector would write to every object, and so copy its page in each child


def _named_at_the_top() -> set[str]:
    rooms = [file.parent.name for file in ROOT.glob("*/__init__.py")]
    names: set[str] = set()
    for room in rooms:
        if room in ("tests", "benchmarks"):
            continue
        for file in (ROOT / room).rglob("*.py"):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.Import):
                    names |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.partition(".")[0] not in {*rooms, "__future__"}}


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for every request. Return, in the child, its request; end the server when nobody can ask any more."""
    children: dict[int, socket.socket] = {}
    wake, woken = socket.socketpair()
    for end in (wake, woken):
        end.setblocking(False)
    signal.set_wakeup_fd(woken.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and these end the server
    while True:
        ready, _, _ = select.select([control, wake], [], [])
        if wake in ready:
            wake.recv(4096)
            _tell_ended(children)
        if control not in ready:
            continue
        length, descriptors, _, _ = socket.recv_fds(control, 8, 3)
        if not length:
            _kill_all(children)
        request = json.loads(_received(control, int.from_bytes(length, "big")))
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (control, wake, woken, *children.values()):
                end.close()
            os.close(descriptors[0])
            return {**request, "output": descriptors[1], "errors": descriptors[2]}
        children[pid] = socket.socket(fileno=descriptors[0])
        children[pid].sendall(str(pid).encode())
        for descriptor in descriptors[1:]:
            os.close(descriptor)


def _received(control: socket.socket, length: int) -> bytes:
    text = b""
    while len(text) < length:
        text += control.recv(length - len(text))
    return text


def _tell_ended(children: dict[int, socket.socket]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with children.pop(pid) as told, contextlib.suppress(OSError):
            told.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _kill_all(children: dict[int, socket.socket]) -> NoReturn:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    os._exit(0)


def _become(request: dict[str, Any]) -> None:
    """Make this process what the command would be."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, descriptor in ((1, request["output"]), (2, request["errors"])):
        os.dup2(descriptor, number)
    for descriptor in {request["output"], request["errors"]}:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.SIG_IGN if request["background"] else signal.default_int_handler)
    sys.argv[:] = [request["program"], *request["words"]]
    sys.path[0] = request["folder"]
    sys.dont_write_bytecode = False  # the next start in this checkout compiles nothing of ours


def _execute(file: Path) -> None:
    """Execute `file` as `python` does. `runpy` would put the whole path into `sys.argv`."""
    main = ModuleType("__main__")
    main.__file__ = str(file)
    sys.modules["__main__"] = main
    exec(compile(file.read_bytes(), str(file), "exec"), vars(main))


if __name__ == "__main__":
    _import_third_party()
    _become(asked := _serve(socket.socket(fileno=int(sys.argv[1]))))
    if asked["program"] == "zenml":
        sys.exit(importlib.import_module("zenml.cli.cli").cli())
    _execute(Path(asked["folder"]) / asked["program"])
