"""Undo the transfer encodings of mail: base64, quoted-printable and uuencode, as leniently as mail programs do."""

from __future__ import annotations

import re
from binascii import Error, a2b_base64, a2b_qp, a2b_uu
from contextlib import suppress

_NO_BASE64 = re.compile(rb"[^A-Za-z0-9+/=]+")
_ENCODED_LINE = re.compile(rb"[ \t]*[A-Za-z0-9+/]*={0,3}[ \t]*")
_COMMENT = re.compile(r"\([^()]*\)?")
_PADDING = re.compile(rb"=+")
_SURELY_ENCODED_CHARS = 40
_SOFT_BREAK = re.compile(rb"=[ \t]+(?=\n)")


def decoded_content(content: bytes, encoding: str) -> bytes:
    """Return `content`, whose lines end in `\\n`, without the transfer encoding that its header names."""
    name = re.sub(r"[^a-z0-9]", "", re.split(r"[;,]|\s\S+=", _COMMENT.sub("", encoding.lower()).strip())[0])
    if name in ("base64", "b64", "b"):
        return _from_base64_lines(content)
    if name in ("quotedprintable", "qp", "q"):
        return a2b_qp(_SOFT_BREAK.sub(b"=", content))
    if name in ("uuencode", "xuuencode", "uue", "xuue"):
        return _from_uuencode(content)
    return content


def from_base64(text: bytes) -> bytes:
    """Decode base64 with characters that do not belong there, padding in the middle, too little of it or none."""
    decoded = []
    for part in _PADDING.split(_NO_BASE64.sub(b"", text)):
        usable = part[: len(part) - (len(part) % 4 == 1)]
        with suppress(Error):
            decoded.append(a2b_base64(usable + b"=" * (-len(usable) % 4)))
    return b"".join(decoded)


def _from_base64_lines(content: bytes) -> bytes:
    """Decode base64 and keep plain text after it, which mailing lists append."""
    lines = content.split(b"\n")
    end = next((number for number, line in enumerate(lines) if not _ENCODED_LINE.fullmatch(line)), len(lines))
    for number in range(len(lines) - 1, end, -1):
        if len(lines[number]) >= _SURELY_ENCODED_CHARS and _ENCODED_LINE.fullmatch(lines[number]):
            end = number + 1
            break
    decoded = from_base64(b"\n".join(lines[:end]))
    rest = b"\n".join(lines[end:])
    return decoded + b"\n" + rest if rest.strip() and decoded else decoded + rest.strip()


def _from_uuencode(content: bytes) -> bytes:
    decoded = []
    begun = False
    for line in content.split(b"\n"):
        if not begun:
            begun = line.startswith(b"begin ")
        elif line.strip() in (b"end", b"`", b""):
            break
        else:
            with suppress(Error):
                decoded.append(a2b_uu(line))
    return b"".join(decoded) if begun else content
