"""The deterministic judge: an answer is correct when it states the facts of the reference, no others, and little else.

An answer that equals the reference after normalisation is correct. Otherwise both are read as typed values (times, dates,
figures with units, codes, addresses), names and words, and three rules decide:

1. Nothing is missing. The answer needs every value and name of the reference, except what the question says already. A
   reference without new values and names needs its new content words.
2. Nothing contradicts. The answer has no other value of a type that the reference has, no other name, no word in place of one
   of the reference's, no sentence or list item about something else, and no word that turns the meaning round
   (`turning.py`). Words of the question are no contradiction inside a phrase ("the Heron review is at 15:30"), but they
   are when they stand alone.
3. The order agrees: what belongs together stays together, and two values or names that a word relates are not exchanged
   (`relations.py`).

It may have at most 2 n + 5 words besides those of the question, for a reference of n words. So whole mails, quoted sentences
with a second value and lists of candidates are wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from agent.judges import Verdict
from agent.judges.facts import NEGATIONS, ORDINALS, Fact, ParsedText, Word, content_stems, fold, plain
from agent.judges.notations import parse
from agent.judges.relations import exchanged
from agent.judges.turning import function_words, turned, words_in

_ARTICLES = ("a", "an", "the")
_CHOICE = re.compile(r"\b(?:or(?! (?:more|less|later|fewer)\b)|either|versus|vs)\b", re.IGNORECASE)
_LIST_NUMBER = re.compile(r"(?:^|\s)(\d{1,2})[.)]\s")
_WHO = re.compile(
    r"who (?!(?:is|are|was|were|did|do|does|has|have|had|will|would|can|could|should|must|may|might)\b)", re.I
)
"""A question whose answer is its subject: "Who replaces Dana?"."""
_MOMENTS = ("time", "date", "weekday")
MAX_CHARS = 8_000
MAX_TOKENS = 400
"""Longer texts must be equal, so that the time stays linear."""

_SAME_WORDING = {
    r"\b(?:no|not) later than\b|\bat the latest\b": "by",
    r"\bno one\b": "nobody",
    r"\b(?:no|nr|number|num)\b\.?\s*(?=#?\d)|#(?=\d)": " ",
    r"\bwon't\b": "will not",
    r"\b(\w+)'ll\b": r"\1 will",
    r"\bminus (?=[$€£\d])": "-",
    r"\bcan(?:no|')t\b|\b(\w+)n't\b|\bnon-(?=[a-z])": r"\1 not ",
    r"[>≥]=|≥|\bat least\b|\b(?:no|not) (?:less|fewer) than\b|\bminimum(?: of)?\b|\bor (?:more|later)\b": " atleast ",
    r"<=|≤|\bat most\b|\b(?:no|not) more than\b|\bup to(?=\s[$€£\d])|\bmaximum(?: of)?\b|\bor (?:less|fewer)\b": " atmost ",
    r">(?=\s?[$€£\d])|\b(?:more|greater) than\b|\b(?:over|above|exceeding)(?=\s[$€£\d])": " morethan ",
    r"<(?=\s?[$€£\d])|\b(?:less|fewer) than\b|\b(?:under|below)(?=\s[$€£\d])": " lessthan ",
    r"±|\+/-": " plusminus ",
    r"\b(?:all|(?:any|every) ?\w+) but\b": "all except",
    r"^an?(?= (?:hour|day|week|month|year)\W*$)": "1",
    r"\bmoved from\b": "formerly",
    r"\b(end|beginning|start|middle) of (?=(?:the |this |next |last )?(?:day|week|month|quarter|year|[12]\d{3}|"
    r"jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec))": r"\1of ",
    r"</?[a-z]{1,9}>": " ",
    r"\bevery (?:other|second)\b": "alternate",
}
_SAME_PATTERNS = [(re.compile(pattern, re.IGNORECASE), wording) for pattern, wording in _SAME_WORDING.items()]


_FRAME = words_in(
    "answer bring contact call ask please according held booked due meet see use think probably tell mention need reach locat"
    " schedul start begin take place happen sharp today approximately about around confirm write number name"
)
"""Stems of words that frame a value in a reply without being another value or name."""
_REPLY = _FRAME | words_in(
    "accord per mail email e messag thread inbox mailbox sourc bas stat said sur hello hi thank well short final believ know far see"
    " look hop help question check search find found let right ok okay understand"
)
"""Stems of words that a sentence may consist of without saying anything."""
_PERIODS = words_in("hour day week month quarter year")
_MONTH_WORDS = ("March", "May")
"""Months that are words when they stand alone (`notations.py`)."""
_STOREYS = ("floor", "level")
_LINKS = words_in(
    "is are was were be been being has have had will would can could should may must do does did that who which to"
)


class ExactJudge:
    """`Judge` without a model: deterministic."""

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        """Never raises."""
        return judge_exactly(question, reference, answer)


def judge_exactly(question: str, reference: str, answer: str) -> Verdict:
    """Return the verdict of `ExactJudge` synchronously."""
    if not answer.strip():
        return Verdict(correct=False, reason="the answer is empty")
    if len(answer) > 4 * len(reference) + MAX_CHARS:
        return Verdict(correct=False, reason="the answer is far longer than the reference")
    if answer.strip() == reference.strip() or (normalise(reference) and normalise(answer) == normalise(reference)):
        return Verdict(correct=True, reason="the answer equals the reference")
    fault = too_long(question, reference, answer) or _fault(question[:MAX_CHARS], reference, answer)
    return Verdict(correct=fault is None, reason=fault or "the answer states the facts of the reference")


def too_long(question: str, reference: str, answer: str) -> str | None:
    """Return why an answer is too long to be compared with the reference, or None."""
    if max(len(reference), len(answer)) > MAX_CHARS:
        return "the answer differs from the long reference, or is too long"
    words, allowed = _own_words(question[:MAX_CHARS], answer), 2 * count_words(reference) + 5
    return f"the answer has {words} words of its own, at most {allowed} are allowed" if words > allowed else None


def normalise(text: str) -> str:
    """Return lower-case text without accents, articles and punctuation. Characters of numbers and comparisons stay."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", fold(plain(text)))
    text = re.sub(
        r"((?<=\d)[.:/,-](?=\d)|(?<!\w)-(?=\d)|(?<=\b\w)-(?!\w)|[\w\s$€£¥%+#<>≤≥±^])|.",
        lambda match: match[1] or " ",
        text,
    )
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


