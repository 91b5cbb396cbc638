"""Find the text of a mail among its parts: plain text, HTML, invitations and attached mails; and its attached files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from environment.mail_text import one_line, storable
from environment.models import Attachment
from environment.sources.calendar_text import calendar_to_text
from environment.sources.charsets import codec_of, decode_text
from environment.sources.headers import Fields, decode_header, first_of, parameter, split_header, split_mail
from environment.sources.html_text import html_to_text
from environment.sources.transfer import decoded_content
from environment.words import words

_MAX_DEPTH = 30
_MAX_PARTS = 1_000
_MAX_NAME_CHARS = 120
_KIND = re.compile(r"\s*\"?([a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+)", re.IGNORECASE)
_META_CHARSET = re.compile(
    rb"<(?:meta\s[^<>]{0,300}?charset|\?xml\s[^<>]{0,300}?encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE
)
_SAME_KIND = {"application/xhtml+xml": "text/html", "application/ics": "text/calendar"}
_META_BYTES = 4_096
_MARKUP = re.compile(r"<[^<>]*>")
_NOT_SHOWN = frozenset(
    f"text/{kind}" for kind in ("css", "directory", "javascript", "rfc822-headers", "rtf", "vcard", "x-vcard", "xml")
)
_RARELY_SHOWN = frozenset({"text/calendar", "text/watch-html", "text/x-amp-html"})
_SHOWN_OF_ATTACHED = ("from", "date", "subject")
_MAX_STUB_CHARS = 300
_ELSEWHERE = re.compile(r"\b(?:browser|online|view)", re.IGNORECASE)
_THIS_MAIL = re.compile(r"\b(?:browser|e-?mail|message|newsletter|version)", re.IGNORECASE)
_WEB_ADDRESS = re.compile(r"https?://\S*", re.IGNORECASE)
_MUCH_MORE = 2
"""Times as many words."""
_MAX_COMPARED_CHARS = 20_000
_UUENCODED = re.compile(
    rb"^begin [0-7]{3,4} ([^\r\n]{1,300})\r?\n(?:[!-`][ -`]{0,62}\r?\n)*+(?:[ `]?\r?\n)?end[ \t]*\r?(?:\n|\Z)",
    re.MULTILINE,
)
_QUOTES = re.compile(r"(?:> ?)*>")


@dataclass(frozen=True)
class _Part:
    """A part of a mail. `whole`: it is the entire content of a mail."""

    fields: Fields
    content: bytes
    default: str = "text/plain"
    whole: bool = False

    @property
    def type(self) -> str:
        return decode_text(first_of(self.fields, "content-type"))

    @property
    def kind(self) -> str:
        found = _KIND.match(self.type)
        if found:
            kind = found[1].lower()
            return _SAME_KIND.get(kind, kind) if kind != "application/octet-stream" else self._kind_of_name(kind)
        return "text/html" if self.type.strip().lower() == "html" else "text/plain" if self.type else self.default

    def _kind_of_name(self, kind: str) -> str:
        name = (parameter(self.type, "name") or parameter(self._disposition, "filename")).lower()
        return "text/calendar" if name.endswith(".ics") else "message/rfc822" if name.endswith(".eml") else kind

    def decoded(self) -> bytes:
        return decoded_content(self.content, decode_text(first_of(self.fields, "content-transfer-encoding")))

    @property
    def name(self) -> str:
        """The name of its file, without folders; empty if it has none."""
        named = parameter(self._disposition, "filename") or parameter(self.type, "name")
        return _file_name(decode_header(named.encode("utf-8", "surrogateescape")))

    @property
    def embedded(self) -> bool:
        """Whether it is a picture within the text."""
        return self.kind.startswith("image/") and not self.attached and bool(first_of(self.fields, "content-id"))

    @property
    def attached(self) -> bool:
        return self._disposition.strip().lower().startswith("attachment")

    @property
    def _disposition(self) -> str:
        return decode_text(first_of(self.fields, "content-disposition"))


def _file_name(written: str) -> str:
    return one_line(storable(written)).replace("\\", "/").rpartition("/")[2].strip()[:_MAX_NAME_CHARS]


def text_of(fields: Fields, content: bytes) -> tuple[str, tuple[Attachment, ...]]:
    """Return the text of a mail, the plain one of alternatives, otherwise of all parts that have text; and its attached files.

    An attached mail is shown with its sender, date and subject, and invitations are shown too. Parts of a part after the first
    1,000 are left out. Raises ValueError for parts nested deeper than 30 levels.
    """
    attached: list[Attachment] = []
    return _text(_Part(fields, content, whole=True), 0, attached), tuple(attached)


def _text(part: _Part, depth: int, attached: list[Attachment]) -> str:
    if depth > _MAX_DEPTH:
        raise ValueError(f"parts are nested deeper than {_MAX_DEPTH} levels")
    kind = part.kind
    if kind in ("message/rfc822", "message/global", "message/news"):
        return _attached_mail(part, depth, attached)
    if part.attached and not part.whole and kind != "text/calendar":
        return _file(part, attached)
    if kind.startswith("multipart/"):
        children = list(islice(_children(part, kind), _MAX_PARTS))
        if children:
            if kind == "multipart/alternative":
                return _best(children, depth, attached)
            return _joined(children, depth, attached)
        kind = "text/plain"
    if not kind.startswith("text/") or (kind in _NOT_SHOWN and not part.whole):
        return _file(part, attached)
    return _leaf(part, kind, attached)


def _joined(children: list[_Part], depth: int, attached: list[Attachment]) -> str:
    """Return the texts of all parts. A named text below another one is a file, and an invitation is not repeated."""
    texts: list[str] = []
    for child in children:
        if texts and child.kind.startswith("text/") and child.kind != "text/calendar" and child.name:
            _file(child, attached)
            continue
        text = _text(child, depth + 1, attached)
        if texts and child.kind == "text/calendar":
            text = _unsaid(text, texts)
        if text.strip():
            texts.append(text)
    return "\n\n".join(texts)


def _file(part: _Part, attached: list[Attachment]) -> str:
    """Note an attached file, which has no text here."""
    if (name := part.name) and not part.embedded and not part.kind.endswith("-signature"):
        attached.append(Attachment(name, part.content, decode_text(first_of(part.fields, "content-transfer-encoding"))))
    return ""


def _children(part: _Part, kind: str) -> Iterator[_Part]:
    """Yield the parts of a multipart; none if its boundary is missing or does not occur."""
    boundary = parameter(part.type, "boundary").rstrip()
    if not boundary:
        return
    default = "message/rfc822" if kind == "multipart/digest" else "text/plain"
    delimiter = b"\n--" + boundary.encode("utf-8", "surrogateescape")
    data = b"\n" + part.decoded()
    begin = -1
    position = data.find(delimiter)
    while position >= 0:
        end = data.find(b"\n", position + 1)
        end = len(data) if end < 0 else end
        rest = data[position + len(delimiter) : end].rstrip(b" \t")
        if rest in (b"", b"--"):
            if begin >= 0:
                yield _Part(*split_header(data[begin:position]), default)
            begin = end + 1
            if rest:
                return
        position = data.find(delimiter, position + len(delimiter))
    if begin >= 0:
        yield _Part(*split_header(data[begin:]), default)


def _best(children: list[_Part], depth: int, attached: list[Attachment]) -> str:
    """Return the text of the alternative that a reader of plain text is shown, and what an invitation adds to it."""
    found = [(child, text) for child in children if (text := _text(child, depth + 1, attached)).strip()]
    if not found:
        return ""
    chosen, best = min(found, key=lambda alternative: _rank(alternative[0]))
    if _rank(chosen) == 0 and _may_be_stub(best):
        best = next((other for child, other in found if _rank(child) == 1 and not _says_the_same(best, other)), best)
    texts = [best]
    for child, text in found:
        if child.kind == "text/calendar" and child is not chosen and (unsaid := _unsaid(text, texts)):
            texts.append(unsaid)
    return best if len(texts) == 1 else "\n\n".join([best.rstrip(), *texts[1:]])


def _rank(part: _Part) -> int:
    """Return 0 for plain text, 1 for HTML and compositions, 2 for text that is only for machines and watches."""
    kind = part.kind
    return 0 if kind == "text/plain" else 2 if kind in _RARELY_SHOWN else 1


def _may_be_stub(text: str) -> bool:
    """Return whether a short text may only say where to see the mail: in a program that shows HTML, or on a page."""
    said = _WEB_ADDRESS.sub("", text)
    return len(said) <= _MAX_STUB_CHARS and ("html" in said.lower() or (said != text and bool(_ELSEWHERE.search(said))))


def _says_the_same(stub: str, text: str) -> bool:
    """Return whether `text` has at least half of the words of `stub`, which otherwise only says where to see the mail.

    HTML has the link to its own page, too, and says much more.
    """
    said = _WEB_ADDRESS.sub("", stub)
    ours, theirs = words(said), words(text)
    common = len(set(ours) & set(theirs))
    links_itself = said != stub and _THIS_MAIL.search(said) is not None
    return common * 2 >= len(set(ours)) and not (links_itself and len(theirs) > _MUCH_MORE * len(ours))


def _unsaid(invitation: str, texts: list[str]) -> str:
    """Return the lines of an invitation that `texts` do not have. Long ones are not compared: that takes quadratic time."""
    if len(invitation) + sum(map(len, texts)) > _MAX_COMPARED_CHARS:
        return invitation
    said = one_line(" ".join(texts))
    return "\n".join(line for line in invitation.split("\n") if one_line(line) not in said)


def _attached_mail(part: _Part, depth: int, attached: list[Attachment]) -> str:
    fields, content = split_mail(part.decoded().lstrip(b"\n"))
    text = _text(_Part(fields, content, whole=True), depth + 1, attached)
    if not text.strip():
        return ""
    head = [
        f"{name.title()}: {' '.join(decode_header(value).split())}"
        for name in _SHOWN_OF_ATTACHED
        if (value := first_of(fields, name))
    ]
    return "\n".join([*head, "", text])


def _leaf(part: _Part, kind: str, attached: list[Attachment]) -> str:
    content = part.decoded()
    charset = parameter(part.type, "charset")
    if kind.endswith("html"):
        # A label that says nothing, as us-ascii does for text that is not ASCII, leaves it to the document.
        if codec_of(charset) is None and (declared := _META_CHARSET.search(content[:_META_BYTES])):
            named = declared[1].decode("ascii", "ignore")
            charset = charset if named.lower().startswith(("utf-16", "utf-32")) else named
        return html_to_text(decode_text(content, charset))
    if kind == "text/calendar":
        return calendar_to_text(decode_text(content, charset))
    text = decode_text(_without_files(content, attached), charset)
    if kind in ("text/enriched", "text/richtext"):
        return _MARKUP.sub("", text.replace("<<", "&lt;")).replace("&lt;", "<")
    if parameter(part.type, "format").lower() == "flowed":
        return _unflowed(text, parameter(part.type, "delsp").lower() == "yes")
    return text


def _without_files(content: bytes, attached: list[Attachment]) -> bytes:
    """Return a text without the files that are uuencoded in it, which are noted."""

    def noted(block: re.Match[bytes]) -> bytes:
        if name := _file_name(decode_text(block[1])):
            attached.append(Attachment(name, block[0], "x-uuencode"))
        return b"" if name else block[0]

    return _UUENCODED.sub(noted, content) if b"begin " in content else content


def _unflowed(text: str, delete_space: bool) -> str:
    """Join the lines that a writer of `format=flowed` (RFC 3676) broke."""
    joined: list[list[str]] = []
    quotes_before: str | None = None  # of a line that goes on
    for line in text.split("\n"):
        found = _QUOTES.match(line)
        quotes = found.group().replace(" ", "") if found else ""
        said = line[found.end() if found else 0 :].removeprefix(" ")
        goes_on = said.endswith(" ") and said != "-- "
        if goes_on and delete_space:
            said = said[:-1]
        if quotes_before == quotes and said != "-- ":
            joined[-1].append(said)
        else:
            joined.append([f"{quotes} " if quotes else "", said])
        quotes_before = quotes if goes_on else None
    return "\n".join("".join(pieces) for pieces in joined)
