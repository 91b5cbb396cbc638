"""Evaluation report: accuracy per policy and kind, and every transcript."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reports.page import page, render
from reports.tables import accuracy_over_minutes, gain, interval, number, percent, seconds_of
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
    """Return the page.

    `summary` is the closing table, `predictions` one row per question and policy, both as plain values.
    """
    rows: list[Row] = [(name, row, False) for name, row in summary.get("policies", {}).items()]
    rows += [(name, row, True) for name, row in summary.get("baselines", {}).items()]
    body = render(
        "evaluation.html.jinja",
        title=title,
        subtitle=subtitle,
        n=summary.get("n", 0),
        policies=_policies(rows),
        gain=gain(dict(summary)),
        over_minutes=accuracy_over_minutes(dict(summary)),
        paired=[_paired(name, test) for name, test in summary.get("paired", {}).items()],
        promotion=summary.get("promotion"),
        kinds=_kinds(rows),
        questions=questions_section("Questions", "policy", "every kind"),
    )
    names = [name for name, _, _ in rows]
    names += sorted({str(p["policy"]) for p in predictions} - set(names))
    learned = [name for name, _, is_baseline in rows if not is_baseline]
    compared = [name for name in learned if name != "base"] if len(learned) > 2 else learned
    data = {"of": "policy", "policies": names, "compared": compared, "questions": list(_by_question(predictions))}
    return page(title, body, scripts=("viewer.js",), data=data)


def _policies(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the rows of the table, formatted."""
    policies = []
    baselines_began = False
    for name, row, is_baseline in rows:
        first = is_baseline and not baselines_began
        baselines_began = baselines_began or is_baseline
        style = {"bad": not row.get("comparable", True), "baseline": is_baseline, "first": first}
        seconds = row.get("seconds")
        p95 = seconds.get("p95") if isinstance(seconds, Mapping) else None
        shares = [percent(row.get(key)) for key in ("answer_rate", "source_recall", "source_precision")]
        policies.append(
            {
                "name": label(name),
                "style": " ".join(word for word, applies in style.items() if applies),
                "bar": _bar(row),
                "accuracy": percent(row.get("accuracy")),
                "interval": interval(row.get("ci95")),
                "by_meaning": None if row.get("by_meaning") is None else percent(row["by_meaning"]),
                "figures": [*shares, number(row.get("token_f1"), 2), number(row.get("turns"), 1)],
                "seconds": number(seconds_of(dict(row)), 2),
                "p95": number(p95, 2) if p95 is not None else "",
                "errors": row.get("errors", 0),
            }
        )
    return policies


def _bar(row: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the accuracy and its interval on a scale from 0 to 200."""
    if row.get("accuracy") is None:
        return None
    accuracy = _share(row.get("accuracy"))
    low, high = (_share(bound) for bound in row.get("ci95") or (accuracy, accuracy))
    return {"value": f"{200 * accuracy:.1f}", "low": f"{200 * low:.1f}", "high": f"{200 * high:.1f}"}


def _paired(name: str, test: Mapping[str, Any]) -> dict[str, Any]:
    first, _, second = name.partition("_vs_")
    p = test.get("p_value", 1.0)
    return {
        "first": label(first),
        "second": label(second),
        "n": test.get("n", 0),
        "first_only": test.get("a_only", 0),
        "second_only": test.get("b_only", 0),
        "significant": p < 0.05,
        "chance": "p < 0.0001" if p < 0.0001 else f"p = {p:.4f}",
    }


def _kinds(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return each kind with a share of correct answers per row, `None` where there is none."""
    kinds = sorted({kind for _, row, _ in rows for kind in row.get("by_kind", {})})
    shown = []
    for kind in kinds:
        found = [row.get("by_kind", {}).get(kind) or {} for _, row, _ in rows]
        known = [of_kind for of_kind in found if of_kind.get("accuracy") is not None]
        questions = max((of_kind.get("n", 0) for of_kind in known), default=0)
        accuracies = [of_kind.get("accuracy") for of_kind in found]
        shares = [None if accuracy is None else f"{_share(accuracy):.0%}" for accuracy in accuracies]
        shown.append({"name": label(kind), "n": questions, "shares": shares})
    return shown


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
    """Return a name for people: "warm start" for "warm_start"."""
    return str(name).replace("_", " ")


def _share(value: float | None) -> float:
    return min(1.0, max(0.0, value or 0.0))
