"""Parse a raw mail (RFC 822 and its successors) into an `Email`: headers, charsets, text parts.

Real mail breaks every rule. Malformed parts are interpreted as mail programs do. A mail that cannot be interpreted
becomes a `DroppedMail` with the reason, never an exception. The time for a mail is linear in its size.
"""

from __future__ import annotations

import re

from environment.errors import BadMail
from environment.mail_text import one_line, storable, utc_without_zone
from environment.models import DroppedMail, Email
from environment.sources.addresses import addresses_of, sender_of
from environment.sources.charsets import decode_text
from environment.sources.headers import Fields, decode_header, first_of, split_mail, values_of
from environment.sources.mail_dates import parse_mail_date
from environment.sources.mime import text_of

MAX_MAIL_BYTES = 25 * 1024 * 1024

_MAX_DETAIL_CHARS = 120
_TELLING_HEADERS = frozenset({"date", "from", "message-id", "received", "sender", "subject", "to"})
_MESSAGE_ID = re.compile(r"<[^<>\s]+>")
_BEFORE_MAIL = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_LINE_END = re.compile(rb"(?<!\r)\r+\n|\r")  # a run is looked at once: linear time
_APPLE_LENGTH = re.compile(rb"(\d{1,9})[ \t]*\n")
_APPLE_PROPERTIES = b"<?xml version="
_DELIVERED = frozenset({"delivered-to", "envelope-to", "x-delivered-to", "x-envelope-to", "x-original-to"})
_RECEIVED_FOR = re.compile(r"\sfor\s+<?([^\s<>;@]+@[^\s<>;@]+)>?\s*(?=;|\Z)", re.IGNORECASE)
_COMMENT = re.compile(r"\([^()]*\)")
_UNWANTED_LABELS = frozenset({"Bin", "Spam", "Trash"})
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),"
_TWO_DATES = re.compile(rf"({_DAY}[^,]{{1,60}}?)[,\s]\s*{_DAY}[^,]{{1,60}}")
_MOZILLA_DELETED = 0x0008


def parse_mail(raw: bytes, where: str) -> Email | DroppedMail:
    """Return the mail `raw`, or the reason why it cannot be used. `where` names it in its source. Never raises.

    Reasons: `oversized` (over 25 MiB), `no_headers`, `bad_date` (a date that cannot be read; a mail without one has
    `date` None), `deleted` and `spam` (marked so by Thunderbird or Gmail) and `unparsable`.
    """
    where = one_line(storable(where))
    if len(raw) > MAX_MAIL_BYTES:
        return DroppedMail(reason="oversized", where=where, detail=f"over {MAX_MAIL_BYTES >> 20} MiB")
    try:
        return _mail(raw, where)
    except Exception as error:
        # Only parts nested without end and headers over the limits are known to get here. Nothing may stop the reading of
        # other mails.
        return DroppedMail(reason="unparsable", where=where, detail=_clipped(f"{type(error).__name__}: {error}"))


def _mail(raw: bytes, where: str) -> Email | DroppedMail:
    fields, content = split_mail(_normalised(raw))
    if not _TELLING_HEADERS & {name for name, _ in fields}:
        return DroppedMail(reason="no_headers", where=where, detail=_clipped(decode_text(raw[:_MAX_DETAIL_CHARS])))
    if _is_deleted(fields):
        return DroppedMail(reason="deleted", where=where, detail="deleted in Thunderbird, not compacted yet")
    if label := _unwanted_label(fields):
        return DroppedMail(
            reason="spam" if label == "Spam" else "deleted", where=where, detail=f"labelled {label} in Gmail"
        )
    date = None
    if written := decode_header(first_of(fields, "date")).strip():
        if twice := _TWO_DATES.fullmatch(written):  # archives of Outlook files have two headers in one
            written = twice[1]
        try:
            date = utc_without_zone(parse_mail_date(written))
        except (BadMail, OverflowError):
            return DroppedMail(reason="bad_date", where=where, detail=_clipped(written))
    message_id = decode_text(first_of(fields, "message-id"))
    bracketed = _MESSAGE_ID.search(message_id)
    body, attachments = text_of(fields, content)
    name, address = sender_of(_people(fields, "from"))
    if not address:
        name, address = sender_of(_people(fields, "sender"))
    return Email(
        message_id=bracketed.group() if bracketed else message_id.strip().removeprefix("<>"),
        subject=decode_header(first_of(fields, "subject")),
        from_address=address,
        from_name=name,
        to_addresses=addresses_of(_people(fields, "to")),
        cc_addresses=addresses_of(_people(fields, "cc")),
        bcc_addresses=addresses_of(", ".join([_people(fields, "bcc"), *_delivered_to(fields)])),
        date=date,
        body=body,
        attachments=attachments,
        file_name=where,
        replies_to=_thread(first_of(fields, "references"), first_of(fields, "in-reply-to")),
    )


def _normalised(raw: bytes) -> bytes:
    """Return a mail with lines that end in `\\n`, without what files have before and after it."""
    data = _LINE_END.sub(b"\n", raw) if b"\r" in raw else raw
    begin = _BEFORE_MAIL.match(data)
    data = data[begin.end() if begin else 0 :]
    if length := _APPLE_LENGTH.match(data):  # Apple Mail's .emlx: its length, the mail, a list of properties
        end = data.rfind(_APPLE_PROPERTIES)
        data = data[length.end() : end if end > length.end() else len(data)]
    return data


def _is_deleted(fields: Fields) -> bool:
    """Return whether Thunderbird's flags say that the mail was deleted. It stays in the file until that is compacted."""
    try:
        return bool(int(first_of(fields, "x-mozilla-status") or b"0", 16) & _MOZILLA_DELETED)
    except ValueError:
        return False


def _unwanted_label(fields: Fields) -> str | None:
    """Return the label that says that a mail is not to be read. Google Takeout writes the labels above the header."""
    labels = decode_header(first_of(fields, "x-gmail-labels")).replace("\n", "").split(",")
    return next((label for label in map(str.strip, labels) if label in _UNWANTED_LABELS), None)


def _people(fields: Fields, name: str) -> str:
    return ", ".join(decode_text(value) for value in values_of(fields, name))


def _delivered_to(fields: Fields) -> list[str]:
    """Return whom the mail was delivered to, as the last mail server noted it.

    It writes above every `Received`, and the first of these. What is further below may come from the sender, and says nothing.
    """
    found = []
    for name, value in fields:
        if name == "received":
            found += _RECEIVED_FOR.findall(_COMMENT.sub("", decode_text(value)))[-1:]
            break
        if name in _DELIVERED:
            found.append(decode_text(value))
    return found


def _thread(references: bytes, in_reply_to: bytes) -> tuple[str, ...]:
    """Return the first reference, which began the thread, and the mail that is answered: by default the last
    reference.
    """
    earlier = _MESSAGE_ID.findall(decode_text(references))
    answered = _MESSAGE_ID.findall(decode_text(in_reply_to))
    return tuple(dict.fromkeys([*earlier[:1], *(answered or earlier)[-1:]]))


def _clipped(text: str) -> str:
    return one_line(storable(text))[:_MAX_DETAIL_CHARS]