@lru_cache(maxsize=128)
def parsed(text: str) -> ParsedText:
    """Parse a text without list numbers, after wordings of one meaning were made one ("no later than", "by")."""
    text = plain(text)
    numbers = _LIST_NUMBER.findall(text)
    if len(numbers) > 1 and numbers == [str(place) for place in range(1, len(numbers) + 1)]:
        text = _LIST_NUMBER.sub("\n", text)
    for pattern, wording in _SAME_PATTERNS:
        text = pattern.sub(wording, text)
    return parse(text)


def _fault(question: str, reference: str, answer: str) -> str | None:
    """Return the missing or contradicting part of the answer, or None."""
    asked, ours, theirs = parsed(question), parsed(reference), parsed(answer)
    known = parsed("" if _CHOICE.search(question) else question)
    statement = parsed(f"{reference} {_WHO.sub('', question)}") if _WHO.match(question) else ours
    if max(len(ours.tokens), len(theirs.tokens)) > MAX_TOKENS:
        return "the answer differs from the long reference"
    return (
        opposed(reference, answer)
        or turned(known, ours, theirs)
        or _missing(asked, ours, theirs, choice=bool(_CHOICE.search(question)))
        or next((reason for _, reason in contradictions(asked, ours, theirs)), None)
        or exchanged(known, ours, theirs)
        or (exchanged(known, statement, theirs) if statement is not ours else None)
    )


