"""Stop rules and the best checkpoint, from history rows alone."""

from __future__ import annotations

import pytest

from training.errors import BadInput
from training.guard.stopping import best_row, hold_out, require_stop_rules, stop_reason, validation_due
from training.record.history import StepRecord
from training.settings import TrainerSettings


def rows(accuracies: dict[int, float], last: int, seconds: float = 60.0) -> list[StepRecord]:
    """Steps 0 to `last`, validated where `accuracies` say so; every step samples 100 tokens, every validation 10."""
    return [
        StepRecord(
            step=step,
            phase="grpo" if step else "warm_start",
            checkpoint_step=step + 1,
            seconds=seconds,
            sampled_tokens=100,
            validation_accuracy=accuracies.get(step),
            validation_reward=-accuracies[step] if step in accuracies else None,
            validation_tokens=10 if step in accuracies else 0,
        )
        for step in range(last + 1)
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"stop_target": 0.9}, "stop_target=0.9 needs validation"),
        ({"stop_plateau_steps": 5}, "stop_plateau_steps=5 needs validation"),
        ({"stop_target": 0.9, "validate_every": 4, "max_steps": 0}, "stop_target=0.9 needs validation"),
        ({"validate_every": 5, "stop_plateau_steps": 4}, "less than validate_every=5"),
        ({"validate_every": 5, "stop_plateau_steps": 11}, "more than max_steps=10"),
        ({"validate_every": 5, "stop_target": 1.2}, "at most 1"),
        ({"validate_every": 5, "stop_target": 0.0}, "above 0"),
        ({"validate_every": 5, "validation_metric": "win_rate", "stop_margin": 0.6}, "a win rate begins at 0.5"),
        ({"demonstrations": 0, "max_steps": 0}, "nothing would be trained"),
        ({"epochs": 2, "max_extra_groups": 1}, "with max_extra_groups=1 there are none: set max_extra_groups=0"),
    ],
)
def test_contradictory_rules_are_refused_in_one_line(changes: dict, named: str) -> None:
    with pytest.raises(BadInput, match=named) as caught:
        require_stop_rules(TrainerSettings(**{"max_steps": 10, "validate_every": 0, **changes}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_steps": 0, "validate_every": 4},
        {"validate_every": 11},
        {"stop_seconds": 60, "stop_tokens": 1000},
        {"validate_every": 5, "validation_metric": "win_rate", "stop_margin": 0.5},
        {"validate_every": 5, "stop_plateau_steps": 5, "stop_target": 1.0},
        {"validate_every": 10, "stop_target": 1.4, "validation_metric": "reward"},
    ],
)
def test_other_rules_are_not(changes: dict) -> None:
    require_stop_rules(TrainerSettings(**{"max_steps": 10, "validate_every": 0, **changes}))


@pytest.mark.parametrize(
    ("steps", "ends"),
    [
        ([(0.5, 8), (0.2, 9), (0.0, 0), (0.0, 0), (0.0, 0)], True),
        ([(0.5, 8), (0.2, 9), (0.0, 0), (0.0, 0)], False),
        ([(0.5, 8), (0.0, 0), (0.1, 0), (0.0, 0)], False),
        ([(0.5, 8), (0.0, 0), (0.0, 1), (0.0, 0)], False),
        ([(0.1, 1), (0.0, 0), (0.0, 0), (0.0, 0)], False),
        ([(0.5, 8), (1.0, 0), (1.0, 0), (1.0, 0)], False),
        ([(None, 8), (None, 0), (None, 0), (None, 0)], False),
    ],
    ids=[
        "collapsed",
        "two steps",
        "once right",
        "an update",
        "hard questions",
        "all learnt",
        "without right and wrong",
    ],
)
def test_a_policy_that_does_nothing_right_any_more_ends_the_run(
    steps: list[tuple[float | None, int]], ends: bool
) -> None:
    begun = StepRecord(step=0, phase="warm_start", checkpoint_step=1, seconds=60)
    learnt = [
        StepRecord(step=step, phase="grpo", checkpoint_step=2, seconds=60, accuracy=accuracy, groups_trained=trained)
        for step, (accuracy, trained) in enumerate(steps, start=1)
    ]
    assert validation_due([begun, *learnt], TrainerSettings(max_steps=10, validate_every=9)) == ends
    reason = stop_reason([begun, *learnt], TrainerSettings(max_steps=10, validate_every=0))
    assert (reason is not None and "steps 3 to 5 was right" in reason and "lower learning_rate" in reason) == ends


def test_without_rules_a_run_ends_with_its_last_step() -> None:
    settings = TrainerSettings(max_steps=3, validate_every=0)
    assert stop_reason([], settings) is None
    assert [stop_reason(rows({}, last), settings) for last in range(3)] == [None] * 3
    assert stop_reason(rows({}, 3), settings) == "max_steps=3 reached"
    assert best_row(rows({}, 3), settings) is None
    assert not any(validation_due(rows({}, last), settings) for last in range(4))


