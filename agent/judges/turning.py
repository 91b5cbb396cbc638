"""Words that turn a meaning round, and words of which one cannot stand for another."""

from __future__ import annotations

from collections import Counter

from agent.judges.facts import NEGATIONS, Fact, ParsedText


def words_in(text: str) -> set[str]:
    """Return the words of a text between blanks."""
    return set(text.split())


_TURNING = words_in(
    "not before after until till since except excluding unless without besides instead rather unlike above below under outside"
    " off down ago formerly previously originally former last previous atleast atmost morethan lessthan plusminus early late"
    " alternat fail refus declin deny reject cancel unabl unavailabl wrong fals incorrect avoid endof beginningof startof middleof mid"
)
"""Stems of words that an answer may neither add nor leave out."""
_GROUPS = """
from to into;more less fewer most least;all some few many several most both any;same other another different
he she they you;day week month quarter year;morning afternoon even night;over under above below
before after;early late;up down;on off;with without;atleast atmost;morethan lessthan
this next last;start end;start finish;begin end;begin finish;confirm postpon
"""
_RIVALS = [words_in(group) for line in _GROUPS.split("\n") for group in line.split(";")]
"""Words of which one cannot stand for another, even if the question has it."""
_PERSON = {"him": "he", "his": "he", "her": "she", "hers": "she", "them": "they", "their": "they", "theirs": "they"}
_PERSON |= dict.fromkeys(words_in("i me my mine we us our ours your yours"), "you")


def turned(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return the word that turns the meaning of the answer round, such as "after", or None."""
    wanted = ours.yes_no
    said, meant, known = (function_words(text) for text in (theirs, ours, asked))
    if extra := (said - meant - known).keys() & _TURNING - (NEGATIONS if wanted == "no" else set()):
        return f"{min(extra)!r} contradicts the reference"
    if not wanted and (left_out := (meant.keys() - said.keys() - known.keys()) & _TURNING):
        return f"{min(left_out)!r} is missing"
    asked_for = {"start", "begin"} & known.keys()
    for rivals in _RIVALS:
        if rivals & (meant.keys() | asked_for) - said.keys() and (
            extra := rivals & said.keys() - meant.keys() - known.keys()
        ):
            return f"{min(extra)!r} contradicts the reference"
    return remarked(ours, theirs)


def remarked(ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return the word that stands before a part where its rival does in the reference ("to Oslo" for "from Oslo"), or None."""
    said = _marks(theirs)
    for place, words in _marks(ours).items():
        if place in said and not said[place] & words:
            return f"{min(said[place])!r} contradicts the reference"
    return None


def _marks(text: ParsedText) -> dict[tuple[str, int], set[str]]:
    """Return which rivals of a group stand before each value or content word."""
    found: dict[tuple[str, int], set[str]] = {}
    before: dict[int, str] = {}
    for token in text.tokens:
        if isinstance(token, Fact) or token.can_name:
            part = f"{token.kind} {token.value}" if isinstance(token, Fact) else token.stem
            for group, word in before.items():
                found.setdefault((part, group), set()).add(word)
            before.clear()
        forms = set() if isinstance(token, Fact) else {_PERSON.get(token.folded, token.folded), token.stem}
        before |= {group: min(forms & rivals) for group, rivals in enumerate(_RIVALS) if forms & rivals}
    return found


def function_words(text: ParsedText) -> Counter[str]:
    """Count the words of a text by stem and by lower-case form; pronouns of one person are the same."""
    return Counter(form for word in text.words for form in {_PERSON.get(word.folded, word.folded), word.stem})


def unsaid(text: ParsedText, answer: ParsedText) -> bool:
    """Return whether the answer has a word that turns its meaning round and that the text lacks, there or anywhere."""
    return bool((function_words(answer).keys() - function_words(text).keys()) & _TURNING or remarked(text, answer))
