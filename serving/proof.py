"""Check on the text, without a model, whether the value of an answer stands in a mail that the answer cites.

The value is what an answer adds to its question: figures, times, dates, addresses and names. If there are none of
these, it is the other words. Facts are compared as the judge compares them: "3 pm" is found in "15:00" and "4 March" in
"March 4th".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.judges.facts import Fact, content_stems, fold, plain, uninflected
from agent.judges.notations import parse
from serving.bodies import Mark

_TOKEN = re.compile(r"[^\W_]+(?:['’.:,/-][^\W_]+)*")
_MAX_MARKS = 40


@dataclass(frozen=True)
class Proof:
    """`found` says whether the whole value is there. `marks` are the places of its parts, in order."""

    found: bool
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class _Token:
    start: int
    end: int
    folded: str


def find_proof(question: str, answer: str, fields: dict[str, str]) -> Proof:
    """Look for the value of `answer` in a mail's `fields` (name of a field of `Mark` -> text)."""
    tokens = {name: _tokens(text) for name, text in fields.items()}
    whole = _folded(answer)
    marks = [Mark(field=name, start=a, end=b) for name in fields for a, b in _phrase(whole, tokens[name])]
    if marks:
        return Proof(True, tuple(marks[:_MAX_MARKS]))
    facts, words = _value(question, answer)
    in_mail = {name: [end for fact in parse(text).facts for end in (fact, *fact.ends)] for name, text in fields.items()}
    missing = not (facts or words)
    for fact in facts:
        spans = [
            Mark(field=name, start=a, end=b)
            for name, found in in_mail.items()
            # In one spelling each: a mail may have as many of a link as it has lines.
            for said in dict.fromkeys(_folded(other.text) for other in found if fact.agrees(other))
            for a, b in _phrase(said, tokens[name])
        ]
        missing = missing or not spans
        marks += spans
    for word in words:
        spans = [
            Mark(field=name, start=token.start, end=token.end)
            for name in fields
            for token in tokens[name]
            if uninflected(token.folded) == word
        ]
        missing = missing or not spans
        marks += spans
    order = {name: place for place, name in enumerate(fields)}
    marks.sort(key=lambda mark: (order[mark.field], mark.start, -mark.end))
    return Proof(not missing, tuple(_disjoint(marks))[:_MAX_MARKS])


def _value(question: str, answer: str) -> tuple[list[Fact], list[str]]:
    """Return the facts, and the stems of the words, that must stand in the mail."""
    asked, said = parse(question), parse(answer)
    known = {uninflected(word.text) for word in asked.words}
    facts = list(said.facts)
    added = [fact for fact in facts if not any(other.agrees(fact) for other in asked.facts)]
    followers = [*said.words, None][1:]
    names = [
        uninflected(word.text)
        for word, follower in zip(said.words, followers, strict=True)
        # A capital at the start of a sentence means a name only where another one follows.
        if word.capitalised and word.can_name and (not word.opens or (follower is not None and follower.capitalised))
    ]
    names = [name for name in names if name not in known]
    if not added and not names:
        names = [] if facts else [word for word in content_stems(answer) if word not in known]
        added = facts
    return added, list(dict.fromkeys(names))


def _tokens(text: str) -> list[_Token]:
    return [_Token(match.start(), match.end(), fold(plain(match.group()))) for match in _TOKEN.finditer(text)]


def _folded(text: str) -> tuple[str, ...]:
    return tuple(token.folded for token in _tokens(text))


def _phrase(wanted: Sequence[str], tokens: Sequence[_Token]) -> Iterator[tuple[int, int]]:
    """Yield the places where the words `wanted` stand in `tokens`."""
    size = len(wanted)
    for begin in range(len(tokens) - size + 1 if size else 0):
        if all(tokens[begin + place].folded == word for place, word in enumerate(wanted)):
            yield tokens[begin].start, tokens[begin + size - 1].end


def _disjoint(marks: Sequence[Mark]) -> Iterator[Mark]:
    """Yield the sorted `marks` without those that overlap an earlier one."""
    last: Mark | None = None
    for mark in marks:
        if last is None or mark.field != last.field or mark.start >= last.end:
            yield mark
            last = mark