def test_ties_go_to_the_higher_reward_then_to_the_earlier_step() -> None:
    settings = TrainerSettings(validate_every=2)
    best = best_row(rows({0: 0.5, 2: 0.8, 4: 0.8, 6: 0.7}, 7), settings)
    assert best is not None and best.step == 2
    by_reward = best_row(rows({0: 0.5, 2: 0.8}, 3), settings.model_copy(update={"validation_metric": "reward"}))
    assert by_reward is not None and by_reward.step == 0
    tied = rows({0: 0.5, 2: 0.5}, 3)
    tied[2] = tied[2].model_copy(update={"validation_reward": -0.4})
    more_reward = best_row(tied, settings)
    assert more_reward is not None and more_reward.step == 2


def test_a_plateau_is_counted_in_steps_and_seen_at_validations() -> None:
    settings = TrainerSettings(validate_every=2, stop_plateau_steps=3, max_steps=20)
    validated = {0: 0.5, 2: 0.6, 4: 0.6, 6: 0.55}
    reasons = [stop_reason(rows(validated, last), settings) for last in range(7)]
    assert reasons[:6] == [None] * 6
    assert reasons[6] == "validation accuracy was never above the 60% of step 2 in 4 steps"
    assert stop_reason(rows({**validated, 6: 0.65}, 6), settings) is None


def test_more_reward_does_not_end_a_plateau() -> None:
    settings = TrainerSettings(validate_every=2, stop_plateau_steps=3, max_steps=20)
    flat = [
        row.model_copy(update={"validation_reward": 0.4 + row.step / 100})
        for row in rows({0: 0.5, 2: 0.6, 4: 0.6, 6: 0.6}, 6)
    ]
    best = best_row(flat, settings)
    assert best is not None and best.step == 6
    assert [stop_reason(flat[: last + 1], settings) for last in range(6)] == [None] * 6
    assert stop_reason(flat, settings) == "validation accuracy was never above the 60% of step 2 in 4 steps"


def test_a_target_is_reached_at_a_validation() -> None:
    settings = TrainerSettings(validate_every=2, stop_target=0.9, max_steps=20)
    assert stop_reason(rows({0: 0.5, 2: 0.89}, 2), settings) is None
    assert stop_reason(rows({0: 0.5, 2: 0.91}, 2), settings) == "validation accuracy 91% reached stop_target=0.9"


def test_a_gain_of_exactly_the_margin_is_enough() -> None:
    settings = TrainerSettings(validate_every=2, stop_margin=0.1, max_steps=20)
    assert stop_reason(rows({0: 0.5, 2: 0.59}, 2), settings) is None
    assert "by stop_margin=0.1" in str(stop_reason(rows({0: 0.5, 2: 0.6}, 2), settings))


@pytest.mark.parametrize(("phase", "best_step"), [("untouched", 2), ("grpo", 2), ("continued", 1)])
def test_a_step_without_an_update_is_the_best_only_where_there_is_an_adapter(phase: str, best_step: int) -> None:
    settings = TrainerSettings(validate_every=1, demonstrations=0)
    history = [
        row.model_copy(update={"checkpoint_step": max(0, row.step - 1), "phase": phase if row.step == 0 else "grpo"})
        for row in rows({1: 0.8, 2: 0.6}, 2)
    ]
    best = best_row(history[1:] if phase == "grpo" else history, settings)
    assert best is not None and best.step == best_step


def test_budgets_count_the_whole_run() -> None:
    seconds = TrainerSettings(stop_seconds=180, max_steps=20)
    assert stop_reason(rows({}, 1), seconds) is None
    assert stop_reason(rows({}, 2), seconds) == "180 s spent of stop_seconds=180"
    tokens = TrainerSettings(stop_tokens=320, max_steps=20)
    assert stop_reason(rows({}, 2), tokens) is None
    assert stop_reason(rows({0: 0.1, 2: 0.2}, 2), tokens) == "320 tokens sampled of stop_tokens=320"


def test_validation_runs_every_n_steps_and_at_the_end() -> None:
    settings = TrainerSettings(validate_every=3, max_steps=8)
    assert [last for last in range(9) if validation_due(rows({}, last), settings)] == [0, 3, 6, 8]
    settings = TrainerSettings(validate_every=3, max_steps=8, stop_seconds=300)
    assert [last for last in range(5) if validation_due(rows({}, last), settings)] == [0, 3, 4]
    settings = TrainerSettings(validate_every=3, max_steps=2)
    assert [last for last in range(3) if validation_due(rows({}, last), settings)] == [0, 2]
    assert not validation_due(rows({}, 0), TrainerSettings(validate_every=3, max_steps=0)), "nothing to choose from"


def test_held_out_scenarios_are_the_same_for_every_run_and_leave_the_order_alone() -> None:
    scenarios = [f"q{number:02}" for number in range(40)]
    kept, held_out = hold_out(scenarios, 8)
    assert sorted(kept + held_out) == scenarios and len(held_out) == 8
    assert kept == sorted(kept) and held_out == sorted(held_out)
    assert hold_out(scenarios, 8) == (kept, held_out)
    assert held_out != scenarios[:8]
    with pytest.raises(BadInput, match="there are 40 train scenarios"):
        hold_out(scenarios, 40)


def test_the_judges_cost_is_a_budget() -> None:
    paid = [row.model_copy(update={"judge_cost": 0.4}) for row in rows({}, last=3)]
    settings = TrainerSettings(scoring="ruler", stop_cost=1.5, max_steps=10)
    assert stop_reason(paid[:3], settings) is None
    assert stop_reason(paid, settings) == "the judge cost 1.60 USD of stop_cost=1.5"
