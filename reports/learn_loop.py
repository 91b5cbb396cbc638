"""A learn loop as one HTML page: rates per iteration, the graph's scores before and after, and e-mails side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.charts import chart, points_of
from reports.page import escape, page

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
    """The page. `scores` has the nodes' scores `before` and `after`, `emails` lists `baseline` and `final` ones to the same prospects."""
    rows = [{**row, "step": row["iteration"]} for row in iterations]
    curves = {column: points_of(column, rows) for column in _CHARTS}
    charts = "".join(chart(column, [points]) for column, points in curves.items() if points)
    feedback = "Feedback is simulated: no e-mail was sent to anybody." if simulated else "Feedback is recorded."
    body = [
        f"<header><h1>Learn loop {escape(run_id)}</h1><p>{len(rows)} iterations, iteration 0 included. {feedback}</p></header>",
        _evaluation(evaluation),
        f'<div class="charts">{charts}</div>',
        f"<section><h2>Node scores before and after</h2>{_picture(nodes, edges, scores)}</section>",
        _emails(emails),
    ]
    return page(f"Learn loop {run_id}", "\n".join(body))


def _evaluation(evaluation: Row) -> str:
    kind = "expected reply rate" if evaluation["expected"] else "reply rate"
    heads = ("", kind, "rollouts with an e-mail", f"{kind} of sent e-mails", "times iteration 0", "95% interval", "p")
    lines = []
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
        lines.append(
            f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        )
    found = evaluation.get("rank_correlation")
    ranks = (
        f'<p class="note">Rank correlation of the scores with the hidden interests: {found["advantage"]:.2f}; by the top-half rule '
        f"{found['top_half']:.2f}.</p>"
        if found
        else ""
    )
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    return (
        f'<section><h2>{evaluation["prospects"]} held-out prospects</h2><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{ranks}</section>"
    )


def _picture(nodes: Sequence[Row], edges: Sequence[Row], scores: Mapping[str, Mapping[str, float]]) -> str:
    """The graph as SVG, a column per type of node. The bar of a node is its score, the thin line its score before."""
    columns = [[node for node in nodes if node["type"] == kind] for kind in _COLUMNS]
    columns = [column for column in columns if column]
    places = {
        node["id"]: (_MARGIN + _COLUMN_WIDTH * x, _MARGIN + _ROW_HEIGHT * y)
        for x, column in enumerate(columns)
        for y, node in enumerate(column)
    }
    lines = "".join(
        f'<line class="grid" x1="{places[e["source"]][0] + 60}" y1="{places[e["source"]][1]}" '
        f'x2="{places[e["target"]][0] + 60}" y2="{places[e["target"]][1]}"/>'
        for e in edges
    )
    drawn = []
    for node in nodes:
        x, y = places[node["id"]]
        before, after = scores["before"][node["id"]], scores["after"][node["id"]]
        drawn.append(
            f'<g><title>{escape(node["text"])}</title><rect class="track" x="{x}" y="{y - 4}" width="120" height="8"/>'
            f'<rect class="value" x="{x}" y="{y - 4}" width="{60 * after:.1f}" height="8"/>'
            f'<line class="half" x1="{x + 60 * before:.1f}" x2="{x + 60 * before:.1f}" y1="{y - 7}" y2="{y + 7}"/>'
            f'<text x="{x}" y="{y - 8}">{escape(node["id"])} {escape(node["name"][:16])} {after:.2f}</text></g>'
        )
    width = 2 * _MARGIN + _COLUMN_WIDTH * len(columns)
    height = 2 * _MARGIN + _ROW_HEIGHT * max(map(len, columns))
    return (
        f'<figure><svg viewBox="0 0 {width} {height}" role="img" aria-label="knowledge graph with node scores">'
        f"{lines}{''.join(drawn)}</svg></figure>"
    )


def _emails(emails: Mapping[str, Any]) -> str:
    before = {email["scenario"]: email for email in emails["baseline"]}
    rows = "".join(
        f'<tr><th scope="row">{escape(email["scenario"])}</th><td>{_email(before.get(email["scenario"]))}</td><td>{_email(email)}</td></tr>'
        for email in emails["final"]
    )
    if not rows:
        return ""
    return (
        f'<section><h2>E-mails of iterations {emails["before"]} and {emails["after"]}</h2><div class="scroll"><table><thead><tr>'
        f'<th scope="col">prospect</th><th scope="col">before</th><th scope="col">after</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></section>"
    )


def _email(email: Row | None) -> str:
    if email is None or email["body"] is None:
        return f"no e-mail ({escape(email['outcome'])})" if email else "-"
    expected = f" (expected replies {email['expected']:.1%})" if email["expected"] is not None else ""
    cited = escape(", ".join(email["citations"]))
    return f"<b>{escape(email['subject'])}</b><br>{escape(email['body'])}<br><small>cites {cited}{expected}</small>"
