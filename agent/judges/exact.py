"""The deterministic judge: an answer is correct when it states the facts of the reference, no others, and little else.

An answer that equals the reference after normalisation is correct. Otherwise it must contain every time, date, weekday,
figure, address and name of the reference, and must not contradict it with another value of the same kinds. It may have
at most 2 n + 5 words besides those of the question, for a reference of n words. So whole mails, quoted sentences with a
second value and lists of candidates are wrong. Words that the answer repeats from the question are not a contradiction
inside a phrase ("the Heron review is at 15:30"), but they are when they stand alone.

A reference may be a sentence that repeats the question ("Your interview with Jeff Andrews was at 5 pm"). The answer needs
only the facts and names that are new in it, unless the question offers a choice or the answer names something else from
the question. If the reference has no new fact or name, the answer needs its new content words; if it has none of those
either, all its facts, names and content words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from agent.judges import Verdict
from agent.judges.facts import LABELS, Fact, ParsedText, Word, content_stems, fold, parse, plain, uninflected

_ARTICLES = ("a", "an", "the")
_NEGATION = re.compile(
    r"\b(?:not|never|neither|nor|cannot|nobody|nothing|none|without)\b|n't\b|\bno\b(?!\.?\s*\d)", re.IGNORECASE
)
_CHOICE = re.compile(r"\b(?:or|either|versus|vs)\b", re.IGNORECASE)
_YES_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_OPENERS = {"answer", "contact", "call", "ask", "please", "according", "held", "booked", "due", "meet", "see"}
"""Words that are capitalised at the start of a reply without being names."""


class ExactJudge:
    """`Judge` without a model: deterministic."""

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        """Never raises."""
        return judge_exactly(question, reference, answer)


def judge_exactly(question: str, reference: str, answer: str) -> Verdict:
    """Return the verdict of `ExactJudge` synchronously."""
    if not answer.strip():
        return Verdict(correct=False, reason="the answer is empty")
    if answer.strip() == reference.strip() or (normalise(reference) and normalise(answer) == normalise(reference)):
        return Verdict(correct=True, reason="the answer equals the reference")
    words, allowed = _own_words(question, answer), 2 * count_words(reference) + 5
    if words > allowed:
        return Verdict(correct=False, reason=f"the answer has {words} words of its own, at most {allowed} are allowed")
    fault = _polarity_fault(plain(reference), plain(answer)) or _fault(question, reference, answer)
    return Verdict(correct=fault is None, reason=fault or "the answer states the facts of the reference")


def normalise(text: str) -> str:
    """Return lower-case text without accents, articles and punctuation. Characters of numbers (. : / - + $ %) stay."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", fold(plain(text)))
    text = re.sub(r"((?<=\d)[.:/,-](?=\d)|(?<!\w)-(?=\d)|[\w\s$€£¥%+#])|.", lambda match: match[1] or " ", text)
    words = text.split()
    # An article stands before a word, so the last word is none: "Building A".
    return " ".join(word for place, word in enumerate(words, start=1) if word not in _ARTICLES or place == len(words))


def count_words(text: str) -> int:
    """Count pieces with a letter or digit, split at spaces and, outside numbers, at commas, semicolons, slashes and bars."""
    return len(_pieces(text))


def _pieces(text: str) -> list[str]:
    pieces = re.split(r"\s+|(?<!\d)[,;/|_]|[,;/|_](?!\d)", plain(text))
    return [piece for piece in pieces if any(character.isalnum() for character in piece)]


def _own_words(question: str, answer: str) -> int:
    """Count the words of the answer without those that repeat the question, each as often as it occurs there."""
    asked = Counter(map(normalise, _pieces(question)))
    return sum((Counter(map(normalise, _pieces(answer))) - asked).values())


def _polarity_fault(reference: str, answer: str) -> str | None:
    """Return why the answer differs in polarity, or None: another yes or no, one-sided negation, or alternatives."""
    ours, theirs = _YES_NO.match(reference), _YES_NO.match(answer)
    if ours and not (theirs and ours[1].lower() == theirs[1].lower()):
        return f"the answer does not say {ours[1].lower()}"
    if bool(_NEGATION.search(reference)) != bool(_NEGATION.search(answer)):
        return "only one of reference and answer is negated"
    if _CHOICE.search(answer) and not _CHOICE.search(reference):
        return "the answer offers alternatives"
    return None


