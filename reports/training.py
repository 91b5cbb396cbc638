"""A training run as one HTML page: a small chart for every figure that the history has, and the history itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.charts import LABELS, LEFT, ORDER, RIGHT, WIDTH, chart, duration, is_number, ordered, points_of
from reports.page import Row, page, render
from reports.viewer import questions_section, rollouts_by_question

_HELD_OUT = ("validation_accuracy", "validation_reward")
_BOOKKEEPING = (
    *("step", "checkpoint_step", "reward_error", "reward_highest", "reward_highest_share"),
    *("validation_errors", "validation_tokens", "validation_seconds"),
)


def training_html(
    history: Sequence[Row],
    title: str = "Training run",
    *,
    subtitle: str = "",
    rollouts: Sequence[Row] = (),
    best_step: int = 0,
    ask_at: str | None = None,
) -> str:
    """Return the page. A history row holds `step` and numbers; every numeric column except bookkeeping becomes a chart.

    Rows of another `phase` than the last row's, such as the warm start, are listed but not drawn, because their figures
    mean other things. Only their validation is drawn: it is the first point of the curve, and a dashed line marks its
    level. `rollouts` are recorded ones to look at; `best_step` is the step whose policy is the result.
    `ask_at` is the address at which a service of the trained agent would be.
    """
    phase = history[-1].get("phase") if history else None
    steps = [_with_derived(row) for row in history if row.get("phase") == phase]
    before = [row for row in history if row.get("phase") != phase]
    columns = _numeric_columns(steps)
    curves = {column: points_of(column, [*before, *steps] if column in _HELD_OUT else steps) for column in columns}
    history_columns = _filled_columns(history)
    body = render(
        "training.html.jinja",
        title=title,
        subtitle=subtitle or f"{len(steps)} steps",
        steps=len(steps),
        facts=_facts(steps, before),
        watched=any("alerts" in row for row in steps),
        alerts=_alerts(steps),
        charts=[chart(column, [points], level=_imitation(column, before)) for column, points in curves.items()],
        questions=questions_section("Rollouts", "rollout", "every step") if rollouts else "",
        columns=history_columns,
        ask_at=ask_at,
        rows=[[_cell(row.get(column)) for column in history_columns] for row in history],
    )
    data: dict[str, Any] = {"columns": curves, "geometry": [LEFT, WIDTH - RIGHT]}
    if rollouts:
        questions = rollouts_by_question(rollouts, best_step, _first_policy(history))
        names = dict.fromkeys(name for question in questions for name in question["runs"])
        data |= {"of": "rollout", "policies": list(names), "compared": list(names), "questions": questions}
    scripts = ("training.js", "viewer.js") if rollouts else ("training.js",)
    return page(title, body, scripts=scripts, data=data)


def _imitation(column: str, before: Sequence[Row]) -> tuple[str, float] | None:
    """Return the level on held-out questions before the first GRPO step."""
    validated = points_of(column, before) if column in _HELD_OUT else []
    if not validated:
        return None
    name = _first_policy(before)
    return "imitation alone" if name == "warm start" else name, validated[-1][1]


def _first_policy(history: Sequence[Row]) -> str:
    """Return the name of the policy before the first GRPO step."""
    phase = str(history[0].get("phase")) if history else ""
    return {"untouched": "untouched base", "continued": "start"}.get(phase, "warm start")


def _with_derived(row: Row) -> Row:
    """Add the number of alerts, and the share of right moves at each decision."""
    right = {f"right moves at {name}": figures["right"] for name, figures in (row.get("decisions") or {}).items()}
    return {**row, **right, **({"alert_count": len(row["alerts"])} if "alerts" in row else {})}


def _numeric_columns(rows: Sequence[Row]) -> list[str]:
    # Leave out counts that are always 0, such as dropped groups, except those in ORDER, such as alerts.
    found = dict.fromkeys(
        key for row in rows for key, value in row.items() if is_number(value) and (value or key in ORDER)
    )
    return ordered([name for name in found if name not in _BOOKKEEPING])


def _facts(steps: Sequence[Row], before: Sequence[Row]) -> list[tuple[str, str]]:
    facts = []
    for column, form in (("reward", "{:.2f}"), ("accuracy", "{:.0%}")):
        values = [value for _, value in points_of(column, steps)]
        if values:
            facts.append((LABELS[column], f"{form.format(values[0])} → {form.format(values[-1])}"))
    if steps:
        facts.append(("time of the steps", duration(sum(value for _, value in points_of("seconds", steps)))))
    for row in before:
        parts = [f"{row['demonstrations']} demonstrations"] if "demonstrations" in row else []
        parts += [duration(row["seconds"])] if is_number(row.get("seconds")) else []
        facts.append((str(row.get("phase")).replace("_", " "), ", ".join(parts) or "done"))
    tokens = sum(value for _, value in points_of("sampled_tokens", steps))
    if tokens:
        facts.append(("sampled tokens", f"{tokens:,.0f}"))
    return facts


def _alerts(steps: Sequence[Row]) -> list[dict[str, Any]]:
    """Return every alert of the run once, with all its steps, and the figures and examples of the last one."""
    raised: dict[str, list[tuple[Any, Row]]] = {}
    for row in steps:
        for alert in row.get("alerts", []):
            raised.setdefault(alert["name"], []).append((row["step"], alert))
    return [
        {
            "name": name,
            "steps": ", ".join(str(step) for step, _ in times),
            "sentence": times[-1][1]["sentence"],
            "examples": times[-1][1]["examples"],
        }
        for name, times in raised.items()
    ]


def _filled_columns(history: Sequence[Row]) -> list[str]:
    filled = (
        key
        for row in history
        for key, value in row.items()
        if value not in (None, [], {}) and key != "checkpoint_digest"
    )
    return list(dict.fromkeys(filled))


def _cell(value: Any) -> str:
    if value in (None, [], {}):
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(figures.get('right'))}" for name, figures in value.items())
    if isinstance(value, list):
        return ", ".join(_entry(entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _entry(entry: Any) -> str:
    """Format a cell: an alert by its name, a question by its index and its share of correct rollouts."""
    if not isinstance(entry, Mapping):
        return str(entry)
    if "name" in entry:
        return str(entry["name"])
    right = entry.get("right")
    asked = " ".join(str(part) for part in (entry.get("index"), entry.get("decision")) if part is not None)
    return f"{asked}: {'-' if right is None else right} of {entry.get('rollouts')}"
