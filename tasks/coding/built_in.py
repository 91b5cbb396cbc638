"""A deterministic set of small Python modules with one planted bug each."""

from __future__ import annotations

import random
from typing import Any

from tasks.coding.patterns import HEADS, HELD_OUT, NAMES, PATTERNS, Pattern, Split
from tasks.coding.scenarios import FailedAttempt, HiddenCheck, OneLineBug


def built_in_scenarios(*, train: int, test: int, seed: int) -> list[OneLineBug]:
    """Return distinct bugs. About a fifth of the test set belongs to families that training has not seen.

    Returns fewer bugs if there are not enough distinct ones.
    """
    made: dict[str, OneLineBug] = {}
    counts: dict[Split, int] = {"train": train, "test": test}
    for split, count in counts.items():
        chance = random.Random(f"{seed}-{split}")
        wanted, attempts = len(made) + count, 0
        while len(made) < wanted and attempts < 50 * count:
            attempts += 1
            held_out = split == "test" and chance.random() < 0.2
            scenario = _scenario(chance, chance.choice(HELD_OUT if held_out else PATTERNS), split, held_out, len(made))
            if scenario is not None and scenario.files[scenario.path] not in made:
                made[scenario.files[scenario.path]] = scenario
    return list(made.values())


def _scenario(chance: random.Random, pattern: Pattern, split: Split, held_out: bool, number: int) -> OneLineBug | None:
    """Return one bug; `None` if no check distinguishes the wrong line from the right one."""
    names = {placeholder: chance.choice(words) for placeholder, words in NAMES[split].items()}
    head, wrong = chance.choice(HEADS), chance.choice(pattern.wrong)
    opening = head + "def {f}({p}):\n".format(f=names["f"], p=pattern.parameters.format(**names))
    opening += f'    """{pattern.says.format(**names)}"""\n'
    body = [f"    {line.format(**names)}" for line in pattern.body]
    broken = [*body]
    broken[pattern.line] = f"    {wrong.format(**names)}"
    right, bad = opening + "\n".join(body) + "\n", opening + "\n".join(broken) + "\n"
    calls = [f"{names['f']}({', '.join(map(repr, arguments))})" for arguments in pattern.calls]
    values = [(call, _value(right, call), _value(bad, call)) for call in calls]
    failing = [(call, value) for call, value, broken_value in values if value != broken_value]
    if not failing:
        return None
    example, example_value = chance.choice(failing)
    imported = f"from target import {names['f']}\n"
    return OneLineBug(
        id=f"{split}-{number:04d}",
        split=split,
        kind=pattern.kind,
        held_out_family=held_out,
        files={"target.py": bad},
        problem=f"{example} gives {_value(bad, example)}, not {example_value}",
        path="target.py",
        example=example,
        example_value=example_value,
        line=opening.count("\n") + pattern.line + 1,
        repaired=body[pattern.line],
        failed_attempt=_failed_attempt(pattern, names, (opening, body), wrong, (example, example_value)),
        checks=tuple(HiddenCheck(code=imported + call, expected=value) for call, value, _ in values),
    )


def _failed_attempt(
    pattern: Pattern, names: dict[str, str], right: tuple[str, list[str]], planted: str, example: tuple[str, str]
) -> FailedAttempt | None:
    """Return another wrong line for the planted one. `right` is the module's opening and body, `example` a call and its
    right value.
    """
    opening, body = right
    call, expected = example
    others = [wrong for wrong in pattern.wrong if wrong != planted]
    random.Random(f"attempt-{planted}-{call}").shuffle(others)
    for other in others:
        line = other.format(**names)
        attempt = [*body]
        attempt[pattern.line] = f"    {line}"
        value = _value(opening + "\n".join(attempt) + "\n", call)
        if value != expected:
            return FailedAttempt(line=line.strip(), output=f"{call} gives {value}, not {expected}")
    return None


def _value(source: str, call: str) -> str:
    """Return the value of a call of this module's own code, in the format of a check."""
    names: dict[str, Any] = {}
    exec(source, names)
    try:
        return repr(eval(call, names))
    except Exception as error:
        return f"raises {type(error).__name__}"