def _fault(question: str, reference: str, answer: str) -> str | None:
    """Return the missing or contradicting part of the answer, or None."""
    asked, ours, theirs = parse(question), parse(reference), parse(answer)
    facts = [fact for fact, _ in ours.facts]
    if any(fact.kind == "date" and fact.value[1] is not None for fact in facts):
        required = [fact for fact in facts if fact.kind != "weekday"]  # a full date implies its weekday
    else:
        required = facts
    runs = _runs(ours)
    names = [name for run in runs for name in run]
    new_facts, new_names = required, names
    may_repeat = not _CHOICE.search(question) and not _names_another(asked, ours, theirs)
    if may_repeat:
        new_facts = [fact for fact in required if not any(fact.agrees(other) for other, _ in asked.facts)]
        new_names = [name for run in runs if not asked.stems.issuperset(map(uninflected, run)) for name in run]
    if not new_facts and not new_names:
        wanted = set(content_stems(" ".join(word.text for word in ours.words)))
        if new_words := (wanted - asked.stems if may_repeat else set()):
            wanted = new_words
        else:
            new_facts, new_names = required, names
        if missing := sorted(wanted.difference(theirs.stems, content_stems(answer))):
            return f"{missing[0]!r} is missing"
        if not wanted and not required and not _YES_NO.match(reference):
            return "the answer differs from the reference"
    for fact in new_facts:
        if not any(fact.agrees(other) for other, _ in theirs.facts):
            return f"{fact.text!r} is missing"
    for name in new_names:
        if uninflected(name) not in theirs.stems:
            return f"{name!r} is missing"
    return _contradiction(asked, ours, theirs, names)


def _runs(text: ParsedText) -> list[list[str]]:
    """Return the names of a text, each as its words: capitalised words in a row."""
    runs = groupby(text.words, key=lambda word: (word.capitalised and word.can_name, word.item))
    return [[word.text for word in run] for (is_name, _), run in runs if is_name]


def _names_another(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> bool:
    """Return whether the answer repeats a value or name of the question that the reference lacks."""
    for fact, _ in asked.facts:
        said = any(fact.agrees(other) for other, _ in theirs.facts)
        if said and not any(fact.agrees(other) for other, _ in ours.facts):
            return True
    names = {uninflected(word.text) for word in asked.words if word.capitalised and word.can_name and not word.opens}
    return bool(names & theirs.stems - ours.stems)


def _contradiction(question: ParsedText, ours: ParsedText, theirs: ParsedText, names: list[str]) -> str | None:
    """Return the first part of the answer that contradicts the reference, or None."""
    kinds = {fact.kind for fact, _ in ours.facts}
    phrases = {word.item for word in theirs.words if not word.capitalised}
    for other, item in theirs.facts:
        if other.kind not in kinds or any(fact.agrees(other) for fact, _ in ours.facts):
            continue
        if any(fact.kind == other.kind == "figure" and _labels_differ(fact, other) for fact, _ in ours.facts):
            continue
        if item in phrases and any(asked.agrees(other) for asked, _ in question.facts):
            continue
        return f"{other.text!r} contradicts the reference"
    known = ours.stems
    labelled = _begins_with_a_label(ours, names)
    if names:
        wanted = [uninflected(name) for name in names]
        any_capital = any(word.capitalised for word in theirs.words)  # without capitals every word may be a name
        for position, word in enumerate(theirs.words):
            possible = _may_name(word, theirs.words[position + 1 :], wanted, labelled) if any_capital else word.can_name
            if uninflected(word.text) in known or fold(word.text) in _OPENERS or not possible:
                continue
            if not (word.item in phrases and uninflected(word.text) in question.stems):
                return f"{word.text!r} contradicts the reference"
    if names or not ours.facts:
        return _bare_candidate(theirs, known)
    return None


def _labels_differ(fact: Fact, other: Fact) -> bool:
    return fact.label is not None and other.label is not None and fact.label != other.label


def _begins_with_a_label(reference: ParsedText, names: list[str]) -> bool:
    """Return whether a capitalised word that is usually no name stands before the reference's first name: "Gate Palace"."""
    first = [word.text for word in reference.words].index(names[0]) if names else 0
    if not first:
        return False
    word, name = reference.words[first - 1 : first + 1]
    return word.capitalised and word.item == name.item and fold(word.text) in (*LABELS, "will")


def _may_name(word: Word, following: Sequence[Word], wanted: list[str], labelled: bool) -> bool:
    """Return whether a word of the answer could be a name: it is capitalised, and not only because it comes first.

    A first word followed by a lower-case word or by the whole wanted name is not a name. If the wanted name is `labelled`,
    another first word is: "Root Palace" instead of "Gate Palace".
    """
    if not (word.can_name and word.capitalised):
        return False
    if not word.opens:
        return True
    if word.before_colon:
        return False
    continues = bool(following) and following[0].item == word.item and not following[0].capitalised
    whole = [uninflected(other.text) for other in following[: len(wanted)]] == wanted
    return not (continues or (whole and not labelled))


def _bare_candidate(answer: ParsedText, known: frozenset[str]) -> str | None:
    """Return a list item made only of content words that the reference lacks, that is, another candidate."""
    items: dict[int, list[Word]] = {}
    for word in answer.words:
        if fold(word.text) not in _ARTICLES:
            items.setdefault(word.item, []).append(word)
    facts = {item for _, item in answer.facts}
    for item, words in items.items():
        bare = len(items) > 1 and item not in facts and not any(word.before_colon for word in words)
        if bare and all(word.can_name and uninflected(word.text) not in known for word in words):
            return f"{' '.join(word.text for word in words)!r} is another candidate"
    return None
