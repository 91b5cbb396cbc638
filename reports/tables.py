"""The closing table of an evaluation, for the terminal."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from reports.page import Row


def closing_table(summary: Row) -> Table:
    """Build the table: policies, then non-learning rows.

    `summary` is what `--summary` writes; missing figures show as "-".
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.title, table.title_style, table.title_justify = f"{summary.get('n', 0)} held-out questions", "bold", "left"
    table.add_column("policy", no_wrap=True)
    for column in ("n", "correct\n(95% interval)", "answered", "source\nrecall", "turns", "seconds"):
        table.add_column(column, justify="right", no_wrap=True, vertical="bottom")
    shown = [row for group in ("policies", "baselines") for row in summary.get(group, {}).values()]
    priced = any(row.get("judge_tokens") or row.get("cost") is not None for row in shown)
    optional = _MORE if not priced else (*_MORE, *_SPENT)
    more = [(title, cell) for title, cell in optional if any(cell(row) != "-" for row in shown)]
    for title, _ in more:
        table.add_column(title, justify="right", no_wrap=True, vertical="bottom")
    errors = incomparable = False
    for group in ("policies", "baselines"):
        for name, row in summary.get(group, {}).items():
            failed = row.get("errors", 0) or row.get("sample_errors", 0)
            errors = errors or bool(failed)
            comparable = row.get("comparable", True)
            incomparable = incomparable or not comparable or _lost_samples(row)
            style = (
                "bold red" if not comparable else "dim" if group == "baselines" else "bold" if name == "trained" else ""
            )
            table.add_row(
                Text(name.replace("_", " ") + (" *" if failed else ""), style=style),
                str(row.get("n", summary.get("n", "-"))),
                correct(row).replace("%)", ")"),
                percent(row.get("answer_rate")),
                percent(row.get("source_recall")),
                number(row.get("turns"), 1),
                number(seconds_of(row), 2),
                *(cell(row) for _, cell in more),
                style=style,
            )
        table.add_section()
    if errors:
        table.caption = "* runs that ended in an error are counted in no column"
        if incomparable:
            table.caption += "; with more than 2% of them (red) the figures can be compared with no others"
        table.caption_justify = "left"
    return table


def gain(summary: Row) -> str | None:
    """Return what reinforcement learning added to the policy before it, as one sentence; None without one to compare with."""
    rows, paired = summary.get("policies", {}), summary.get("paired", {})
    first = next((name for name in ("warm_start", "start") if name in rows), None)
    test = paired.get(f"trained_vs_{first}")
    if first is None or test is None or "trained" not in rows:
        return None
    if any(rows[name]["accuracy"] is None for name in (first, "trained")) or not test["n"]:
        return None
    before, after = ((test["both"] + test[only]) / test["n"] for only in ("b_only", "a_only"))
    chance = "p < 0.0001" if test["p_value"] < 0.0001 else f"p = {test['p_value']:.4f}"
    return (
        f"GRPO added {(after - before) * 100:+.1f} points to the {first.replace('_', ' ')}: {percent(before)} to {percent(after)} "
        f"of the {test['n']} questions asked of both ({test['a_only']} gained, {test['b_only']} lost, {chance})"
    )


def accuracy_over_minutes(summary: Row) -> str | None:
    """Return the accuracy of each policy after its minutes of training, as one line; None if there is one policy at most.

    A policy with too many errors has no result.
    """
    points = sorted(
        (row["training_seconds"] / 60, name, row["accuracy"])
        for name, row in summary.get("policies", {}).items()
        if row.get("training_seconds") is not None and row.get("accuracy") is not None and row.get("comparable", True)
    )
    if len(points) < 2:
        return None
    shown = [
        f"{name.replace('_', ' ')} {percent(accuracy)} after {minutes:.1f} min" for minutes, name, accuracy in points
    ]
    return f"accuracy over training time: {', '.join(shown)}"


def pass_at(row: Row) -> str:
    """Format pass@k as "1: 60% 4: 85%"; the number of errors in red if too many samples ended in one."""
    if _lost_samples(row):
        return f"[bold red]{row['sample_errors']} errors[/]"
    return " ".join(f"{k}: {share:.0%}" for k, share in row.get("pass_at", {}).items()) or "-"


def _lost_samples(row: Row) -> bool:
    return bool(row.get("sample_errors")) and "pass_at" not in row


def _dollars(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


_MORE = (("by\nmeaning", lambda row: percent(row.get("by_meaning"))), ("pass@k", pass_at))
_SPENT = (
    ("prompt\ntokens", lambda row: f"{row['prompt_tokens']:,.0f}" if row.get("prompt_tokens") else "-"),
    ("cost\n(USD)", lambda row: _dollars(row.get("cost"))),
    ("judge's\ntokens", lambda row: f"{row['judge_tokens']:,}" if row.get("judge_tokens") else "-"),
    ("judge's\ncost (USD)", lambda row: _dollars(row.get("judge_cost"))),
)
"""Optional columns, shown if some row has a figure."""


def correct(row: Row) -> str:
    """Format accuracy with its interval as "85.3% (79.1-90.2%)"; "-" without reference answers."""
    if row.get("accuracy") is None:
        return "-"
    return f"{percent(row['accuracy'])} ({interval(row.get('ci95'))})"


def percent(share: float | None) -> str:
    """Format 0.853 as "85.3%"."""
    return "-" if share is None else f"{share:.1%}"


def interval(bounds: list[float] | tuple[float, float] | None) -> str:
    """Format the bounds of a proportion as "79.1-90.2%"."""
    return "-" if not bounds else f"{bounds[0] * 100:.1f}-{bounds[1] * 100:.1f}%"


def number(value: float | None, digits: int) -> str:
    """Format a number with fixed decimals, or as "-"."""
    return "-" if value is None else f"{value:.{digits}f}"


def seconds_of(row: Row) -> float | None:
    """Format the median of seconds per question; `seconds` holds the median, or median and p95."""
    seconds = row.get("seconds")
    return seconds.get("median") if isinstance(seconds, dict) else seconds
