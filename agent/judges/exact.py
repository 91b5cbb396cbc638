"""The deterministic judge: an answer is correct when it states the facts of the reference, no others, and little else.

An answer that equals the reference after normalisation is correct. Otherwise both are read as typed values (times, dates,
figures with units, codes, addresses), names and words, and three rules decide:

1. Nothing is missing. The answer needs every value and name of the reference, except what the question says already. A
   reference without new values and names needs its new content words.
2. Nothing contradicts. The answer has no other value of a type that the reference has, no other name, no word in place of one
   of the reference's, and no word that turns the meaning round (`_TURNING`). Words of the question are no contradiction
   inside a phrase ("the Heron review is at 15:30"), but they are when they stand alone.
3. The order agrees: what belongs together stays together, and two values or names that a word relates are not exchanged.

It may have at most 2 n + 5 words besides those of the question, for a reference of n words. So whole mails, quoted sentences
with a second value and lists of candidates are wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from itertools import groupby

from agent.judges import Verdict
from agent.judges.facts import LABELS, Fact, ParsedText, Word, content_stems, fold, plain, uninflected
from agent.judges.notations import parse

_ARTICLES = ("a", "an", "the")
_CHOICE = re.compile(r"\b(?:or|either|versus|vs)\b", re.IGNORECASE)
_YES_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)
_MAX_CHARS = 8_000
"""A longer reference or answer must equal the other text."""
_MAX_TOKENS = 400

_SAME_WORDING = {
    r"\b(?:no|not) later than\b|\bat the latest\b": "by",
    r"\bno one\b": "nobody",
    r"\b(?:no|nr|number|num)\b\.?\s*(?=#?\d)|#(?=\d)": " ",
    r"\bcan(?:no|')t\b|\b(\w+)n't\b": r"\1 not ",
    r"\bnon-(?=[a-z])": "not ",
    r"[>≥]=|≥|\bat least\b|\b(?:no|not) (?:less|fewer) than\b|\bminimum(?: of)?\b|\bor (?:more|later)\b": " atleast ",
    r"<=|≤|\bat most\b|\b(?:no|not) more than\b|\bup to(?=\s[$€£\d])|\bmaximum(?: of)?\b|\bor (?:less|fewer)\b": " atmost ",
    r">(?=\s?[$€£\d])|\b(?:more|greater) than\b|\b(?:over|above|exceeding)(?=\s[$€£\d])": " morethan ",
    r"<(?=\s?[$€£\d])|\b(?:less|fewer) than\b|\b(?:under|below)(?=\s[$€£\d])": " lessthan ",
    r"±|\+/-": " plusminus ",
    r"\b(?:every(?:one|body|thing)|all|any(?:one|body|thing)) but\b": "all except",
    r"\bmoved from\b": "formerly",
}
_TURNING = set(
    "not before after until till since except excluding unless without besides instead rather unlike above below under outside"
    " off down ago formerly previously originally former last previous atleast atmost morethan lessthan plusminus early late"
    " fail refus declin deny reject cancel unabl unavailabl wrong fals incorrect avoid".split()
)
"""Stems of words that an answer may neither add nor leave out."""
_NEGATIONS = {"not", "never", "neither", "nor", "no", "nobody", "nothing", "none", "without"}
_RIVALS = [set(line.split()) for line in ("from to into", "more less fewer most least", "all some few many several both any")]
_RIVALS += [{"same", "other", "another", "different"}, {"he", "she", "they", "you"}]
"""Words without content of which one cannot stand for another."""
_PERSON = {"him": "he", "his": "he", "her": "she", "hers": "she", "them": "they", "their": "they", "theirs": "they"}
_PERSON |= dict.fromkeys("i me my mine we us our ours your yours".split(), "you")
_FRAME = set(
    "answer contact call ask please according held booked due meet see use think probably tell mention need reach locat"
    " schedul start begin take place happen sharp today approximately about around confirm write number name".split()
)
"""Stems of words that frame a value in a reply without being another value or name."""
_LINKS = set("is are was were be been being has have had will would can could should may must do does did that who which to".split())


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
    if max(len(reference), len(answer)) > _MAX_CHARS:
        return Verdict(correct=False, reason="the answer differs from the long reference, or is too long")
    words, allowed = _own_words(question[:_MAX_CHARS], answer), 2 * count_words(reference) + 5
    if words > allowed:
        return Verdict(correct=False, reason=f"the answer has {words} words of its own, at most {allowed} are allowed")
    fault = _fault(question[:_MAX_CHARS], reference, answer)
    return Verdict(correct=fault is None, reason=fault or "the answer states the facts of the reference")


def normalise(text: str) -> str:
    """Return lower-case text without accents, articles and punctuation. Characters of numbers and comparisons stay."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", fold(plain(text)))
    text = re.sub(r"((?<=\d)[.:/,-](?=\d)|(?<!\w)-(?=\d)|(?<=\b\w)-(?!\w)|[\w\s$€£¥%+#<>≤≥±^])|.", lambda match: match[1] or " ", text)
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


