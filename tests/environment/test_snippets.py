from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.snippets import ELLIPSIS, densest_start, passage
from environment.words import stem, words

FILLER = "one two three four five six seven eight nine ten"


@pytest.mark.parametrize(
    ("text", "wanted", "expected"),
    [
        ("Short and whole.", "nothing", "Short and whole."),
        ("Short and\n\n whole.", "", "Short and whole."),
        (FILLER, "nothing", "one two three four five six seven eight…"),
        (f"{FILLER} heron {FILLER}", "herons", "…eight nine ten heron one two three four…"),
        (f"{FILLER} heron", "heron", "…four five six seven eight nine ten heron"),
        (f"heron {FILLER} heron budget {FILLER}", "budgets heron", "…eight nine ten heron budget one two three…"),
        (f"heron {FILLER} Heron {FILLER}", "heron", "heron one two three four five six seven…"),
        (f"{FILLER} Café {FILLER}", "cafe", "…eight nine ten Café one two three four…"),
        (f"{FILLER} cafe {FILLER}", "café", "…eight nine ten cafe one two three four…"),
        (f"{FILLER} her-on (parties!) {FILLER}", "party her", "…eight nine ten her-on (parties!) one two three…"),
        (f"{FILLER} partial {FILLER}", "party", "one two three four five six seven eight…"),
        (f"{FILLER} $31,000 555-0173 {FILLER}", "0173 000", "…eight nine ten $31,000 555-0173 one two three…"),
        ("", "heron", ""),
    ],
)
def test_a_passage_is_where_most_of_the_words_are_together(text: str, wanted: str, expected: str) -> None:
    assert passage(text, {found for word in words(wanted) if (found := stem(word))}).shown == expected


@pytest.mark.parametrize(
    ("text", "asks"),
    [
        ("Where does the heron nest?", True),
        ("Where does the heron nest? I forgot.", True),
        ("(Where does the heron nest?)", True),
        ("The heron nests in the oak. Any more questions?", False),
        ("Any questions? The heron nests in the oak", False),
        (f"Who knows where the heron {FILLER}?", False),
        ("Where does it nest?", False),
    ],
)
def test_a_passage_asks_when_it_shows_the_question_that_the_words_are_in(text: str, asks: bool) -> None:
    assert passage(text, {"heron"}).asks is asks


def test_a_long_passage_is_cut_between_words_if_it_can_be() -> None:
    assert passage(" ".join("x" * 37 for _ in range(4)) + " 555-0173-555-0173 heron", set()).shown.endswith("x…")
    assert passage("9" * 3_000, set()).shown == "9" * 160 + ELLIPSIS


@given(st.text(), st.lists(st.text(max_size=5)))
def test_a_passage_is_a_short_line_of_the_text(text: str, wanted: list[str]) -> None:
    shown = passage(text, {found for word in wanted if (found := stem(word))}).shown
    assert len(shown) <= 162 and shown.strip(ELLIPSIS) in " ".join(text.split()) and "\n" not in shown


def test_a_passage_begins_with_the_line_from_where_most_is_said() -> None:
    text = "one two\nthree\nfour rooms\nfive\nsix\nseven"
    assert text[densest_start(text, {"room"}, 12) :].startswith("three\nfour"), (
        "the first line from where it is reached"
    )
    assert text[densest_start(text, {"four", "five"}, 16) :].startswith("four rooms")
    assert densest_start(text, {"eight"}, 12) == densest_start(text, frozenset(), 12) == 0


def test_a_passage_reaches_what_lies_deep_in_a_long_line() -> None:
    text = "hello\n\n" + "word " * 100 + "the audit is Tuesday. " + "word " * 40
    begin = densest_start(text, {"audit"}, 350)
    assert "the audit is Tuesday" in text[begin : begin + 350] and text[begin - 1] == " "


@pytest.mark.parametrize("letter", ["e", "é"])
def test_a_number_is_found_in_its_other_spelling(letter: str) -> None:
    text = "filler " * 40 + f"the budg{letter}t is $31,000 a year"
    assert "$31,000" in passage(text, {"31000"}).shown
    lines = "filler\n" * 40 + f"the budg{letter}t is $31,000\n" + "filler\n" * 20
    assert "t is $" in lines[densest_start(lines, {"31000"}, 100) :][:100]


@given(st.text(alphabet="ab \nÄé"), st.sets(st.sampled_from("ab")), st.integers(1, 40))
def test_a_passage_begins_with_a_line_or_word_and_is_not_the_very_end(text: str, stems: set[str], length: int) -> None:
    begin = densest_start(text, stems, length)
    assert begin == 0 or (text[begin - 1].isspace() and begin <= len(text) - length // 2)


@pytest.mark.parametrize(
    ("excerpt", "lines"),
    [
        (lambda text: densest_start(text, {"5"}, 1_000), 2_000),
        (lambda text: densest_start(text.replace("\n", " "), {"5"}, 1_000), 2_000),
        (lambda text: passage(text, {"5"}), 10_000),
    ],
    ids=["densest_start", "one line", "passage"],
)
def test_the_time_grows_with_the_hits_and_not_with_their_square(excerpt: Callable[[str], object], lines: int) -> None:
    def seconds(text: str) -> float:
        begin = time.process_time()
        excerpt(text)
        return time.process_time() - begin

    shorter, longer = (min(seconds("5\n" * count) for _ in range(2)) for count in (lines, 4 * lines))
    assert longer < 8 * shorter, "4 times as long if it is linear, 16 if quadratic"
