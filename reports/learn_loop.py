"""Report of a learn loop: rates per iteration, the graph's scores before and after, and e-mails next to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup
from rich.table import Table

from reports.charts import chart, points_of
from reports.graph_picture import graph_picture
from reports.page import Row, page, render

_FACTS = ("feature", "proof_point", "customer_story")
_MEANING = {
    "iteration 0": "policy before the first update, all scores at 1",
    "scores only": "policy before the first update, last scores",
    "policy only": "last policy, all scores at 1",
    "policy and scores": "last policy, last scores",
}
_CHARTS = (
    (
        "replies to the e-mails of an iteration, %",
        100,
        (("probability", "expected_reply_rate"), ("drawn", "reply_rate")),
    ),
    (
        "replies of the validation prospects, %",
        100,
        (("probability", "validation_expected"), ("drawn", "validation_reply_rate")),
    ),
    (
        "rewards",
        1,
        (("mean", "reward_mean"), ("median", "reward_median"), ("lowest", "reward_min"), ("highest", "reward_max")),
    ),
    ("rollouts that finished an e-mail, %", 100, (("", "finished"),)),
)
"""Title, factor, and the name and column of each line."""
_SHOWN_PAIRS = 4
"""E-mail pairs that are not folded away."""


def learn_loop_html(
    run_id: str,
    *,
    iterations: Sequence[Row],
    evaluation: Row,
    nodes: Sequence[Row],
    edges: Sequence[Row],
    scores: Mapping[str, Mapping[str, float]],
    emails: Row,
    prospects: Mapping[str, str],
    simulated: bool,
) -> str:
    """Return the page.

    `scores` has node scores `before` and `after`, and those of the `top_half` rule. `emails` has the numbers of the
    iterations `before` and `after`, e-mails of both to the validation prospects (`baseline`, `final`), and held-out ones
    (`held_out_before`, `held_out_after`). `prospects` maps scenarios to descriptions of their prospects.
    """
    held_out = _pairs(emails["held_out_before"], emails["held_out_after"], prospects)
    body = render(
        "learn_loop.html.jinja",
        run_id=run_id,
        iterations=len(iterations) - 1,
        learnt_from=sum(row.get("emails", 0) for row in iterations),
        feedback="Feedback is simulated: no e-mail was sent to anybody." if simulated else "Feedback is recorded.",
        prospects=evaluation["prospects"],
        headline=_headline(evaluation),
        kind="expected reply rate" if evaluation["expected"] else "reply rate",
        results=_results(evaluation),
        notes=notes_on(evaluation),
        charts=_charts(iterations),
        graph=graph_picture(nodes, edges, scores["before"], scores["after"]),
        facts=_facts(nodes, scores, evaluation.get("interests")),
        before=emails["before"],
        after=emails["after"],
        held_out=held_out[:_SHOWN_PAIRS],
        more=held_out[_SHOWN_PAIRS:],
        train=_pairs(emails["baseline"], emails["final"], prospects),
    )
    return page(f"Learn loop {run_id}", body)


def held_out_table(evaluation: Row) -> Table:
    """Return the closing table of a learn loop."""
    table = Table(title=f"{evaluation['prospects']} held-out prospects")
    rate = "expected reply rate" if evaluation["expected"] else "reply rate"
    for column in ("", rate, "e-mails sent", "times iteration 0", "95% interval", "p"):
        table.add_column(column, justify="left" if not column else "right")
    for name, row in evaluation["rows"].items():
        table.add_row(name, f"{row['reply_rate']:.1%}", *_figures(row))
    return table


def notes_on(evaluation: Row) -> list[str]:
    """Return sentences about the evaluation: the number of sends, the scores, and off-policy estimates."""
    notes = []
    if evaluation["expected"]:
        sends = [f"{row['sends']:,}" for row in evaluation["rows"].values()]
        notes.append(
            f"Simulated sends per row: {', '.join(sends)}. The rates are the simulation's reply probabilities, so they have "
            "no sampling error of these sends."
        )
    if found := evaluation.get("rank_correlation"):
        notes.append(
            f"Rank correlation of node scores with the hidden interests: {found['advantage']:.2f}; top-half rule "
            f"{found['top_half']:.2f}."
        )
    drift = evaluation["drift"]
    notes.append(
        f"Largest distance of a fact's score from 1: {drift['advantage']:.2f} ({evaluation['drift_in_deviations']:.1f} "
        f"posterior deviations); top-half rule {drift['top_half']:.2f}."
    )
    if found := evaluation["by_scores"]:
        truth = f"; in the simulation {found['truth']:.2%}" if found["truth"] is not None else ""
        notes.append(
            f"Off-policy estimate of always following the scores, from {found['choices']} held-out e-mails that did not see "
            f"them and got {found['logged']:.2%}: IPS {found['ips']:.2%}, SNIPS {found['snips']:.2%}, doubly robust "
            f"{found['doubly_robust']:.2%}{truth}. Effective sample size {found['effective_sample_size']:.1f}."
        )
    return notes


def _headline(evaluation: Row) -> list[tuple[str, str]]:
    """Return names and values of the figures at the top."""
    rows = list(evaluation["rows"].values())
    first, last = rows[0], rows[-1]
    figures = [("replies before → after", f"{first['reply_rate']:.1%} → {last['reply_rate']:.1%}")]
    if last.get("ratio") is not None:
        figures.append(("times as many", f"{last['ratio']:.2f}"))
        if interval := last.get("ratio_interval"):
            figures.append(("95% interval", f"{interval[0]:.2f} to {interval[1]:.2f}"))
    if "p" in last:
        figures.append(("p, paired, one-sided", f"{last['p']:.4f}"))
    figures.append(("rollouts with an e-mail", f"{first['finished']:.0%} → {last['finished']:.0%}"))
    if ranks := evaluation.get("rank_correlation"):
        figures.append(("rank correlation of scores and interests", f"{ranks['advantage']:.2f}"))
    return figures


def _results(evaluation: Row) -> list[dict[str, Any]]:
    """Return the rows of the table. Bars share a scale that ends at the largest rate."""
    longest = max(row["reply_rate"] for row in evaluation["rows"].values()) or 1.0
    results = []
    for name, row in evaluation["rows"].items():
        sent, (finished, *compared) = row.get("finished_reply_rate"), _figures(row)
        results.append(
            {
                "name": name,
                "meaning": _MEANING.get(name, ""),
                "rate": f"{row['reply_rate']:.2%}",
                "bar": f"{100 * row['reply_rate'] / longest:.1f}",
                "cells": (finished, f"{sent:.2%}" if sent is not None else "-", *compared),
            }
        )
    return results


def _figures(row: Row) -> tuple[str, ...]:
    """Return the share of rollouts with an e-mail, and ratio, interval and p-value against iteration 0."""
    ratio, interval = row.get("ratio"), row.get("ratio_interval")
    return (
        f"{row['finished']:.0%}",
        f"{ratio:.2f}" if ratio is not None else "-",
        f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "-",
        f"{row['p']:.4f}" if "p" in row else "-",
    )


def _charts(iterations: Sequence[Row]) -> list[Markup]:
    rows = [{**row, "step": row["iteration"]} for row in iterations]
    charts = []
    for title, factor, lines in _CHARTS:
        found = [(name, points_of(column, rows)) for name, column in lines]
        drawn = [(name, [(step, factor * value) for step, value in points]) for name, points in found if points]
        if drawn:
            names = [name for name, _ in drawn] if len(drawn) > 1 else []
            charts.append(chart(title, [points for _, points in drawn], names=names, unit="iteration"))
    return charts


def _facts(
    nodes: Iterable[Row], scores: Mapping[str, Mapping[str, float]], interests: Mapping[str, float] | None
) -> list[dict[str, Any]]:
    """Return the rows of the table of facts, best scored first."""
    facts = sorted((node for node in nodes if node["type"] in _FACTS), key=lambda node: -scores["after"][node["id"]])
    return [
        {
            "text": node["text"],
            "about": f"{node['id']}, {node['type'].replace('_', ' ')}, {node['source']}",
            "before": f"{50 * scores['before'][node['id']]:.1f}",
            "after": f"{50 * scores['after'][node['id']]:.1f}",
            "style": "up" if scores["after"][node["id"]] >= scores["before"][node["id"]] else "down",
            "score": f"{scores['after'][node['id']]:.2f}",
            "top_half": f"{scores['top_half'][node['id']]:.2f}",
            "interest": f"{interests[node['id']]:+.2f}" if interests else None,
        }
        for node in facts
    ]


def _pairs(before: Iterable[Row], after: Iterable[Row], prospects: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return each prospect of `after` with its first e-mail before and after."""
    firsts: list[dict[str, Row]] = [{}, {}]
    for found, emails in zip(firsts, (before, after), strict=True):
        for email in emails:
            found.setdefault(email["scenario"], {**email, "cited": ", ".join(email["citations"])})
    return [
        {"prospect": prospects.get(scenario, scenario), "emails": (firsts[0].get(scenario), email)}
        for scenario, email in firsts[1].items()
    ]
