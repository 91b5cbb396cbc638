"""Words, content words and stems of a text.

Search, snippets, demonstrations, the exact judge, the baselines and the benchmarks share these definitions, so that
"all content words of the question" means the same to each of them. Three modules need more than words and have patterns
of their own: `agent/demonstrations.py` copies names as they are spelled, `agent/judges/facts.py` looks for words between
figures that it has parsed, and `serving/proof.py` needs positions in the mail and whole figures such as 15:00.
"""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

from environment.normal_form import sought_form

# A word is a run of letters and digits, as in FTS5's unicode61 tokenizer. `content_words` keeps a single . ' @ & or -
# inside a word ("555-0173", "o'neil"); search splits the word there and looks for the parts.
_WORD = re.compile(r"[^\W_]+(?:[-.'’@&][^\W_]+)*")
PART = re.compile(r"[^\W_]+")

TOKENIZER = "porter unicode61"
"""Tokenizer of the full-text index: ignores case, accents and inflection."""

MAX_QUERY_WORDS = 20
_MAX_QUERY_CHARS = 4_000
STEM_CACHE_SIZE = 50_000
_MAX_CACHED_CHARS = 100
"""Longer words are not cached: they could fill the memory."""

# "may" is absent on purpose: it is also a month.
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
    """Return the words of `text` in lower case, in order, with repetitions. A word is letters and digits only."""
    return PART.findall(text.lower())


def content_words(text: str) -> list[str]:
    """Return the distinct words of `text` in lower case, in order, without stop words.

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
    """Runs SQLite's tokenizer on single words."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        # The stemmer works on bytes and may cut a letter that is not ASCII in two.
        self._connection.text_factory = lambda term: term.decode("utf-8", "replace")
        self._connection.execute(f"CREATE VIRTUAL TABLE input USING fts5(word, tokenize='{TOKENIZER}')")
        self._connection.execute("CREATE VIRTUAL TABLE vocabulary USING fts5vocab(input, 'instance')")

    def tokens(self, word: str) -> list[str]:
        run = self._connection.execute
        with self._lock:
            run("BEGIN")
            try:
                run("INSERT INTO input VALUES (?)", (word,))
                return [row[0] for row in run("SELECT term FROM vocabulary")]
            finally:
                run("ROLLBACK")


_stemmer = _Stemmer()


def stem(word: str) -> str | None:
    """Return the token of `word` in the full-text index, equal for all its inflections; None unless it is exactly one token."""
    return _cached_token(word) if len(word) <= _MAX_CACHED_CHARS else _only_token(word)


def _only_token(word: str) -> str | None:
    tokens = _stemmer.tokens(word)
    return tokens[0] if len(tokens) == 1 else None


_cached_token = lru_cache(maxsize=STEM_CACHE_SIZE)(_only_token)


def query_words(keywords: Sequence[str]) -> dict[str, str]:
    """Return the words that a search for `keywords` looks for, at most 20, mapped to their stems.

    These are the content words, or all words if there are no content words. Of words with the same stem the first is kept.
    """
    text = sought_form(" ".join([keywords] if isinstance(keywords, str) else map(str, keywords))[:_MAX_QUERY_CHARS])
    about = [part for word in content_words(text) for part in words(word)]
    found: dict[str, str] = {}
    for word in dict.fromkeys(about or words(text)):
        if (known := stem(word)) is not None:
            found.setdefault(known, word)
    return {word: known for known, word in islice(found.items(), MAX_QUERY_WORDS)}
