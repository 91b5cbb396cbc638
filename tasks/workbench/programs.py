"""Programs that a policy writes. They run in Monty, an interpreter of Python without files, network or environment.

Monty (https://github.com/pydantic/monty) is a process of its own with limits of time and memory. A program reaches the
functions that it is given, and nothing else.
"""

from __future__ import annotations

import atexit
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

from pydantic_monty import ClassInstance, Monty, MontyError, OSPolicy, ResourceLimits

from tasks.workbench.tables import MOMENT

LONGEST = 10_000
"""Characters of a program, or of a text that it gives to a function."""
LARGEST = 10**15
_LIMITS: ResourceLimits = {"max_feed_duration_secs": 1.0, "max_memory": 8 * 2**20, "max_suspensions": 500}
"""Seconds, bytes and calls of functions, at most."""
_WORLD: OSPolicy = {"datetime": datetime.fromisoformat(MOMENT), "sleep": "zero", "random_start": {"seed": 0}}
_PLAIN = (str, int, float, bool, type(None))


class ProgramError(Exception):
    """What is wrong with a program, in one line."""


def run(program: str, functions: Mapping[str, Callable[..., Any]]) -> None:
    """Run a program. It calls functions by their names, which may have one dot, and they return plain values.

    Raises:
        ProgramError: it is no program, or fails. What it did before stays done.
    """
    if len(program) > LONGEST:
        raise ProgramError("the program is too long")
    # Monty 1.4 knows a method only where it is called.
    program = re.sub(r"\bkey=(\w+)\.get\b", r"key=lambda item: \1.get(item)", program)
    bugs: list[Exception] = []
    owners = defaultdict[str, dict[str, Callable[..., Any]]](dict)
    for name, function in functions.items():
        owner, _, method = name.rpartition(".")
        owners[owner][method] = _guarded(function, bugs)
    alone = owners.pop("", {})
    objects = {
        owner: ClassInstance(type(owner, (SimpleNamespace,), {})(**of), allowed_methods=set(of))
        for owner, of in owners.items()
    }
    try:
        with _pool().checkout(limits=_LIMITS, os_policy=_WORLD) as session:
            session.feed_run(program, inputs=objects, external_lookup=alone, print_callback=lambda *_: None)
    except MontyError as error:
        if not bugs:
            said = str(error)[:1000].removeprefix("Exception: ")  # it may quote a text of the program
            raise ProgramError(" ".join(said.split())[:200]) from None
    if bugs:
        raise bugs[0]


@cache
def _pool() -> Monty:
    pool = Monty()
    atexit.register(pool.__exit__, None, None, None)
    return pool.__enter__()


def _guarded(function: Callable[..., Any], bugs: list[Exception]) -> Callable[..., Any]:
    """Return the function for a program, which gives it plain values only. What is not the program's fault is a bug."""

    def called(*given: Any, **named: Any) -> Any:
        for value in (*given, *named.values()):
            if type(value) not in _PLAIN:
                raise ProgramError(f"expected a text or a number, found {type(value).__name__}")
            if type(value) is str and len(value) > LONGEST:
                raise ProgramError("a text is too long")
            if type(value) in (int, float) and not abs(value) <= LARGEST:
                raise ProgramError("a number is too large")
        try:
            return function(*given, **named)
        except (ProgramError, TypeError, ValueError, OverflowError):
            raise
        except Exception as error:
            bugs.append(error)
            raise

    return called
