"""The checkable facts in a short answer: times, dates, weekdays, figures, addresses; and the words around them.

Dates with slashes are read month first (3/14), unless only the other reading exists (14/3). A time without am or pm is
read on the 24-hour clock. It also agrees with a pm time that it could mean: "2:30" with "2:30 pm". Amounts, phone
numbers, extensions, room codes and plain numbers are one kind, figures, so that "Room 4B or 12" counts as two
candidates.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal

from environment.words import content_words

FactKind = Literal["time", "date", "weekday", "figure", "address"]
Match = re.Match[str]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")
_NUMBER_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
LABELS = ("extension", "ext", "room", "floor", "suite", "bay", "gate", "desk", "building", "badge", "line", "level")
"""Labels of numbers. "4B" is a correct answer for "Room 4B", "Bay 4B" is not."""
_TITLES = ("mr", "mrs", "ms", "dr", "prof")
_UNITS = {"$": "usd", "usd": "usd", "dollar": "usd", "usdollar": "usd", "€": "eur", "eur": "eur", "euro": "eur"}
_UNITS |= {"£": "gbp", "gbp": "gbp", "pound": "gbp", "¥": "jpy", "%": "%", "percent": "%", "pct": "%"}
_COUNTED = r"(?=\s*(?P<counted>years?|yrs?|months?|weeks?|days?|hours?|hrs?|minutes?|mins?|seconds?|miles?|people)\b)?"
"""What a number counts. It is read and left in the text, where it is a word too."""
_SHORT = {"yr": "year", "hr": "hour", "min": "minute"}
_SCALES = {"k": 10**3, "thousand": 10**3, "m": 10**6, "million": 10**6, "bn": 10**9, "billion": 10**9}
_SHORTEST_PHONE = 7
"""Minimum digits of a phone number. For these, an answer may add the area code that the reference omits."""


@dataclass(frozen=True)
class Fact:
    """One typed value. `value` is canonical within its kind; `label` is a unit (usd) or the numbered thing (room)."""

    kind: FactKind
    value: tuple[Any, ...]
    label: str | None = None
    text: str = field(default="", compare=False)

    def agrees(self, other: Fact) -> bool:
        """Return whether `other`, a fact of the answer, agrees with this fact of the reference."""
        if self.kind != other.kind or (self.label and other.label and self.label != other.label):
            return False
        if self.kind == "time":
            return _times_agree(self.value, other.value)
        if self.kind == "date":
            return _dates_agree(self.value, other.value)
        if self.kind == "figure":
            return _figures_agree(self.value[0], other.value[0])
        return self.value == other.value


@dataclass(frozen=True)
class Word:
    """A word outside every fact. `opens`: it is the first of its sentence, so a capital letter means little."""

    text: str
    item: int
    opens: bool = False
    before_colon: bool = False

    @property
    def capitalised(self) -> bool:
        return self.text[0].isupper()

    @property
    def can_name(self) -> bool:
        """Whether it is neither a stop word nor a label ("Room") nor a title ("Mr")."""
        return fold(self.text) not in LABELS + _TITLES and bool(content_words(self.text))


@dataclass(frozen=True)
class ParsedText:
    """The facts and the other words of a text, each with the number of its list item (between commas, "and" …)."""

    facts: tuple[tuple[Fact, int], ...]
    words: tuple[Word, ...]

    @cached_property
    def stems(self) -> frozenset[str]:
        """The words without inflection."""
        return frozenset(uninflected(word.text) for word in self.words)


def plain(text: str) -> str:
    """Return the text in Unicode compatibility form, with ASCII quotes and hyphens, without invisible characters."""
    text = unicodedata.normalize("NFKC", text)
    text = re.sub(r"[\u2018\u2019\u02bc]", "'", text)
    text = re.sub(r"[\u2010-\u2015\u2212]", "-", text)
    return re.sub(r"[\u00ad\u200b-\u200f\u2060\ufeff\ue000]", "", text)


def fold(word: str) -> str:
    """Return a word in lower case without accents and possessive ending."""
    folded = unicodedata.normalize("NFKD", word.casefold())
    folded = "".join(letter for letter in folded if not unicodedata.combining(letter))
    return re.sub(r"'s?$", "", folded)


def uninflected(word: str) -> str:
    """Return a word without plural, -ing or -ed, so that "meetings" equals "meeting"."""
    word = fold(word)
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
    elif len(word) > 4 and word.endswith("ed"):
        word = word[:-2]
    elif len(word) == 4 and word.endswith("ed") and word[1] != "e":
        return word[:-1]  # "used", "owed", but not "need"
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeiouls":
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


def content_stems(text: str) -> list[str]:
    """Return the uninflected content words of `text`, in order; a form such as `555-0173` counts as two."""
    return [uninflected(part) for word in content_words(plain(text)) for part in re.split(r"[^\w']", word) if part]


def parse(text: str) -> ParsedText:
    """Parse a text into facts and words. Longer forms take precedence, and facts do not overlap."""
    masked = plain(text)
    found: list[tuple[int, Fact]] = []
    for pattern, make in _PATTERNS:
        for match in list(pattern.finditer(masked)):
            fact = make(match)
            if fact is not None:
                found.append((match.start(), fact))
                masked = masked[: match.start()] + _MASK * len(match.group()) + masked[match.end() :]
    breaks = [match.start() for match in _SEPARATOR.finditer(masked)]
    words = []
    end = 0
    for match in _WORD.finditer(masked):
        gap = masked[end : match.start()]
        opens = bool(_SENTENCE_END.search(gap)) or (end == 0 and _MASK not in gap)
        before_colon = masked[match.end() : match.end() + 2].lstrip(" ").startswith(":")
        if not _SEPARATOR.fullmatch(match.group()):
            words.append(Word(match.group(), bisect(breaks, match.start()), opens, before_colon))
        end = match.end()
    facts = tuple((fact, bisect(breaks, start)) for start, fact in sorted(found, key=lambda entry: entry[0]))
    return ParsedText(facts=facts, words=tuple(words))


_MASK = "\ue000"
_SEPARATOR = re.compile(r"[,;/|\n&+]|\s-+\s|[.!?](?=\s)|\b(?:and|or|versus|vs)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(rf"[.!?:\n][^{_MASK}]*$")
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|'(?=[^\W\d_]))*")
_NOT_A_CODE = re.compile(r"\d+(?:k|m|bn|st|nd|rd|th)|(?:usd|eur|gbp)\d+|[a-z]{3,}-\d{4}", re.IGNORECASE)


def _time(match: Match) -> Fact | None:
    groups = match.groupdict()
    hour, minute = int(groups["hour"]), int(groups.get("minute") or 0)
    half = re.sub(r"[.\s]", "", groups.get("half") or "").lower()
    if minute > 59 or hour > (12 if half else 24) or (half and hour == 0):
        return None
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    elif 1 <= hour <= 12 and not groups["hour"].startswith("0"):
        half = "either"
    return Fact("time", (hour % 24 * 60 + minute, half or "24h"), text=match.group())


def _named_time(match: Match) -> Fact:
    return Fact("time", (0 if match.group().lower() == "midnight" else 720, "24h"), text=match.group())


def _date(match: Match) -> Fact | None:
    groups = match.groupdict()
    day = int(groups["day"]) if groups.get("day") else None
    year = int(groups["year"]) if groups.get("year") else None
    if groups["month"].isdigit():
        month = int(groups["month"])
        if month > 12 and day is not None and "/" in match.group():
            month, day = day, month
        if not (1 <= month <= 12 and day is not None and 1 <= day <= 31):
            return None
    else:
        month = 1 + _MONTHS.index(groups["month"].lower()[:3])
    if year is not None and year < 100:
        year += 1900 if year >= 70 else 2000
    return Fact("date", (month, day, year), text=match.group())


def _weekday(match: Match) -> Fact:
    return Fact("weekday", (_WEEKDAYS.index(match.group().lower()[:3]),), text=match.group())


def _address(match: Match) -> Fact:
    return Fact("address", (match.group().lower(),), text=match.group())


def _phone(match: Match) -> Fact:
    digits = re.sub(r"\D", "", match.group())
    return Fact("figure", (digits[1:] if len(digits) == 11 and digits[0] == "1" else digits,), text=match.group())


def _labelled(match: Match) -> Fact:
    value, label = match["value"].lower(), match["label"].lower()
    number = str(_ORDINALS.index(value) + 1) if value in _ORDINALS else _identifier(value)
    return Fact("figure", (number,), "ext" if label in ("x", "extension") else label, match.group())


def _code(match: Match) -> Fact | None:
    text = match.group()
    if _NOT_A_CODE.fullmatch(text) or any(len(part) > 5 for part in text.split("-") if part.isalpha()):
        return None
    return Fact("figure", (_identifier(text),), text=text)


def _number(match: Match) -> Fact:
    digits = match["number"].replace(",", "")
    scale = _SCALES.get((match["scale"] or "").lower().strip())
    if scale is not None:
        digits = format(Decimal(digits) * scale, "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    unit = re.sub(r"\s+", "", match["before"] or match["after"] or "").lower().removesuffix("s")
    return Fact("figure", (digits,), _UNITS.get(unit) or _counted(match), match.group())


def _counted(match: Match) -> str | None:
    counted = (match["counted"] or "").lower().removesuffix("s")
    return _SHORT.get(counted, counted) or None


def _digits(match: Match) -> Fact:
    return Fact("figure", (match.group(),), text=match.group())


def _number_word(match: Match) -> Fact:
    number = str(_NUMBER_WORDS.index(match.group().lower()) + 2)
    return Fact("figure", (number,), _counted(match), match.group())


def _identifier(text: str) -> str:
    """Return a canonical identifier: "b-17" becomes B17, and "19th" becomes 19."""
    return re.sub(r"^(\d+)(?:ST|ND|RD|TH)$", r"\1", re.sub(r"[^0-9A-Z]", "", text.upper()))


def _patterns() -> Iterator[tuple[re.Pattern[str], Callable[[Match], Fact | None]]]:
    """Yield the patterns of all notations of facts, longer ones first, bare digits last."""

    def compiled(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        return re.compile(pattern, flags | re.ASCII)

    yield compiled(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|https?://[^\s,;]*[\w/]"), _address

    day = r"(?<!\w)(?<!\d[.,:/-])(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b"
    month = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    month += r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
    year = r"(?P<year>(?:1[89]|20|21)\d\d)(?!\d)"
    yield compiled(r"(?<!\d)(?P<year>\d{4})-(?P<month>\d{2})-(?P<day>\d{2})(?!\d)(?:T(?=\d\d:))?"), _date
    yield compiled(rf"{day}(?:\s+of\s+|\s+|-){month}(?:,?\s*(?:of\s+)?{year})?"), _date
    yield compiled(rf"(?<!\w){month}\s*(?:the\s+)?{day}(?![.:]\d)(?:,?\s*(?:of\s+)?{year})?"), _date
    yield compiled(rf"(?<!\w){month},?\s+(?:of\s+)?{year}"), _date
    slashed = r"(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{4}|\d{2}))?"
    yield compiled(rf"(?<![\w/.-]){slashed}(?![\w/])"), _date

    hour, half = r"(?<![\d:.,$])(?P<hour>\d{1,2})", r"(?P<half>[ap]\.?\s?m\b\.?)"
    yield compiled(rf"{hour}(?:[:.h](?P<minute>\d\d))?(?::\d\d)?\s*{half}"), _time
    yield compiled(rf"{hour}[:h](?P<minute>\d\d)(?::\d\d)?(?:\s*(?:h|hours|hrs)\b)?(?![\d:])"), _time
    yield compiled(rf"{hour}\s*o'clock\b"), _time
    yield compiled(r"\b(?:noon|midday|midnight)\b"), _named_time
    yield compiled(r"\b(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"), _weekday
    yield compiled(r"\b(?:Mon|Tues?|Wed|Thurs?|Thu|Fri)\b(?!-)", 0), _weekday

    country, area = r"(?:\+?\d{1,3}[ .-])?", r"(?:\(\d{3}\)\s*|\d{3}[ ./-])"
    yield compiled(rf"(?<![\w.,$-]){country}{area}\d{{3}}[ .-]\d{{4}}(?![\w-])"), _phone
    yield compiled(r"(?<![\w.,$-])(?:\d{3}[ -]|\d-)\d{4}(?![\w-])"), _phone

    labels, ordinals = "|".join(LABELS), "|".join(_ORDINALS)
    identifier = r"(?P<value>[A-Z]{0,5}-?\d[A-Z0-9]*(?:-[A-Z0-9]*\d[A-Z0-9]*|-[A-Z]{1,2}\b)*)(?![,.]?\d|\w)"
    yield compiled(rf"\b(?P<label>{labels})s?\b[\s.#:-]*(?:(?:no|number)\b[\s.]*)?{identifier}"), _labelled
    lettered = rf"\b(?P<label>(?i:{labels}|option|plan|section))\s(?P<value>[A-HJ-Z])(?!\w|')"
    yield compiled(lettered, 0), _labelled  # "Building A"; the pronoun I is no letter of a building
    yield compiled(r"\b(?P<label>x)(?P<value>\d{2,6})\b"), _labelled
    yield compiled(rf"\b(?P<value>\d+(?:st|nd|rd|th)|{ordinals})\s+(?P<label>floor|level)\b"), _labelled
    yield compiled(r"(?<!\d[.,])(?<![\w$-])(?=[\w-]*\d)(?=[\w-]*[a-z])[a-z0-9]+(?:-[a-z0-9]+)*(?!\w)"), _code

    number = r"(?P<number>(?:(?<!\w)-)?(?:\d{1,3}(?:,\d{3})+(?!\d|,\d{3})|\d+)(?:\.\d+)?)"
    scale = r"(?P<scale>(?:k|m|bn)\b|\s*(?:thousand|million|billion)\b)?(?:st|nd|rd|th)?"
    before = r"(?:(?P<before>[$€£¥]|\b(?:usd|eur|gbp))\s*|(?<![\w.]))"
    words = r"per\s?cent\b|pct\b|(?:us\s+)?dollars?\b|euros?\b|pounds?\b|(?:usd|eur|gbp)\b"
    yield compiled(rf"{before}{number}{scale}(?:\s*(?P<after>[%€£$]|{words}))?(?!\w|\.\d){_COUNTED}"), _number
    yield compiled(r"\d+"), _digits
    yield compiled(rf"\b(?:{'|'.join(_NUMBER_WORDS)})\b{_COUNTED}"), _number_word


_PATTERNS = tuple(_patterns())


def _times_agree(ours: tuple[int, str], theirs: tuple[int, str]) -> bool:
    if ours[0] == theirs[0]:
        return True
    halves = {ours[1], theirs[1]}
    return "either" in halves and bool(halves & {"am", "pm"}) and (ours[0] - theirs[0]) % 720 == 0


def _dates_agree(ours: tuple[int, int | None, int | None], theirs: tuple[int, int | None, int | None]) -> bool:
    (month, day, year), (other_month, other_day, other_year) = ours, theirs
    return month == other_month and day in (None, other_day) and (year == other_year or None in (year, other_year))


def _figures_agree(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    both_digits = ours.isdigit() and theirs.isdigit()
    return both_digits and _SHORTEST_PHONE <= len(ours) < 10 <= len(theirs) and theirs.endswith(ours)
