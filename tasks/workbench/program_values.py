"""The plain values of programs: what can be done with them, and how large they may be."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from itertools import chain
from typing import Any

LONGEST = 10_000
"""Characters of a program or text, items of a list."""
LARGEST = 10**15
OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.In: lambda left, right: left in right, ast.NotIn: lambda left, right: left not in right},
}
UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg}
METHODS: dict[type, tuple[str, ...]] = {
    str: ("lower", "upper", "title", "capitalize", "strip", "split", "startswith", "endswith"),
    list: ("append",),
    dict: ("get", "keys", "values", "items"),
}
BUILTINS: dict[str, Callable[..., Any]] = {
    **{made.__name__: made for made in (len, sorted, min, max, sum, any, all, abs, int, float, list, bool)},
    "str": lambda value="", /: str(value),
    # Rounding a whole number to minus a billion digits would take all memory.
    "round": lambda number, digits=None: (
        round(number if digits is None else float(number), digits)
        if type(number) is not int or digits is None or digits < 0
        else number
    ),
    "reversed": lambda items: items[::-1],
    "range": lambda *bounds: list(range(*bounds)),
    "zip": lambda *lists: list(zip(*lists, strict=False)),
    "enumerate": lambda items, start=0: list(enumerate(items, start)),
}
NUMBERS = (int, float)
SCALARS = (str, int, float, bool, type(None))


class ProgramError(Exception):
    """What is wrong with a program, in one line."""


def scalar(value: Any) -> Any:
    if type(value) in SCALARS:
        return value
    raise ProgramError(f"expected a text or a number, found {type(value).__name__}")


def text(value: Any) -> str:
    if type(value) is str:
        return value
    raise ProgramError(f"expected a text, found {type(value).__name__}")


def flat(value: Any) -> Any:
    """Return a value without lists in lists. Comparing those can take exponential time, because they may share parts."""
    if type(value) in (list, tuple, dict):
        for item in chain(value, value.values() if type(value) is dict else ()):
            scalar(item)
        return value
    return scalar(value)
