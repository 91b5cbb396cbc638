"""Read the dates of mails: RFC 5322, ISO 8601, and the forms that real mail programs write."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta, timezone

from environment.errors import BadMail

_MAX_CHARS = 200
_COMMENT = re.compile(r"\([^()]*\)")
_TIMES = tuple(
    re.compile(
        rf"(?<![\d{mark}+-])(\d{{1,2}}){mark}(\d{{1,2}})(?:{mark}(\d{{1,2}})(?:[.,]\d+)?)?(?![\d{mark}])\s*([ap]\.?m\b\.?)?",
        re.I,
    )
    for mark in (":", r"\.", "h")
)
_OFFSET = re.compile(r"[A-Z]{0,5}([+-])[+-]*(\d{1,2})(?::?(\d\d)(?::?\d{1,2})?)?[A-Z]{0,5}", re.I)
_BARE_OFFSET = re.compile(r"(?:0\d|1[0-4])[0-5]\d")
"""An offset without its sign. 1999 is a year."""
_CONNECTIVE = re.compile(r"[^\W\d_A-Z]{1,4}\.?")
"""Of, at, den, um, kl. and the like."""
_DAYLIGHT = re.compile(r"([A-Z]{3})\d[A-Z]{3}")
_MONTHS = {
    name: number
    for number, names in enumerate(
        (
            "jan ene gen",
            "feb fev fbr",
            "mar mrt mrz maa mae",
            "apr avr abr kwi",
            "may mai maj mei mag toukokuu",
            "jun juin giu",
            "jul juil lug",
            "aug aou ago",
            "sep set",
            "oct okt ott out",
            "nov",
            "dec dez dic des",
        ),
        start=1,
    )
    for name in names.split()
}
"""First letters of a month's name, without accents, in the languages of western Europe."""
_HOURS = {
    **dict.fromkeys(("UT", "UTC", "GMT", "Z", "WET"), 0.0),
    **{"EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7, "AKST": -9, "AKDT": -8},
    **{"HST": -10, "AST": -4, "ADT": -3, "NST": -3.5, "NDT": -2.5, "BRT": -3, "ART": -3, "CLT": -4},
    **{"BST": 1, "WEST": 1, "CET": 1, "MET": 1, "MEZ": 1, "CEST": 2, "MEST": 2, "MESZ": 2, "EET": 2, "EEST": 3},
    **{"SAST": 2, "MSK": 3, "MSD": 4, "TRT": 3, "GST": 4, "PKT": 5, "IST": 5.5, "ICT": 7, "WIB": 7, "HKT": 8},
    **{"SGT": 8, "PHT": 8, "AWST": 8, "JST": 9, "KST": 9, "ACST": 9.5, "AEST": 10, "ACDT": 10.5, "AEDT": 11},
    **{"NZST": 12, "NZDT": 13},
}
"""Zone names to hours east of Greenwich. BST is British summer time, CST the one of North America, IST India's."""


def parse_mail_date(written: str) -> datetime:
    """Return the moment that a mail's date names, with its zone. Raise BadMail if it cannot be read.

    A date without a zone, or with an unknown one, is UTC. Numeric dates are read only if day and month cannot be mistaken.
    """
    try:
        if len(written) <= _MAX_CHARS and (found := _iso(written) or _free(written)):
            return found
    except (ValueError, OverflowError):
        pass  # every kind of malformed date gets the message below
    raise BadMail(f"{written[:60]!r} is not the date of a mail")


def _iso(written: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(written.strip())
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _moment(year: int, month: int, day: int, hour: int, minute: int, second: int) -> datetime:
    if second == 60:  # a leap second
        second = 59
    if (hour, minute, second) == (24, 0, 0):
        return datetime(year, month, day) + timedelta(days=1)
    return datetime(year, month, day, hour, minute, second)


def _numeric_zone(text: str) -> timezone | None:
    """Return the zone of an offset such as +0100, +01:00, GMT+1, --0400 or +01000."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        return None
    sign, hours, minutes = match.groups()
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
    return timezone(-offset if sign == "-" else offset)


def _named_zone(text: str) -> timezone | None:
    name = text.upper().strip(".\"'")
    if daylight := _DAYLIGHT.fullmatch(name):
        name = daylight[1]
    hours = _HOURS.get(name)
    return None if hours is None else timezone(timedelta(hours=hours))


def _free(written: str) -> datetime | None:
    """Read a day, a month's name, a year, a time and a zone, in any order that makes sense."""
    comments = " ".join(_COMMENT.findall(written))
    text = re.sub(r"(?<=\d)T(?=\d)", " ", written.replace("\u2212", "-"))
    text = re.sub(r"\b(\d{1,2})([a-z]{3,9})(\d{4})\b", r"\1 \2 \3", text, flags=re.I)
    while (without := _COMMENT.sub(" ", text)) != text:
        text = without
    time = next((found for pattern in _TIMES if (found := pattern.search(text))), None)
    before, after = (text[: time.start()], text[time.end() :]) if time else (text, "")
    day_words = [word for word in re.split(r"[\s,]+", before) if word and word.lower() not in ("de", "of")]
    zone_words = [word for word in re.split(r"[\s,]+", after) if word]
    is_month = [_month(word) is not None for word in day_words]
    if day_words and day_words[0][0].isalpha() and (not is_month[0] or any(is_month[1:])):
        del day_words[0]  # a day of the week, in any language; "mar." is a Tuesday too
    if time:
        day_words = [word for word in day_words if not _CONNECTIVE.fullmatch(word) or _month(word)]
    zone, others = _zone_of(zone_words, comments)
    date = _date_of([*day_words, *others])
    if date is None or (time is None and zone_words):
        return None
    hour, minute, second, half = (time[1], time[2], time[3], time[4]) if time else ("0", "0", None, None)
    hours = int(hour)
    if half:
        hours = hours % 12 + (12 if half[0] in "pP" else 0) if 1 <= hours <= 12 else hours
    return _moment(*date, hours, int(minute), int(second or 0)).replace(tzinfo=zone)


def _zone_of(words: list[str], comments: str) -> tuple[timezone, list[str]]:
    """Return the zone that the words after a time name, and the words that say something else.

    A number wins over a name. Names in comments count if there is nothing else, and so do names of several words
    (Central European Summer Time).
    """
    numeric: timezone | None = None
    named: timezone | None = None
    names: list[str] = []
    others = []
    for word in words:
        if (found := _numeric_zone(f"+{word}" if _BARE_OFFSET.fullmatch(word) else word)) is not None:
            numeric = numeric or found
        elif (found := _named_zone(word)) is not None:
            named = named or found
        elif word[0].isalpha() and _month(word) is None:
            names.append(word)
        else:
            others.append(word)
    if named is None and len(names) > 1:
        named = _named_zone("".join(name[0] for name in names))
    if numeric is None and named is None:
        hints = re.split(r"[\s()]+", comments)
        zones = (_numeric_zone(hint) or _named_zone(hint) for hint in hints if hint)
        named = next((found for found in zones if found is not None), None)
    return numeric or named or UTC, others


def _date_of(words: list[str]) -> tuple[int, int, int] | None:
    """Return year, month and day of words such as 4 March 2024, 04-Mar-24, March 4th or 14.03.2024."""
    parts = [part for word in words for part in re.split(r"[-/.]+", word) if part]
    months = [found for part in parts if (found := _month(part)) is not None]
    numbers = [int(match[1]) for part in parts if (match := re.fullmatch(r"(\d{1,4})(?:st|nd|rd|th)?", part, re.I))]
    if len(months) + len(numbers) != len(parts) or len(months) > 1:
        return None
    if len(months) == 1 and len(numbers) == 2:
        first, second = numbers
        day, year = (second, first) if first > 31 else (first, second)
        return _full_year(year), months[0], day
    if not months and len(numbers) == 3:
        first, second, year = numbers
        if first > 31:
            return first, second, year
        dotted = any(re.fullmatch(r"\d{1,2}\.\s*\d{1,2}\.\s*\d{2,4}", word) for word in words)
        if dotted or first > 12:
            return _full_year(year), second, first
        if second > 12 or first == second:
            return _full_year(year), first, second
    return None


def _full_year(year: int) -> int:
    """Return a year of four digits (RFC 5322, 4.3); 102 is what old programs wrote in 2002."""
    if year < 100:
        return year + (2000 if year < 50 else 1900)
    return year + 1900 if year < 1000 else year


def _month(word: str) -> int | None:
    folded = "".join(c for c in unicodedata.normalize("NFD", word.lower()) if c.isalpha())
    if len(folded) < 3 or any(c.isdigit() for c in word):
        return None
    return _MONTHS.get(folded[:4]) or _MONTHS.get(folded[:3])
