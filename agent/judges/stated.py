"""How much of the reference an answer states: a grade for answers of several facts, where a verdict is nearly always no."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from agent.judges.exact import MAX_CHARS, MAX_TOKENS, contradictions, judge_exactly, needed, opposed, parsed, too_long
from agent.judges.facts import Fact, ParsedText, Word
from agent.judges.relations import exchanged, kind_of
from agent.judges.turning import turned

_EXCHANGED = 2
"""Two parts stand in each other's place."""


def share_of_facts(question: str, reference: str, answer: str) -> float:
    """Return the share of the reference's new facts and names that the answer states, less its contradictions, between 0 and 1.

    A correct answer has 1. A contradiction costs as much as a fact earns, so that a list of candidates gains nothing: each
    value or name in place of one of the reference's, each value more than the reference has, a word that turns the meaning
    round, and twice as much for two parts in each other's place. Alternatives, another yes or no, a negation too many or
    too few, and more words than the judge allows leave nothing. Nor is there a share where the reference has no new
    facts or names: the verdict alone counts.
    """
    if judge_exactly(question, reference, answer).correct:
        return 1.0
    if not answer.strip() or too_long(question, reference, answer) or opposed(reference, answer):
        return 0.0
    asked, ours, theirs = map(parsed, (question, reference, answer))
    stated, count = count_stated(question, reference, answer)
    if not count or max(len(ours.tokens), len(theirs.tokens)) > MAX_TOKENS:
        return 0.0
    against = max(_candidates(asked, ours, theirs), surplus(question, reference, answer)) + bool(
        turned(asked, ours, theirs)
    )
    against += _EXCHANGED * bool(exchanged(asked, ours, theirs))
    return max(0, stated - against) / count


def _candidates(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> int:
    """Return how many values and names of the answer stand for others; two words in a row are one name, three are two."""
    others = {token.span: token for token, _ in contradictions(asked, ours, theirs)}.values()
    items = {token.item for token in others if isinstance(token, Word)}
    known = ours.stems | asked.stems
    names = Counter[int]()
    for (strange, item), run in groupby(
        theirs.words, key=lambda word: (word.names and word.stem not in known, word.item)
    ):
        if strange and item in items:
            names[item] += (len(list(run)) + 1) // 2
    return sum(isinstance(token, Fact) for token in others) + sum(max(1, names[item]) for item in items)


def count_stated(question: str, reference: str, text: str) -> tuple[int, int]:
    """Return how many of the reference's new facts and names a text states, and how many there are."""
    theirs = parsed(text)
    facts, names = needed(parsed(question), parsed(reference), repeat=True)
    stated = sum(map(theirs.has, facts)) + sum(all(map(theirs.has_name, name)) for name in names)
    return stated, len(facts) + len(names)


def surplus(question: str, reference: str, answer: str) -> int:
    """Return how many values of one type the answer has more than the reference and the question, at most over all types.

    Names in a row are one value; so are the words of a list item without values and names.
    """
    asked, ours, theirs = (parsed(text[:MAX_CHARS]) for text in (question, reference, answer))
    counts = []
    for text in (theirs, ours):
        facts = {(fact.kind, f"{fact.value} {fact.label}") for fact in text.facts if not asked.has(fact)}
        words = [
            word for word in text.words if word.can_name and not word.before_colon and word.stem not in asked.stems
        ]
        counts.append(Counter(kind for kind, _ in [*facts, *{(kind_of(word), word.item) for word in words}]))
    return max((counts[0] - counts[1]).values(), default=0)
