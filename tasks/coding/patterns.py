"""The kinds of bugs of the built-in set: functions with one line that can be wrong, and the names in them.

Names of functions and arguments differ between train and test, and some families of bugs occur in the test set only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

Split = Literal["train", "test"]


class Pattern(NamedTuple):
    """A function with one line that can be wrong. `{f}`, `{a}` and `{b}` stand for names."""

    kind: str
    parameters: str
    says: str
    """What the function does."""
    body: tuple[str, ...]
    """The right lines, without their first indentation."""
    line: int
    """Index of the line that can be wrong."""
    wrong: tuple[str, ...]
    """Wrong variants of that line."""
    calls: tuple[tuple[Any, ...], ...]
    """Arguments of the checks."""


NUMBERS = ((7, 3), (10, 4), (2, 9), (5, 5), (-3, 8))
LISTS = (([4, 9, 2, 7],), ([5, 1, 8],), ([3, 3, 6, 0, 1],), ([10, 20],))
CUTS = (([4, 9, 2, 7], 1), ([5, 1, 8, 6], 2), ([3, 4, 6, 0, 1], 3))
TEXTS = (("Green Apple",), (" two words ",), ("north",), ("SOUTH end",))
FLAGS = ((True, True), (True, False), (False, True), (False, False))
COUNTS = ((1,), (3,), (6,), (10,))


def _single(
    kind: str, parameters: str, calls: tuple[tuple[Any, ...], ...], choices: dict[str, str]
) -> Iterator[Pattern]:
    """One-line functions. The right expression of one of the `choices` (description -> expression) is wrong for the
    others.
    """
    for says, right in choices.items():
        wrong = tuple(f"return {expression}" for expression in choices.values() if expression != right)
        yield Pattern(kind, parameters, says, (f"return {right}",), 0, wrong, calls)


def _loop(
    kind: str, says: str, body: tuple[str, ...], line: int, wrong: tuple[str, ...], calls: Any = LISTS
) -> Pattern:
    return Pattern(kind, "{a}", says, body, line, wrong, calls)


def _units() -> Iterator[Pattern]:
    for large, small, factor in (
        *(("hours", "minutes", 60), ("days", "hours", 24), ("weeks", "days", 7), ("kilometres", "metres", 1000)),
        *(
            ("dozens", "pieces", 12),
            ("metres", "centimetres", 100),
            ("years", "months", 12),
            ("kilograms", "grams", 1000),
        ),
    ):
        wrong = tuple(f"return {{a}} * {other}" for other in (7, 10, 12, 24, 60, 100, 1000) if other != factor)
        yield Pattern(
            "constant",
            "{a}",
            f"Return how many {small} are in {{a}} {large}.",
            (f"return {{a}} * {factor}",),
            0,
            wrong,
            COUNTS,
        )


PATTERNS: tuple[Pattern, ...] = (
    *_single(
        "operator",
        "{a}, {b}",
        NUMBERS,
        {
            "Return the sum of {a} and {b}.": "{a} + {b}",
            "Return {a} minus {b}.": "{a} - {b}",
            "Return the product of {a} and {b}.": "{a} * {b}",
            "Return the remainder of {a} divided by {b}.": "{a} % {b}",
        },
    ),
    *_single(
        "comparison",
        "{a}, {b}",
        NUMBERS,
        {
            "Tell whether {a} is greater than {b}.": "{a} > {b}",
            "Tell whether {a} is at least {b}.": "{a} >= {b}",
            "Tell whether {a} is less than {b}.": "{a} < {b}",
            "Tell whether {a} is at most {b}.": "{a} <= {b}",
            "Tell whether {a} equals {b}.": "{a} == {b}",
        },
    ),
    *_single(
        "index",
        "{a}",
        LISTS,
        {
            "Return the first of {a}.": "{a}[0]",
            "Return the second of {a}.": "{a}[1]",
            "Return the last of {a}.": "{a}[-1]",
            "Return the last but one of {a}.": "{a}[-2]",
        },
    ),
    *_single(
        "slice",
        "{a}, {b}",
        CUTS,
        {
            "Return the first {b} of {a}.": "{a}[:{b}]",
            "Return all but the first {b} of {a}.": "{a}[{b}:]",
            "Return the last {b} of {a}.": "{a}[-{b}:]",
            "Return all but the last {b} of {a}.": "{a}[:-{b}]",
        },
    ),
    *_units(),
    *_single(
        "method",
        "{a}",
        TEXTS,
        {
            "Return {a} in upper case.": "{a}.upper()",
            "Return {a} in lower case.": "{a}.lower()",
            "Return {a} without spaces around it.": "{a}.strip()",
            "Return the words of {a}.": "{a}.split()",
        },
    ),
    *_single(
        "aggregate",
        "{a}",
        LISTS,
        {
            "Return the largest of {a}.": "max({a})",
            "Return the smallest of {a}.": "min({a})",
            "Return the total of {a}.": "sum({a})",
            "Return how many {a} there are.": "len({a})",
        },
    ),
    *_single(
        "logic",
        "{a}, {b}",
        FLAGS,
        {
            "Tell whether both {a} and {b} hold.": "{a} and {b}",
            "Tell whether {a} or {b} holds.": "{a} or {b}",
            "Tell whether {a} holds but not {b}.": "{a} and not {b}",
        },
    ),
    *_single(
        "variable",
        "{a}, {b}",
        NUMBERS,
        {"Return the larger of {a} and {b}.": "max({a}, {b})", "Return the smaller of {a} and {b}.": "min({a}, {b})"},
    ),
    *_single(
        "order",
        "{a}, {b}",
        NUMBERS,
        {
            "Return {a} and then {b}.": "({a}, {b})",
            "Return {b} and then {a}.": "({b}, {a})",
            "Return {a} twice.": "({a}, {a})",
        },
    ),
    _loop(
        "initial value",
        "Return the sum of {a}.",
        ("total = 0", "for item in {a}:", "    total += item", "return total"),
        0,
        ("total = 1", "total = 10", "total = -1"),
    ),
    _loop(
        "initial value",
        "Return the product of {a}.",
        ("total = 1", "for item in {a}:", "    total *= item", "return total"),
        0,
        ("total = 0", "total = 2", "total = -1"),
    ),
    _loop(
        "accumulation",
        "Return the sum of {a}.",
        ("total = 0", "for item in {a}:", "    total += item", "return total"),
        2,
        ("    total = item", "    total -= item", "    total += 1"),
    ),
    _loop(
        "accumulation",
        "Return the squares of {a}.",
        ("found = []", "for item in {a}:", "    found.append(item * item)", "return found"),
        2,
        ("    found.append(item)", "    found.append(item + item)"),
    ),
    _loop(
        "condition",
        "Return the even numbers of {a}.",
        ("return [item for item in {a} if item % 2 == 0]",),
        0,
        ("return [item for item in {a} if item % 2 == 1]", "return [item for item in {a} if item > 2]"),
    ),
    _loop(
        "condition",
        "Return the odd numbers of {a}.",
        ("return [item for item in {a} if item % 2 == 1]",),
        0,
        ("return [item for item in {a} if item % 2 == 0]", "return [item for item in {a} if item > 1]"),
    ),
    _loop(
        "range",
        "Return the numbers from 1 to {a}.",
        ("return list(range(1, {a} + 1))",),
        0,
        ("return list(range(1, {a}))", "return list(range({a}))", "return list(range(0, {a} + 1))"),
        COUNTS,
    ),
    _loop(
        "range",
        "Return the numbers from 0 to {a}.",
        ("return list(range({a} + 1))",),
        0,
        ("return list(range(1, {a} + 1))", "return list(range({a}))"),
        COUNTS,
    ),
    _loop(
        "return",
        "Return the sum of {a}.",
        ("total = sum({a})", "return total"),
        1,
        ("return None", "return {a}", "return 0"),
    ),
)
"""Families that occur in both splits."""

HELD_OUT: tuple[Pattern, ...] = (
    *_single(
        "division",
        "{a}, {b}",
        NUMBERS,
        {"Return {a} divided by {b}.": "{a} / {b}", "Return the whole part of {a} divided by {b}.": "{a} // {b}"},
    ),
    *_single(
        "sorting", "{a}", LISTS, {"Return {a} in order.": "sorted({a})", "Return the reverse of {a}.": "{a}[::-1]"}
    ),
    *_single(
        "ends",
        "{a}, {b}",
        (("sunset", "sun"), ("sunset", "set"), ("noon", "noon"), ("rain", "x")),
        {
            "Tell whether {a} starts with {b}.": "{a}.startswith({b})",
            "Tell whether {a} ends with {b}.": "{a}.endswith({b})",
        },
    ),
)
"""Families of the test set only."""

NAMES: dict[Split, dict[str, tuple[str, ...]]] = {
    "train": {
        "f": (
            *("compute", "work_out", "result_of", "derive", "evaluate"),
            *("answer", "make", "produce", "find_it", "measure"),
        ),
        "a": ("first", "left", "values", "numbers", "source", "given", "entries", "base", "one", "start"),
        "b": ("second", "right", "other", "size", "amount", "step", "target", "two", "bound", "part"),
    },
    "test": {
        "f": ("obtain", "calculate", "determine", "figure", "get_it", "resolve", "outcome", "apply_rule"),
        "a": ("data", "items", "height", "text", "series", "before", "upper", "record"),
        "b": ("count", "limit", "width", "extra", "after", "lower", "mark", "offset"),
    },
}
"""Split -> placeholder -> names; no name is in both."""

HEADS = ("", '"""Small things."""\n\n', "VERSION = 3\n\n", "def unused():\n    return None\n\n\n")
"""Code that may precede the function, so that the line number of the bug varies."""
