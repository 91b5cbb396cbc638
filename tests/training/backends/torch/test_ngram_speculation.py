"""A guess is proposed only if it followed the same three tokens twice in a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.backends.torch.ngram_speculation import NgramSpeculation

pytestmark = pytest.mark.service
CALL = [5, 6, 7, 8, 9, 2]


def learn(table: NgramSpeculation, prompt: list[int], reply: list[int]) -> None:
    table.learn(np.array([*prompt, *reply]), len(prompt), len(prompt) + len(reply))


def test_a_call_is_guessed_after_two_equal_ones_up_to_their_first_difference() -> None:
    table = NgramSpeculation()
    learn(table, [1, 1, 1], CALL)
    assert table.propose(np.array([1, 1, 1]), 12) == []
    learn(table, [1, 1, 1], CALL)
    assert table.propose(np.array([4, 1, 1, 1]), 12) == CALL
    assert table.propose(np.array([1, 1, 1, 5]), 3) == CALL[1:4]
    learn(table, [1, 1, 1], [5, 6, 7, 100, 9, 2])
    assert table.propose(np.array([1, 1, 1]), 12) == CALL[:3]


def test_there_is_nothing_to_guess_after_fewer_than_three_tokens() -> None:
    table = NgramSpeculation()
    for _ in range(2):
        learn(table, [], [1, 2, 3, 4])
    assert table.propose(np.array([1, 2]), 12) == []
    assert table.propose(np.array([1, 2, 3]), 12) == [4]


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), max_size=8),
    st.lists(st.integers(0, 3), max_size=6),
    st.integers(0, 8),
)
def test_every_guess_came_twice_running_after_the_three_before_it(
    replies: list[list[int]], ids: list[int], most: int
) -> None:
    table = NgramSpeculation()
    followed: dict[tuple[int, ...], list[int]] = {}
    for reply in replies:
        learn(table, [9, 9], reply)
        known = [9, 9, *reply]
        for i in range(3, len(known)):
            followed.setdefault(tuple(known[i - 3 : i]), []).append(known[i])
    guessed = table.propose(np.array(ids, dtype=np.int64), most)
    assert len(guessed) <= most
    extended = [*ids, *guessed]
    for i in range(len(ids), len(extended)):
        assert followed[tuple(extended[i - 3 : i])][-2:] == [extended[i]] * 2
