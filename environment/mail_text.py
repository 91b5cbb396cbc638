"""Normalise what mail sources deliver: addresses, text and dates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time
from functools import lru_cache

from environment.errors import BadMail

# Dates outside this range are errors: 1979 and 1980-01-01 are the zero of clocks that were never set, 2043 is a typing
# error. A mail with such a date would be visible always or never.
FIRST_DATE = datetime(1980, 1, 2)
LAST_DATE = datetime(2039, 12, 31, 23, 59, 59)

_MAX_ADDRESS_CHARS = 254  # RFC 5321
_COMPARED_INBOXES = 300
_ADDRESSES_REMEMBERED = 20_000
_MAX_REMEMBERED_CHARS = 400
"""Includes the display name. Longer addresses are not remembered: they could fill the memory."""
_IN_ANGLES = re.compile(r"<([^<>]*)>")
_BLANKS = re.compile(r"\s+")
_QUOTED_LINE = re.compile(r"[ \t]*>")
_ATTRIBUTION = re.compile(
    r"[ \t]*(on|am|le|el|il|op)\b.{4,200}(wrote|schrieb|écrit|escribió|ha scritto|schreef)[ \t]*:[ \t]*", re.I
)
_ATTRIBUTION_END = re.compile(r"[ \t]*(wrote|schrieb|écrit|escribió|ha scritto|schreef)[ \t]*:[ \t]*", re.I)
_MAX_ATTRIBUTION_CHARS = 250
_REPLY_HEAD = tuple(
    re.compile(rf"[ \t*]*({names})[ \t*]*:.*", re.I) for names in ("from", "sent|date", "to", "cc|subject")
)
_QUOTED_FROM_HERE = re.compile(r"[ \t]*(-{2,}[ \t]*(original message|reply separator)[ \t]*-{2,}|_{10,})[ \t]*", re.I)

# A run is looked at once: linear time.
_RULE = re.compile(r"^[-_=*~+#]{5,}[ \t]*|[ \t]*(?<![-_=*~+#])[-_=*~+#]{5,}$")
_HEAD_FIELD = re.compile(r"[> \t]*(from|to|cc|bcc|sent by|sent|date|importance|subject)[ \t]*:[ \t]*(.*)", re.I)
_ROUTING = frozenset(("to", "cc", "bcc", "sent by", "importance"))
_CONTINUED = re.compile(r"[@,;/<]")
_ANSWERED = re.compile(r"((re|fw|fwd)[ \t]*:[ \t]*)+", re.I)
_MAX_HEAD_LINES = 40
_BETWEEN_PEOPLE = re.compile(r"[,;]")
_IN_QUOTES = re.compile(r"\"[^\"]*\"|\([^()]*\)|<[^<>]*>")
_ADDRESS = re.compile(r"\S*[@/]\S*")
_NO_NAME = re.compile(r"\d|[:$€£]")
_MAX_LOWER_CASE_NAME = 2
"""Words of a name in lower case (`jean eisel`). More are a sentence."""


def storable(text: str) -> str:
    """Return `text` without lone surrogates, which SQLite cannot store, and NUL, at which it stops reading."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")


def split_quoted(body: str) -> tuple[str, str]:
    """Split the body of a mail into the sender's own text and the text quoted from earlier mails.

    Quoted are lines that begin with `>`, the attribution before them (`On … wrote:`, on one or two lines), and everything
    after `-----Original Message-----`, Outlook's rule, or Outlook's header (From, Sent, To, Subject) below a text. Every line
    is in one of the two parts, in order. A forwarded mail is not a quotation.
    """
    own: list[str] = []
    quoted: list[str] = []
    lines = body.splitlines(keepends=True)
    attributed = False  # by the last line that is not empty
    for number, line in enumerate(lines):
        below = [later for later in lines[number + 1 : number + 4] if later.strip()]
        text = line.rstrip("\r\n")
        if _QUOTED_FROM_HERE.fullmatch(text) and (
            not text.strip().startswith("_") or (below and below[0].lstrip().startswith("From:"))
        ):
            quoted += lines[number:]
            break
        last = next((earlier for earlier in reversed(own[-4:]) if earlier.strip()), "forwarded")
        if "forward" not in last.lower() and _begins_reply(lines[number : number + len(_REPLY_HEAD)]):
            quoted += lines[number:]
            break
        is_quoted = bool(_QUOTED_LINE.match(text)) or _attributes(text, below)
        if attributed and not is_quoted:  # the second line of an attribution, or an empty line after it
            is_quoted = not text.strip() or bool(_ATTRIBUTION_END.fullmatch(text))
        (quoted if is_quoted else own).append(line)
        attributed = is_quoted and not _QUOTED_LINE.match(text)
    return "".join(own), "".join(quoted)


def _attributes(text: str, below: Sequence[str]) -> bool:
    """Return whether a line, or a line and the next, say who wrote the quotation that follows."""
    if below and _ATTRIBUTION_END.fullmatch(below[0].rstrip("\r\n")):
        text = f"{text} {below[0].strip()}"
        below = below[1:]
    quotes = bool(below and _QUOTED_LINE.match(below[0]))
    return quotes and len(text) <= _MAX_ATTRIBUTION_CHARS and bool(_ATTRIBUTION.fullmatch(text))


def _begins_reply(lines: Sequence[str]) -> bool:
    """Return whether lines are the header that Outlook writes above the mail that is answered."""
    return len(lines) == len(_REPLY_HEAD) and all(
        field.fullmatch(line.rstrip("\r\n")) for field, line in zip(_REPLY_HEAD, lines, strict=True)
    )


