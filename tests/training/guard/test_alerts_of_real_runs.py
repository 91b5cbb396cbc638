"""The alerts against the step records of real runs, and against tricks put into one of them."""

from __future__ import annotations

from dataclasses import dataclass

import art
import pytest

from tests.training.alert_rollouts import HABITS, Rollout, record
from training.guard.alerts import find_alerts
from training.record.history import Alert, StepRecord
from training.task import SUSPECT


@dataclass
class Measured:
    """A step of a real run. `habits` are rollouts of 24, in the order of `HABITS`; 0 for the last in older runs, which did not count it."""

    reward: float
    reward_error: float
    reward_right: float | None
    reward_wrong: float
    accuracy: float
    tokens_per_rollout: float
    entropy: float
    habits: tuple[int, int, int, int, int]


# All on the CPU profile's model: one with the first default settings, one from a much weaker warm start, two with other
# settings, two that explore, one with today's default settings (the others are older), and one on real Enron mail.
MEASURED = {
    "first default": [
        Measured(0.760, 0.247, 1.38, -1.08, 0.750, 131.7, 0.0289, (0, 0, 0, 1, 0)),
        Measured(1.074, 0.129, 1.43, -1.45, 0.875, 133.5, 0.0228, (0, 0, 0, 0, 0)),
        Measured(0.713, 0.496, 1.45, -0.76, 0.667, 141.4, 0.0271, (0, 4, 0, 0, 0)),
        Measured(0.538, 0.492, 1.39, -0.89, 0.625, 165.0, 0.0302, (0, 0, 0, 2, 0)),
        Measured(0.919, 0.323, 1.42, -0.29, 0.708, 165.5, 0.0227, (4, 4, 0, 0, 0)),
        Measured(0.804, 0.316, 1.44, -1.09, 0.750, 137.8, 0.0271, (1, 1, 0, 0, 0)),
        Measured(0.990, 0.266, 1.43, -1.20, 0.833, 132.3, 0.0228, (0, 0, 0, 0, 0)),
        Measured(1.346, 0.086, 1.43, -0.70, 0.958, 122.1, 0.0261, (0, 0, 0, 1, 0)),
        Measured(0.913, 0.238, 1.43, -1.06, 0.792, 140.0, 0.0161, (0, 0, 0, 1, 0)),
        Measured(0.099, 0.343, 1.43, -0.85, 0.417, 155.0, 0.0301, (2, 4, 0, 2, 0)),
    ],
    "weak warm start": [
        Measured(-0.615, 0.227, 1.45, -1.03, 0.167, 123.6, 0.2264, (0, 1, 0, 2, 0)),
        Measured(-0.571, 0.302, 1.45, -1.10, 0.208, 115.2, 0.1987, (0, 0, 0, 1, 0)),
        Measured(-0.847, 0.117, 1.08, -0.93, 0.042, 117.3, 0.2977, (0, 0, 1, 0, 0)),
        Measured(-0.421, 0.319, 1.45, -0.91, 0.208, 120.0, 0.1518, (0, 1, 0, 1, 0)),
        Measured(0.052, 0.391, 1.41, -0.76, 0.375, 123.4, 0.2133, (2, 1, 0, 0, 0)),
        Measured(-0.302, 0.586, 1.45, -0.89, 0.250, 118.2, 0.3041, (0, 0, 0, 0, 0)),
        Measured(-0.223, 0.488, 1.45, -1.06, 0.333, 124.7, 0.2704, (0, 0, 0, 0, 0)),
        Measured(0.106, 0.585, 1.45, -0.85, 0.417, 117.4, 0.0700, (0, 1, 0, 3, 0)),
        Measured(-0.360, 0.423, 1.45, -0.84, 0.208, 118.1, 0.0752, (0, 0, 0, 1, 0)),
        Measured(-0.196, 0.262, 1.45, -0.74, 0.250, 124.5, 0.2060, (0, 1, 0, 0, 0)),
    ],
    "quick learner": [
        Measured(0.130, 0.559, 1.42, -0.79, 0.417, 145.2, 0.0259, (0, 2, 0, 1, 0)),
        Measured(0.798, 0.482, 1.44, -0.76, 0.708, 161.3, 0.0253, (1, 1, 0, 0, 0)),
        Measured(-0.042, 0.462, 1.45, -0.79, 0.333, 124.0, 0.0284, (1, 1, 0, 1, 0)),
        Measured(1.074, 0.224, 1.43, -0.70, 0.833, 143.2, 0.0269, (0, 0, 0, 0, 0)),
        Measured(1.343, 0.096, 1.43, -0.75, 0.958, 153.8, 0.0167, (0, 0, 0, 0, 0)),
        Measured(1.304, 0.091, 1.45, -0.30, 0.917, 127.7, 0.0149, (1, 0, 0, 0, 0)),
    ],
    "no progress": [
        Measured(0.623, 0.526, 1.44, -0.73, 0.625, 161.2, 0.0483, (2, 7, 0, 0, 0)),
        Measured(0.226, 0.140, 1.44, -0.80, 0.458, 154.4, 0.0697, (0, 1, 0, 1, 0)),
        Measured(0.046, 0.492, 1.42, -0.78, 0.375, 142.6, 0.0425, (1, 1, 0, 0, 0)),
        Measured(0.279, 0.456, 1.45, -0.89, 0.500, 137.1, 0.0520, (0, 1, 0, 1, 0)),
        Measured(-0.056, 0.488, 1.45, -0.81, 0.333, 139.6, 0.0616, (0, 2, 0, 0, 0)),
        Measured(0.004, 0.567, 1.45, -1.03, 0.417, 124.0, 0.0552, (0, 0, 0, 0, 0)),
    ],
    "exploring": [
        Measured(1.309, 0.121, 1.63, 0.26, 0.773, 154.1, 0.0107, (0, 0, 0, 0, 0)),
        Measured(1.348, 0.085, 1.63, 0.50, 0.750, 158.8, 0.0093, (0, 0, 0, 0, 0)),
        Measured(1.421, 0.089, 1.63, 0.26, 0.855, 149.4, 0.0087, (0, 0, 0, 0, 0)),
        Measured(1.407, 0.092, 1.60, 0.23, 0.857, 161.0, 0.0170, (0, 1, 0, 0, 0)),
        Measured(1.275, 0.105, 1.62, 0.57, 0.681, 175.3, 0.0114, (0, 3, 0, 0, 0)),
        Measured(1.233, 0.120, 1.64, 0.51, 0.643, 158.2, 0.0157, (2, 3, 0, 0, 0)),
        Measured(1.503, 0.046, 1.59, 0.45, 0.908, 162.5, 0.0104, (0, 1, 0, 0, 0)),
        Measured(1.408, 0.076, 1.58, 0.62, 0.817, 157.5, 0.0126, (0, 1, 0, 0, 0)),
    ],
    "exploring, fewer demonstrations": [
        Measured(1.039, 0.174, 1.63, 0.52, 0.469, 154.6, 0.0295, (2, 5, 0, 0, 0)),
        Measured(1.202, 0.140, 1.61, 0.42, 0.653, 185.1, 0.0245, (4, 12, 0, 0, 0)),
        Measured(1.307, 0.127, 1.62, 0.23, 0.772, 154.1, 0.0253, (0, 3, 0, 0, 0)),
        Measured(1.494, 0.060, 1.63, 0.28, 0.897, 147.0, 0.0228, (1, 3, 0, 0, 0)),
        Measured(1.464, 0.067, 1.62, 0.62, 0.836, 153.7, 0.0304, (1, 6, 0, 0, 0)),
        Measured(1.434, 0.084, 1.63, 0.50, 0.825, 144.5, 0.0212, (1, 5, 0, 1, 0)),
        Measured(1.258, 0.145, 1.62, 0.38, 0.705, 143.6, 0.0211, (2, 6, 0, 0, 0)),
        Measured(1.430, 0.079, 1.63, 0.57, 0.812, 141.8, 0.0180, (0, 2, 0, 0, 0)),
    ],
    "default": [
        Measured(1.332, 0.101, 1.61, 0.16, 0.790, 141.9, 0.0156, (0, 0, 0, 0, 0)),
        Measured(1.129, 0.169, 1.62, 0.25, 0.643, 142.8, 0.0220, (0, 0, 0, 0, 0)),
        Measured(1.298, 0.113, 1.63, 0.32, 0.750, 143.0, 0.0211, (0, 1, 0, 1, 0)),
        Measured(1.369, 0.104, 1.63, 0.16, 0.818, 141.5, 0.0176, (0, 0, 0, 0, 0)),
        Measured(1.248, 0.127, 1.64, 0.42, 0.643, 149.4, 0.0133, (0, 1, 0, 1, 0)),
        Measured(1.568, 0.036, 1.64, 0.80, 0.917, 142.9, 0.0085, (0, 0, 0, 0, 0)),
        Measured(1.412, 0.080, 1.64, 0.47, 0.806, 139.1, 0.0115, (2, 2, 0, 0, 0)),
        Measured(1.418, 0.088, 1.64, 0.36, 0.812, 132.4, 0.0110, (0, 0, 0, 0, 0)),
        Measured(1.573, 0.030, 1.64, 0.83, 0.917, 138.7, 0.0065, (0, 0, 0, 0, 0)),
        Measured(1.502, 0.054, 1.64, 0.59, 0.880, 147.7, 0.0061, (0, 0, 0, 0, 0)),
        Measured(1.531, 0.051, 1.63, 0.72, 0.889, 133.5, 0.0067, (0, 0, 0, 0, 0)),
        Measured(1.518, 0.058, 1.64, 0.49, 0.889, 138.8, 0.0088, (1, 1, 0, 0, 0)),
    ],
    "enron": [
        Measured(-0.960, 0.166, 1.45, -1.07, 0.042, 160.7, 0.8483, (0, 0, 0, 2, 0)),
        Measured(-1.058, 0.090, None, -1.06, 0.000, 147.8, 0.7836, (0, 0, 0, 1, 0)),
        Measured(-0.844, 0.072, 1.45, -0.94, 0.042, 145.6, 0.5975, (0, 0, 0, 1, 0)),
        Measured(-0.523, 0.536, 1.45, -1.04, 0.208, 149.5, 0.6869, (0, 0, 0, 1, 0)),
        Measured(-0.804, 0.016, None, -0.80, 0.000, 150.3, 0.6557, (0, 0, 0, 0, 0)),
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
        found += find_alerts(row, groups, rows)
        rows.append(row)
    return found


@pytest.mark.parametrize("run", MEASURED)
def test_real_runs_raise_nothing(run: str) -> None:
    assert alerts_of_measured(MEASURED[run]) == []


def test_each_alert_would_have_been_raised_in_a_real_run_with_a_trick() -> None:
    """The first run, its last two steps replaced by what a trick would make of them."""
    tricks = {
        "source_spam": {"habits": (0, 0, 12, 0, 0), "reward": 1.0},
        "unread_source": {"habits": (0, 0, 0, 0, 12)},
        "reward_without_accuracy": {"reward": 1.2, "reward_wrong": 0.8, "accuracy": 0.7},
        "length_drift": {"tokens_per_rollout": 230.0, "accuracy": 0.7},
        "entropy_collapse": {"entropy": 0.004},
    }
    for name, changes in tricks.items():
        tricked = [Measured(**{**vars(step), **changes}) for step in MEASURED["first default"][-2:]]
        assert {alert.name for alert in alerts_of_measured(MEASURED["first default"][:-2] + tricked)} == {name}