@lru_cache(maxsize=512)
def _read(text: str) -> ParsedText:
    """Parse a text without list numbers, after wordings of one meaning were made one ("no later than", "by")."""
    text = plain(text)
    numbers = _LIST_NUMBER.findall(text)
    if len(numbers) > 1 and numbers == [str(place) for place in range(1, len(numbers) + 1)]:
        text = _LIST_NUMBER.sub("\n", text)
    for pattern, wording in _SAME_PATTERNS:
        text = pattern.sub(wording, text)
    return parse(text)


_LIST_NUMBER = re.compile(r"(?:^|\s)(\d{1,2})[.)]\s")
_SAME_PATTERNS = [(re.compile(pattern, re.IGNORECASE), wording) for pattern, wording in _SAME_WORDING.items()]


def _fault(question: str, reference: str, answer: str) -> str | None:
    """Return the missing or contradicting part of the answer, or None."""
    asked, ours, theirs = _read(question), _read(reference), _read(answer)
    if max(len(ours.tokens), len(theirs.tokens)) > _MAX_TOKENS:
        return "the answer differs from the long reference"
    if _CHOICE.search(answer) and not _CHOICE.search(reference):
        return "the answer offers alternatives"
    names = [name for run in _runs(ours) for name in run]
    return (
        _turned(asked, ours, theirs)
        or _missing(question, asked, ours, theirs)
        or _contradiction(asked, ours, theirs, names)
        or _replaced(asked, ours, theirs)
        or _exchanged(asked, ours, theirs)
    )


