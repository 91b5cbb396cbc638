"""The part of Python that policies write: what it can do, and what it cannot."""

from __future__ import annotations

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
        ("say(1 + 2 * 3)", [7]),
        ("office.say('a' + \"b\")", ["ab"]),
        ("for n in [1, 2, 3, 4]:\n    if n == 2:\n        continue\n    if n == 4:\n        break\n    say(n)", [1, 3]),
        ("n = 0\nwhile n < 3:\n    n += 1\nsay(n)", [3]),
        ("a, (b, c) = 1, (2, 3)\nsay(a + b + c)", [6]),
        ("days = {'mon': 3, 'tue': 5}\nsay(max(days, key=days.get))\nsay(max(days.values()))", ["tue", 5]),
        ("counts = {}\nfor w in 'a b a'.split():\n    counts[w] = counts.get(w, 0) + 1\nsay(counts['a'])", [2]),
        ("say(', '.join([n.title() for n in ['ann', 'bob'] if n != 'bob']))", ["Ann"]),
        ("say(sum(v for v in [1, 2, 3] if v > 1))", [5]),
        ("say(sorted([{'d': 2}, {'d': 1}], key=lambda r: r['d'])[0]['d'])", [1]),
        ("say(min([(2, 'b'), (1, 'a')])[1])", ["a"]),
        ("say(1 if 'x' in ['x'] and not None else 2)", [1]),
        ("say(f'{1}-{\"b\"}')", ["1-b"]),
        ("items = []\nitems.append(4)\nsay(len(items) + items[-1])", [5]),
        ("say('abc'[1:])", ["bc"]),
        ("say(round(2.6))\nsay(round(2.64, 1))\nsay(round(5, -999999999))", [3, 2.6, 0.0]),
        ("for n, word in enumerate(reversed(['a', 'b'])):\n    say(f'{n}{word}')", ["0b", "1a"]),
        (r"say('one\ntwo')", ["one\ntwo"]),
        (r"say('it\'s')", ["it's"]),
        ("say({k: v for k, v in [('a', 1)]}['a'])", [1]),
        ("say(1 < 2 < 3)\nsay(1 < 3 < 2)", [True, False]),
        ("say(any(v > 2 for v in [1, 3]))", [True]),
        ("double = lambda n: 2 * n\nsay(double(3))", [6]),
        ("x = 1\ny = [x for x in [5]]\nsay(x)", [1]),
    ],
)
def test_a_program_says(program: str, heard: list[Any]) -> None:
    assert said(program) == heard


@pytest.mark.parametrize(
    ("program", "wrong"),
    [
        ("import os", "line 1: Import is not possible"),
        ("say(().__class__)", "line 1: Attribute is not possible"),
        ("say('a'.format())", "str has no format"),
        ("say('a'.__class__())", "str has no __class__"),
        ("open('x')", "there is no function open"),
        ("office.shut()", "there is no function office.shut"),
        ("say(unknown)", "there is no unknown"),
        ("exec('1')", "there is no function exec"),
        ("def f():\n    pass", "line 1: FunctionDef is not possible"),
        ("say(f'{1:>99999999}')", "line 1: FormattedValue is not possible"),
        ("say('a' * 9)", "str and int do not go together"),
        ("say(10 ** 9)", "int and int do not go together"),
        ("n = 10\nwhile True:\n    n = n * n", "a number is too large"),
        ("while True:\n    pass", "the program takes too many steps"),
        ("s = 'ab'\nwhile True:\n    s = s + s", "a value is too long"),
        ("s = 'ab'\nwhile True:\n    s = f'{s}{s}'", "a value is too long"),
        ("s = 'ab'\nwhile True:\n    s = s.replace('a', 'aab' + s)", "a text is too long"),
        ("a = [1]\nwhile True:\n    a = a + a", "a value is too long"),
        ("range(10 ** 1)", "int and int do not go together"),
        ("range(99999)", "a range is too long"),
        (
            "a = []\nb = []\nfor i in range(60):\n    a = [a, a]\n    b = [b, b]\nsay(a == b)",
            "expected a text or a number, found list",
        ),
        ("a = ()\nfor i in range(60):\n    a = (a, a)\nd = {a: 1}", "expected a text or a number, found tuple"),
        ("a = []\nfor i in range(60):\n    a = [a, a]\nsay(str(a))", "expected a text or a number, found list"),
        ("a = []\nfor i in range(60):\n    a = [a, a]\nsorted([a, a])", "expected a text or a number, found list"),
        ("f = lambda n: f(n)\nf(1)", "nested too deeply"),
        ("f = lambda: 1\nsay(f)", "expected a text or a number, found function"),
        ("say([1][5])", "IndexError: list index out of range"),
        ("say({'a': 1}['b'])", "KeyError: 'b'"),
        ("say(1 / 0)", "ZeroDivisionError: division by zero"),
        ("say(", "line 1: '(' was never closed"),
        ("break", "break or continue outside a loop"),
        ("(" * 5000, "too many nested parentheses"),
        ("say(" + "-" * 3000 + "1)", "nested too deeply"),
        ("#" * 10_001, "the program is too long"),
        ("say(len())", "TypeError"),
        ("say(1)(2)", "there is no function say(1)"),
        ("say(**{})", "** is not possible"),
        ("say([1])", "expected a text or a number, found list"),
        ("\0", "null bytes"),
    ],
)
def test_what_a_program_cannot_do_is_said_in_one_line(program: str, wrong: str) -> None:
    with pytest.raises(ProgramError) as caught:
        said(program)
    assert wrong in str(caught.value) and "\n" not in str(caught.value)


_PIECES = st.sampled_from(
    [
        *(
            "a",
            "b",
            "1",
            "-2",
            "'x'",
            "[",
            "]",
            "(",
            ")",
            "{",
            "}",
            ":",
            ",",
            ".",
            "=",
            "==",
            "<",
            "+",
            "*",
            "%",
            "in",
            "not",
        ),
        *(
            "\n",
            "\n    ",
            "for a in b:",
            "if a:",
            "while a:",
            "else:",
            "lambda a: a",
            "len(a)",
            "sorted(b)",
            "say(a)",
            "break",
        ),
        *(
            "a.get(1)",
            "a.append(a)",
            "a = [a, a]",
            "b = {a: b}",
            "str(a)",
            "sum(b)",
            "range(9)",
            "a, b = b",
            "f'{a}'",
            "max(a, b)",
        ),
    ]
)


def test_a_program_calls_five_hundred_times_at_most() -> None:
    calls: list[int] = []
    with pytest.raises(ProgramError, match="too many steps"):
        run("while True:\n    call(1)", {"call": calls.append})
    assert 300 < len(calls) < 500


@given(st.lists(_PIECES, max_size=40).map(" ".join) | st.text(max_size=60))
def test_nothing_but_an_error_of_the_program_comes_out(program: str) -> None:
    try:
        heard = said(f"a = [1, 2]\nb = {{'k': a}}\n{program}")
    except ProgramError as error:
        assert "\n" not in str(error)
    else:
        assert all(value is None or isinstance(value, str | int | float) for value in heard)
