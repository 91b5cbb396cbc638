"""Decode the bytes of a mail to text: charset labels as browsers read them, and text that is not in its declared charset."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from functools import lru_cache

import webencodings

from environment.mail_text import storable

# Unreliable labels: such text is decoded as UTF-8 if possible, otherwise in the Windows charset.
_VAGUE_CHARSETS = frozenset({"ascii", "iso8859-1", "cp1252"})
# Python-specific escapes and host name encodings: never a mail's charset, and decoding takes quadratic time.
_NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "unicode-escape", "undefined"})
_WIDE_CHARSETS = ("utf-16", "utf-32")
_SUPERSETS = {"gbk": "gb18030", "gb2312": "gb18030"}
"""Codec -> the one whose characters writers use under its label, where `webencodings` does not know it."""
_ISO_2022_JP = "iso2022-jp"
_CODE_PAGE = re.compile(r"(?:x-)?(?:win|windows|ansi|cp|ms|oem|dos|ibm)[-_ ]*(\d{3,5})")
_CODECS_REMEMBERED = 1_000

_LINE_END = re.compile(r"(?<!\r)\r+\n|\r")  # a run is looked at once: linear time
_MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_JAPANESE_SET = re.compile(rb"\x1b(\$[@AB]|\$\([@BCD]|\([BHIJ])")
_TWO_BYTES = re.compile(rb"[!-~]+")


def decode_text(data: bytes, charset: str | None = None) -> str:
    """Decode `data` as `charset`. If that is missing, unknown or wrong, use the most likely one. Lines end in `\\n`.

    Bytes that are not text in the declared charset affect no other characters: in UTF-8 they are read as Windows-1252.
    """
    codec = codec_of(charset)
    if codec and codec.startswith(_WIDE_CHARSETS) and b"\x00" not in data:
        codec = None
    if codec is None and b"\x1b$" in data:
        codec = _ISO_2022_JP
    return _LINE_END.sub("\n", storable(_decoded(data, codec))).removeprefix("\ufeff")


def _decoded(data: bytes, codec: str | None) -> str:
    if codec == _ISO_2022_JP:
        return _japanese(data)
    for name in (codec, "utf-8"):
        if name:
            with suppress(UnicodeError):
                return data.decode(name)
    if codec is None:
        found = _MULTIBYTE.findall(data)
        stray = len(data.translate(None, bytes(range(128)))) - sum(map(len, found))
        codec = "utf-8" if len(found) > stray else "cp1252"
    return data.decode(codec, "mail-cp1252" if codec == "utf-8" else "replace")


@lru_cache(maxsize=_CODECS_REMEMBERED)
def codec_of(label: str | None) -> str | None:
    """Return the codec of a charset label that says something, otherwise None."""
    # In encoded words a language may follow the charset (RFC 2231).
    name = (label or "").partition("*")[0].strip(" \t\"';")
    if not name.isascii():
        return None
    lower = name.lower()
    if lower.startswith(("iso-2022-jp", "cp5022", "csiso2022jp")):
        return _ISO_2022_JP
    known = None if lower.startswith(_WIDE_CHARSETS) else webencodings.lookup(name)
    if known is not None and known.name not in ("replacement", "x-user-defined", "utf-16le", "utf-16be"):
        codec = known.codec_info.name.replace("_", "-")
    else:
        page = _CODE_PAGE.fullmatch(lower)
        spellings = (name, name.replace("-", ""), lower.removeprefix("x-"), f"cp{page[1]}" if page else "")
        codec = next((found for spelling in spellings if (found := _python_codec(spelling))), "")
    codec = _SUPERSETS.get(codec, codec)
    return codec if codec and codec not in _VAGUE_CHARSETS | _NO_CHARSETS else None


def _python_codec(name: str) -> str | None:
    try:
        bytes(4).decode(name)  # fails for codecs that are not text encodings, which `lookup` finds too
        return codecs.lookup(name).name.replace("_", "-")
    except (LookupError, ValueError):
        return None


def _as_windows(error: UnicodeError) -> tuple[str, int]:
    """Decode one byte that is not UTF-8 as Windows-1252. A truncated longer character is a replacement character."""
    assert isinstance(error, UnicodeDecodeError)
    wrong = error.object[error.start : error.end]
    return (wrong.decode("cp1252", "replace") if len(wrong) == 1 else "\ufffd"), error.end


codecs.register_error("mail-cp1252", _as_windows)


def _japanese(data: bytes) -> str:
    """Decode ISO-2022-JP with the extensions of Windows, which Python's codec lacks. A wrong character affects no other."""
    first, *others = _JAPANESE_SET.split(data)
    texts = [first.decode("cp932", "replace")]
    for charset, text in zip(others[::2], others[1::2], strict=True):
        if charset in (b"$B", b"$@", b"$(B", b"$(@"):
            texts.append(_TWO_BYTES.sub(_shift_jis, text).decode("cp932", "replace"))
        elif charset == b"(I":  # katakana
            texts.append(bytes(byte | 0x80 if byte > 0x20 else byte for byte in text).decode("cp932", "replace"))
        elif charset.startswith(b"$"):
            name = "iso2022_jp_ext" if charset == b"$(D" else "iso2022_jp_2"
            texts.append((b"\x1b" + charset + text + b"\x1b(B").decode(name, "replace"))
        else:
            texts.append(text.decode("cp932", "replace"))
    return "".join(texts)


def _shift_jis(pairs: re.Match[bytes]) -> bytes:
    """Convert pairs of bytes of JIS X 0208 to Shift JIS."""
    given = pairs.group()
    converted = bytearray()
    for row, cell in zip(given[::2], given[1::2], strict=False):
        converted.append((row + 1) // 2 + (0x70 if row < 0x5F else 0xB0))
        converted.append(cell + (0x1F + (cell >= 0x60) if row % 2 else 0x7E))
    return bytes(converted) + (b"?" if len(given) % 2 else b"")