def _turned(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return the word that turns the meaning of the answer round, or None: another yes or no, a negation, "after" for "before"."""
    yes_no = [next((fold(word.text) for word in text.words[:1] if fold(word.text) in ("yes", "no")), "") for text in (ours, theirs)]
    if yes_no[0] and yes_no[0] != yes_no[1]:
        return f"the answer does not say {yes_no[0]}"
    said, meant, known = (_function_words(text) for text in (theirs, ours, asked))
    if bool(said & _NEGATIONS) != bool(meant & _NEGATIONS):
        return "only one of reference and answer is negated"
    if extra := (said - meant - known) & _TURNING:
        return f"{min(extra)!r} contradicts the reference"
    if not yes_no[0] and (left_out := (meant - said - known) & _TURNING):
        return f"{min(left_out)!r} is missing"
    for rivals in _RIVALS:
        if rivals & (meant - said) and (extra := rivals & (said - meant - known)):
            return f"{min(extra)!r} contradicts the reference"
    return None


def _function_words(text: ParsedText) -> set[str]:
    words = [fold(word.text) for word in text.words]
    return {_PERSON.get(word, word) for word in words} | text.stems


def _missing(question: str, asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return the first fact, name or word that the answer needs and lacks, or None."""
    if any(fact.kind == "date" and fact.value[1] is not None for fact in ours.facts):
        required = [fact for fact in ours.facts if fact.kind != "weekday"]  # a full date implies its weekday
    else:
        required = list(ours.facts)
    runs = _runs(ours)
    new_facts, new_names = required, [name for run in runs for name in run]
    may_repeat = not _CHOICE.search(question) and not _names_another(asked, ours, theirs)
    if may_repeat:
        new_facts = [fact for fact in required if not asked.has(fact)]
        new_names = [name for run in runs if not asked.stems.issuperset(map(uninflected, run)) for name in run]
    if not new_facts and not new_names:
        wanted = set(content_stems(" ".join(word.text for word in ours.words)))
        if new_words := (wanted - asked.stems if may_repeat else set()):
            wanted = new_words
        else:
            new_facts, new_names = required, [name for run in runs for name in run]
        if missing := sorted(wanted - theirs.stems):
            return f"{missing[0]!r} is missing"
        if not wanted and not required and not (ours.words and fold(ours.words[0].text) in ("yes", "no")):
            return "the answer differs from the reference"
    for fact in new_facts:
        if not theirs.has(fact):
            return f"{fact.text!r} is missing"
    return next((f"{name!r} is missing" for name in new_names if uninflected(name) not in theirs.stems), None)


def _runs(text: ParsedText) -> list[list[str]]:
    """Return the names of a text, each as its words: capitalised words in a row."""
    runs = groupby(text.words, key=lambda word: (word.capitalised and word.can_name, word.item))
    return [[word.text for word in run] for (is_name, _), run in runs if is_name]


def _names_another(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> bool:
    """Return whether the answer repeats a value or name of the question that the reference lacks."""
    if any(theirs.has(fact) and not ours.has(fact) for fact in asked.facts):
        return True
    names = {word.stem for word in asked.words if word.capitalised and word.can_name and not word.opens}
    return bool(names & theirs.stems - ours.stems)


def _contradiction(asked: ParsedText, ours: ParsedText, theirs: ParsedText, names: list[str]) -> str | None:
    """Return the first part of the answer that could be another candidate, or None."""
    phrases = {word.item for word in theirs.words if not word.capitalised}
    for other in theirs.facts:
        if any(fact.agrees(other) for fact in ours.facts) or not any(fact.rivals(other) for fact in ours.facts):
            continue
        if not (other.item in phrases and any(fact.agrees(other) for fact in asked.facts)):
            return f"{other.text!r} contradicts the reference"
    labelled = _begins_with_a_label(ours, names)
    any_capital = any(word.capitalised for word in theirs.words)  # without capitals every word may be a name
    wanted = [uninflected(name) for name in names]
    for position, word in enumerate(theirs.words if names else ()):
        possible = _may_name(word, theirs.words[position + 1 :], wanted, labelled) if any_capital else word.can_name
        if word.stem in ours.stems or word.stem in _FRAME or not possible:
            continue
        if not (word.item in phrases and word.stem in asked.stems):
            return f"{word.text!r} contradicts the reference"
    if names or not ours.facts or any(fact.kind == "address" for fact in ours.facts):
        return _bare_candidate(asked, ours, theirs, names)
    return None


def _begins_with_a_label(reference: ParsedText, names: list[str]) -> bool:
    """Return whether a capitalised word that is usually no name stands before the reference's first name: "Gate Palace"."""
    first = [word.text for word in reference.words].index(names[0]) if names else 0
    if not first:
        return False
    word, name = reference.words[first - 1 : first + 1]
    return word.capitalised and word.item == name.item and fold(word.text) in (*LABELS, "will")


def _may_name(word: Word, following: tuple[Word, ...], wanted: list[str], labelled: bool) -> bool:
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
    whole = [other.stem for other in following[: len(wanted)]] == wanted
    return not (continues or (whole and not labelled))


def _bare_candidate(asked: ParsedText, ours: ParsedText, theirs: ParsedText, names: list[str]) -> str | None:
    """Return a content word of the answer that stands next to those of the reference or alone, that is, another candidate.

    A word that another one links to them is none ("An overhead projector is needed"), nor is one before a label ("the red
    Room 4B").
    """
    items = [list(group) for _, group in groupby(theirs.tokens, key=lambda token: token.item)]
    for item in items:
        tokens = [token for token in item if fold(token.text) not in _ARTICLES]
        words = [token for token in tokens if isinstance(token, Word)]
        alone = len(items) > 1 and len(words) == len(tokens) and not any(word.before_colon for word in words)
        if alone and words and all(word.can_name and word.stem not in ours.stems for word in words):
            return f"{' '.join(word.text for word in words)!r} is another candidate"
        for place, word in enumerate(tokens):
            if not _is_extra(word, asked, ours):
                continue
            near = [tokens[side] for side in (place - 1, place + 1) if 0 <= side < len(tokens)]
            linked = any(isinstance(side, Word) and not side.can_name and (names or fold(side.text) in _LINKS) for side in near)
            label = place + 2 < len(tokens) and isinstance(tokens[place + 2], Fact)
            touches = any(isinstance(side, Word) and side.can_name and side.stem in ours.stems for side in near)
            if (touches and not label) or not (linked or touches or any(_is_extra(side, asked, ours) for side in near)):
                return f"{word.text!r} is another candidate"
    return None


def _is_extra(word: Fact | Word, asked: ParsedText, ours: ParsedText) -> bool:
    """Return whether it is a content word that neither the reference nor the question has, and that frames nothing."""
    if isinstance(word, Fact) or not word.can_name or word.before_colon:
        return False
    return word.stem not in ours.stems | asked.stems | _FRAME


def _replaced(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return a word of the answer that stands for another one of the reference, or None."""
    missing = [word for word in ours.words if _is_extra(word, asked, theirs)]
    extra = [word for word in theirs.words if _is_extra(word, asked, ours)]
    if missing and extra and not (ours.words and fold(ours.words[0].text) in ("yes", "no")):
        return f"{extra[0].text!r} instead of {missing[0].text!r}"
    return None


def _exchanged(asked: ParsedText, ours: ParsedText, theirs: ParsedText) -> str | None:
    """Return why the parts of the reference are in another relation in the answer, or None.

    Parts of one list item must not be mixed with those of another. Two parts of one kind with a word between them must keep
    their order.
    """
    parts = [token for token in ours.tokens if isinstance(token, Fact) or token.can_name or fold(token.text) in _NEGATIONS]
    order: list[int] = []
    for token in theirs.tokens:
        same = [place for place, part in enumerate(parts) if _same(part, token)]
        same.sort(key=lambda place: (not order or parts[place].item != parts[order[-1]].item, place in order))
        order += same[:1]
    for item in {part.item for part in parts}:
        kinds = {_kind(part) for part in parts if part.item == item}
        own = [place for place, part in enumerate(order) if parts[part].item == item]
        between = [parts[place] for place in order[own[0] : own[-1]]] if own else []
        if mixed := [part for part in between if part.item != item and _kind(part) in kinds]:
            return f"{mixed[0].text!r} belongs to another part of the reference"
    last: dict[tuple[int, str], int] = {}
    for place, part in enumerate(parts):
        before = last.get((part.item, _kind(part)))
        last[part.item, _kind(part)] = place
        if before is None or not {before, place} <= set(order):
            continue
        words = _kind(part) == "word" and not {parts[before].text, part.text} & set(asked.stems)
        apart = place - before > 1 or ours.tokens.index(part) - ours.tokens.index(parts[before]) > 1
        if (words or (apart and _kind(part) != "word")) and order.index(before) > len(order) - 1 - order[::-1].index(place):
            return f"{part.text!r} is exchanged with {parts[before].text!r}"
    return None


def _same(part: Fact | Word, token: Fact | Word) -> bool:
    if isinstance(part, Fact) or isinstance(token, Fact):
        return isinstance(part, Fact) and isinstance(token, Fact) and part.agrees(token)
    return part.stem == token.stem


def _kind(part: Fact | Word) -> str:
    return part.kind if isinstance(part, Fact) else "name" if part.capitalised else "word"
