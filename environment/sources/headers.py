"""Read the header of a mail or of one of its parts: its fields, parameters and encoded words.

All of it takes time linear in the size of the header, which the standard library's decoder does not.
"""

from __future__ import annotations

import re
from binascii import a2b_qp
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from environment.sources.charsets import codec_of, decode_text
from environment.sources.transfer import from_base64

Fields = list[tuple[str, bytes]]
"""(name in lower case, value) of every field, in order. Values are not decoded and keep the ends of folded lines."""

_FIELD = re.compile(rb"([!-9;-~]+)[ \t]*:")
_SEPARATORS = (b"From ", b">From ")
_LINES_AHEAD = 5
_MAX_FIELDS = 10_000
_MAX_HEADER_BYTES = 1 << 20
_USUAL = frozenset(
    b"bcc cc content-disposition content-transfer-encoding content-type date from in-reply-to message-id mime-version"
    b" received references reply-to return-path sender subject to".split()
)
_ORIGIN = frozenset({"date", "from"})
_WORD = re.compile(r"=\?([^?\s]{1,80})\?([bBqQ])\?")


def split_header(data: bytes) -> tuple[Fields, bytes]:
    """Split a mail or part, whose lines end in `\\n`, into the fields of its header and its content.

    A line that is no field ends the header, like an empty line, unless a usual field follows within five lines. Such a
    line, and separators of an mbox within the header, are skipped.

    Raises ValueError for a header of over 10,000 fields or 1 MiB, whose fields would take many times its size in memory.
    """
    fields: list[tuple[str, list[bytes]]] = []
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        line = data[begin:end]
        field = _FIELD.match(line)
        if not line:
            return _joined(fields), data[end + 1 :]
        if field:
            fields.append((field[1].decode("ascii").lower(), [line[field.end() :]]))
        elif line[:1] in (b" ", b"\t"):
            if fields:
                fields[-1][1].append(line)
        elif not line.startswith(_SEPARATORS) and not _goes_on(data, end + 1, {name for name, _ in fields[-50:]}):
            break
        if len(fields) > _MAX_FIELDS or end > _MAX_HEADER_BYTES:
            raise ValueError(f"the header has over {_MAX_FIELDS:,} fields or {_MAX_HEADER_BYTES >> 20} MiB")
        begin = end + 1
    return _joined(fields), data[begin:]


def _joined(fields: Iterable[tuple[str, list[bytes]]]) -> Fields:
    return [(name, b"\n".join(lines).strip()) for name, lines in fields]


def _goes_on(data: bytes, begin: int, seen: set[str]) -> bool:
    """Return whether a usual field that was not seen yet is in the next lines, before an empty one."""
    for _ in range(_LINES_AHEAD):
        end = data.find(b"\n", begin)
        line = data[begin:] if end < 0 else data[begin:end]
        if not line:
            return False
        field = _FIELD.match(line)
        if field and field[1].lower() in _USUAL and field[1].decode("ascii").lower() not in seen:
            return True
        if end < 0:
            return False
        begin = end + 1
    return False


def split_mail(data: bytes) -> tuple[Fields, bytes]:
    """Split a mail like `split_header`. If an empty line cuts its header in two, both parts are the header."""
    fields, content = split_header(data)
    if fields and not _ORIGIN & {name for name, _ in fields}:
        more, rest = split_header(content)
        if len(more) > 1 and _ORIGIN & {name for name, _ in more}:
            return fields + more, rest
    return fields, content


def values_of(fields: Fields, name: str) -> list[bytes]:
    """Return the values of all fields called `name`."""
    return [value for other, value in fields if other == name]


def first_of(fields: Fields, name: str) -> bytes:
    """Return the value of the first field called `name`, empty if there is none."""
    return next((value for other, value in fields if other == name), b"")


def parameter(value: str, name: str) -> str:
    """Return a parameter of a field such as Content-Type, empty if it has none. Pieces (RFC 2231) are joined and decoded."""
    pattern = rf"(?:^|[\s;\"]){name}(?:\*\d+)?(\*)?\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"?|([^\s;]*))"
    found, charset = b"", ""
    for match in re.finditer(pattern, value, re.IGNORECASE | re.DOTALL):
        text = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        if match[1]:
            said, _, text = text.rpartition("'")
            charset = said.partition("'")[0] or charset
            found += unquote_to_bytes(text.encode("utf-8", "surrogateescape"))
        else:
            found += text.encode("utf-8", "surrogateescape")
        if "*" not in match.group().partition("=")[0]:
            break
    return decode_text(found, charset) if charset else found.decode("utf-8", "surrogateescape")


def decode_header(value: bytes) -> str:
    """Return the text of a field with encoded words (RFC 2047) decoded. A word that cannot be decoded stays as it is."""
    text = value.decode("latin-1")
    pieces: list[tuple[bytes, str | None]] = []  # text, and the charset of encoded text
    begin = position = 0
    while (start := text.find("=?", position)) >= 0:
        word = _WORD.match(text, start)
        end = text.find("?=", word.end()) if word else -1
        if word and end < 0:
            break
        inner = text.rfind("=?", word.end(), end) if word else -1
        if word is None or (inner >= 0 and _WORD.match(text, inner)):
            position = max(inner, start + 1)
            continue
        decoded = _decoded_word(word[2], text[word.end() : end])
        position = end + 2
        if decoded is None:
            continue
        between = text[begin:start]
        if between.strip() or not pieces or pieces[-1][1] is None:
            pieces.append((between.encode("latin-1"), None))
        pieces.append((decoded, word[1]))
        begin = position
    pieces.append((text[begin:].encode("latin-1"), None))
    return _text_of(pieces)


def _decoded_word(encoding: str, text: str) -> bytes | None:
    if encoding in "qQ":
        return a2b_qp(text.replace(" ", "_").encode("latin-1"), header=True)
    decoded = from_base64(text.encode("latin-1"))
    return decoded if decoded or not text.strip() else None


def _text_of(pieces: list[tuple[bytes, str | None]]) -> str:
    """Decode pieces. Neighbours of one charset are decoded together, because writers split characters."""
    texts: list[str] = []
    gathered: list[bytes] = []
    for number, (data, charset) in enumerate(pieces):
        gathered.append(data)
        following = pieces[number + 1][1] if number + 1 < len(pieces) else None
        if charset is None or following is None or codec_of(charset) != codec_of(following):
            texts.append(decode_text(b"".join(gathered), charset))
            gathered.clear()
    return "".join(texts)
