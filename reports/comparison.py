"""Compare training runs: a table for the terminal, and an HTML page with one chart per metric."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from reports.charts import COLOURS, chart, duration, ordered, points_of
from reports.page import Row, page, render

_RECENT = 5
"""Number of last steps whose mean represents the end of a run. A single step depends on its questions."""
_CURVES = (
    *(
        "reward",
        "accuracy",
        "validation_reward",
        "validation_accuracy",
        "validation_win_rate",
        "turns",
        "tokens_per_rollout",
    ),
    *("seconds", "reward_std", "loss/kl_old_new", "entropy", "judge_cost"),
)
_UNLIKE = ("experiment",)
"""Settings that other rows show."""


@dataclass(frozen=True)
class ComparedRun:
    """A run's label, its experiment as plain values, and the rows of its history."""

    label: str
    experiment: Row
    rows: Sequence[Row]

    @property
    def steps(self) -> list[Row]:
        return [row for row in self.rows if row.get("phase") == "grpo"]


def facts(runs: Sequence[ComparedRun]) -> list[tuple[str, list[str]]]:
    """Return rows (name, formatted value per run): first figures, then the settings in which the runs differ."""
    described = [(name, [tell(run) for run in runs]) for name, tell in _FACTS]
    configs = [run.experiment.get("config", {}) for run in runs]
    names = dict.fromkeys(name for config in configs for name in config)
    for name in names:
        values = [_setting(config.get(name)) for config in configs]
        if name not in _UNLIKE and len(set(values)) > 1:
            described.append((name, values))
    return [(name, values) for name, values in described if any(value != "-" for value in values)]


def comparison_table(runs: Sequence[ComparedRun]) -> Table:
    """Return a table with one column per run."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("")
    for run in runs:
        table.add_column(Text(run.label), justify="right", overflow="fold")
    settings_began = False
    for name, values in facts(runs):
        if not settings_began and name not in _NAMES:
            table.add_section()
            settings_began = True
        table.add_row(Text(name), *(Text(value) for value in values))
    return table


def comparison_html(runs: Sequence[ComparedRun]) -> str:
    """Return the page: the same table, and one chart per figure with a line per run."""
    charts = []
    for column in ordered(_CURVES):
        points = [points_of(column, run.steps) for run in runs]
        if any(points):
            charts.append(chart(column, points))
    title = "Runs side by side"
    labels = [run.label for run in runs]
    rows = facts(runs)
    return page(
        title,
        render("comparison.html.jinja", title=title, labels=labels, colours=COLOURS, rows=rows, charts=charts),
    )


def _end(column: str, form: str, run: ComparedRun) -> str:
    values = [value for _, value in points_of(column, run.steps)][-_RECENT:]
    return format(statistics.fmean(values), form) if values else "-"


def _validation(run: ComparedRun) -> str:
    column = "validation_" + run.experiment.get("config", {}).get("validation_metric", "accuracy")
    # As the run chooses its result: the untouched base is no checkpoint, and ties go to the higher reward.
    continued = bool(run.rows) and run.rows[0].get("phase") == "continued"
    rows = [row for row in run.rows if row.get("checkpoint_step", 1) or continued]
    validated = [row for row in rows if row.get(column) is not None]
    if not validated:
        return "-"
    best = max(validated, key=lambda row: (row[column], row.get("validation_reward") or 0.0))
    return f"{best[column]:.3f} at step {best['step']:g}"


def _total(column: str, run: ComparedRun) -> float:
    return sum(value for _, value in points_of(column, run.rows))


def _cost(run: ComparedRun) -> str:
    return f"{_total('judge_cost', run):.4f} USD" if points_of("judge_cost", run.rows) else "-"


def _gpu(run: ComparedRun) -> str:
    if not points_of("gpu_hours", run.rows):
        return "-"
    price = f", {_total('gpu_cost', run):.2f} USD" if points_of("gpu_cost", run.rows) else ""
    return f"{_total('gpu_hours', run):.2f}{price}"


def _alerts(run: ComparedRun) -> str:
    names = dict.fromkeys(alert["name"] for row in run.rows for alert in row.get("alerts", []))
    return ", ".join(names) or "none"


def _revision(revision: str | None) -> str:
    commit, changed, _ = (revision or "-").partition("+")
    return commit[:10] + (" with changes" if changed else "")


def _base_model(experiment: Row) -> str:
    digest = experiment.get("base_model_content") or experiment.get("base_model_checksum")
    return f"{experiment.get('base_model')}, {digest[:8]}" if digest else "-"


def _setting(value: Any) -> str:
    return "-" if value is None else str(value)


_FACTS = (
    ("run", lambda run: _setting(run.experiment.get("run"))),
    ("settings", lambda run: _setting(run.experiment.get("config_hash"))),
    ("code", lambda run: _revision(run.experiment.get("git_revision"))),
    ("data", lambda run: ", ".join(str(version)[:8] for version in run.experiment.get("data", {}).values()) or "-"),
    ("base model", lambda run: _base_model(run.experiment)),
    ("seeds", lambda run: ", ".join(f"{name} {seed}" for name, seed in run.experiment.get("seeds", {}).items()) or "-"),
    ("steps", lambda run: str(len(run.steps))),
    ("stopped", lambda run: run.experiment.get("stopped") or "unfinished"),
    (f"reward, last {_RECENT} steps", lambda run: _end("reward", ".3f", run)),
    (f"accuracy, last {_RECENT} steps", lambda run: _end("accuracy", ".0%", run)),
    ("best validation", _validation),
    ("time", lambda run: duration(_total("seconds", run))),
    ("sampled tokens", lambda run: f"{_total('sampled_tokens', run) + _total('validation_tokens', run):,.0f}"),
    ("judge's cost", _cost),
    ("GPU hours", _gpu),
    ("alerts", _alerts),
    ("warnings", lambda run: str(sum(len(row.get("warnings", [])) for row in run.rows))),
)
_NAMES = {name for name, _ in _FACTS}
