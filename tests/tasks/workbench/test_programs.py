"""The part of Python that policies write: what it can do, and what it cannot."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.workbench.program_values import ProgramError
from tasks.workbench.programs import run


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
        ("counts = {'a': 1}\ncounts['a'] += 2\nsay(counts['a'])", [3]),
        ("for n in [1]:\n    pass\nelse:\n    say(n)\nwhile n:\n    break\nelse:\n    say(2)", [1]),
        ("for a, b in zip([1, 2], 'ab'):\n    say(f'{a:02}{b}')", ["01a", "02b"]),
        ("say('abc'[::-1])", ["cba"]),
        ("say(str(round(7, 1)))\nsay(round(7.26, 1))", ["7", 7.3]),
        ("rows = [{'a': 1}]\nsay(rows == [])\nsay(rows != None)\nsay([] == [])", [False, True, True]),
        ("rows = range(300)\nn = 0\nwhile n < len(rows):\n    n += 1\nsay(n)", [300]),
        ("found = []\nfor n in range(300):\n    found.append(n)\nsay(len(found))", [300]),
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
        ("s = 'ab'\nwhile True:\n    s = f'{s}{s}'", "a text is too long"),
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
        ("say({'a': 1}['b'])", "there is no such key"),
        ("say(str(object=a))", "there is no a"),
        ("a = []\nfor i in range(60):\n    a = [a, a]\nsay(str(object=a))", "unexpected keyword argument 'object'"),
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
            "str(object=a)",
            "max(b, default=a)",
            "sum(b)",
            "range(9)",
            "a, b = b",
            "f'{a}'",
            "max(a, b)",
        ),
    ]
)


@pytest.mark.parametrize(
    "program",
    [
        "say(len([range(9999) for n in range(9999)]))",
        "x = range(9999)\nsay(len([x[:] for n in range(9999)]))",
        "x = range(9999)\nwhile x == x:\n    pass",
        "x = range(9999)\nwhile 'a' not in x:\n    pass",
        "x = 'a,b'.replace(',', ' ')\nwhile True:\n    say('a' + ' b')\n    y = ' '.join([x, x, x])",
        "while True:\n    call('" + "e " * 4500 + "')",
    ],
)
def test_what_takes_time_or_memory_takes_steps(program: str) -> None:
    calls: list[str] = []
    with pytest.raises(ProgramError, match="too many steps"):
        said(program, call=calls.append)
    assert len(calls) < 10


def test_a_long_text_is_not_made_before_it_is_too_long() -> None:
    with pytest.raises(ProgramError, match="a text is too long"):
        said("x = 'a'\nwhile len(x) < 5000:\n    x = x + x\nsay(','.join([x for n in range(5000)]))")


@pytest.mark.parametrize("use", ["{}[t]", "say(f'" + "{s}" * 3000 + "')", "say({s: 1}[s + s])"])
def test_nothing_large_is_made_for_a_text_or_an_error(use: str) -> None:
    grow = "s = 'a'\nwhile len(s) < 5000:\n    s = s + s\nt = (s,)\nwhile len(t) < 5000:\n    t = t + t\n"
    tracemalloc.start()
    with pytest.raises(ProgramError) as caught:
        said(grow + use)
    assert len(str(caught.value)) < 200 and tracemalloc.get_traced_memory()[1] < 15e6
    tracemalloc.stop()


def test_what_functions_return_takes_steps() -> None:
    kept: list[int] = []

    def found() -> list[str]:
        kept.append(1)
        return ["a"] * 5000

    with pytest.raises(ProgramError, match="too many steps"):
        said("rows = []\nwhile True:\n    rows.append(found())", found=found)
    assert len(kept) < 15


def test_lists_cannot_be_added_by_sum() -> None:
    with pytest.raises(ProgramError, match="found list"):
        said("x = range(999)\nsum([x for n in range(200)], [])")


def test_the_branch_that_a_program_does_not_take_costs_nothing() -> None:
    untaken = ", ".join(["1"] * 3000)
    with pytest.raises(ProgramError, match="there is no function"):
        said(f"for n in range(300):\n    ('' if 1 else [{untaken}]).strip()\nnothing()")


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
