"""Excerpts of a text around the words of a search."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from environment.normal_form import BREAK_POINT, indexed_form, with_break_points
from environment.words import PART, stem, words

ELLIPSIS = "…"
_SENTENCE_ENDS = frozenset(".?!")
_CLOSING = "\"'’”)]>*_"
_PIECE = re.compile(r"\S+")
_DIGIT = re.compile(r"[0-9]")
_WORD_BEGINS = re.compile(r"\s(?=\S)")
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
    pieces = with_break_points(text).split()
    first, last, most = 0, 0, 0
    line = " ".join(pieces)
    hits: list[tuple[int, str]] = []
    counted = blanks = 0
    for start, known in _occurrences(line, stems):
        blanks += line.count(" ", counted, start)
        counted = start
        hits.append((blanks, known))
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
    shown = f"{ELLIPSIS if begin else ''}{shown.replace(BREAK_POINT, '').rstrip(BREAK_POINT)}{ELLIPSIS if cut else ''}"
    return Passage(shown, most > 0 and _sentence_asks(pieces[last : begin + _PASSAGE_WORDS]))


def _sentence_asks(pieces: Iterable[str]) -> bool:
    """Return whether the first sentence that ends within `pieces` (words with punctuation) ends with a question mark."""
    ends = (piece.rstrip(_CLOSING)[-1:] for piece in pieces)
    return next((end for end in ends if end in _SENTENCE_ENDS), ".") == "?"


def densest_start(text: str, stems: Collection[str], length: int) -> int:
    """Return where in `text` to start a window of `length` characters that matches the most `stems`; ties go to the first.

    The window starts at the beginning of a line, or within a line that is longer than it at a word before a match. It never
    starts so late that it would be less than half full. Without a match it starts at 0.
    """
    hits = _occurrences(text, stems)
    best, most = 0, 0
    for begin in _beginnings(text, hits, length):
        if begin > len(text) - length // 2:
            break
        distinct = len({known for _, known in _between(hits, begin, begin + length)})
        if distinct > most:
            best, most = begin, distinct
    return best


def _beginnings(text: str, hits: list[tuple[int, str]], length: int) -> Iterator[int]:
    """Yield where a window may start, in order: at each line, and in long lines a quarter of the window before a match.

    The latter are at least as far from each other, so that there are few of them however many matches there are.
    """
    begin = 0
    for line in text.splitlines(keepends=True):
        yield begin
        last, end = begin, begin + len(line)
        for hit, _ in _between(hits, begin, end) if len(line) > length else ():
            word = _WORD_BEGINS.search(text, max(last, hit - length // 4), hit)
            start = word.end() if word else hit
            if start >= last + length // 4 and text[start - 1].isspace():
                yield start
                last = start
        begin = end


def _between(hits: list[tuple[int, str]], begin: int, end: int) -> list[tuple[int, str]]:
    return hits[bisect_left(hits, (begin, "")) : bisect_left(hits, (end, ""))]


def _occurrences(text: str, stems: Collection[str]) -> list[tuple[int, str]]:
    """Return (index, stem) of every word of `text` that has one of `stems`, in order.

    The index is that of the word's first character. In a text that is not all ASCII, and for a number, it is that of the
    characters between white space that hold the word.
    """
    found: set[tuple[int, str]] = set()
    beginnings = tuple({known[: min(_STEM_PREFIX_CHARS, max(len(known) - 1, 1))] for known in stems})
    plain = text.isascii()
    if not plain or any(_DIGIT.search(known) for known in stems):  # the index holds "31000" for "$31,000", too
        for piece in _PIECE.finditer(text):
            if plain and not _DIGIT.search(piece.group()):
                continue
            for said in words(indexed_form(piece.group())):
                if said.startswith(beginnings) and (known := stem(said)) in stems:
                    found.add((piece.start(), str(known)))
    if not plain:
        return sorted(found)
    folded = text.lower()
    for beginning in beginnings:
        start = folded.find(beginning)
        while start >= 0:
            word = PART.match(folded, start)
            if word and not folded[start - 1 : start].isalnum():
                known = stem(word.group())
                if known is not None and known in stems:
                    found.add((start, known))
            start = folded.find(beginning, start + 1)
    return sorted(found)
