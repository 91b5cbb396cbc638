"""Programs of a policy: what they can do, and what they cannot."""

from __future__ import annotations

import sqlite3
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.workbench.programs import ProgramError, run


def said(program: str, **functions: Any) -> list[Any]:
    """Run a program. Return what it says."""
    heard: list[Any] = []
    run(program, {"say": heard.append, "office.say": heard.append, **functions})
    return heard


@pytest.mark.parametrize(
    ("program", "heard"),
    [
        ("office.say('a' + \"b\")", ["ab"]),
        ("for n in [1, 2, 3, 4]:\n    if n == 2:\n        continue\n    if n == 4:\n        break\n    say(n)", [1, 3]),
        ("days = {'mon': 3, 'tue': 5}\nsay(max(days, key=days.get))\nsay(max(days.values()))", ["tue", 5]),
        ("counts = {}\nfor w in 'a b a'.split():\n    counts[w] = counts.get(w, 0) + 1\nsay(counts['a'])", [2]),
        ("say(', '.join([n.title() for n in ['ann', 'bob'] if n != 'bob']))", ["Ann"]),
        ("say(sorted([{'d': 2}, {'d': 1}], key=lambda r: r['d'])[0]['d'])", [1]),
        ("say(f'{1}-{\"b\"}')", ["1-b"]),
        ("say(round(2.6))\nsay(round(2.64, 1))", [3, 2.6]),
        (r"say('one\ntwo')", ["one\ntwo"]),
        ("def double(n):\n    return 2 * n\nsay(double(3))", [6]),
        ("print('nobody reads this')\nsay(None)", [None]),
        ("from datetime import datetime\nsay(f'{datetime.now():%Y-%m-%d %H:%M}')", ["2023-11-30 00:00"]),
        ("import time\ntime.sleep(9e9)\nsay(1)", [1]),
        ("say('a' * 10_000)", ["a" * 10_000]),
    ],
)
def test_a_program_says(program: str, heard: list[Any]) -> None:
    assert said(program) == heard


def test_chance_is_the_same_in_every_run() -> None:
    program = "import random\nsay(random.random())"
    assert said(program) == said(program)


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        ("import os\nos.remove('x')", "PermissionError"),
        ("import subprocess", "No module named 'subprocess'"),
        ("open('/etc/passwd')", "PermissionError"),
        ("say(().__class__.__base__.__subclasses__())", "AttributeError"),
        ("office.shut()", "'office' object has no attribute 'shut'"),
        ("office.__init__()", "has no attribute '__init__'"),
        ("office.__dict__", "has no attribute '__dict__'"),
        ("say.__globals__", "AttributeError"),
        ("say(unknown)", "name 'unknown' is not defined"),
        ("exec('import subprocess')", "No module named 'subprocess'"),
        ("say([1])", "expected a text or a number, found list"),
        ("say(office)", "expected a text or a number, found office"),
        ("say(b'a')", "expected a text or a number, found bytes"),
        ("say(10 ** 16)", "a number is too large"),
        ("say(float('nan'))", "a number is too large"),
        ("say('a' * 10_001)", "a text is too long"),
        ("say([1][5])", "IndexError: list index out of range"),
        ("say(1 / 0)", "ZeroDivisionError: division by zero"),
        ("say(", "unexpected EOF"),
        ("break", "'break' outside loop"),
        ("(" * 5000, "too deeply nested"),
        ("raise Exception('a\\nb')", "a b"),
        ("raise SystemExit", "SystemExit"),
        ("#" * 10_001, "the program is too long"),
        ("say()", "TypeError"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("a = [1]\nwhile True:\n    a = a + a", "memory limit exceeded"),
        ("'a' * 10 ** 9", "memory limit exceeded"),
        ("10 ** 10 ** 9", "memory limit exceeded"),
        ("f'{1:>999999999}'", "memory limit exceeded"),
        ("{}['ab ' * 500_000]", "KeyError"),
        ("raise Exception('ab ' * 2_000_000)", "ab ab"),
        ("a = []\nfor n in range(60):\n    a = [a, a]\nsay(str(a))", "memory limit"),
        ("a = []\nb = []\nfor n in range(60):\n    a = [a, a]\n    b = [b, b]\nsay(a == b)", "killed after"),
    ],
)
def test_what_a_program_cannot_do_is_said_in_one_line(program: str, wrong: str) -> None:
    tracemalloc.start()
    with pytest.raises(ProgramError) as caught:
        said(program)
    assert wrong in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) <= 200
    assert tracemalloc.get_traced_memory()[1] < 15e6
    tracemalloc.stop()


def test_a_program_without_an_end_is_ended() -> None:
    with pytest.raises(ProgramError, match="time limit"):
        said("while True:\n    pass")


def test_a_program_calls_five_hundred_times_at_most() -> None:
    calls: list[int] = []
    with pytest.raises(ProgramError, match="limit 500"):
        run("while True:\n    call(1)", {"call": calls.append})
    assert len(calls) == 500


def test_what_a_function_refuses_is_the_error_of_the_program() -> None:
    def refuse(text: str) -> None:
        raise ProgramError(f"{text} is refused")

    with pytest.raises(ProgramError, match="^that is refused$"):
        said("refuse('that')", refuse=refuse)
    assert said("try:\n    refuse('that')\nexcept Exception:\n    say(1)", refuse=refuse) == [1]


@pytest.mark.parametrize("program", ["broken()", "try:\n    broken()\nexcept Exception:\n    pass"])
def test_a_bug_of_a_function_is_no_fault_of_the_program(program: str) -> None:
    def broken() -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        said(program, broken=broken)


_PIECES = st.sampled_from(
    [
        *("a", "b", "1", "-2", "'x'", "[", "]", "(", ")", "{", "}", ":", ",", ".", "=", "==", "<", "+", "*", "%", "in"),
        *("\n", "\n    ", "for a in b:", "if a:", "while a:", "else:", "def a():", "raise a", "yield a", "await a"),
        *("import os", "a.get(1)", "a.append(a)", "a = [a, a]", "b = {a: b}", "a, b = b", "f'{a}'", "max(a, b)", "not"),
        *(
            "lambda a: a",
            "sorted(b)",
            "max(b, default=a)",
            "max(b, key=b.get)",
            "sum(b)",
            "range(9)",
            "len(a)",
            "break",
        ),
        *("office", "office.say", "say(a)", "str(a)"),
    ]
)


@given(st.lists(_PIECES, max_size=40).map(" ".join) | st.text(max_size=60))
def test_nothing_but_an_error_of_the_program_comes_out(program: str) -> None:
    try:
        heard = said(f"a = [1, 2]\nb = {{'k': a}}\n{program}")
    except ProgramError as error:
        assert "\n" not in str(error)
    else:
        assert all(value is None or isinstance(value, str | int | float) for value in heard)