def opposed(reference: str, answer: str) -> str | None:
    """Return why the whole answer is void, or None: it offers alternatives, says another yes or no, or negates alone."""
    if _CHOICE.search(answer) and not _CHOICE.search(reference):
        return "the answer offers alternatives"
    ours, theirs = parsed(reference), parsed(answer)
    if (wanted := ours.yes_no) and wanted != theirs.yes_no:
        return f"the answer does not say {wanted}"
    if wanted == "no" and "yes" in function_words(theirs):
        return "the answer says yes and no"
    if bool(function_words(theirs).keys() & NEGATIONS) != bool(function_words(ours).keys() & NEGATIONS):
        return "only one of reference and answer is negated"
    return None


def _names_another(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> bool:
    """Return whether the answer repeats a value or name of the question that the reference lacks."""
    if any(theirs.has(fact) and not ours.has(fact) for fact in asked.facts):
        return True
    names = {word.stem for word in asked.words if word.names and not word.opens}
    return bool(names & theirs.stems - ours.stems)


def needed(asked: ParsedText, ours: ParsedText, repeat: bool) -> tuple[list[Fact], list[list[Word]]]:
    """Return the facts of the reference, and the words of each of its names. `repeat`: less what the question says."""
    dated = any(fact.kind == "date" and fact.value[1] is not None for fact in ours.facts)
    facts = [fact for fact in ours.facts if not (dated and fact.kind == "weekday")]  # a full date implies its weekday
    names = [list(run) for named, run in groupby(ours.words, key=lambda word: (word.names, word.item)) if named[0]]
    if repeat:
        facts = [fact for fact in facts if not asked.has(fact)]
        names = [name for name in names if not asked.stems.issuperset(word.stem for word in name)]
    return facts, names


def _missing(asked: ParsedText, ours: ParsedText, theirs: ParsedText, *, choice: bool) -> str | None:
    """Return the first fact, name or word that the answer needs and lacks, or None. `choice`: the question offers answers.

    The answer need not repeat what the question says, unless that is a choice or the answer names something else of it.
    """
    repeat = not choice and not _names_another(asked, ours, theirs)
    facts, names = needed(asked, ours, repeat)
    if not any(needed(asked, ours, not choice)):
        wanted = set(content_stems(" ".join(word.text for word in ours.words)))
        if new_words := (wanted - asked.stems if repeat else set()):
            wanted = new_words
        else:
            facts, names = needed(asked, ours, False)
        if missing := sorted(wanted - theirs.stems):
            return f"{missing[0]!r} is missing"
        if not wanted and not needed(asked, ours, False)[0] and not ours.yes_no:
            return "the answer differs from the reference"
    lacks = [fact.text for fact in facts if not theirs.has(fact)]
    lacks += [word.text for name in names for word in name if not theirs.has_name(word)]
    return f"{lacks[0]!r} is missing" if lacks else None


def _foreign(item: list[Fact | Word], asked: ParsedText, ours: ParsedText, strict: bool) -> Fact | Word | None:
    """Return the first part of a list item or sentence that says nothing of the reference or the question, or None.

    `strict`: nor may words of the question or a frame stand alone. A yes or no may be explained.
    """
    words = [part for part in item if isinstance(part, Word) and part.can_name]
    alone = strict and len(words) == len(item) and not any(word.before_colon for word in words)
    parts = [part for part in item if isinstance(part, Fact) or (part.can_name and (alone or part.stem not in _REPLY))]
    facts = [part for part in parts if isinstance(part, Fact)]
    moment = {*_MOMENTS} & {fact.kind for fact in facts} and {*_MOMENTS} & {fact.kind for fact in ours.facts}
    repeats = not alone and any(_has(asked, part) for part in parts)
    restates = asked.stems.issuperset(word.stem for word in words) or not any(word.capitalised for word in words)
    explains = ours.yes_no and not facts and restates
    return None if moment or repeats or explains or any(_has(ours, part) for part in parts) else next(iter(parts), None)


def _has(text: ParsedText, part: Fact | Word) -> bool:
    if isinstance(part, Word):
        return part.stem in text.stems
    return text.has(part) or any(fact.agrees(part) for fact in text.facts)


def contradictions(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> Iterator[tuple[Fact | Word, str]]:
    """Yield each part of the answer that could be another candidate, or stands for another part, and why it counts.

    A word that another one links to those of the reference is none ("An overhead projector is needed"), nor is one before a
    label ("the red Room 4B").
    """
    phrases = {word.item for word in theirs.words if not word.capitalised}
    labels = {fact.label for fact in ours.facts if fact.label}
    periods = _PERIODS & asked.stems and {*(_PERIODS & asked.stems), *(fact.rate for fact in ours.facts if fact.rate)}
    named = any(fact.label in labels for fact in theirs.facts)  # then another noun is another value: "2 boxes, 2 pages"
    for other in theirs.facts:
        elsewhere = named and other.label and other.label not in labels and other.label[1:] not in asked.stems
        elsewhere = elsewhere or bool(periods and other.rate and other.rate not in periods)
        agrees = any(fact.agrees(other) for fact in ours.facts) and not elsewhere
        if agrees or not any(fact.rivals(other) for fact in ours.facts):
            continue
        if not (other.item in phrases and any(fact.agrees(other) for fact in asked.facts)):
            yield other, f"{other.text!r} contradicts the reference"
    known, names = ours.stems | _FRAME, any(word.names for word in ours.words)
    strict = names or not ours.facts or any(fact.kind == "address" for fact in ours.facts)
    extras = []
    for _, group in groupby(theirs.tokens, key=lambda token: token.item):
        tokens = [token for token in group if fold(token.text) not in _ARTICLES]
        if foreign := _foreign(tokens, asked, ours, strict):
            yield foreign, f"{foreign.text!r} is another candidate"
            continue
        for place, word in enumerate(tokens):
            repeats = isinstance(word, Word) and word.item in phrases and word.stem in asked.stems
            if not isinstance(word, Word) or not word.can_name or word.before_colon or word.stem in known or repeats:
                continue
            near = [tokens[side] for side in (place - 1, place + 1) if 0 <= side < len(tokens)]
            adjoining = [side for side in near if isinstance(side, Word)]
            follows = near[-1] if near and place + 1 < len(tokens) else None
            opens = word.opens and isinstance(follows, Word) and not follows.capitalised
            if (names and word.capitalised and not opens) or _rivals(word, near, ours):
                yield word, f"{word.text!r} contradicts the reference"
                continue
            linked = any(not side.can_name and (names or side.folded in _LINKS) for side in adjoining)
            label = place + 2 < len(tokens) and isinstance(tokens[place + 2], Fact)
            touches = any(side.can_name and side.stem in ours.stems for side in adjoining)
            if strict and (
                (touches and not label) or not (linked or touches or any(side.can_name for side in adjoining))
            ):
                yield word, f"{word.text!r} is another candidate"
                continue
            extras.append(word)
    missing = [word for word in ours.words if word.can_name and word.stem not in theirs.stems | asked.stems | _FRAME]
    if missing and extras and not ours.yes_no:
        yield extras[0], f"{extras[0].text!r} instead of {missing[0].text!r}"


def _rivals(word: Word, near: Sequence[Fact | Word], ours: ParsedText) -> bool:
    """Return whether a word stands for another value than the reference's: a month, or an ordinal next to another one.

    A month counts only with a capital, because "may" and "march" are verbs too. An ordinal alone may be an adverb ("first").
    """
    if word.text in _MONTH_WORDS:
        return any(fact.kind == "date" for fact in ours.facts)
    ordinal = any(fact.kind == "ordinal" or fact.label in _STOREYS for fact in ours.facts)
    beside = any(fold(side.text).partition(" ")[0] in ORDINALS for side in near)
    return ordinal and word.folded in ORDINALS and beside
