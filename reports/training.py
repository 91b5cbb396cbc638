"""A training run as one HTML page: a small chart for every figure that the history has, and the history itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import escape, page

_ORDER = (
    *("reward", "accuracy", "validation_reward", "validation_accuracy", "turns", "tokens_per_rollout", "tokens_per_second"),
    *("seconds", "loss", "reward_std", "kl", "entropy"),
)
_LABELS = {
    "reward": "mean reward",
    "accuracy": "accuracy of the rollouts",
    "validation_reward": "reward on held-out questions",
    "validation_accuracy": "accuracy on held-out questions",
    "reward_right": "reward of correct rollouts",
    "reward_wrong": "reward of incorrect rollouts",
    "turns": "turns per rollout",
    "tokens_per_rollout": "sampled tokens per rollout",
    "entropy": "entropy of the sampled tokens",
    "tokens_per_second": "sampled tokens per second",
    "seconds": "seconds per step",
    "reward_std": "reward spread in a group",
}
_BOOKKEEPING = ("step", "checkpoint_step", "reward_error", "validation_errors", "validation_tokens", "validation_seconds")
_WIDTH, _HEIGHT = 360, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 12, 24
_SMALLEST_SPREAD, _LARGEST = 1e-30, 1e300
"""A smaller distance from zero is drawn as zero; a larger number counts as infinite and is not drawn."""
_SMOOTHED_FROM = 12
"""Points from which on a chart also shows a running mean."""


def training_html(history: Sequence[Mapping[str, Any]], title: str = "Training run", *, subtitle: str = "") -> str:
    """The page. A history row holds `step` and numbers; every numeric column but bookkeeping becomes a chart.

    Rows of another `phase` than the last row's (the warm start) are listed, not drawn: their figures mean other things.
    """
    phase = history[-1].get("phase") if history else None
    steps = [row for row in history if row.get("phase") == phase]
    before = [row for row in history if row.get("phase") != phase]
    columns = _numeric_columns(steps)
    charts = "".join(_chart(column, steps) for column in columns)
    subtitle = subtitle or f"{len(steps)} steps"
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>",
        _facts(steps, before),
        _alerts(steps),
        f'<div class="charts">{charts}</div>' if charts else "<section><p>No finished step yet.</p></section>",
        _rows(history),
    ]
    data = {"columns": {column: _points(column, steps) for column in columns}, "geometry": [_LEFT, _WIDTH - _RIGHT]}
    return page(title, "\n".join(part for part in body if part), script="training.js", data=data)


def _numeric_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    found = dict.fromkeys(key for row in rows for key, value in row.items() if _is_number(value))
    names = [name for name in found if name not in _BOOKKEEPING]
    return sorted(names, key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))


def _points(column: str, rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    return [
        (float(row.get("step", position)), float(row[column]))
        for position, row in enumerate(rows, 1)
        if _is_number(row.get(column))
    ]


def _chart(column: str, rows: Sequence[Mapping[str, Any]]) -> str:
    points = _points(column, rows)
    steps, values = [x for x, _ in points], [y for _, y in points]
    ticks = _ticks(min(0.0, *values), max(0.0, *values))  # from zero, so that noise looks as small as it is
    low, high = ticks[0], ticks[-1]
    first, last = min(steps), max(steps)

    def x(step: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((step - first) / (last - first) if last > first else 0.5)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - low) / (high - low)

    def path(values: Sequence[float]) -> str:
        return "M" + "L".join(f"{x(step):.1f},{y(value):.1f}" for step, value in zip(steps, values, strict=True))

    grid = "".join(
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        for tick in ticks
    )
    ends = [(first, "start"), (last, "end")] if last > first else [(first, "middle")]
    axis = "".join(
        f'<text x="{x(step):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">step {step:g}</text>'
        for step, anchor in ends
    )
    smoothed = len(points) >= _SMOOTHED_FROM
    lines = f'<path class="raw{" faint" if smoothed else ""}" d="{path(values)}"/>'
    if smoothed:
        lines += f'<path class="smooth" d="{path(_running_mean(values))}"/>'
    else:
        lines += "".join(f'<circle class="dot" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.5"/>' for a, b in points)
    name = _LABELS.get(column, column.replace("_", " ").replace("/", " / "))
    return (
        f'<figure data-column="{escape(column)}" data-low="{low}" data-high="{high}" data-first="{first}" '
        f'data-last="{last}" data-top="{_TOP}" data-bottom="{_HEIGHT - _BOTTOM}">'
        f"<figcaption><span>{escape(name)}</span><output>{_short(values[-1])}</output></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)} per step">'
        f"{grid}{axis}{lines}</svg></figure>"
    )


def _facts(steps: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> str:
    facts = []
    for column, form in (("reward", "{:.2f}"), ("accuracy", "{:.0%}")):
        values = [value for _, value in _points(column, steps)]
        if values:
            facts.append((_LABELS[column], f"{form.format(values[0])} → {form.format(values[-1])}"))
    if steps:
        facts.append(("time of the steps", _duration(sum(value for _, value in _points("seconds", steps)))))
    for row in before:
        told = [f"{row['demonstrations']} demonstrations"] if "demonstrations" in row else []
        told += [_duration(row["seconds"])] if _is_number(row.get("seconds")) else []
        facts.append((str(row.get("phase")).replace("_", " "), ", ".join(told) or "done"))
    tokens = sum(value for _, value in _points("sampled_tokens", steps))
    if tokens:
        facts.append(("sampled tokens", f"{tokens:,.0f}"))
    body = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<section><dl class="facts">{body}</dl></section>' if facts else ""


def _alerts(steps: Sequence[Mapping[str, Any]]) -> str:
    """Every alert of the run once, with the steps that it was raised at and the figures and examples of the last of them."""
    if not any("alerts" in row for row in steps):
        return ""
    raised: dict[str, list[tuple[Any, Mapping[str, Any]]]] = {}
    for row in steps:
        for alert in row.get("alerts", []):
            raised.setdefault(alert["name"], []).append((row["step"], alert))
    if not raised:
        return f'<section><h2>Alerts</h2><p class="quiet">None in {len(steps)} steps.</p></section>'
    body = ""
    for name, times in raised.items():
        latest = times[-1][1]
        examples = "".join(
            f"<li>{escape(example['question'])}<small>{escape(example['scenario_id'])}, reward {example['reward']:.2f}</small></li>"
            for example in latest["examples"]
        )
        body += (
            f'<tr><th scope="row">{escape(name)}</th><td>{escape(", ".join(str(step) for step, _ in times))}</td>'
            f"<td>{escape(latest['sentence'])}</td><td><ul>{examples}</ul></td></tr>"
        )
    head = "".join(f'<th scope="col">{title}</th>' for title in ("alert", "at step", "latest figures", "for example"))
    return (
        '<section><h2>Alerts</h2><div class="scroll"><table class="lines"><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div></section>"
    )


def _rows(history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return ""
    told = (key for row in history for key, value in row.items() if value not in (None, []))
    columns = list(dict.fromkeys(told))
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(row.get(column)))}</td>" for column in columns) + "</tr>"
        for row in history
    )
    return (
        '<section style="margin-top:16px"><details><summary>History</summary><div class="scroll"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div></details></section>"
    )


def _ticks(low: float, high: float) -> list[float]:
    """About four round values that span the data: steps of 1, 2 or 5 times a power of ten."""
    if high - low < _SMALLEST_SPREAD:
        low, high = 0.0, 1.0
    rough = (high - low) / 3
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [position * step for position in range(first, last + 1)]


def _running_mean(values: Sequence[float]) -> list[float]:
    window = max(3, len(values) // 6)
    return [sum(values[max(0, i + 1 - window) : i + 1]) / min(window, i + 1) for i in range(len(values))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _cell(value: Any) -> str:
    if value in (None, []):
        return "-"
    if isinstance(value, list):
        return ", ".join(str(alert["name"]) for alert in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