def condensed(body: str, subject: str) -> str:
    """Return `body` with fewer tokens and the same content.

    Removes repeated white space, rules, and from the headers of quoted and forwarded mails the recipients and every
    subject that occurred before (`subject` is the mail's own). Senders, dates and text stay.
    """
    lines = [_RULE.sub("", " ".join(line.split())) for line in body.splitlines()]
    seen = {_topic(subject), ""}
    kept: list[str] = []
    routing_until = -1
    routing = False
    for number, line in enumerate(lines):
        field = _HEAD_FIELD.match(line)
        name = field[1].lower() if field else ""
        if name in _ROUTING and number > routing_until:
            routing_until = _subject_line(lines, number)
        if number < routing_until:
            routing = name in _ROUTING if field else routing
            if routing and _routes_only(name, field[2] if field else line):
                continue
        if field and name == "subject":
            topic = _topic(field[2])
            if topic in seen:
                continue
            seen.add(topic)
        if line or (kept and kept[-1]):
            kept.append(line)
    return "\n".join(kept).strip()


def _routes_only(name: str, value: str) -> bool:
    """Return whether a line of a mail's header holds nothing but recipients, or the level of importance.

    Text that resembles a header (`To: confirm the venue, call 555-0173`) has words that no name has: in lower case, with
    digits, or a field of its own.
    """
    if name == "importance":
        return value.strip().lower() in ("", "high", "low", "normal")
    for person in _BETWEEN_PEOPLE.split(_IN_QUOTES.sub("", value)):
        words = _ADDRESS.sub("", person).split()
        if any(map(_NO_NAME.search, words)):
            return False
        if len(words) > _MAX_LOWER_CASE_NAME and words[0][0].islower() and "@" not in value:
            return False
    return True


def _subject_line(lines: list[str], start: int) -> int:
    """Return the line number of the subject in the header whose recipients begin at `start`; -1 if there is no header."""
    for number in range(start, min(start + _MAX_HEAD_LINES, len(lines))):
        field = _HEAD_FIELD.match(lines[number])
        if field and field[1].lower() == "subject":
            return number
        if not field and lines[number] and not _CONTINUED.search(lines[number]):
            return -1
    return -1


def _topic(subject: str) -> str:
    return _ANSWERED.sub("", subject.strip()).casefold()


def one_line(text: str) -> str:
    """Return `text` with each run of white space replaced by one space."""
    return _BLANKS.sub(" ", text).strip()


def normalise_address(address: str) -> str:
    """Return an address as it is stored and compared: lower case, without display name, quotes and white space.

    Malformed addresses stay otherwise unchanged (`josey'.'scott@enron.com` is a real one). The result may be empty.
    """
    return _remembered(address) if len(address) <= _MAX_REMEMBERED_CHARS else _normalised(address)


def _normalised(address: str) -> str:
    in_angles = _IN_ANGLES.findall(address)
    bare = in_angles[-1] if in_angles else address
    return _BLANKS.sub("", storable(bare)).strip("\"'<>,;").lower()[:_MAX_ADDRESS_CHARS]


_remembered = lru_cache(maxsize=_ADDRESSES_REMEMBERED)(_normalised)


def _name(address: str) -> str:
    return address.partition("@")[0]


def near_address(address: str, inboxes: Sequence[str]) -> str:
    """Return a question that names the most similar of many normalised inboxes, to end a message; empty if none is similar."""
    # An address takes about 27 µs, on the event loop of a service. So those with the most mail must do.
    compared, sought = inboxes[:_COMPARED_INBOXES], normalise_address(address)
    name, at, _ = sought.partition("@")
    if at:
        # A common domain would make any two addresses similar, so the names must be.
        names = difflib.get_close_matches(name, {_name(inbox) for inbox in compared})
        similar = [inbox for inbox in compared if _name(inbox) in names or (name and _name(inbox).startswith(name))]
        near = difflib.get_close_matches(sought, similar, n=1)
    else:
        near = [inbox for inbox in compared if sought and _name(inbox) == sought]
        near = near or difflib.get_close_matches(sought, compared, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def normalise_addresses(addresses: Iterable[str]) -> list[str]:
    """Return the distinct non-empty normalised `addresses`, in order."""
    return [address for address in dict.fromkeys(map(normalise_address, addresses)) if address]


def utc_without_zone(moment: datetime) -> datetime:
    """Return `moment` in UTC as a naive datetime in whole seconds. Raise OverflowError outside datetime's range."""
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.replace(microsecond=0)


def parse_query_date(value: str | date | datetime) -> datetime:
    """Return a query date as a naive datetime in UTC. A bare date means the end of that day.

    Accepts ISO 8601 text (`2001-05-15`, `2001-05-15T09:30`, with or without a zone), a date or a datetime. Raise BadMail
    for anything else.
    """
    try:
        if isinstance(value, datetime):
            return utc_without_zone(value)
        if isinstance(value, date):
            return datetime.combine(value, time(23, 59, 59))
        if isinstance(value, str):
            text = value.strip()
            try:
                return datetime.combine(date.fromisoformat(text), time(23, 59, 59))
            except ValueError:
                return utc_without_zone(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        pass  # every kind of malformed date gets the message below
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:60]}…"
    raise BadMail(f"query date {shown} is not a date; write it as YYYY-MM-DD, for example 2001-05-15")
