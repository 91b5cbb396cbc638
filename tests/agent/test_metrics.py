"""Evaluation figures against independently known values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.metrics import Prediction, compute_metrics, mcnemar, source_precision_of, token_f1, wilson_interval


def prediction(id: str = "q1", **fields: object) -> Prediction:
    known = {"policy": "p", "scenario_id": id, "question": "When?", "reference": "14:30", "answer": "14:30"}
    return Prediction.model_validate({**known, "correct": True, **fields})


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),  # values of statsmodels.stats.proportion.proportion_confint(..., method="wilson")
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (85, 100, 0.7672, 0.9069),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson_interval(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(0, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_contains_the_share(counts: tuple[int, int]) -> None:
    low, high = wilson_interval(*counts)
    assert 0 <= low <= high <= 1
    if counts[1]:
        assert low <= counts[0] / counts[1] <= high


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 3"):
        wilson_interval(4, 3)


def test_mcnemar_counts_pairs_and_is_exact() -> None:
    a = [prediction(str(i), correct=i < 11) for i in range(20)]
    b = [prediction(str(i), correct=i < 10 or i > 14) for i in range(20)]
    result = mcnemar(a, b)
    assert (result.n, result.a_only, result.b_only, result.both) == (20, 1, 5, 10)
    assert result.p_value == pytest.approx(2 * (1 + 6) / 2**6)
    assert mcnemar(a, a).p_value == 1.0
    assert mcnemar([], []).n == 0


def test_mcnemar_leaves_out_errors_and_unshared_questions_and_refuses_repeats() -> None:
    a = [prediction("1"), prediction("2"), prediction("3", correct=None, error="TimeoutError")]
    b = [prediction("1", correct=False), prediction("3"), prediction("4")]
    assert mcnemar(a, b).n == 1
    with pytest.raises(ValueError, match="once"):
        mcnemar([prediction("1"), prediction("1")], b)


def test_errors_leave_every_denominator() -> None:
    metrics = compute_metrics(
        [
            prediction("1", kind="time", seconds=1.0, turns=2),
            prediction("2", kind="time", correct=False, answer=None, outcome="max_turns", seconds=3.0, turns=6),
            prediction("3", kind="room", correct=None, answer=None, error="TimeoutError", seconds=500.0, turns=99),
        ]
    )
    assert (metrics.n, metrics.errors, metrics.error_classes) == (2, 1, {"TimeoutError": 1})
    assert (metrics.accuracy, metrics.answer_rate, metrics.turns) == (0.5, 0.5, 4.0)
    assert (metrics.seconds.median, metrics.seconds.p95) == (2.0, 3.0)
    assert metrics.outcomes == {"answered": 1, "max_turns": 1}
    assert {kind: (m.n, m.accuracy) for kind, m in metrics.by_kind.items()} == {"time": (2, 0.5)}


def test_sources() -> None:
    metrics = compute_metrics(
        [
            prediction("1", gold_ids=("a", "b"), source_ids=("a",)),
            prediction("2", gold_ids=("c",), source_ids=("c", "d", "e", "f")),
            prediction("3", gold_ids=("g",), source_ids=()),
            prediction("4", gold_ids=("h",), source_ids=(), answer=None),
        ]
    )
    assert metrics.source_recall == pytest.approx((0.5 + 1 + 0 + 0) / 4)
    assert metrics.source_precision == pytest.approx((1 + 0.25 + 0) / 3)
    assert source_precision_of(prediction(gold_ids=("a",), source_ids=("a", "a", "b"))) == 0.5


def test_sources_are_unknown_without_gold_mails() -> None:
    unknown = prediction("1", gold_ids=(), source_ids=("a",))
    metrics = compute_metrics([unknown])
    assert metrics.source_recall is None and metrics.source_precision is None
    mixed = compute_metrics([unknown, prediction("2", gold_ids=("b",), source_ids=("b",))])
    assert (mixed.source_recall, mixed.source_precision) == (1.0, 1.0), "citations of unknown worth count for nothing"


def test_citing_everything_does_not_pay() -> None:
    greedy = prediction(gold_ids=("a",), source_ids=tuple("abcdefghij"))
    assert source_precision_of(greedy) == pytest.approx(0.1)


def test_nothing_to_count_is_not_a_crash() -> None:
    empty = compute_metrics([])
    assert (empty.n, empty.accuracy, empty.ci95, empty.seconds.p95) == (0, None, None, 0.0)
    only_errors = compute_metrics([prediction(error="OSError", correct=None)])
    assert (only_errors.n, only_errors.errors, only_errors.accuracy, only_errors.ci95) == (0, 1, None, None)


def test_token_f1() -> None:
    assert token_f1("the Brightleaf Catering", "Brightleaf catering!") == 1.0
    assert token_f1("an overhead projector and a screen", "a projector") == pytest.approx(2 * 1 / (4 + 1))
    assert token_f1("word", "word word word") == pytest.approx(0.5)
    assert token_f1("word", None) == token_f1("word", "") == 0.0
    assert token_f1("...", "!") == 1.0
