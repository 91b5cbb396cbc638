from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.words import STOP_WORDS, content_words, stem, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where are we meeting for the Heron budget review?", ["meeting", "heron", "budget", "review"]),
        ("What is Dana's number? 555-0173, room 4B", ["dana", "number", "555-0173", "room", "4b"]),
        ("Heron heron HERON", ["heron"]),
        ("Who's Martin O'Neil?", ["martin", "o'neil"]),
        ("When is it due in May?", ["due", "may"]),
        ("What’s this?", []),
        ("", []),
        ("... ?!", []),
    ],
)
def test_content_words(text: str, expected: list[str]) -> None:
    assert content_words(text) == expected


@given(st.text())
def test_content_words_are_distinct_lower_case_and_never_stop_words(text: str) -> None:
    found = content_words(text)
    assert len(found) == len(set(found))
    assert not STOP_WORDS.intersection(found)
    assert all(word == word.lower() and words(word) for word in found)


def test_inflections_have_one_stem_and_accents_and_case_none() -> None:
    assert stem("Parties") == stem("party") != stem("part") and stem("possibilities") == stem("possible")
    assert stem("Café") == stem("cafe") == "cafe"
    assert stem("?!") is stem("two words") is stem("") is stem("a\x00b c") is None


def test_long_words_are_not_kept() -> None:
    tracemalloc.start()
    for number in range(100):
        stem(f"{number}" + "x" * 4_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000


@given(st.text(alphabet="aeimé\u0131ſs\u0640ng", min_size=1, max_size=80))
def test_no_word_breaks_the_stemmer(word: str) -> None:
    stem(word)
    assert stem("meetings") == stem("meeting")
