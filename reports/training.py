"""A training run as one HTML page: a small chart for every figure that the history has, and the history itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.charts import LABELS, LEFT, ORDER, RIGHT, WIDTH, chart, duration, is_number, ordered, points_of
from reports.page import escape, page
from reports.viewer import questions_section, rollouts_by_question

_HELD_OUT = ("validation_accuracy", "validation_reward")
_BOOKKEEPING = (
    *("step", "checkpoint_step", "reward_error", "reward_highest", "reward_highest_share"),
    *("validation_errors", "validation_tokens", "validation_seconds"),
)


def training_html(
    history: Sequence[Mapping[str, Any]],
    title: str = "Training run",
    *,
    subtitle: str = "",
    rollouts: Sequence[Mapping[str, Any]] = (),
    best_step: int = 0,
) -> str:
    """The page. A history row holds `step` and numbers; every numeric column but bookkeeping becomes a chart.

    Rows of another `phase` than the last row's (the warm start) are listed, not drawn, because their figures mean other things.
    Only their validation is drawn: the curve begins there, and a line across the chart shows what the policy before the first step reached.
    `rollouts` are recorded ones to look at, `best_step` is the step whose policy is the result.
    """
    phase = history[-1].get("phase") if history else None
    steps = [_with_alert_count(row) for row in history if row.get("phase") == phase]
    before = [row for row in history if row.get("phase") != phase]
    columns = _numeric_columns(steps)
    curves = {column: points_of(column, [*before, *steps] if column in _HELD_OUT else steps) for column in columns}
    charts = "".join(chart(column, [points], level=_imitation(column, before)) for column, points in curves.items())
    subtitle = subtitle or f"{len(steps)} steps"
    body = [
        f"<header><h1>{escape(title)}</h1><p>{escape(subtitle)}</p></header>",
        _facts(steps, before),
        _alerts(steps),
        f'<div class="charts">{charts}</div>' if charts else "<section><p>No finished step yet.</p></section>",
        questions_section("Rollouts", "rollout", "every step") if rollouts else "",
        _rows(history),
    ]
    data: dict[str, Any] = {"columns": curves, "geometry": [LEFT, WIDTH - RIGHT]}
    if rollouts:
        questions = rollouts_by_question(rollouts, best_step, _first_policy(history))
        names = dict.fromkeys(name for question in questions for name in question["runs"])
        data |= {"of": "rollout", "policies": list(names), "compared": list(names), "questions": questions}
    scripts = ("training.js", "viewer.js") if rollouts else ("training.js",)
    return page(title, "\n".join(part for part in body if part), scripts=scripts, data=data)


def _imitation(column: str, before: Sequence[Mapping[str, Any]]) -> tuple[str, float] | None:
    """The level that the policy had on held-out questions before its first GRPO step."""
    validated = points_of(column, before) if column in _HELD_OUT else []
    if not validated:
        return None
    name = _first_policy(before)
    return "imitation alone" if name == "warm start" else name, validated[-1][1]


def _first_policy(history: Sequence[Mapping[str, Any]]) -> str:
    """Return what the policy before the first GRPO step is called."""
    phase = str(history[0].get("phase")) if history else ""
    return {"untouched": "untouched base", "continued": "start"}.get(phase, "warm start")


def _with_alert_count(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, "alert_count": len(row["alerts"])} if "alerts" in row else row


def _numeric_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    # Counts of what never happened (dropped groups, judge requests) would be charts of nothing; that no alert was raised is told.
    found = dict.fromkeys(
        key for row in rows for key, value in row.items() if is_number(value) and (value or key in ORDER)
    )
    return ordered([name for name in found if name not in _BOOKKEEPING])


def _facts(steps: Sequence[Mapping[str, Any]], before: Sequence[Mapping[str, Any]]) -> str:
    facts = []
    for column, form in (("reward", "{:.2f}"), ("accuracy", "{:.0%}")):
        values = [value for _, value in points_of(column, steps)]
        if values:
            facts.append((LABELS[column], f"{form.format(values[0])} → {form.format(values[-1])}"))
    if steps:
        facts.append(("time of the steps", duration(sum(value for _, value in points_of("seconds", steps)))))
    for row in before:
        told = [f"{row['demonstrations']} demonstrations"] if "demonstrations" in row else []
        told += [duration(row["seconds"])] if is_number(row.get("seconds")) else []
        facts.append((str(row.get("phase")).replace("_", " "), ", ".join(told) or "done"))
    tokens = sum(value for _, value in points_of("sampled_tokens", steps))
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
    told = (
        key for row in history for key, value in row.items() if value not in (None, []) and key != "checkpoint_digest"
    )
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


def _cell(value: Any) -> str:
    if value in (None, []):
        return "-"
    if isinstance(value, list):
        return ", ".join(_entry(entry) for entry in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _entry(entry: Any) -> str:
    """An alert by its name, a question by its index and its share of correct rollouts."""
    if not isinstance(entry, Mapping):
        return str(entry)
    if "name" in entry:
        return str(entry["name"])
    right = entry.get("right")
    return f"{entry.get('index')}: {'-' if right is None else right} of {entry.get('rollouts')}"
