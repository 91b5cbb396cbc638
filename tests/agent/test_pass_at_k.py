"""pass@k against all ways to draw k of n samples."""

from __future__ import annotations

import statistics
from itertools import combinations

import pytest

from agent.metrics import Prediction
from agent.pass_at_k import pass_at_k


def samples(id: str, verdicts: list[bool | None], **fields: object) -> list[Prediction]:
    known = {"policy": "p", "scenario_id": id, "question": "?", "reference": "!"}
    return [Prediction(**known, correct=verdict, sample=n, **fields) for n, verdict in enumerate(verdicts, 1)]


def test_it_is_the_mean_over_all_draws_of_k() -> None:
    answers = {"a": [True, False, False, False, True], "b": [False] * 5, "c": [True] * 5}
    found = pass_at_k([sample for id, verdicts in answers.items() for sample in samples(id, verdicts)])
    assert list(found) == [1, 2, 4, 5]
    for k, share in found.items():
        of_each = [statistics.fmean(any(drawn) for drawn in combinations(verdicts, k)) for verdicts in answers.values()]
        assert share == pytest.approx(statistics.fmean(of_each))


def test_errors_and_unlabelled_questions_do_not_count() -> None:
    labelled = [sample for n in range(25) for sample in samples(f"q{n}", [True, False])]
    failed = samples("q0", [None], error="TimeoutError")
    assert pass_at_k(labelled + samples("unlabelled", [None, None]) + failed) == {1: 0.5, 2: 1.0}
    assert pass_at_k([]) == {}


def test_too_many_errors_are_no_result() -> None:
    easy, hard = samples("easy", [True] * 6), samples("hard", [None] * 14, error="TimeoutError")
    assert pass_at_k(easy + hard) is None
    assert pass_at_k(hard) is None
