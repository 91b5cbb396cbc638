"""The judge raises nothing and takes linear time, whatever it reads; `make nightly` tries for ten minutes."""

from __future__ import annotations

import random
import time

import pytest

from agent.judges.exact import judge_exactly
from agent.judges.notations import parse

_PIECES = (
    "14:30|2-3 pm|March 3-5|$5-10 million|3 weeks|10⁶|2½|½|C++|4(b)(ii)|Dana Voss|not|before|no later than|(713)|853-7408|EB 1962"
    "|1.|2)|- |, | and | or |\n|per month|%|€|-|+|.|:|/|(|)|a|A|I|II|x|@|x.example|https://|C:\\|twenty|hundred|half a|one|²|١٢|字|é|\0"
    "|between|to|from|Mon|Sat|jan|1/2|24/7|99:99|00123|1,000|,000|'s|n't|#|>=|±|°F|first|5th|minus "
)
PIECES = _PIECES.split("|")


def noise(chance: random.Random, pieces: int) -> str:
    glue = chance.choice(["", " ", " ", ", "])
    return glue.join(chance.choice(PIECES) for _ in range(chance.randrange(1, pieces)))


def try_for(seconds: float, seed: int) -> int:
    chance, tries, end = random.Random(seed), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        question, reference, answer = (noise(chance, 12) for _ in range(3))
        verdict = judge_exactly(question, reference, answer)
        assert "\n" not in verdict.reason
        assert not reference.strip() or judge_exactly(question, reference, reference).correct
        if tries % 1000 == 999:
            text = noise(chance, 12)
            assert any(growth(text) < 8 for _ in range(3)), repr(text)  # milliseconds, on a busy machine
        tries += 1
    return tries


def growth(piece: str, begin: str = "", end: str = "", size: int = 500) -> float:
    """Return the time for four times the text in units of the time for one: 4 if it is linear, 16 if quadratic."""
    texts = [begin + piece * (length // len(piece)) + end for length in (size, 4 * size)]
    return min(_seconds(texts[1]) for _ in range(2)) / min(_seconds(texts[0]) for _ in range(3))


def _seconds(text: str) -> float:
    started = time.process_time()
    parse(text)
    return time.process_time() - started


def test_noise_makes_no_error() -> None:
    assert try_for(1.0, seed=0) > 10


@pytest.mark.parametrize(
    "piece",
    ["a", "1", "a.", "a-", "1-", "1,", "1 ", "$", "(", "one ", "a@", "1:", "x/", "Mon to ", "½", "no ", "\n", "'"],
)
def test_time_grows_with_the_length_and_not_with_its_square(piece: str) -> None:
    assert growth(piece) < 8


@pytest.mark.parametrize(
    ("begin", "piece", "end"),
    [("room 1-", "1", "_"), ("", "111,", "1111"), ("", "111 ", "1111")],
)
def test_time_does_not_grow_faster_where_the_end_fits_no_notation(begin: str, piece: str, end: str) -> None:
    assert growth(piece, begin, end, 2_000) < 8


@pytest.mark.nightly
def test_noise_makes_no_error_for_ten_minutes() -> None:
    assert try_for(600, seed=time.time_ns()) > 1_000
