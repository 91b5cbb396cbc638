from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.search_text import STOP_WORDS, content_words, number_across, with_whole_numbers, words


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


@pytest.mark.parametrize(
    ("passage", "text", "expected"),
    [
        ("…0173 is his", "Call 555-0173 is his", "…555-0173 is his"),
        ("is at 555…", "It is at 555-0173 now", "is at 555-0173…"),
        ("…000 for all", "pay $31,000 for all", "…$31,000 for all"),
        ("…31,000 for", "pay $31,000 for all", "…$31,000 for"),
        ("we meet at 10…", "we meet at 10:30am sharp", "we meet at 10:30am…"),
        ("costs 4…", "it costs 4.5% more", "costs 4.5%…"),
        ("…05-15 to 2001…", "from 2001-05-15 to 2001-06-01", "…2001-05-15 to 2001-06-01…"),
        ("…Room 4B is", "the Room 4B is free", "…Room 4B is"),
        ("in 2001…", "it was in 2001. Then", "in 2001…"),
        ("call 555-0173", "call 555-0173", "call 555-0173"),
        ("…0173 is", "555-0173 is hers, 666-0173 is his", "…0173 is"),
        ("…5 apples", "…5 apples and more", "…5 apples"),
        ("", "", ""),
    ],
)
def test_a_passage_ends_in_whole_numbers(passage: str, text: str, expected: str) -> None:
    assert with_whole_numbers(passage, text) == expected


@given(st.text(alphabet="ab 15-.,$%:…\n", max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_whole_numbers_only_ever_lengthen_a_passage(text: str, start: int, end: int) -> None:
    piece = text[start:end]
    passage = ("…" if start else "") + piece + ("…" if end < len(text) else "")
    longer = with_whole_numbers(passage, text)
    assert piece.strip("…") in longer
    if not any(character.isdigit() for character in text):
        assert longer == passage


def test_a_number_without_end_is_followed_a_little_way_only() -> None:
    first, last = number_across("1" * 10_000, 5_000)
    assert 4_900 < first < 5_000 < last < 5_100
