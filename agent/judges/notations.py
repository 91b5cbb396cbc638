"""Read the typed values of a text in all their notations, in one scan from left to right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal

from agent.judges.facts import LABELS, ORDINALS, Fact, ParsedText, Word, fold, plain, uninflected
from environment.words import STOP_WORDS

Match = re.Match[str]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
)
_NUMBERS = {word: n for n, word in enumerate((_ONES + " eighteen nineteen").split())}
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS |= {word: 20 + 10 * n for n, word in enumerate(_TENS.split())}
_BIG = {"hundred": 100, "dozen": 12, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_THOUSANDS = ("k", "m mm mn mln", "b bn", "t tn")
_SCALES = {word: 1000 ** (n + 1) for n, words in enumerate(_THOUSANDS) for word in words.split()}
_SCALES |= _BIG
_SAME_LABEL = {"x": "ext", "extension": "ext", "rm": "room"}
_UNITS = """
$ usd us$ dollar usdollar buck|€ eur euro|£ gbp pound|¥ jpy yen|₹ inr rs rupee|chf franc swissfranc
c$ cad canadiandollar|a$ aud australiandollar|cent|% percent pct|‰ permille|percentagepoint|bp bps basispoint|year yr
month mo mth|week wk|quarter qtr|day|hour hr h|minute min|second sec s|km kilometer kilometre|m meter metre
cm centimeter centimetre|mm millimeter millimetre|mile mi|ft foot feet|inch|yard yd|kg kilogram kilo|g gram|lb
ton tonne|kb kilobyte|mb megabyte|gb gigabyte|tb terabyte|kw kilowatt|mw megawatt|gw gigawatt|kwh|mwh|mile/hour mph
degreef °f|degreec °c|time x|people person
"""
_UNIT = {word: line.split()[0] for line in _UNITS.strip().replace("\n", "|").split("|") for word in line.split()}
_NO_UNITS = {"sharp", "total", "only", "altogether", "approximately", "today", "tomorrow", "then", "maybe"}
_RATES = {"hourly": "hour", "daily": "day", "weekly": "week", "monthly": "month", "yearly": "year", "annually": "year"}


def parse(text: str) -> ParsedText:
    """Parse a text into facts and words, in time linear in its length. Facts do not overlap."""
    text = plain(text)
    facts: list[Fact] = []
    words: list[Word] = []
    position = end = item = row = 0
    while (start := _START.search(text, position)) is not None:
        found = _token(text, start.start())
        gap, position = text[end : start.start()], found.span[1] if found else start.end()
        item += bool(_SEPARATOR.search(gap))
        row += bool(_ROW_END.search(gap))
        if isinstance(found, Fact):
            facts.append(replace(found, item=item, row=row))
            if len(facts) > 1 and (whole := _range(facts[-2], facts[-1], text, words)):
                facts[-2:] = [whole]
        elif found and fold(found.text) in _JOINING:
            item += 1
        elif found:
            opens = bool(re.search(r"[.!?:\n]", gap)) or not (facts or words)
            words.append(replace(found, item=item, row=row, opens=opens))
        if found:
            end = position
    return ParsedText(tuple(facts), tuple(words))


_START = re.compile(r"[^\W_]|[$€£¥₹](?=\s?[.\d])|[-+.](?=[$€£¥₹]?\.?\d)|\((?=\d{3}\)\s*\d{3})")
_SEPARATOR = re.compile(r"[,;/|\n&+]|[.!?](?=\s|$)")
_ROW_END = re.compile(r"[;\n]|[.!?](?=\s|$)")
_JOINING = {"and", "or", "versus", "vs", "then", "plus"}
_WORD = re.compile(r"[^\W\d_](?:[^\W\d_]|'(?=[^\W\d_]))*|\d+")
_LETTER = re.compile(
    r"[A-Z]{1,3}(?:[+#]{1,2}|-)(?![\w-])|(?:[b-hj-zB-HJ-Z]|[iI]{2,3}|[iI]?[vVxX]|[vV][iI]{1,3})(?![\w'@-]|\.\w)"
)
_LONE = re.compile(r"[aAiI](?=\W*$|[.,;)]\s)|(?<=[a-z] )A(?= )")
"""The letters of "plan a" and "Part I", which are an article or a pronoun elsewhere."""


def _token(text: str, start: int) -> Fact | Word | None:
    common = _COMMON.match(text, start)
    for pattern, make in () if common and common[0][:3].lower() not in _FIRST_LETTERS else _PATTERNS:
        match = pattern.match(text, start)
        fact = make(match) if match else None
        if match and fact:
            return replace(fact, text=match.group(), span=match.span())
    match = _WORD.match(text, start)
    if match is None:
        return None
    if match.group()[0].isdigit():
        return Fact("figure", (match.group(),), text=match.group(), span=match.span())
    before_colon = text[match.end() : match.end() + 2].lstrip(" ").startswith(":")
    return Word(match.group(), 0, before_colon=before_colon, span=match.span())


_SCALE_END = re.compile(rf"(?<=[\d\s])({'|'.join(_SCALES)})\b", re.IGNORECASE)
_TO = re.compile(r"\s*(?:-|to|thru|through|until|till)\s*", re.IGNORECASE)


def _range(first: Fact, last: Fact, text: str, words: list[Word]) -> Fact | None:
    """Return the range that two facts in a row are, or None. The words that join them are taken out of `words`."""
    gap = text[first.span[1] : last.span[0]]
    between = gap.strip().lower() == "and" and re.search(r"between\s*$", text[: first.span[0]][-12:], re.IGNORECASE)
    if first.until or last.until or not (_TO.fullmatch(gap) or between):
        return None
    if last.kind == "time" and first.kind == "figure" and re.fullmatch(r"1?\d|2[0-4]", first.value[0]):
        hour = int(first.value[0])
        first = replace(first, kind="time", value=(hour % 24 * 60, "either" if 1 <= hour <= 12 else "24h"), label=None)
    if first.kind != last.kind or first.kind in ("address", "letter"):
        return None
    if first.kind == "time" and first.value[1] == "either" and last.value[1] in ("am", "pm"):
        # "11-1 pm" begins in the morning, "2-3 pm" does not.
        end = last.value[0]
        begin = max((m for m in (first.value[0] % 720, first.value[0] % 720 + 720) if m <= end), default=end)
        first = replace(first, value=(begin, "pm" if begin >= 720 else "am"))
    scale = _SCALE_END.search(last.text) if first.kind == "figure" and not _SCALE_END.search(first.text) else None
    if scale and first.value[0].replace(".", "", 1).isdigit():
        first = replace(first, value=(format(Decimal(first.value[0]) * _SCALES[scale[1].lower()], "f"),))
    if first.kind == "figure":
        first = replace(first, label=first.label or last.label, rate=first.rate or last.rate)
        last = replace(last, label=last.label or first.label, rate=last.rate or first.rate)
    while words and words[-1].span[0] >= first.span[1]:
        words.pop()
    span = (first.span[0], last.span[1])
    return replace(first, until=replace(last, span=(0, 0)), text=text[slice(*span)], span=span)


def _time(match: Match) -> Fact | None:
    groups = match.groupdict()
    hour, minute = int(_NUMBERS.get(groups["hour"].lower(), groups["hour"])), int(groups.get("minute") or 0)
    half = (groups.get("half") or "")[:1].lower()
    if minute > 59 or hour > (12 if half else 24) or (half and hour == 0):
        return None
    if half:
        return Fact("time", (hour % 12 * 60 + minute + 720 * (half == "p"), half + "m"))
    either = 1 <= hour <= 12 and not groups["hour"].startswith("0")
    return Fact("time", (hour % 24 * 60 + minute, "either" if either else "24h"))


def _date(match: Match) -> Fact | None:
    groups = match.groupdict()
    day, last = (int(groups[name]) if groups.get(name) else None for name in ("day", "last"))
    year = int(groups["year"]) if groups.get("year") else None
    if groups["month"].isdigit():
        month = int(groups["month"])
        if month > 12 and day is not None:
            month, day = day, month
        if not (1 <= month <= 12 and day is not None and 1 <= day <= 31) or match.group() == "24/7":
            return None
    else:
        month = 1 + _MONTHS.index(groups["month"].lower()[:3])
    if year is not None and year < 100:
        year += 1900 if year >= 70 else 2000
    label = "m/yy" if year is None and re.fullmatch(r"\d+/0\d", match.group()) else None
    return Fact("date", (month, day, year), label, until=Fact("date", (month, last, year)) if last else None)


def _weekday(match: Match) -> Fact:
    return Fact("weekday", (_WEEKDAYS.index(match.group().lower()[:3]),))


def _address(match: Match) -> Fact:
    return Fact("address", (re.sub(r"^mailto:|^(?:https?://)?(?:www\.)?|/$", "", match.group().lower()),))


def _code(match: Match) -> Fact:
    return Fact("figure", (re.sub(r"(?<!\^)[^0-9A-Z.:^]", "", match.group().upper()),))


def _letter(match: Match) -> Fact:
    return Fact("letter", (match.group().upper(),))


def _phone(match: Match) -> Fact:
    digits = re.sub(r"\D", "", match.group())
    return Fact("figure", (digits[1:] if len(digits) == 11 and digits[0] == "1" else digits,))


def _labelled(match: Match) -> Fact:
    value, label = match["value"].lower(), match["label"].lower()
    number = str(ORDINALS.index(value) + 1) if value in ORDINALS else _identifier(value)
    return Fact("figure", (number,), _SAME_LABEL.get(label, label))


def _number(match: Match) -> Fact | None:
    groups = {name: (value or "").lower().strip() for name, value in match.groupdict().items()}
    digits, words = re.sub("[, ]", "", groups.get("digits", "")), groups.get("words", "")
    unit = re.sub(r"[\s.]+", "", groups.get("unit") or groups.get("money", "")).replace("degrees", "degree")
    label = _UNIT.get(unit) or _UNIT.get(unit.removesuffix("s")) or unit or None  # HK$ is a unit of its own
    rate = groups.get("per") or _RATES.get(groups.get("rate", ""), "")
    noun = groups.get("noun", "")
    if label is None and noun and noun not in STOP_WORDS | _NO_UNITS:
        label = "?" + uninflected(noun)
    if words in ("one", "once") and not (label or rate or match.string.strip(" .").lower() == words):
        return None  # a pronoun, a conjunction
    value = Decimal(digits or {"once": "1", "twice": "2"}.get(words) or _said(words))
    if groups.get("fraction"):
        above, below = groups["fraction"].split("/")
        value += Decimal(above) / Decimal(below)
    value *= _SCALES.get(groups.get("scale", ""), 1)
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if digits.isdigit() and not (groups.get("scale") or groups.get("fraction")):
        text = digits  # leading zeros tell identifiers apart
    if words in ("once", "twice"):
        label = "time"
    if label and "/" in label:
        label, _, rate = label.partition("/")
    sign = "-" if "-" in groups.get("sign", "") + groups.get("sign2", "") else ""
    return Fact("figure", (sign + text,), label, _UNIT.get(rate) or _UNIT.get(rate.removesuffix("s")))


def _said(words: str) -> str:
    """Return the number that words say, such as "two hundred and five"."""
    total, part = Decimal(0), Decimal(0)
    for word in re.findall(r"[a-z]+", words):
        if word in _NUMBERS:
            part += _NUMBERS[word]
        elif word in ("hundred", "dozen"):
            part = (part or Decimal(1)) * Decimal(_BIG[word])
        elif word in _BIG:
            total, part = total + (part or Decimal(1)) * _BIG[word], Decimal(0)
        elif word == "half" and part:
            part += Decimal("0.5")
    return str((total + part) / (2 if words.startswith("half") else 1))


def _identifier(text: str) -> str:
    """Return a canonical identifier: "b-17" becomes B17, and "19th" becomes 19."""
    return re.sub(r"^(\d+)(?:ST|ND|RD|TH)$", r"\1", re.sub(r"[^0-9A-Z]", "", text.upper()))


def _patterns() -> Iterator[tuple[re.Pattern[str], Callable[[Match], Fact | None]]]:
    """Yield the patterns of all notations, longer ones first."""

    def compiled(pattern: str, flags: int = re.IGNORECASE) -> re.Pattern[str]:
        return re.compile(pattern, flags)

    mail_address = r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}"
    yield compiled(rf"{mail_address}|(?:mailto:|https?://|[a-z]:\\)[^\s,;]*[\w/]"), _address
    yield compiled(r"[a-z][\w-]{0,64}(?:\.[\w-]{1,64}){0,8}\.[a-z]{2,8}(?![\w@.])(?:/[^\s,;]*)?"), _address

    day = r"(?<!\w)(?<!\d[.,:/-])(?P<day>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b"
    last = r"(?:\s?(?:-|to|through)\s?(?P<last>0?[1-9]|[12]\d|3[01])(?:st|nd|rd|th)?\b(?!\s?[ap]\.?m|[:/-]))?"
    month = r"(?P<month>jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    month += r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\b\.?"
    year = r"(?P<year>(?:1[89]|20|21)\d\d(?!\d)|(?<=-)\d\d(?!\d))"
    yield compiled(r"(?P<year>\d{4})([-/.])(?P<month>\d\d?)\2(?P<day>\d\d?)(?!\d)(?:T(?=\d\d:))?"), _date
    yield compiled(r"(?P<day>\d\d?)([-.])(?P<month>\d\d?)\2(?P<year>\d{4})(?![\d-])"), _date
    yield compiled(rf"{day}{last}(?:\s+of\s+|\s+|-){month}(?:(?:,?\s*(?:of\s+)?|-){year})?"), _date
    yield compiled(rf"{month}\s*(?:the\s+)?{day}{last}(?![.:]\d)(?:,?\s*(?:of\s+)?{year})?"), _date
    yield compiled(rf"{month},?\s+(?:of\s+)?{year}"), _date
    alone = r"(?P<month>January|February|April|June|July|August|September|October|November|December)\b"
    yield compiled(alone, 0), _date
    yield compiled(r"(?P<fraction>1/[234]|2/3|3/4)(?![\w/])(?P<digits>)(?P<words>)"), _number
    slashed = r"(?P<month>\d{1,2})/(?P<day>\d{1,2})(?:/(?P<year>\d{4}|\d{2}))?"
    yield compiled(rf"(?<![\w/.-]){slashed}(?![\w/])"), _date

    number_word, small = "|".join([*_NUMBERS, *_BIG]), "|".join(word for word, n in _NUMBERS.items() if 1 <= n <= 12)
    hour, half = rf"(?P<hour>\d{{1,2}}|{small})", r"(?P<half>[ap]\.?\s?m\b\.?)"
    yield compiled(rf"{hour}(?:[:.h](?P<minute>\d\d))?(?::\d\d)?\s*{half}"), _time
    yield compiled(r"(?P<hour>\d{1,2}):(?P<minute>\d\d)\s?(?P<half>[ap])\b"), _time
    yield compiled(r"(?P<hour>\d{1,2})[:h](?P<minute>\d\d)(?::\d\d)?(?:\s*(?:h|hours|hrs)\b)?(?![\d:])"), _time
    yield compiled(r"(?P<hour>[01]\d|2[0-3])(?P<minute>[1-5]\d|0[1-9])\s?(?:h|hrs)\b"), _time
    yield compiled(rf"{hour}\s*o'clock\b"), _time
    yield (
        compiled(r"noon\b|midday\b|midnight\b"),
        lambda match: Fact("time", (720 * (match[0][:3].lower() != "mid" or match[0][3:].lower() == "day"), "24h")),
    )
    yield compiled(r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?\b"), _weekday
    yield compiled(r"(?:Mon|Tues?|Weds?|Thurs?|Thur?|Fri|Sat|Sun)\b(?!-(?!Mon|Tue|Wed|Thu|Fri|Sat|Sun))"), _weekday

    yield compiled(r"\+\d{1,3}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?!\w)"), _phone
    country, area = r"(?:\+?\d{1,3}[ .-])?", r"(?:\(\d{3}\)\s*|\d{3}[ ./-])"
    yield compiled(rf"{country}{area}\d{{3}}[ .-]\d{{4}}(?![\w-])"), _phone
    yield compiled(r"(?<![\w.,$-])(?:\d{3}[ -]|\d-)\d{4}(?![\w-])"), _phone

    labels, ordinals = "|".join(LABELS), "|".join(ORDINALS)
    # A run of letters and digits is taken whole: the ways to divide a long one are too many to try.
    run = r"-(?=[A-Z]*\d)[A-Z0-9]++"
    identifier = (
        rf"(?P<value>(?:(?-i:[A-Z]{{1,4}})[ ]|[A-Z]{{0,5}}-?)\d[A-Z0-9]*+(?:{run}|-[A-Z]{{1,2}}\b)*)(?![,.]?\d|\w)"
    )
    yield compiled(rf"(?P<label>{labels})s?\b[\s.#:-]*(?:(?:no|number)\b[\s.]*)?{identifier}"), _labelled
    lettered = rf"(?P<label>(?i:{labels}|option|plan|section))\s(?P<value>[A-HJ-Z])(?!\w|')"
    yield compiled(lettered, 0), _labelled  # "Building A"; the pronoun I is no letter of a building
    yield compiled(r"(?P<label>x)(?P<value>\d{2,6}|\d-\d{4})\b"), _labelled
    yield compiled(rf"(?P<value>\d+(?:st|nd|rd|th)|{ordinals})\s+(?P<label>floor|level)\b"), _labelled
    yield (
        compiled(r"(?P<value>\d{1,9})(?:st|nd|rd|th)\b"),
        lambda match: Fact("ordinal", (int(match["value"]),)) if int(match["value"]) else None,
    )
    paragraph = r"\d{1,9}(?:\.\d{1,9}){0,8}(?:\([a-z0-9]{1,4}\)){1,4}"
    yield compiled(rf"\d{{1,9}}(?:\.\d{{1,9}}){{2,8}}(?::\d+)?|{paragraph}|\d+(?:-\d+){{2,8}}|\d+\^-?\d+"), _code
    yield (
        compiled(r"(?P<value>\d{1,3}):(?P<last>\d)(?!\d)"),
        lambda match: Fact("figure", (match["value"],), until=Fact("figure", (match["last"],))),
    )

    spelt = (re.escape(unit) + "s?" * unit.isalpha() for unit in _UNIT if unit[0] not in "$€£¥₹%‰°")
    units = "|".join(sorted(spelt, key=len, reverse=True))
    # Nine groups of three at most: a longer list of them would be read to its end once for each.
    digits = (
        r"(?P<digits>(?:\d{1,3}(?:,\d{3}){1,9}(?!\d|,\d{3})|\d{1,3}(?:[ ]\d{3}){1,9}(?![ ]?\d)|\d+)(?:\.\d+)?|\.\d+)"
    )
    digits += r"(?:\s(?P<fraction>[1-9]/[2-9])(?![\w/]))?"
    big = "|".join(_BIG)
    unit = r"(?:[\s-]?(?:us\s|swiss\s|canadian\s|australian\s)?(?P<unit>[$€£¥₹%‰]|°[CF]\b|degrees?\s[CF]\b"
    unit += rf"|per\s?cent|percentage\spoints?|basis\spoints?|miles?/hour|(?:{units})\b\.?))?"
    rate = rf"(?:\s?(?:/\s?|per\s|an?\s|each\s|every\s)(?P<per>{units})\b|\s(?P<rate>{'|'.join(_RATES)})\b)?"
    noun = r"(?=\s(?P<noun>[a-z]{2,}))?"
    money = r"(?P<money>[a-z]{0,3}\$|[€£¥₹]|\b(?:usd|eur|gbp|jpy|inr|chf|cad|aud|rs\.?))"
    scale = "|".join(sorted(_SCALES, key=len, reverse=True))
    paid = rf"(?P<sign>[-+])?{money}\s?(?P<sign2>-)?{digits}(?:\s?(?P<scale>{scale})\b)?"
    yield compiled(rf"{paid}{unit}{rate}(?!\w|\.\d)"), _number
    no_quantity = rf"(?!\d+(?:k|mm?|bn|mln|mn)\b)(?!\d+-?(?:{units})\b)"
    mixed = r"(?=[\w-]{0,30}\d)(?=[\w-]{0,30}[a-z])[a-z0-9]{1,20}(?:-[a-z0-9]{1,20}){0,6}(?!\w)"
    yield compiled(no_quantity + mixed), _code
    yield compiled(r"(?P<label>)(?P<value>[A-Z]{2,4}[ ]\d{2,6})(?![\w,.]\d|\w)", 0), _code
    plain_scale = rf"(?:(?P<scale>(?:k|mm?|bn|mln|mn)\b|(?<=\d)(?:\s|-)?(?:{big})\b|\s(?:mln|mn|bn)\b))?"
    yield compiled(rf"(?P<sign>(?<![\w.)])[-+])?{digits}{plain_scale}{unit}{rate}(?!\w|\.\d){noun}"), _number
    said = rf"(?P<words>(?:(?:half\s)?an?\s(?={big}))?(?:{number_word})"
    said += rf"(?:(?:[\s-]|(?:(?<=hundred)|(?<=thousand))\sand\s)(?:{number_word})|\sand\sa\shalf)*\b)"
    yield compiled(rf"{said}{unit}{rate}(?!\w){noun}"), _number
    yield compiled(rf"(?P<words>once|twice){rate}(?!\w)"), _number
    yield _LETTER, _letter
    yield _LONE, _letter


_PATTERNS = tuple(_patterns())
_FIRST_LETTERS = {part[:3] for pattern, _ in _PATTERNS for part in re.findall(r"[a-z]{2,}", pattern.pattern.lower())}
_COMMON = re.compile(r"[A-Za-z]{4,}(?=[\s,;!?)]|$)")
"""A word that begins like no notation is not tried against each."""
