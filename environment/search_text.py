"""Words: what a text is about, for search and for the policies that do not learn.

One definition serves everywhere, so that "all content words of the question" means the same to the database, to the
baseline and to whoever measures search.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

# A word is a run of letters and digits, as FTS5's unicode61 tokenizer has it. Inside a word, a single . ' @ & or - is
# kept for the reader ("555-0173", "o'neil", "4b"); search splits it again and looks for the parts side by side.
_WORD = re.compile(r"[^\W_]+(?:[-.'’@&][^\W_]+)*")
_PART = re.compile(r"[^\W_]+")

ELLIPSIS = "…"
_SENTENCE_ENDS = frozenset(".?!")
_CLOSING = "\"'’”)]>*_"
TOKENIZER = "porter unicode61"
"""How the full-text index makes words of a text: without case, accents and inflection."""

MAX_QUERY_WORDS = 20
_MAX_QUERY_CHARS = 4_000
_PASSAGE_WORDS = 8
_MAX_PASSAGE_CHARS = 160
_STEMS_REMEMBERED = 50_000
_SHARED_LETTERS = 4  # of a word and its stem: "possibility" and "possibl" part after that

# Words that say how a question is asked, not what it is about. "may" is absent on purpose: it is also a month.
_STOP_WORDS = """
    a about above after again against all also am an and any anyone anything are around as at be became because been
    before being below between both but by can cannot could did do does doing done down during each either else ever
    every few for from further get gets give given gives go goes going got had has have having he her here hers herself
    him himself his how however i if in into is it its itself just know let like made make many me mean more most much
    must my myself need no nor not now of off on once one only or other our ours ourselves out over own please s said
    same say says shall she should so some such t tell than that the their theirs them themselves then there these they
    this those through to too under until up upon us very was we were what whatever when where whether which while who
    whom whose why will with within without would yes you your yours yourself yourselves
    aren't can't couldn't didn't doesn't don't hadn't hasn't haven't he's how's i'd i'll i'm i've isn't it's let's
    she's that's there's they're wasn't we'd we'll we're we've weren't what's when's where's who's won't wouldn't you'd
    you'll you're you've
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


def words(text: str) -> list[str]:
    """The words of `text` in lower case and in order, repeated ones included. Each word is letters and digits only."""
    return _PART.findall(text.lower())


def content_words(text: str) -> list[str]:
    """The words that `text` is about: lower case, in order, each once, without stop and question words.

    Forms such as `4b`, `o'neil` and `555-0173` stay whole; a possessive `'s` is cut off.
    """
    found: dict[str, None] = {}
    for match in _WORD.finditer(text.lower()):
        word = match.group().replace("’", "'")
        if word in STOP_WORDS:
            continue
        word = word.removesuffix("'s")
        if word and word not in STOP_WORDS:
            found[word] = None
    return list(found)


class _Stemmer:
    """SQLite's tokenizer at work on one word at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.execute(f"CREATE VIRTUAL TABLE given USING fts5(word, tokenize='{TOKENIZER}')")
        self._connection.execute("CREATE VIRTUAL TABLE made USING fts5vocab(given, 'instance')")

    def tokens(self, word: str) -> list[str]:
        run = self._connection.execute
        with self._lock:
            run("BEGIN")
            run("INSERT INTO given VALUES (?)", (word,))
            found = [row[0] for row in run("SELECT term FROM made")]
            run("ROLLBACK")
        return found


_stemmer = _Stemmer()


@lru_cache(maxsize=_STEMS_REMEMBERED)
def stem(word: str) -> str | None:
    """`word` as the full-text index knows it, the same for all its inflections. None for what is not one word to it."""
    tokens = _stemmer.tokens(word)
    return tokens[0] if len(tokens) == 1 else None


def query_words(keywords: Sequence[str]) -> dict[str, str]:
    """The words that a search for `keywords` looks for and their stems, at most 20: the content words if there are any, else all.

    Of several with the same stem the first stands for all.
    """
    text = " ".join([keywords] if isinstance(keywords, str) else map(str, keywords))[:_MAX_QUERY_CHARS]
    about = [part for word in content_words(text) for part in words(word)]
    found: dict[str, str] = {}
    for word in dict.fromkeys(about or words(text)):
        if (known := stem(word)) is not None:
            found.setdefault(known, word)
    return {word: known for known, word in islice(found.items(), MAX_QUERY_WORDS)}


class Passage(NamedTuple):
    """Where a text says most of what is sought."""

    shown: str
    asks: bool
    """Whether it shows a question mark at the end of the sentence with the last of the words that were sought."""


def passage(text: str, stems: Collection[str]) -> Passage:
    """The first eight words in a row of `text` that have the most of `stems`, on one line, with an ellipsis at each cut.

    Words are what is between blanks, so that `$31,000` and `555-0173` stay whole; at most 160 characters and an ellipsis
    at either end.
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
    """Whether the first sentence to end in `pieces`, a text's words with their punctuation, ends with a question mark."""
    ends = (piece.rstrip(_CLOSING)[-1:] for piece in pieces)
    return next((end for end in ends if end in _SENTENCE_ENDS), ".") == "?"


def densest_start(text: str, stems: Collection[str], length: int) -> int:
    """The beginning of the line from which `length` characters of `text` have the most of `stems`; of several the first.

    Never in the last half of `length`, so that little is shown where there is more; 0 where none of `stems` is.
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
    """Where in `text` a word has one of `stems`, in order: its first character, and which stem."""
    folded = _folded(text)
    found: set[tuple[int, str]] = set()
    for beginning in {known[: min(_SHARED_LETTERS, max(len(known) - 1, 1))] for known in stems}:
        start = folded.find(beginning)
        while start >= 0:
            word = _PART.match(folded, start)
            if word and not folded[start - 1 : start].isalnum() and (known := stem(word.group())) in stems:
                found.add((start, known))
            start = folded.find(beginning, start + 1)
    return sorted(found)


def _folded(text: str) -> str:
    """`text` in lower case and without accents, as long as before."""
    return text.lower() if text.isascii() else "".join(map(_folded_letter, text))


@lru_cache(maxsize=_STEMS_REMEMBERED)
def _folded_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    return (parts[0] if len(parts) > 1 and unicodedata.combining(parts[1]) else letter).lower()
