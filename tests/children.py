"""Child processes that have imported everything before they are born.

One server forks the children of all tests of a worker: it is told only once what to import.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests import standstill

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "tests.tasks.coding.coding_training",
        "tests.tasks.outreach.killed_loop",
        "tests.training.injection",
    ]
)


def exit_code(target: Callable[..., Any], *arguments: Any) -> int:
    """Call `target` in a child and return how that ended: a signal's number is negative. Kill it when it hangs."""
    process = _CONTEXT.Process(target=_call, args=(target, *arguments))
    process.start()
    with standstill.guarded(SimpleNamespace(pid=process.pid, args=target.__name__)):  # type: ignore[arg-type]
        process.join()
    assert process.exitcode is not None
    return process.exitcode


def _call(target: Callable[..., Any], *arguments: Any) -> None:
    gc.freeze()  # what was imported is no garbage, and a training looks for some after each update
    target(*arguments)
