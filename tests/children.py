"""Child processes that have imported everything before they are born.

One server forks the children of all tests of a worker: it is told only once what to import.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from tests import standstill

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.serving.commands",
        "tests.tasks.coding.coding_training",
        "tests.tasks.outreach.killed_loop",
        "tests.training.injection",
    ]
)


def exit_code(target: Callable[..., Any], *arguments: Any) -> int:
    """Call `target` in a child and return how that ended: a signal's number is negative. Kill it when it hangs."""
    process = _CONTEXT.Process(target=target, args=arguments)
    process.start()
    with standstill.guarded(SimpleNamespace(pid=process.pid, args=target.__name__)):  # type: ignore[arg-type]
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def completed(
    target: Callable[..., Any], *arguments: Any, folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Call `target` in a child with this folder and environment, and return what it wrote and how it ended."""
    with tempfile.NamedTemporaryFile() as output, tempfile.NamedTemporaryFile() as errors:
        code = exit_code(_confined, output.name, errors.name, str(folder), environment, target, arguments)
        return subprocess.CompletedProcess([target.__name__, *arguments], code, _text(output), _text(errors))


def _confined(
    output: str, errors: str, folder: str, environment: dict[str, str], target: Callable[..., Any], arguments: Any
) -> None:
    for name, stream in ((output, sys.stdout), (errors, sys.stderr)):
        with open(name, "wb") as file:
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    target(*arguments)


def _text(file: IO[bytes]) -> str:
    return file.read().decode()
