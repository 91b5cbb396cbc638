"""The benchmark's verdict: a task is done if the tables equal those after the reference calls.

It follows the original in what pandas compares besides the rows: their labels. Two orders of the same calls can therefore
count as different outcomes (docs/workbench.md).
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.workbench.tables import State, Tables, same
from tasks.workbench.tools import call, fault

NO_LITERAL = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
"""What reading a text in Python's notation raises: it is not of Python, has a list as a key, or is nested too deeply."""


class Call(NamedTuple):
    name: str
    arguments: dict[str, Any]


class Verdict(NamedTuple):
    correct: bool
    side_effects: bool
    """The tables changed, and not into those of the reference."""


def parse(text: str) -> Call | None:
    r"""Return a call as the benchmark writes it, `toolkit.tool.func(name="value")`. None if Python cannot read it.

    Like the original, it cannot read a text with a line break that is not written as `\n`.
    """
    try:
        written = ast.parse(text, mode="eval").body
        if not isinstance(written, ast.Call) or written.args or not ast.unparse(written.func).endswith(".func"):
            return None
        arguments = {keyword.arg or "**": ast.literal_eval(keyword.value) for keyword in written.keywords}
        "".join(
            map(str, arguments.values())
        ).encode()  # raises for half of an escaped character, which no table can hold
    except NO_LITERAL:
        return None
    return Call(ast.unparse(written.func).removesuffix(".func"), arguments)


def state_after(tables: Tables, calls: Sequence[Call | None]) -> State:
    """Return the state after these calls. One that cannot be executed is skipped, as in the original."""
    with tables.workspace() as workspace:
        for done in calls:
            if done is not None and fault(*done) is None:
                call(workspace, *done)
        return workspace.state()


class Judge:
    """Compares outcomes with that of the reference calls."""

    def __init__(self, tables: Tables, reference: Sequence[Call]) -> None:
        self._before = tables.untouched
        # Rows that stay the same are shared: a state of its own would take a megabyte.
        shared = {row: row for rows in tables.untouched.values() for row in rows}
        wanted = state_after(tables, reference)
        self._wanted = {table: [shared.get(row, row) for row in rows] for table, rows in wanted.items()}

    def verdict(self, state: State, *, failed: bool = False) -> Verdict:
        """Return the verdict on a state. An episode that failed is not correct, whatever it left behind."""
        done = same(state, self._wanted)
        return Verdict(done and not failed, state != self._before and not done)
