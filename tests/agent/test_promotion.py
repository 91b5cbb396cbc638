"""The promotion gate: all conditions under which it accepts or rejects a version."""

from __future__ import annotations

import pytest

from agent.metrics import Prediction
from agent.promotion import Promotion, decide_promotion

LIMITS = {"floor": 0.0, "min_gain": 0.0, "significance": 0.05}


def answers(
    right: int, n: int = 20, *, start: int = 0, wrong_first: int = 0, error: str | None = None
) -> list[Prediction]:
    """`n` questions of which `right` are right, after the first `wrong_first`."""
    return [
        Prediction(
            policy="p",
            scenario_id=str(start + i),
            question="When?",
            reference="14:30",
            correct=None if error else wrong_first <= i < wrong_first + right,
            error=error,
        )
        for i in range(n)
    ]


def decide(trained: list[Prediction], production: list[Prediction] | None, **limits: float) -> Promotion:
    decision = decide_promotion(trained, answers(0), production, **{**LIMITS, **limits})
    assert "\n" not in decision.reason
    return decision


def test_the_first_version_needs_only_the_floor() -> None:
    assert decide(answers(1), None).promoted
    assert not decide(answers(0), None).promoted
    assert "promotion_floor=0.5" in decide(answers(10), None, floor=0.5).reason
    assert decide(answers(11), None, floor=0.5).promoted


def test_the_base_must_be_beaten_by_the_gain() -> None:
    decision = decide_promotion(answers(10), answers(9), None, **{**LIMITS, "min_gain": 0.1})
    assert not decision.promoted and "45.0%" in decision.reason and "min_gain=0.1" in decision.reason
    assert decide_promotion(answers(12), answers(9), None, **{**LIMITS, "min_gain": 0.1}).promoted


def test_the_base_is_compared_on_its_own_questions() -> None:
    trained = answers(10, 40)  # of the first 20, on which the base is better, and of no others
    assert not decide_promotion(trained, answers(11), None, **LIMITS).promoted
    assert decide_promotion(trained, answers(9), None, **LIMITS).promoted


@pytest.mark.parametrize("whose", ["trained", "base", "production"])
def test_more_than_two_percent_of_errors_are_no_result(whose: str) -> None:
    def of(name: str, right: int, errors: int) -> list[Prediction]:
        return (
            answers(right, 100)
            if name != whose
            else answers(right, 100 - errors) + answers(0, errors, start=100, error="Slow")
        )

    for errors, promoted in ((2, True), (3, False)):
        decision = decide_promotion(
            of("trained", 60, errors), of("base", 10, errors), of("production", 50, errors), **LIMITS
        )
        assert decision.promoted is promoted
        if not promoted:
            assert "3 of 100 questions ended in an error (3 Slow), more than 2%" in decision.reason


@pytest.mark.parametrize(
    ("right", "of_production", "promoted"),
    [
        (15, 12, True),
        (12, 12, True),
        (12, 17, True),  # 0 against 5: p = 2 / 2**5 = 0.0625, which happens by chance
        (12, 18, False),  # 0 against 6: p = 2 / 2**6 = 0.03125
        (20, 1, True),  # a difference to the better is no reason, however sure
    ],
)
def test_worse_than_production_is_a_paired_difference(right: int, of_production: int, promoted: bool) -> None:
    decision = decide(answers(right), answers(of_production))
    assert decision.promoted is promoted
    assert decision.reason.startswith("not worse" if promoted else "worse") and "of 20 questions" in decision.reason


def test_pairs_and_not_totals_count() -> None:
    """Equal totals hide that other questions are right now; ten lost and ten won are no loss."""
    decision = decide(answers(10), answers(10, wrong_first=10))
    assert decision.promoted and "10 only by this version and 10 only by the one in production" in decision.reason


def test_significance_one_holds_back_any_loss() -> None:
    assert not decide(answers(11), answers(12), significance=1.0).promoted
    assert decide(answers(12), answers(12), significance=1.0).promoted


def test_incomparable_versions_are_not_promoted() -> None:
    assert "no question" in decide(answers(20), answers(20, start=100)).reason
    assert not decide(answers(20), answers(20, start=100)).promoted
    assert not decide(answers(20), answers(20, error="OSError")).promoted
    failed = decide(answers(20, error="TimeoutError"), answers(1))
    assert not failed.promoted and "error" in failed.reason


def test_a_question_on_which_the_base_failed_is_no_pair() -> None:
    """On the 98 others both are right 49 times. The two that are left decided before."""
    base = answers(49, 98) + answers(0, 2, start=98, error="Slow")
    trained = answers(49, 98) + answers(2, 2, start=98)
    decision = decide_promotion(trained, base, None, **LIMITS)
    assert not decision.promoted and decision.reason.startswith("50.0% correct is not above the base's 50.0%")
    assert decide_promotion(answers(50, 98), base, None, **LIMITS).promoted
    other = decide_promotion(answers(5), answers(5, start=100), None, **LIMITS)
    assert not other.promoted and other.reason == "no question was answered by both this version and the base"


@pytest.mark.parametrize(("right", "of_base"), [(16, 14), (6, 4), (20, 18)])
def test_a_gain_of_exactly_min_gain_is_not_above_it(right: int, of_base: int) -> None:
    """0.8 is more than 0.7 + 0.1 in binary fractions."""
    limits = {**LIMITS, "min_gain": 0.1}
    assert not decide_promotion(answers(right), answers(of_base), None, **limits).promoted
    assert decide_promotion(answers(right), answers(of_base - 1), None, **limits).promoted
