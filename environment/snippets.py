"""Excerpts of a text around the words of a search."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import NamedTuple

from environment.words import PART, STEM_CACHE_SIZE, stem

ELLIPSIS = "…"
_SENTENCE_ENDS = frozenset(".?!")
_CLOSING = "\"'’”)]>*_"
_PASSAGE_WORDS = 8
_MAX_PASSAGE_CHARS = 160
_STEM_PREFIX_CHARS = 4
"""Leading characters that a word and its stem share at least: "possibility" and "possibl" differ after six."""


class Passage(NamedTuple):
    """An excerpt that holds most of the sought words."""

    shown: str
    asks: bool
    """Whether the sentence with the last matching word ends in a question mark within the excerpt."""


def passage(text: str, stems: Collection[str]) -> Passage:
    """Return the first eight consecutive words of `text` that match the most `stems`, on one line, an ellipsis at each cut.

    Words are separated by white space, so that `$31,000` and `555-0173` stay whole. Without the ellipses the excerpt has
    at most 160 characters.
    """
    pieces = text.split()
    first, last, most = 0, 0, 0
    line = " ".join(pieces)
    hits = [(line.count(" ", 0, start), known) for start, known in _occurrences(line, stems)]
    for number, (place, _) in enumerate(hits):
        near = [hit for hit in hits[number : number + _PASSAGE_WORDS] if hit[0] < place + _PASSAGE_WORDS]
        distinct = len({found for _, found in near})
        if distinct > most:
            first, last, most = place, near[-1][0], distinct
    begin = max(0, min(first - (_PASSAGE_WORDS - 1 - last + first) // 2, len(pieces) - _PASSAGE_WORDS))
    shown = " ".join(pieces[begin : begin + _PASSAGE_WORDS])
    cut = begin + _PASSAGE_WORDS < len(pieces)
    if len(shown) > _MAX_PASSAGE_CHARS:
        blank = shown.rfind(" ", 0, _MAX_PASSAGE_CHARS + 1)
        shown, cut = shown[: blank if blank > 0 else _MAX_PASSAGE_CHARS], True
    shown = f"{ELLIPSIS if begin else ''}{shown}{ELLIPSIS if cut else ''}"
    return Passage(shown, most > 0 and _sentence_asks(pieces[last : begin + _PASSAGE_WORDS]))


def _sentence_asks(pieces: Iterable[str]) -> bool:
    """Return whether the first sentence that ends within `pieces` (words with punctuation) ends with a question mark."""
    ends = (piece.rstrip(_CLOSING)[-1:] for piece in pieces)
    return next((end for end in ends if end in _SENTENCE_ENDS), ".") == "?"


def densest_start(text: str, stems: Collection[str], length: int) -> int:
    """Return where in `text` to start a window of `length` characters that matches the most `stems`; ties go to the first.

    The window starts at the beginning of a line and never so late that it would be less than half full. Without a match
    it starts at 0.
    """
    hits = _occurrences(text, stems)
    best, most, begin = 0, 0, 0
    for line in text.splitlines(keepends=True):
        if begin > len(text) - length // 2:
            break
        distinct = len({known for place, known in hits if begin <= place < begin + length})
        if distinct > most:
            best, most = begin, distinct
        begin += len(line)
    return best


def _occurrences(text: str, stems: Collection[str]) -> list[tuple[int, str]]:
    """Return (index of its first character, stem) of every word of `text` that has one of `stems`, in order."""
    folded = _folded(text)
    found: set[tuple[int, str]] = set()
    for beginning in {known[: min(_STEM_PREFIX_CHARS, max(len(known) - 1, 1))] for known in stems}:
        start = folded.find(beginning)
        while start >= 0:
            word = PART.match(folded, start)
            if word and not folded[start - 1 : start].isalnum():
                known = stem(word.group())
                if known is not None and known in stems:
                    found.add((start, known))
            start = folded.find(beginning, start + 1)
    return sorted(found)


def _folded(text: str) -> str:
    """Return `text` in lower case and without accents, at the same length."""
    return text.lower() if text.isascii() else "".join(map(_folded_letter, text))


@lru_cache(maxsize=STEM_CACHE_SIZE)
def _folded_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    return (parts[0] if len(parts) > 1 and unicodedata.combining(parts[1]) else letter).lower()
