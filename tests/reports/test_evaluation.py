"""The evaluation page, from summaries and predictions as plain values."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from reports.evaluation import evaluation_html

ROW: dict[str, Any] = {
    "n": 200,
    "errors": 0,
    "accuracy": 0.9,
    "ci95": [0.85, 0.934],
    "answer_rate": 1.0,
    "source_recall": 0.8,
    "source_precision": 0.75,
    "token_f1": 0.91,
    "turns": 3.4,
    "seconds": {"median": 1.25, "p95": 2.5},
    "by_kind": {"meeting_time": {"n": 20, "accuracy": 0.55}},
}
SUMMARY: dict[str, Any] = {
    "n": 200,
    "policies": {"base": {**ROW, "accuracy": 0.0, "ci95": [0.0, 0.02], "errors": 3}, "trained": ROW},
    "baselines": {"do_nothing": {**ROW, "by_kind": {}}},
    "paired": {"trained_vs_base": {"n": 197, "a_only": 177, "b_only": 0, "p_value": 1e-30}},
}
PREDICTION: dict[str, Any] = {
    "policy": "trained",
    "scenario_id": "q1",
    "kind": "meeting_time",
    "question": "When is the review?",
    "reference": "14:30",
    "inbox_address": "me@kestrel.example",
    "query_date": "2024-04-25",
    "answer": "2:30 pm",
    "source_ids": ["<a@kestrel.example>"],
    "gold_ids": ["<a@kestrel.example>"],
    "correct": True,
    "reason": "same",
    "turns": 3,
    "seconds": 1.5,
    "error": None,
    "outcome": "answered",
    "transcript": [{"role": "tool", "content": "Subject: review"}],
}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'&<!--"


def embedded(text: str) -> dict[str, Any]:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_every_policy_is_in_the_table_with_its_interval() -> None:
    text = evaluation_html(SUMMARY, [PREDICTION], "Mail agent")
    for expected in (
        "<h1>Mail agent</h1>",
        "200 held-out questions",
        "90.0%",
        "85.0-93.4%",
        "do nothing",
        "meeting time",
        "55%",
    ):
        assert expected in text
    assert "177 only the first got right" in text
    assert "p &lt; 0.0001" in text


def test_questions_hold_each_policys_run() -> None:
    other = {**PREDICTION, "policy": "base", "answer": None, "correct": None, "error": "TimeoutError"}
    data = embedded(evaluation_html(SUMMARY, [PREDICTION, other, {**PREDICTION, "scenario_id": "q2"}]))
    assert data["policies"] == ["base", "trained", "do_nothing"]
    assert [(question["id"], sorted(question["runs"])) for question in data["questions"]] == [
        ("q1", ["base", "trained"]),
        ("q2", ["trained"]),
    ]
    assert data["questions"][0]["inbox"] == "me@kestrel.example · 2024-04-25"  # what the service wants to be told
    assert data["questions"][0]["runs"]["base"]["error"] == "TimeoutError"
    assert data["questions"][0]["runs"]["trained"]["transcript"] == PREDICTION["transcript"]


@pytest.mark.parametrize(
    "field", ["policy", "question", "reference", "answer", "kind", "reason", "error", "inbox_address", "outcome"]
)
def test_hostile_text_stays_text(field: str) -> None:
    clean = evaluation_html(SUMMARY, [PREDICTION])
    text = evaluation_html(SUMMARY, [{**PREDICTION, field: HOSTILE}])
    assert text.count("<script") == clean.count("<script")
    assert "<img" not in text
    assert HOSTILE in json.dumps(embedded(text), ensure_ascii=False).replace('\\"', '"')


def test_hostile_mails_and_names_stay_text() -> None:
    summary = copy.deepcopy(SUMMARY)
    summary["policies"][HOSTILE] = {**ROW, "by_kind": {HOSTILE: {"n": 1, "accuracy": 1.0}}}
    summary["paired"][f"{HOSTILE}_vs_base"] = SUMMARY["paired"]["trained_vs_base"]
    mail = {
        **PREDICTION,
        "transcript": [{"role": HOSTILE, "content": f"Subject: {HOSTILE}\n\n{HOSTILE}"}],
        "source_ids": [HOSTILE],
    }
    text = evaluation_html(summary, [mail], HOSTILE, subtitle=HOSTILE)
    assert text.count("<script") == 2
    assert "<img" not in text


def test_a_summary_with_the_required_keys_alone_is_enough() -> None:
    bare = {
        "n": 2,
        "policies": {"base": {"accuracy": 0.5, "ci95": [0.1, 0.9], "answer_rate": 1, "turns": 2, "seconds": 0.5}},
    }
    assert "50.0%" in evaluation_html(bare, [])
    assert "0 held-out questions" in evaluation_html({}, [])
