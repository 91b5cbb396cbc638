"""One form of text for the full-text index and for queries, so that spelling on either side does not matter.

Removes what readers do not see or what keyboards lack: case, accents, compatibility forms (ligatures, full-width letters) and
invisible characters. Scripts without spaces are indexed by pairs of characters. ASCII text stays as it is.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

_LETTERS_REMEMBERED = 50_000
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
BREAK_POINT = "\u2060 "
_LONG_RUN = re.compile(r"\S{41,}")
_SIXTEEN = re.compile(r".{1,16}", re.DOTALL)
_WITHIN_NUMBERS = frozenset("0123456789.,'")
_VOICED_KANA = "\u3099\u309a"
# Letters that Unicode does not decompose.
_PLAIN = str.maketrans(
    {
        "ø": "o",
        "ł": "l",
        "đ": "d",
        "ð": "d",
        "þ": "th",
        "æ": "ae",
        "œ": "oe",
        "ħ": "h",
        "ı": "i",
        "ŧ": "t",
        "ŋ": "n",
        "ĸ": "k",
    }
)
_ATTACHED = re.compile("(?<=\\w)[\u2122\u2120\u00b2\u00b3\u00b9\u2070-\u207f\u00bc-\u00be\u2150-\u215f]")
"""Trade marks, exponents and fractions, whose compatibility forms would run into the word before them."""
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]+"
)
"""Thai, Lao, Tibetan, Burmese, Khmer, Japanese and Chinese; Korean, whose words end in particles."""
_UNIT = r"( ?)([ap]m|[AP]M|[kMGT][BbWw]h?|[kcm][mg]|min)\b"
# Ten times as fast as a search for whole numbers: every mail has many, and few of them continue like this.
_TAIL = re.compile(rf"[0-9](?:[,.' ][0-9]{{3}}(?![0-9])|{_UNIT})")
_NUMBER = re.compile(rf"[0-9]{{1,3}}(?:([,.' ])[0-9]{{3}})(?:\1[0-9]{{3}})*(?![0-9])|([0-9]+){_UNIT}")
_MAX_NUMBER_CHARS = 30


def normal_form(text: str) -> str:
    """Return `text` in the form in which its words are compared. The time is linear in its length."""
    if text.isascii():
        return text
    return _NOT_ASCII.sub(_letter, unicodedata.normalize("NFKC", _ATTACHED.sub(r" \g<0>", text)).casefold())


def indexed_form(text: str) -> str:
    """Return the words of `text` that a search may look for.

    In addition to those of the text: grouped numbers as one number, and measures with and without a space (2pm, 2 pm).
    """
    normal = normal_form(text)
    if not normal.isascii():
        normal = _UNSPACED.sub(lambda run: f" {' '.join((*run.group(), *_pairs(run.group())))} ", normal)
    more = []
    for tail in _TAIL.finditer(normal):
        begin = tail.start()
        while begin > max(0, tail.start() - _MAX_NUMBER_CHARS) and normal[begin - 1] in _WITHIN_NUMBERS:
            begin -= 1
        number = _NUMBER.match(normal, begin)
        if number and not normal[begin - 1 : begin].isalnum():
            _, digits, space, unit = number.groups()
            more.append(f"{digits}{unit}" if space else f"{digits} {unit}" if unit else _digits(number.group()))
    return f"{normal} {' '.join(more)}" if more else normal


def sought_form(text: str) -> str:
    """Return the words that a search for `text` looks for."""
    normal = normal_form(text)
    if not normal.isascii():
        normal = _UNSPACED.sub(lambda run: f" {' '.join(_pairs(run.group()) or [run.group()])} ", normal)
    return normal


def _pairs(run: str) -> list[str]:
    return [run[n : n + 2] for n in range(len(run) - 1)]


def _digits(number: str) -> str:
    return "".join(filter(str.isdigit, number))


def _letter(match: re.Match[str]) -> str:
    return _plain_letter(match.group())


@lru_cache(maxsize=_LETTERS_REMEMBERED)
def _plain_letter(letter: str) -> str:
    category = unicodedata.category(letter)
    if category in ("Cf", "Mn", "Me", "Mc") and letter not in _VOICED_KANA:
        return ""
    base, *marks = list(unicodedata.normalize("NFD", letter))
    if marks and all(unicodedata.category(mark).startswith("M") and mark not in _VOICED_KANA for mark in marks):
        letter = base
    return letter.translate(_PLAIN)


def with_break_points(text: str) -> str:
    """Return `text` with a `BREAK_POINT` after every sixteen characters of a long run without spaces, unless it is ASCII."""
    if text.isascii():
        return text
    return _LONG_RUN.sub(lambda run: BREAK_POINT.join(_SIXTEEN.findall(run.group())), text)
