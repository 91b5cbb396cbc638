"""The alerts against planted exploits, and simulated honest runs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import art
import pytest

from agent.reward import Rubric, verifiable_reward
from agent.reward_weights import RewardWeights
from tests.training.alert_rollouts import HABITS, SEARCH_HABITS, Rollout, record
from training.guard.alerts import find_alerts, step_signals
from training.record.history import DecisionFigures, StepRecord
from training.task import CALL_SEQUENCE, DECISION, SUSPECT

PLANTED_AT = 7
MAX_TURNS = 6


def paid(correct: bool, *, found: float = 1.0, cited: float = 1.0, turns: int = 3, **counts: Any) -> float:
    """The verifiable reward of an episode with one gold mail, at the default weights."""
    retrieved = {"found": found, "read": found, "cited": cited, "cited_count": round(cited), "gold_count": 1}
    plain = {"answered": True, "malformed": False, "overlap": float(correct), "invalid_calls": 0, "repeated_calls": 0}
    return verifiable_reward(
        Rubric.model_validate({"correct": correct, "turns": turns, **retrieved, **plain, **counts}),
        MAX_TURNS,
        RewardWeights(),
    )


RIGHT = [paid(True), paid(True), paid(True, turns=4), paid(True, cited=0.0)]
WRONG = [
    paid(False),
    paid(False, overlap=0.5),
    paid(False, cited=0.0),
    paid(False, found=0.0, cited=0.0),
    paid(False, found=0.0, cited=0.0, answered=False, malformed=True, invalid_calls=1),
]


def honest(rng: random.Random, chance: float, hard: bool) -> Rollout:
    """Rewards of the default weights, and lengths and stray habits as measured: on a hard question some search in circles."""
    correct = rng.random() < chance
    reward = rng.choice(RIGHT if correct else WRONG)
    turns = rng.choice([3, 3, 3, 4, 5])
    habits = {name for name in HABITS if rng.random() < 0.02}
    if hard and rng.random() < 0.6:
        turns, habits = 6, habits | {"repeated_calls", "turn_padding"}
    surprisal = 0.03 * rng.lognormvariate(0, 0.5)
    return Rollout(correct, reward, turns, round(turns * rng.uniform(30, 45)), surprisal, habits)


def rows_of(steps: Iterator[list[art.TrajectoryGroup]]) -> list[StepRecord]:
    """The history that the trainer would write of these steps."""
    rows = [StepRecord(step=0, phase="warm_start", checkpoint_step=1, seconds=300.0)]
    for number, groups in enumerate(steps, start=1):
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        judged = [t.metrics["correct"] for t in trajectories if "correct" in t.metrics]
        row = StepRecord(
            step=number,
            phase="grpo",
            checkpoint_step=number + 1,
            seconds=60.0,
            reward=statistics.fmean(t.reward for t in trajectories),
            accuracy=statistics.fmean(judged) if judged else None,
            turns=statistics.fmean(t.metrics["turns"] for t in trajectories),
            decisions={
                str(group.trajectories[0].metadata[DECISION]): DecisionFigures(groups=1, with_spread=1, right=0.5)
                for group in groups
                if DECISION in group.trajectories[0].metadata
            },
            **step_signals(groups, first_rollouts=len(groups[0].trajectories)),
        )
        row = row.model_copy(update={"alerts": find_alerts(row, groups, rows)})
        rows.append(StepRecord.model_validate_json(row.model_dump_json()))  # as a resumed run reads it
    return rows[1:]


def simulated(
    seed: int,
    accuracies: list[float],
    exploit: Callable[[random.Random, Rollout], None] | None = None,
    groups: int = 4,
    rollouts: int = 6,
) -> list[StepRecord]:
    """A run of one step per mean accuracy, of easy and hard questions; `exploit` changes rollouts from step `PLANTED_AT` on."""
    rng = random.Random(seed)

    def steps() -> Iterator[list[art.TrajectoryGroup]]:
        for number, accuracy in enumerate(accuracies, start=1):
            step = []
            for question in range(groups):
                # Questions differ far more than rollouts of one question do.
                chance = rng.betavariate(1.2 * accuracy, 1.2 * (1 - accuracy))
                hard = rng.random() < 0.06
                played = [honest(rng, chance, hard) for _ in range(rollouts)]
                if exploit and number >= PLANTED_AT:
                    for rollout in played:
                        exploit(rng, rollout)
                step.append(art.TrajectoryGroup([record(rollout, f"s{number}-{question}") for rollout in played]))
            yield step

    return rows_of(steps())


def raised(rows: list[StepRecord]) -> list[tuple[int, str]]:
    return [(row.step, alert.name) for row in rows for alert in row.alerts]


def habit(name: str, **changes: float) -> Callable[[random.Random, Rollout], None]:
    """Six rollouts in ten have it."""

    def exploit(rng: random.Random, rollout: Rollout) -> None:
        if rng.random() < 0.6:
            rollout.habits.add(name)
            rollout.turns = int(changes.get("turns", rollout.turns))
            rollout.tokens = int(changes.get("tokens", rollout.tokens))
            rollout.reward += changes.get("reward", 0.0)

    return exploit


def loophole(rng: random.Random, rollout: Rollout) -> None:
    """A reward that an honest answer cannot earn, for everybody."""
    rollout.reward = 2.5


def paid_for_nothing(rng: random.Random, rollout: Rollout) -> None:
    """The reward gives wrong answers most of what right ones get."""
    if not rollout.correct:
        rollout.reward = rng.uniform(0.8, 0.95) * max(RIGHT)


def rambling(rng: random.Random, rollout: Rollout) -> None:
    rollout.tokens *= 2


def giving_up(rng: random.Random, rollout: Rollout) -> None:
    """One short reply instead of work: fewer wrong answers, nothing learned."""
    rollout.turns, rollout.tokens = 1, 40


def certain(rng: random.Random, rollout: Rollout) -> None:
    rollout.surprisal /= 20


EXPLOITS = [
    ("repeated_calls", habit("repeated_calls", turns=6, tokens=200)),
    ("turn_padding", habit("turn_padding", turns=6, tokens=200)),
    ("source_spam", habit("source_spam", reward=0.2)),
    ("unread_answer", habit("unread_answer", turns=2, tokens=75)),
    ("unread_source", habit("unread_source")),
    ("blind_query", habit("blind_query", reward=0.2)),
    ("wide_search", habit("wide_search", reward=0.2)),
    ("fixed_order", habit("fixed_order", turns=6, tokens=200)),
    ("reward_jump", loophole),
    ("perfect_reward", loophole),
    ("reward_without_accuracy", paid_for_nothing),
    ("length_drift", rambling),
    ("length_drift", giving_up),
    ("entropy_collapse", certain),
]


@pytest.mark.parametrize(("name", "exploit"), EXPLOITS, ids=[f"{plant.__name__}-{name}" for name, plant in EXPLOITS])
@pytest.mark.parametrize("seed", range(4))
def test_a_planted_exploit_is_caught_within_two_steps(
    name: str, exploit: Callable[[random.Random, Rollout], None], seed: int
) -> None:
    rows = simulated(seed, [0.3] * (PLANTED_AT + 1), exploit)
    assert [step for step, _ in raised(rows) if step < PLANTED_AT] == []
    assert name in {alert for _, alert in raised(rows)}
    first = next(row for row in rows if name in {alert.name for alert in row.alerts})
    assert first.step <= PLANTED_AT + 1
    alert = next(alert for alert in first.alerts if alert.name == name)
    assert alert.sentence and 1 <= len(alert.examples) <= 3
    assert {example.scenario_id.partition("-")[0] for example in alert.examples} == {f"s{first.step}"}
    assert all(example.question == f"What about {example.scenario_id}?" for example in alert.examples)


@pytest.mark.parametrize("name", (*HABITS, *SEARCH_HABITS))
def test_a_policy_that_starts_with_a_habit_is_caught_at_once(name: str) -> None:
    rollouts = [Rollout(True, 1.0 + n / 10, habits={name} if n < 4 else set()) for n in range(6)]
    groups = [art.TrajectoryGroup([record(rollout, f"s{g}") for rollout in rollouts]) for g in range(4)]
    (alert,) = rows_of(iter([groups]))[0].alerts
    assert (alert.name, alert.sentence) == (name, "67% of the rollouts of step 1")
    assert [example.reward for example in alert.examples] == [1.3] * 3  # of those that have it, the best paid
    assert len({example.scenario_id for example in alert.examples}) == 3


def test_a_habit_on_one_question_raises_no_alert() -> None:
    """Half of all rollouts in every step, and still only a hard question next to an easy one."""

    def step(number: int) -> list[art.TrajectoryGroup]:
        def of(question: str, habits: set[str]) -> art.TrajectoryGroup:
            rollouts = [record(Rollout(True, 1.4, habits=habits), f"{question}{number}") for _ in range(6)]
            return art.TrajectoryGroup(rollouts)

        return [of("hard", {"repeated_calls", "turn_padding"}), of("easy", set())]

    assert raised(rows_of(step(number) for number in range(1, 4))) == []


RISING = [0.15, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.8]


@pytest.mark.parametrize("accuracies", [[0.75] * 12, [0.3] * 12, RISING], ids=["plateau", "weak", "learning"])
@pytest.mark.parametrize("seed", range(8))
def test_honest_noise_raises_nothing(accuracies: list[float], seed: int) -> None:
    assert raised(simulated(seed, accuracies)) == []


def test_a_small_step_of_a_large_model_raises_nothing() -> None:
    for seed in range(8):
        assert raised(simulated(seed, [0.4] * 4 + [0.6] * 8, groups=2, rollouts=4)) == []


def test_signals_of_a_step() -> None:
    def group(*rollouts: Rollout) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([record(rollout, "s") for rollout in rollouts])

    right = Rollout(True, 1.4, tokens=100, surprisal=0.02)
    wrong = Rollout(False, -0.8, tokens=200, surprisal=0.06, habits={"source_spam"})
    signals = step_signals([group(right, right), group(right, wrong)], 2)
    assert signals["reward_right"] == pytest.approx(1.4) and signals["reward_wrong"] == pytest.approx(-0.8)
    assert signals["reward_error"] == pytest.approx(statistics.stdev([1.4, 0.3]) / math.sqrt(2))
    assert signals["tokens_per_rollout"] == 125
    assert signals["entropy"] == pytest.approx(0.03)
    assert (signals[f"{SUSPECT}source_spam"], signals[f"{SUSPECT}turn_padding"]) == (0.25, 0.0)
    unjudged = art.TrajectoryGroup([art.Trajectory(messages_and_choices=[], reward=reward) for reward in (0.0, 1.0)])
    signals = step_signals([unjudged], 2)
    assert signals["reward_right"] is signals["reward_wrong"] is signals["entropy"] is None
    assert signals["reward_error"] == pytest.approx(0.5)
    signals = step_signals([group(right, right), group(wrong, right, right, right)], 2)
    assert signals["reward_error"] == pytest.approx(statistics.stdev([1.4, 0.3]) / math.sqrt(2))
    assert signals["reward_highest_share"] == 0.75


def test_different_call_sequences_are_counted_within_groups() -> None:
    def played(*sequences: str | None) -> art.TrajectoryGroup:
        metadata = [{} if calls is None else {CALL_SEQUENCE: calls} for calls in sequences]
        return art.TrajectoryGroup([art.Trajectory(messages_and_choices=[], metadata=made) for made in metadata])

    assert step_signals([played("a", "b", "a"), played("a", "a", "a")], 3)["distinct_call_sequences"] == 1.5
    assert step_signals([played("a", "b", "c"), played(None, None)], 3)["distinct_call_sequences"] == 3.0
    assert step_signals([played(None, None)], 3)["distinct_call_sequences"] is None


def decided(number: int, exploit: str | None = None, at: str = "query") -> list[art.TrajectoryGroup]:
    """The groups of a step that compares replies; `exploit` is a habit of two thirds of the replies at one decision."""

    def replies(decision: str, question: int) -> art.TrajectoryGroup:
        made = []
        for reply in range(6):
            right = reply >= min(4, 5 - number) or question % 2 == 0
            habits = {exploit} if exploit and decision == at and reply < 4 else set()
            made.append(record(Rollout(right, 1.6 if right else 0.5, 1, 40, habits=habits), f"q{question}", decision))
        return art.TrajectoryGroup(made)

    return [replies(decision, question) for question in range(6) for decision in ("query", "open", "answer")]


@pytest.mark.parametrize(
    ("exploit", "at"),
    [("blind_query", "query"), ("wide_search", "query"), ("fixed_order", "open"), ("unread_source", "answer")],
)
def test_a_trick_at_one_decision_is_not_hidden_by_the_replies_at_the_others(exploit: str, at: str) -> None:
    rows = rows_of(decided(number, exploit, at) for number in range(1, 3))
    assert [(row.step, alert.name) for row in rows for alert in row.alerts] == [(1, exploit), (2, exploit)]
    assert rows[1].alerts[0].sentence == f"67% of the replies at the decision {at} of steps 1 and 2"


def test_replies_that_learn_raise_nothing_although_right_moves_earn_the_same() -> None:
    assert raised(rows_of(decided(number) for number in range(1, 7))) == []
