"""The evaluation as one HTML page: who is how good, at what, and every question with what each policy did about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reports.page import escape, page
from reports.tables import gain, interval, number, percent, seconds_of
from reports.viewer import questions_section

_FIELDS = ("answer", "correct", "reason", "outcome", "error", "turns", "seconds", "source_ids", "transcript")
Row = tuple[str, Mapping[str, Any], bool]


def evaluation_html(
    summary: Mapping[str, Any],
    predictions: Sequence[Mapping[str, Any]],
    title: str = "Evaluation",
    *,
    subtitle: str = "",
) -> str:
    """The page. `summary` is the closing table, `predictions` one row per question and policy, both as plain values."""
    rows: list[Row] = [(name, row, False) for name, row in summary.get("policies", {}).items()]
    rows += [(name, row, True) for name, row in summary.get("baselines", {}).items()]
    parts = [
        f"<header><h1>{escape(title)}</h1><p>{escape(summary.get('n', 0))} held-out questions"
        f"{' · ' + escape(subtitle) if subtitle else ''}</p></header>",
        _policies(rows),
        _gain(summary),
        _paired(summary.get("paired", {})),
        _promotion(summary.get("promotion")),
        _kinds(rows),
        questions_section("Questions", "policy", "every kind"),
    ]
    names = [name for name, _, _ in rows]
    names += sorted({str(p["policy"]) for p in predictions} - set(names))
    learned = [name for name, _, is_baseline in rows if not is_baseline]
    compared = [name for name in learned if name != "base"] if len(learned) > 2 else learned
    data = {"of": "policy", "policies": names, "compared": compared, "questions": list(_by_question(predictions))}
    return page(title, "\n".join(part for part in parts if part), scripts=("viewer.js",), data=data)


def _policies(rows: Iterable[Row]) -> str:
    body = []
    baselines_began = False
    for name, row, is_baseline in rows:
        first = is_baseline and not baselines_began
        baselines_began = baselines_began or is_baseline
        comparable = row.get("comparable", True)
        classes = " ".join(
            filter(None, ["" if comparable else "bad", "baseline" if is_baseline else "", "first" if first else ""])
        )
        seconds = row.get("seconds")
        p95 = seconds.get("p95") if isinstance(seconds, Mapping) else None
        errors = row.get("errors", 0)
        body.append(
            f'<tr class="{classes}"><th scope="row">{escape(label(name))}</th>'
            f'<td class="bar">{_bar(row)}</td><td class="figure"><b>{percent(row.get("accuracy"))}</b>'
            f"<small>{interval(row.get('ci95'))}</small></td>"
            + "".join(
                f"<td>{percent(row.get(key))}</td>" for key in ("answer_rate", "source_recall", "source_precision")
            )
            + f"<td>{number(row.get('token_f1'), 2)}</td><td>{number(row.get('turns'), 1)}</td>"
            f"<td>{number(seconds_of(dict(row)), 2)}<small>{number(p95, 2) if p95 is not None else ''}</small></td>"
            f'<td class="{"bad" if errors else "quiet"}">{escape(errors)}</td></tr>'
        )
    heads = ("answered", "source recall", "source precision", "token F1", "turns")
    return (
        '<section><h2>Accuracy</h2><div class="scroll"><table class="policies"><thead><tr><th scope="col">policy</th>'
        '<th scope="col" class="bar"><span class="scale"><i>0%</i><i>50%</i><i>100%</i></span></th>'
        '<th scope="col">correct<small>95% interval</small></th>'
        + "".join(f'<th scope="col">{head}</th>' for head in heads)
        + '<th scope="col">seconds<small>95th centile</small></th><th scope="col">errors</th></tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
        '<p class="note">The thin line is the 95% interval (Wilson). Runs that ended in an error are in no other column; '
        "with more than 2% of them (red row) a policy is not compared. "
        "Source recall: gold mails that were cited. Source precision: cited mails that are gold. Seconds: the median of a "
        "question while many are asked at once. Base: the untouched model; warm start: after the demonstrations; start: the "
        "checkpoint that the run continued from; trained: "
        "after reinforcement learning; search and quote: one search, and the sentence of its first hit that fits best; oracle: "
        "knows the gold mails; do nothing: what silence is worth.</p></section>"
    )


def _bar(row: Mapping[str, Any]) -> str:
    if row.get("accuracy") is None:
        return ""
    accuracy = _share(row.get("accuracy"))
    low, high = (_share(bound) for bound in row.get("ci95") or (accuracy, accuracy))
    return (
        '<svg viewBox="0 0 200 22" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" x="0" y="4" width="200" height="14"/>'
        '<line class="half" x1="100" x2="100" y1="2" y2="20"/>'
        f'<rect class="value" x="0" y="4" width="{200 * accuracy:.1f}" height="14"/>'
        f'<line class="interval" x1="{200 * low:.1f}" x2="{200 * high:.1f}" y1="11" y2="11"/>'
        f'<line class="interval" x1="{200 * low:.1f}" x2="{200 * low:.1f}" y1="7" y2="15"/>'
        f'<line class="interval" x1="{200 * high:.1f}" x2="{200 * high:.1f}" y1="7" y2="15"/></svg>'
    )


def _paired(tests: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for name, test in tests.items():
        a, _, b = name.partition("_vs_")
        p = test.get("p_value", 1.0)
        chance = "p &lt; 0.0001" if p < 0.0001 else f"p = {p:.4f}"
        lines.append(
            f"<li><b>{escape(label(a))}</b> against <b>{escape(label(b))}</b> on {escape(test.get('n', 0))} shared "
            f"questions: {escape(test.get('a_only', 0))} only the first got right, {escape(test.get('b_only', 0))} only "
            f'the second; <span class="{"good" if p < 0.05 else "quiet"}">{chance}</span> (exact McNemar test)</li>'
        )
    return f"<section><h2>Paired comparison</h2><ul>{''.join(lines)}</ul></section>" if lines else ""


def _gain(summary: Mapping[str, Any]) -> str:
    added = gain(dict(summary))
    return f"<section><h2>What reinforcement learning added</h2><p>{escape(added)}.</p></section>" if added else ""


def _promotion(promotion: Mapping[str, Any] | None) -> str:
    if not promotion:
        return ""
    state = "promoted" if promotion["promoted"] else "not promoted"
    return (
        f'<section><h2>Gate</h2><p><b class="{"good" if promotion["promoted"] else "bad"}">{state} to production</b>: '
        f"{escape(promotion['reason'])}</p></section>"
    )


def _kinds(rows: Sequence[Row]) -> str:
    kinds = sorted({kind for _, row, _ in rows for kind in row.get("by_kind", {})})
    if not kinds:
        return ""
    head = "".join(f'<th scope="col">{escape(label(name))}</th>' for name, _, _ in rows)
    body = []
    for kind in kinds:
        cells = []
        questions = 0
        for _, row, _ in rows:
            of_kind = row.get("by_kind", {}).get(kind)
            if of_kind is None or of_kind.get("accuracy") is None:
                cells.append('<td class="quiet">-</td>')
                continue
            share = _share(of_kind.get("accuracy"))
            questions = max(questions, of_kind.get("n", 0))
            cells.append(f'<td class="heat" style="--share:{share * 100:.0f}%">{share:.0%}</td>')
        body.append(
            f'<tr><th scope="row">{escape(label(kind))}</th><td class="quiet">{questions}</td>{"".join(cells)}</tr>'
        )
    return (
        '<section><h2>Accuracy by kind of fact</h2><div class="scroll"><table class="kinds"><thead><tr>'
        f'<th scope="col">kind</th><th scope="col">n</th>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        "</section>"
    )


def _by_question(predictions: Iterable[Mapping[str, Any]]) -> Iterable[dict[str, Any]]:
    questions: dict[str, dict[str, Any]] = {}
    for prediction in predictions:
        question = questions.setdefault(
            str(prediction["scenario_id"]),
            {
                "id": prediction["scenario_id"],
                "kind": prediction.get("kind", "unknown"),
                "question": prediction.get("question", ""),
                "reference": prediction.get("reference", ""),
                "inbox": " · ".join(filter(None, (prediction.get("inbox_address"), prediction.get("query_date")))),
                "gold": list(prediction.get("gold_ids", ())),
                "runs": {},
            },
        )
        question["runs"][str(prediction["policy"])] = {field: prediction.get(field) for field in _FIELDS}
    return questions.values()


def label(name: str) -> str:
    """A name as people write it: "warm_start" is "warm start"."""
    return str(name).replace("_", " ")


def _share(value: float | None) -> float:
    return min(1.0, max(0.0, value or 0.0))
