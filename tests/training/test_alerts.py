"""The alerts against planted exploits, simulated honest runs and the step records of real ones."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import art
import pytest
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from agent.reward import Rubric, verifiable_reward
from agent.reward_weights import RewardWeights
from training.alerts import find_alerts, step_signals
from training.history import Alert, StepRecord
from training.task import CALL_SEQUENCE, SUSPECT

HABITS = ("repeated_calls", "turn_padding", "source_spam", "unread_answer")
SHARE = 0.4
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


@dataclass
class Rollout:
    """What one rollout of a simulated policy does, before it is recorded; the defaults are an honest one of three turns."""

    correct: bool
    reward: float
    turns: int = 3
    tokens: int = 120
    surprisal: float = 0.03
    habits: set[str] = field(default_factory=set)


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


def record(rollout: Rollout, scenario: str) -> art.Trajectory:
    content = [{"token": "token_id:1", "logprob": -rollout.surprisal, "bytes": [], "top_logprobs": []}] * 4
    choice = Choice(
        index=0,
        finish_reason="stop",
        message=ChatCompletionMessage(role="assistant", content="x"),
        logprobs=ChoiceLogprobs.model_validate({"content": content}),
    )
    return art.Trajectory(
        messages_and_choices=[{"role": "user", "content": scenario}, choice],
        reward=rollout.reward,
        metrics={
            "correct": rollout.correct,
            "turns": rollout.turns,
            "sampled_tokens": rollout.tokens,
            **{f"{SUSPECT}{name}": name in rollout.habits for name in HABITS},
        },
        metadata={"scenario_id": scenario, "question": f"What about {scenario}?"},
    )


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
            **step_signals(groups),
        )
        row = row.model_copy(update={"alerts": find_alerts(row, groups, rows, SHARE)})
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


@pytest.mark.parametrize("name", HABITS)
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


@dataclass
class Measured:
    """A step of a real run. `habits` are rollouts of 24, in the order of `HABITS`."""

    reward: float
    reward_error: float
    reward_right: float | None
    reward_wrong: float
    accuracy: float
    tokens_per_rollout: float
    entropy: float
    habits: tuple[int, int, int, int]


# All on the CPU profile's model: one with the first default settings, one from a much weaker warm start, two with other
# settings, two that explore with today's reward (the others are older), and one on real Enron mail.
MEASURED = {
    "first default": [
        Measured(0.760, 0.247, 1.38, -1.08, 0.750, 131.7, 0.0289, (0, 0, 0, 1)),
        Measured(1.074, 0.129, 1.43, -1.45, 0.875, 133.5, 0.0228, (0, 0, 0, 0)),
        Measured(0.713, 0.496, 1.45, -0.76, 0.667, 141.4, 0.0271, (0, 4, 0, 0)),
        Measured(0.538, 0.492, 1.39, -0.89, 0.625, 165.0, 0.0302, (0, 0, 0, 2)),
        Measured(0.919, 0.323, 1.42, -0.29, 0.708, 165.5, 0.0227, (4, 4, 0, 0)),
        Measured(0.804, 0.316, 1.44, -1.09, 0.750, 137.8, 0.0271, (1, 1, 0, 0)),
        Measured(0.990, 0.266, 1.43, -1.20, 0.833, 132.3, 0.0228, (0, 0, 0, 0)),
        Measured(1.346, 0.086, 1.43, -0.70, 0.958, 122.1, 0.0261, (0, 0, 0, 1)),
        Measured(0.913, 0.238, 1.43, -1.06, 0.792, 140.0, 0.0161, (0, 0, 0, 1)),
        Measured(0.099, 0.343, 1.43, -0.85, 0.417, 155.0, 0.0301, (2, 4, 0, 2)),
    ],
    "weak warm start": [
        Measured(-0.615, 0.227, 1.45, -1.03, 0.167, 123.6, 0.2264, (0, 1, 0, 2)),
        Measured(-0.571, 0.302, 1.45, -1.10, 0.208, 115.2, 0.1987, (0, 0, 0, 1)),
        Measured(-0.847, 0.117, 1.08, -0.93, 0.042, 117.3, 0.2977, (0, 0, 1, 0)),
        Measured(-0.421, 0.319, 1.45, -0.91, 0.208, 120.0, 0.1518, (0, 1, 0, 1)),
        Measured(0.052, 0.391, 1.41, -0.76, 0.375, 123.4, 0.2133, (2, 1, 0, 0)),
        Measured(-0.302, 0.586, 1.45, -0.89, 0.250, 118.2, 0.3041, (0, 0, 0, 0)),
        Measured(-0.223, 0.488, 1.45, -1.06, 0.333, 124.7, 0.2704, (0, 0, 0, 0)),
        Measured(0.106, 0.585, 1.45, -0.85, 0.417, 117.4, 0.0700, (0, 1, 0, 3)),
        Measured(-0.360, 0.423, 1.45, -0.84, 0.208, 118.1, 0.0752, (0, 0, 0, 1)),
        Measured(-0.196, 0.262, 1.45, -0.74, 0.250, 124.5, 0.2060, (0, 1, 0, 0)),
    ],
    "quick learner": [
        Measured(0.130, 0.559, 1.42, -0.79, 0.417, 145.2, 0.0259, (0, 2, 0, 1)),
        Measured(0.798, 0.482, 1.44, -0.76, 0.708, 161.3, 0.0253, (1, 1, 0, 0)),
        Measured(-0.042, 0.462, 1.45, -0.79, 0.333, 124.0, 0.0284, (1, 1, 0, 1)),
        Measured(1.074, 0.224, 1.43, -0.70, 0.833, 143.2, 0.0269, (0, 0, 0, 0)),
        Measured(1.343, 0.096, 1.43, -0.75, 0.958, 153.8, 0.0167, (0, 0, 0, 0)),
        Measured(1.304, 0.091, 1.45, -0.30, 0.917, 127.7, 0.0149, (1, 0, 0, 0)),
    ],
    "no progress": [
        Measured(0.623, 0.526, 1.44, -0.73, 0.625, 161.2, 0.0483, (2, 7, 0, 0)),
        Measured(0.226, 0.140, 1.44, -0.80, 0.458, 154.4, 0.0697, (0, 1, 0, 1)),
        Measured(0.046, 0.492, 1.42, -0.78, 0.375, 142.6, 0.0425, (1, 1, 0, 0)),
        Measured(0.279, 0.456, 1.45, -0.89, 0.500, 137.1, 0.0520, (0, 1, 0, 1)),
        Measured(-0.056, 0.488, 1.45, -0.81, 0.333, 139.6, 0.0616, (0, 2, 0, 0)),
        Measured(0.004, 0.567, 1.45, -1.03, 0.417, 124.0, 0.0552, (0, 0, 0, 0)),
    ],
    "exploring": [
        Measured(1.309, 0.121, 1.63, 0.26, 0.773, 154.1, 0.0107, (0, 0, 0, 0)),
        Measured(1.348, 0.085, 1.63, 0.50, 0.750, 158.8, 0.0093, (0, 0, 0, 0)),
        Measured(1.421, 0.089, 1.63, 0.26, 0.855, 149.4, 0.0087, (0, 0, 0, 0)),
        Measured(1.407, 0.092, 1.60, 0.23, 0.857, 161.0, 0.0170, (0, 1, 0, 0)),
        Measured(1.275, 0.105, 1.62, 0.57, 0.681, 175.3, 0.0114, (0, 3, 0, 0)),
        Measured(1.233, 0.120, 1.64, 0.51, 0.643, 158.2, 0.0157, (2, 3, 0, 0)),
        Measured(1.503, 0.046, 1.59, 0.45, 0.908, 162.5, 0.0104, (0, 1, 0, 0)),
        Measured(1.408, 0.076, 1.58, 0.62, 0.817, 157.5, 0.0126, (0, 1, 0, 0)),
    ],
    "exploring, fewer demonstrations": [
        Measured(1.039, 0.174, 1.63, 0.52, 0.469, 154.6, 0.0295, (2, 5, 0, 0)),
        Measured(1.202, 0.140, 1.61, 0.42, 0.653, 185.1, 0.0245, (4, 12, 0, 0)),
        Measured(1.307, 0.127, 1.62, 0.23, 0.772, 154.1, 0.0253, (0, 3, 0, 0)),
        Measured(1.494, 0.060, 1.63, 0.28, 0.897, 147.0, 0.0228, (1, 3, 0, 0)),
        Measured(1.464, 0.067, 1.62, 0.62, 0.836, 153.7, 0.0304, (1, 6, 0, 0)),
        Measured(1.434, 0.084, 1.63, 0.50, 0.825, 144.5, 0.0212, (1, 5, 0, 1)),
        Measured(1.258, 0.145, 1.62, 0.38, 0.705, 143.6, 0.0211, (2, 6, 0, 0)),
        Measured(1.430, 0.079, 1.63, 0.57, 0.812, 141.8, 0.0180, (0, 2, 0, 0)),
    ],
    "enron": [
        Measured(-0.960, 0.166, 1.45, -1.07, 0.042, 160.7, 0.8483, (0, 0, 0, 2)),
        Measured(-1.058, 0.090, None, -1.06, 0.000, 147.8, 0.7836, (0, 0, 0, 1)),
        Measured(-0.844, 0.072, 1.45, -0.94, 0.042, 145.6, 0.5975, (0, 0, 0, 1)),
        Measured(-0.523, 0.536, 1.45, -1.04, 0.208, 149.5, 0.6869, (0, 0, 0, 1)),
        Measured(-0.804, 0.016, None, -0.80, 0.000, 150.3, 0.6557, (0, 0, 0, 0)),
    ],
}


def alerts_of_measured(steps: list[Measured]) -> list[Alert]:
    # Every group shows every habit: only the shares decide.
    groups = [art.TrajectoryGroup([record(Rollout(False, 0.0, habits=set(HABITS)), "s")])]
    found: list[Alert] = []
    rows: list[StepRecord] = []
    for number, step in enumerate(steps, start=1):
        figures = {name: value for name, value in vars(step).items() if name != "habits"}
        shares = {f"{SUSPECT}{name}": count / 24 for name, count in zip(HABITS, step.habits, strict=True)}
        row = StepRecord(step=number, phase="grpo", checkpoint_step=number, seconds=60.0, **figures, **shares)
        found += find_alerts(row, groups, rows, SHARE)
        rows.append(row)
    return found


@pytest.mark.parametrize("run", MEASURED)
def test_real_runs_raise_nothing(run: str) -> None:
    assert alerts_of_measured(MEASURED[run]) == []


def test_each_alert_would_have_been_raised_in_a_real_run_with_a_trick() -> None:
    """The first run, its last two steps replaced by what a trick would make of them."""
    tricks = {
        "source_spam": {"habits": (0, 0, 12, 0), "reward": 1.0},
        "reward_without_accuracy": {"reward": 1.2, "reward_wrong": 0.8, "accuracy": 0.7},
        "length_drift": {"tokens_per_rollout": 230.0, "accuracy": 0.7},
        "entropy_collapse": {"entropy": 0.004},
    }
    for name, changes in tricks.items():
        tricked = [Measured(**{**vars(step), **changes}) for step in MEASURED["first default"][-2:]]
        assert {alert.name for alert in alerts_of_measured(MEASURED["first default"][:-2] + tricked)} == {name}


def test_signals_of_a_step() -> None:
    def group(*rollouts: Rollout) -> art.TrajectoryGroup:
        return art.TrajectoryGroup([record(rollout, "s") for rollout in rollouts])

    right = Rollout(True, 1.4, tokens=100, surprisal=0.02)
    wrong = Rollout(False, -0.8, tokens=200, surprisal=0.06, habits={"source_spam"})
    signals = step_signals([group(right, right), group(right, wrong)])
    assert signals["reward_right"] == pytest.approx(1.4) and signals["reward_wrong"] == pytest.approx(-0.8)
    assert signals["reward_error"] == pytest.approx(statistics.stdev([1.4, 0.3]) / math.sqrt(2))
    assert signals["tokens_per_rollout"] == 125
    assert signals["entropy"] == pytest.approx(0.03)
    assert (signals[f"{SUSPECT}source_spam"], signals[f"{SUSPECT}turn_padding"]) == (0.25, 0.0)
    unjudged = art.TrajectoryGroup([art.Trajectory(messages_and_choices=[], reward=reward) for reward in (0.0, 1.0)])
    signals = step_signals([unjudged])
    assert signals["reward_right"] is signals["reward_wrong"] is signals["entropy"] is None
    assert signals["reward_error"] == pytest.approx(0.5)


def test_different_call_sequences_are_counted_within_groups() -> None:
    def played(*sequences: str | None) -> art.TrajectoryGroup:
        metadata = [{} if calls is None else {CALL_SEQUENCE: calls} for calls in sequences]
        return art.TrajectoryGroup([art.Trajectory(messages_and_choices=[], metadata=made) for made in metadata])

    assert step_signals([played("a", "b", "a"), played("a", "a", "a")])["distinct_call_sequences"] == 1.5
    assert step_signals([played("a", "b", "c"), played(None, None)])["distinct_call_sequences"] == 3.0
    assert step_signals([played(None, None)])["distinct_call_sequences"] is None
