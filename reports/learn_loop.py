"""Report of a learn loop: rates per iteration, the graph's scores before and after, and e-mails next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.charts import chart, points_of
from reports.page import page, render

Row = Mapping[str, Any]

_CHARTS = (
    *("expected_reply_rate", "reply_rate", "validation_expected", "validation_reply_rate"),
    *("reward_mean", "reward_median", "reward_min", "reward_max", "finished"),
)
_COLUMNS = ("product", "feature", "proof_point", "customer_story", "pain", "persona", "industry")
_COLUMN_WIDTH, _ROW_HEIGHT, _MARGIN = 165, 34, 30


def learn_loop_html(
    run_id: str,
    *,
    iterations: Sequence[Row],
    evaluation: Row,
    nodes: Sequence[Row],
    edges: Sequence[Row],
    scores: Mapping[str, Mapping[str, float]],
    emails: Mapping[str, Any],
    simulated: bool,
) -> str:
    """Return the page.

    `scores` has node scores `before` and `after`, `emails` lists `baseline` and `final` ones to the same prospects.
    """
    rows = [{**row, "step": row["iteration"]} for row in iterations]
    curves = {column: points_of(column, rows) for column in _CHARTS}
    heads, results = _evaluation(evaluation)
    body = render(
        "learn_loop.html.jinja",
        run_id=run_id,
        iterations=len(rows),
        feedback="Feedback is simulated: no e-mail was sent to anybody." if simulated else "Feedback is recorded.",
        prospects=evaluation["prospects"],
        heads=heads,
        results=results,
        notes=notes_on(evaluation),
        charts=[chart(column, [points]) for column, points in curves.items() if points],
        graph=_graph(nodes, edges, scores),
        emails={"before": emails["before"], "after": emails["after"], "rows": _emails(emails)},
    )
    return page(f"Learn loop {run_id}", body)


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


def _evaluation(evaluation: Row) -> tuple[Sequence[str], list[tuple[str, Sequence[str]]]]:
    """Return the heads of the table, and the name and the formatted cells of each row."""
    kind = "expected reply rate" if evaluation["expected"] else "reply rate"
    heads = ("", kind, "rollouts with an e-mail", f"{kind} of sent e-mails", "times iteration 0", "95% interval", "p")
    results: list[tuple[str, Sequence[str]]] = []
    for name, row in evaluation["rows"].items():
        interval, ratio, sent = row.get("ratio_interval"), row.get("ratio"), row.get("finished_reply_rate")
        cells = (
            f"{row['reply_rate']:.2%}",
            f"{row['finished']:.0%}",
            f"{sent:.2%}" if sent is not None else "-",
            f"{ratio:.2f}" if ratio is not None else "-",
            f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "-",
            f"{row['p']:.4f}" if "p" in row else "-",
        )
        results.append((name, cells))
    return heads, results


def _graph(nodes: Sequence[Row], edges: Sequence[Row], scores: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return places and sizes of the graph's picture, a column per type of node.

    The bar of a node is its score, the thin line its earlier score.
    """
    columns = [[node for node in nodes if node["type"] == kind] for kind in _COLUMNS]
    columns = [column for column in columns if column]
    places = {
        node["id"]: (_MARGIN + _COLUMN_WIDTH * x, _MARGIN + _ROW_HEIGHT * y)
        for x, column in enumerate(columns)
        for y, node in enumerate(column)
    }
    drawn = []
    for node in nodes:
        x, y = places[node["id"]]
        before, after = scores["before"][node["id"]], scores["after"][node["id"]]
        drawn.append(
            {
                "x": x,
                "y": y,
                "text": node["text"],
                "label": f"{node['id']} {node['name'][:16]}",
                "before_x": f"{x + 60 * before:.1f}",
                "after": after,
            }
        )
    return {
        "width": 2 * _MARGIN + _COLUMN_WIDTH * len(columns),
        "height": 2 * _MARGIN + _ROW_HEIGHT * max(map(len, columns)),
        "edges": [(places[edge["source"]], places[edge["target"]]) for edge in edges],
        "nodes": drawn,
    }


def _emails(emails: Mapping[str, Any]) -> list[tuple[str, Row | None, Row]]:
    """Return each prospect with the e-mail before and after."""
    before = {email["scenario"]: _with_citations(email) for email in emails["baseline"]}
    return [(email["scenario"], before.get(email["scenario"]), _with_citations(email)) for email in emails["final"]]


def _with_citations(email: Row) -> Row:
    return {**email, "cited": ", ".join(email["citations"])}
