"""Parse a raw mail (RFC 822 and its successors) into an `Email`: headers, charsets, text parts.

Real mail breaks every rule. Malformed parts are interpreted as mail programs do. A mail that cannot be interpreted
becomes a `DroppedMail` with the reason, never an exception. Attachments and attached mails are left out.
"""

from __future__ import annotations

import codecs
import email.errors
import email.header
import email.message
import email.parser
import email.policy
import email.utils
import re
from contextlib import suppress
from typing import cast

from environment.mail_text import one_line, storable, utc_without_zone
from environment.models import DroppedMail, Email
from environment.sources.html_text import html_to_text

MAX_MAIL_BYTES = 25 * 1024 * 1024

_MAX_DETAIL_CHARS = 120
# The old policy: the new one's header parser is ten times slower and raises for malformed addresses and dates.
_PARSER = email.parser.BytesParser(policy=email.policy.compat32)
_TELLING_HEADERS = frozenset({"date", "from", "message-id", "received", "sender", "subject", "to"})
_MESSAGE_ID = re.compile(r"<[^<>\s]+>")
# By default, newer Python releases return no address at all if one in the list is malformed.
_LENIENT = {"strict": False} if getattr(email.utils, "supports_strict_parsing", False) else {}
# Unreliable labels: such text is decoded as UTF-8 if possible, otherwise in the Windows charset.
_VAGUE_CHARSETS = frozenset({"ascii", "iso8859-1", "cp1252"})
# Python-specific escapes and host name encodings: never a mail's charset, and decoding takes quadratic time.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape"})


def parse_mail(raw: bytes, where: str) -> Email | DroppedMail:
    """Return the mail `raw`, or the reason why it cannot be used. `where` names it in its source. Never raises.

    Reasons: `oversized` (over 25 MiB), `no_headers`, `bad_date` (a date that cannot be read; a mail without one has
    `date` None) and `unparsable`.
    """
    where = one_line(storable(where))
    if len(raw) > MAX_MAIL_BYTES:
        return DroppedMail(reason="oversized", where=where, detail=f"over {MAX_MAIL_BYTES >> 20} MiB")
    try:
        return _mail(raw, where)
    except Exception as error:
        # The email package should never raise, but some input makes it, such as nesting beyond the recursion limit.
        return DroppedMail(reason="unparsable", where=where, detail=_clipped(f"{type(error).__name__}: {error}"))


def _mail(raw: bytes, where: str) -> Email | DroppedMail:
    message = _PARSER.parsebytes(raw)
    headers: dict[str, list[bytes]] = {}
    for name, value in message.raw_items():
        headers.setdefault(name.lower(), []).append(value.encode("ascii", "surrogateescape"))
    if not _TELLING_HEADERS & headers.keys():
        return DroppedMail(reason="no_headers", where=where, detail=_clipped(decode_text(raw[:_MAX_DETAIL_CHARS])))

    def first(name: str) -> bytes:
        return headers.get(name, [b""])[0]

    date = None
    if written := decode_text(first("date")).strip():
        try:
            date = utc_without_zone(email.utils.parsedate_to_datetime(written))
        except (ValueError, TypeError, OverflowError, IndexError):
            return DroppedMail(reason="bad_date", where=where, detail=_clipped(written))
    message_id = decode_text(first("message-id"))
    bracketed = _MESSAGE_ID.search(message_id)
    return Email(
        message_id=bracketed.group() if bracketed else message_id.strip(),
        subject=decode_header(first("subject")),
        from_address=next(iter(_addresses(headers, "from") or _addresses(headers, "sender")), ""),
        to_addresses=_addresses(headers, "to"),
        cc_addresses=_addresses(headers, "cc"),
        bcc_addresses=_addresses(headers, "bcc"),
        date=date,
        body=_body(message),
        file_name=where,
        replies_to=_thread(first("references"), first("in-reply-to")),
    )


def decode_text(data: bytes, charset: str | None = None) -> str:
    """Decode `data` as `charset`. If that is missing, unknown or wrong, use the most likely one. Lines end in `\\n`."""
    codec = _codec(charset)
    text = None
    for name in (codec, "utf-8"):
        if name and text is None:
            with suppress(UnicodeError):
                text = data.decode(name)
    if text is None:
        text = data.decode(codec or "cp1252", "replace")
    return storable(text).replace("\r\n", "\n").replace("\r", "\n")


def _codec(charset: str | None) -> str | None:
    """Return the codec of a plausible charset label, otherwise None."""
    # In encoded words a language may follow the charset (RFC 2231).
    name = (charset or "").partition("*")[0].strip(" \t\"'")
    try:
        bytes(4).decode(name)  # fails for codecs that are not text encodings, which `lookup` finds too
        codec = codecs.lookup(name).name.replace("_", "-")
    except (LookupError, ValueError):
        return None
    return None if codec in _VAGUE_CHARSETS | _NO_CHARSETS else codec


def decode_header(value: bytes) -> str:
    """Return the text of a header with encoded words (RFC 2047) decoded."""
    if b"=?" not in value:
        return decode_text(value)
    try:
        # Latin-1 maps every byte to a character and back, and the library returns unencoded parts unchanged.
        parts = email.header.decode_header(value.decode("latin-1"))
    except (email.errors.HeaderParseError, ValueError):
        return decode_text(value)
    return "".join(
        decode_text(part.encode("latin-1") if isinstance(part, str) else part, charset) for part, charset in parts
    )


def _addresses(headers: dict[str, list[bytes]], name: str) -> tuple[str, ...]:
    values = [decode_text(value) for value in headers.get(name, [])]
    return tuple(address for _, address in email.utils.getaddresses(values, **_LENIENT) if address)


def _thread(references: bytes, in_reply_to: bytes) -> tuple[str, ...]:
    """Return the first reference, which began the thread, and the mail that is answered: by default the last
    reference.
    """
    earlier = _MESSAGE_ID.findall(decode_text(references))
    answered = _MESSAGE_ID.findall(decode_text(in_reply_to))
    return tuple(dict.fromkeys([*earlier[:1], *(answered or earlier)[-1:]]))


def _body(part: email.message.Message) -> str:
    """Return the text of a part: the plain one of alternatives, otherwise all parts with text."""
    if part.get_content_disposition() == "attachment":
        return ""
    kind = part.get_content_type()
    if part.is_multipart():
        if kind.startswith("message/"):
            return ""
        children = cast(list[email.message.Message], part.get_payload())
        texts = (text for child in children if (text := _body(child)).strip())
        return next(texts, "") if kind == "multipart/alternative" else "\n\n".join(texts)
    if kind not in ("text/plain", "text/html") and not kind.startswith("multipart/"):
        return ""
    content = cast(bytes | None, part.get_payload(decode=True))
    text = decode_text(content or b"", part.get_content_charset())
    return html_to_text(text) if kind == "text/html" else text


def _clipped(text: str) -> str:
    return one_line(storable(text))[:_MAX_DETAIL_CHARS]
