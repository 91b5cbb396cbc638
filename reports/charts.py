"""Small SVG line charts over the steps of runs: one run with its points, or several runs in colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from reports.page import Row, render

ORDER = (
    *("validation_accuracy", "validation_win_rate", "reward", "accuracy", "validation_reward"),
    *("turns", "tokens_per_rollout", "tokens_per_second"),
    *("alert_count", "seconds", "loss", "loss/train", "reward_std", "kl", "loss/kl_old_new", "entropy"),
    *("distinct_call_sequences", "groups_trained", "groups_replaced", "rollouts_trained"),
    *("judge_cost", "judge_seconds"),
)
LABELS = {
    "reward": "mean reward",
    "accuracy": "accuracy of the rollouts",
    "validation_reward": "reward on held-out questions",
    "validation_accuracy": "accuracy on held-out questions",
    "validation_win_rate": "wins against the start on held-out questions",
    "reward_right": "reward of correct rollouts",
    "reward_wrong": "reward of incorrect rollouts",
    "turns": "turns per rollout",
    "tokens_per_rollout": "sampled tokens per rollout",
    "entropy": "entropy of the sampled tokens",
    "distinct_call_sequences": "different call sequences per question",
    "groups_trained": "questions with spread",
    "groups_replaced": "questions asked in place of others",
    "rollouts_sampled": "rollouts",
    "rollouts_trained": "rollouts learnt from",
    "loss/train": "loss",
    "loss/kl_old_new": "KL of the updated from the sampling policy",
    "alert_count": "alerts",
    "tokens_per_second": "sampled tokens per second",
    "seconds": "seconds per step",
    "reward_std": "reward spread in a group",
    "off_policy_steps": "optimizer steps since the oldest group was sampled",
    "gpu_hours": "GPU hours",
    "gpu_cost": "cost of the GPU hours in US dollars",
    "judge_cost": "judge's cost in US dollars",
    "judge_seconds": "seconds per judge request",
}
Points = Sequence[tuple[float, float]]
"""Step and value."""

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 12, 24
COLOURS = 8
"""Number of colours (page.css). Further runs reuse them in order."""
_SMALLEST_SPREAD, _LARGEST = 1e-30, 1e300
"""Smaller absolute values are drawn as zero; larger ones count as infinite and are not drawn."""
_SMOOTHED_FROM = 12
"""Number of points from which a chart also shows a running mean."""


def ordered(columns: Sequence[str]) -> list[str]:
    """Sort names of charts, the most important ones first."""
    return sorted(columns, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def points_of(column: str, rows: Sequence[Row]) -> list[tuple[float, float]]:
    return [
        (float(row.get("step", position)), float(row[column]))
        for position, row in enumerate(rows, 1)
        if is_number(row.get(column))
    ]


def chart(
    column: str,
    runs: Sequence[Points],
    *,
    level: tuple[str, float] | None = None,
    names: Sequence[str] = (),
    unit: str = "step",
) -> Markup:
    """Return one figure with a line per run. A single run also shows its points or, when there are many, its running mean.

    `names` are the lines' names for a legend; without them there is none. `level` is the label and the value of a dashed
    line across the figure, to compare with.
    """
    steps = [step for points in runs for step, _ in points]
    values = [value for points in runs for _, value in points]
    if level is not None:
        values.append(level[1])
    ticks = _ticks(min(0.0, *values), max(0.0, *values))  # from zero, so that noise looks as small as it is
    low, high = ticks[0], ticks[-1]
    first, last = min(steps), max(steps)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    def path(style: str, points: Points) -> dict[str, str]:
        return {"style": style, "d": "M" + "L".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)}

    def dots(points: Points) -> list[tuple[str, str]]:
        return [(f"{x(step):.1f}", f"{y(value):.1f}") for step, value in points]

    curves: list[dict[str, Any]]
    if len(runs) == 1:
        [points] = runs
        if len(points) >= _SMOOTHED_FROM:
            paths = [path("raw faint", points), path("smooth", _running_mean(points))]
            curves = [{"paths": paths, "dots": []}]
        else:
            curves = [{"paths": [path("raw", points)], "dots": dots(points), "dot_style": "dot", "radius": 2.5}]
        latest = short(points[-1][1])
    else:
        curves = []
        for number, points in enumerate(runs):
            if points:
                colour = f"run{number % COLOURS}"
                paths = [path(f"raw {colour}", points)]
                curves.append({"paths": paths, "dots": dots(points), "dot_style": colour, "radius": 2})
        latest = ""
    ends = [(first, "start"), (last, "end")] if last > first else [(first, "middle")]
    return render(
        "chart.html.jinja",
        column=column,
        name=LABELS.get(column, column.replace("_", " ").replace("/", " / ")),
        latest=latest,
        names=[(name, f"run{number % COLOURS}") for number, name in enumerate(names)],
        unit=unit,
        low=low,
        high=high,
        first=first,
        last=last,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
        ticks=[{"y": f"{y(tick):.1f}", "text_y": f"{y(tick) + 4:.1f}", "text": short(tick)} for tick in ticks],
        ends=[{"x": f"{x(step):.1f}", "anchor": anchor, "step": f"{step:g}"} for step, anchor in ends],
        curves=curves,
        level=level and {"y": f"{y(level[1]):.1f}", "text_y": f"{y(level[1]) - 5:.1f}", "text": level[0]},
    )


def _ticks(low: float, high: float) -> list[float]:
    """Return about four round values that span the data: steps of 1, 2 or 5 times a power of ten."""
    if high - low < _SMALLEST_SPREAD:
        low, high = 0.0, 1.0
    rough = (high - low) / 3
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [position * step for position in range(first, last + 1)]


def _running_mean(points: Points) -> list[tuple[float, float]]:
    window = max(3, len(points) // 6)
    values = [value for _, value in points]
    means = [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]
    return [(step, mean) for (step, _), mean in zip(points, means, strict=True)]


def short(value: float) -> str:
    """Format a value with three significant digits and commas at thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """Format seconds as "3 min 5 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
