"""The typed values of a short text (times, dates, weekdays, quantities, codes, addresses) and the words around them.

A text is scanned once, from left to right. Dates with slashes are read month first (3/14), unless only the other reading
exists (14/3). A time without am or pm is read on the 24-hour clock, and agrees with a pm time that it could mean: "2:30"
with "2:30 pm". Quantities, phone numbers, room codes and plain numbers are one kind, figures, so that "Room 4B or 12"
counts as two candidates. The noun after a number is its unit, known or not. Two values joined by a dash or "to" are a range.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from environment.normal_form import normal_form
from environment.words import content_words

FactKind = Literal["time", "date", "weekday", "figure", "ordinal", "letter", "address"]

_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth"
ORDINALS = _ORDINALS.split()
_LABELS = "extension ext room rm floor suite bay gate desk building badge line level"
LABELS = _LABELS.split()
"""Labels of numbers. "4B" is a correct answer for "Room 4B", "Bay 4B" is not."""
NEGATIONS = {"not", "never", "neither", "nor", "no", "nobody", "nothing", "none", "without"}
_NO_NAMES = ("extension", "ext", "room", "rm", "mr", "mrs", "ms", "dr", "prof")
_SHORTEST_PHONE = 7
"""Minimum digits of a phone number. For these, an answer may add the area code that the reference omits."""


@dataclass(frozen=True)
class Fact:
    """One typed value. `value` is canonical within its kind; `label` is a unit ($) or the numbered thing (room).

    `rate` is what a quantity is per ("month"). `until` is the end of a range that begins with this value.
    """

    kind: FactKind
    value: tuple[Any, ...]
    label: str | None = None
    rate: str | None = None
    until: Fact | None = None
    text: str = field(default="", compare=False)
    item: int = field(default=0, compare=False)
    row: int = field(default=0, compare=False)
    span: tuple[int, int] = field(default=(0, 0), compare=False)

    def agrees(self, other: Fact) -> bool:
        """Return whether `other`, a fact of the answer, agrees with this fact of the reference."""
        if self.until or other.until:
            whole = self.until and other.until and self.until.agrees(other.until)
            return bool(whole) and replace(self, until=None).agrees(replace(other, until=None))
        if {self.kind, other.kind} == {"figure", "ordinal"}:
            return str(self.value[0]) == str(other.value[0]) and None in (self.label, other.label)
        if self.kind != other.kind or _differ(self.label, other.label) or _differ(self.rate, other.rate):
            return False
        if self.kind == "time":
            return _times_agree(self.value, other.value)
        if self.kind == "date":
            return any(_dates_agree(ours, theirs) for ours in self.readings for theirs in other.readings)
        if self.kind == "figure":
            return _figures_agree(self.value[0], other.value[0])
        return self.value == other.value

    @property
    def readings(self) -> list[tuple[Any, ...]]:
        """The values that it may mean: 6/01 is the first of June or June 2001."""
        month, day, year = self.value
        return [(month, day, year), *([(month, None, 2000 + day)] if self.label else [])]

    @property
    def ends(self) -> list[Fact]:
        """The two ends of a range, none for another fact."""
        return [replace(self, until=None), self.until] if self.until else []

    def rivals(self, other: Fact) -> bool:
        """Return whether `other`, which does not agree, could be a candidate instead of this fact: the types are alike."""
        bare = other.kind in ("figure", "ordinal") and other.label is None and self.kind in ("time", "date")
        return self.kind == other.kind or bare or {self.kind, other.kind} == {"figure", "ordinal"}


@dataclass(frozen=True)
class Word:
    """A word outside every fact. `opens`: it is the first of its sentence, so a capital letter means little."""

    text: str
    item: int
    opens: bool = False
    before_colon: bool = False
    row: int = field(default=0, compare=False)
    span: tuple[int, int] = field(default=(0, 0), compare=False)

    @property
    def capitalised(self) -> bool:
        return self.text[0].isupper()

    @cached_property
    def folded(self) -> str:
        return fold(self.text)

    @property
    def names(self) -> bool:
        return self.capitalised and self.can_name

    @cached_property
    def stem(self) -> str:
        return uninflected(self.text)

    def same_name(self, other: Word) -> bool:
        """Return whether it is the same name: "Ann" is not "Anne", as two forms of another word are the same."""
        ours, theirs = ({word.folded, word.text.casefold().replace("'", "")} for word in (self, other))
        return self.stem == other.stem and not (other.capitalised and ours.isdisjoint(theirs))

    @cached_property
    def can_name(self) -> bool:
        """Whether it is neither a stop word nor a label ("Room") nor a title ("Mr")."""
        return self.folded not in _NO_NAMES and bool(content_words(self.text))


@dataclass(frozen=True)
class ParsedText:
    """The facts and the other words of a text in order, each with the number of its list item (between commas, "and" …)."""

    facts: tuple[Fact, ...]
    words: tuple[Word, ...]

    @cached_property
    def stems(self) -> frozenset[str]:
        ordinals = {
            ORDINALS[n - 1] for fact in self.facts if fact.kind == "ordinal" for n in fact.value if n <= len(ORDINALS)
        }
        return frozenset(word.stem for word in self.words) | ordinals

    @cached_property
    def yes_no(self) -> str:
        """Return yes or no if the text begins so, otherwise nothing."""
        return next((word.folded for word in self.words[:1] if word.folded in ("yes", "no")), "")

    @cached_property
    def tokens(self) -> list[Fact | Word]:
        """Facts and words in the order of the text."""
        return sorted([*self.facts, *self.words], key=lambda token: token.span)

    def has(self, fact: Fact) -> bool:
        """Return whether a fact of this text agrees with `fact`."""
        word = fact.kind == "ordinal" and fact.value[0] <= len(ORDINALS) and ORDINALS[fact.value[0] - 1] in self.stems
        return word or any(fact.agrees(other) for other in self.facts)

    def has_name(self, name: Word) -> bool:
        """Return whether a word of this text is `name`."""
        return any(name.same_name(word) for word in self.words)


def plain(text: str) -> str:
    """Return the text in Unicode compatibility form, with ASCII digits, quotes and hyphens, without invisible characters.

    "2½" becomes 2.5 and "10⁶" becomes 10^6.
    """
    text = re.sub(r"(\d{0,9})([¼-¾⅐-⅞])", lambda m: f"{int(m[1] or 0) + unicodedata.numeric(m[2]):.6g}", text)
    text = unicodedata.normalize("NFKC", re.sub(r"(?<=\w)(?=[⁰²³¹⁴-⁹⁻])(?<![⁰²³¹⁴-⁹⁻])", "^", text))
    text = re.sub(r"[\u2018\u2019\u02bc]", "'", text)
    text = re.sub(r"[\u2010-\u2015\u2212]", "-", text)
    text = re.sub(r"(?![0-9])\d", lambda match: str(unicodedata.digit(match[0])), text)
    return re.sub(r"[\u00ad\u200b-\u200f\u2060\ufeff]", "", text)


def fold(word: str) -> str:
    """Return a word in lower case without accents and possessive ending."""
    return re.sub(r"'s?$", "", normal_form(word.casefold()))


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
    return word.rstrip("e") if len(word) > 3 else word  # also "agree", as "agreed"


def content_stems(text: str) -> list[str]:
    """Return the uninflected content words of `text`, in order; a form such as `555-0173` counts as two."""
    return [uninflected(part) for word in content_words(plain(text)) for part in re.split(r"[^\w']", word) if part]


def _differ(ours: str | None, theirs: str | None) -> bool:
    """Return whether two labels exclude each other. Two unknown nouns ("?page") do not, a unit and a noun do."""
    return bool(ours and theirs and ours != theirs and not (ours[0] == theirs[0] == "?"))


def _times_agree(ours: tuple[int, str], theirs: tuple[int, str]) -> bool:
    if ours[0] == theirs[0]:
        return True
    halves = {ours[1], theirs[1]}
    return "either" in halves and bool(halves & {"am", "pm"}) and (ours[0] - theirs[0]) % 720 == 0


def _dates_agree(ours: tuple[int, int | None, int | None], theirs: tuple[int, int | None, int | None]) -> bool:
    (month, day, year), (other_month, other_day, other_year) = ours, theirs
    if day is None and year and other_day and not other_year:
        return False  # "June 1" is not in "June 2001"
    return month == other_month and day in (None, other_day) and (year == other_year or None in (year, other_year))


def _figures_agree(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    both_digits = ours.isdigit() and theirs.isdigit()
    return both_digits and _SHORTEST_PHONE <= len(ours) < 10 <= len(theirs) and theirs.endswith(ours)
