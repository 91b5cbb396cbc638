"""The page of a learn loop."""

from __future__ import annotations

import re
from typing import Any

from reports import graph_picture as picture
from reports.graph_picture import graph_picture
from reports.learn_loop import learn_loop_html, notes_on

HOSTILE = "<script>alert(1)</script>"
NODE = {"id": "f1", "type": "feature", "name": HOSTILE, "text": HOSTILE, "source": "site"}
EMAIL = {
    "scenario": "train-1",
    "subject": HOSTILE,
    "body": HOSTILE,
    "citations": ["f1"],
    "expected": 0.05,
    "outcome": "finished",
}
NO_EMAIL = {**EMAIL, "body": None, "outcome": "max_turns"}
ROW = {"reply_rate": 0.034, "finished": 0.75, "finished_reply_rate": 0.045, "sends": 2600}
ESTIMATE = {
    "logged": 0.02,
    "truth": 0.061,
    "ips": 0.052,
    "snips": 0.058,
    "doubly_robust": 0.059,
    "effective_sample_size": 15.08,
    "choices": 33,
}
EVALUATION = {
    "prospects": 18,
    "expected": True,
    "rows": {
        "iteration 0": ROW,
        "policy and scores": {**ROW, "reply_rate": 0.085, "ratio": 2.5, "ratio_interval": [2.1, 2.9], "p": 0.0001},
    },
    "drift": {"advantage": 0.62, "top_half": 1.0},
    "drift_in_deviations": 1.9,
    "rank_correlation": {"advantage": 0.74, "top_half": 0.83},
    "interests": {"f1": 1.25, "f2": -0.5},
    "by_scores": ESTIMATE,
}


def shown(evaluation: dict[str, Any], simulated: bool = True) -> str:
    return learn_loop_html(
        "run",
        iterations=[
            {"iteration": 0, "emails": 0, "reward_mean": None},
            {"iteration": 1, "emails": 24, "reward_mean": 0.4, "expected_reply_rate": 0.034, "reply_rate": 0.03},
        ],
        evaluation=evaluation,
        nodes=[{**NODE, "id": "f2", "text": "worse"}, NODE, {**NODE, "id": "p1", "type": "product"}],
        edges=[{"source": "p1", "relation": "has", "target": "f1"}],
        scores={
            "before": {"f1": 1.0, "f2": 1.0, "p1": 1.0},
            "after": {"f1": 1.62, "f2": 0.8, "p1": 1.0},
            "top_half": {"f1": 1.99, "f2": 0.81, "p1": 0.81},
        },
        emails={
            "before": 0,
            "after": 1,
            "baseline": [NO_EMAIL],
            "final": [EMAIL],
            "held_out_before": [{**EMAIL, "scenario": f"test-{number}"} for number in range(6)],
            "held_out_after": [{**EMAIL, "scenario": f"test-{number}"} for number in range(6)],
        },
        prospects={"train-1": "Ana Ruiz, head of operations"},
        simulated=simulated,
    )


def test_the_page_shows_rates_scores_and_emails_and_escapes_them() -> None:
    page = shown(EVALUATION)
    assert HOSTILE not in page
    for words in (
        "Feedback is simulated",
        "1 iteration, 24 e-mails to learn from",
        "3.4% → 8.5%",
        "2.10 to 2.90",
        "no e-mail (max_turns)",
        "5.0% replies expected",
        "Ana Ruiz, head of operations",
        "2 more prospects",
        "+1.25",
    ):
        assert words in page, words
    facts = re.search(r"What gets replies.*?</table>", page, re.DOTALL)
    assert facts is not None
    assert re.findall(r"<td>(\d\.\d\d)</td><td>(\d\.\d\d)</td>", facts.group()) == [("1.62", "1.99"), ("0.80", "0.81")]
    assert "rates" in notes_on(EVALUATION)[0]


def test_recorded_feedback_has_neither_probabilities_nor_interests() -> None:
    known = {key: value for key, value in EVALUATION.items() if key not in ("rank_correlation", "interests")}
    recorded = {**known, "expected": False, "by_scores": None}
    page = shown(recorded, simulated=False)
    assert "Feedback is recorded" in page and "hidden interest" not in page and "Off-policy" not in page
    assert notes_on(recorded) == [
        "Largest distance of a fact's score from 1: 0.62 (1.9 posterior deviations); top-half rule 1.00."
    ]


def test_the_notes_name_every_estimate_its_truth_and_its_effective_sample_size() -> None:
    sends, ranks, drift, estimates = notes_on(EVALUATION)
    assert "2,600, 2,600" in sends
    assert "0.74; top-half rule 0.83" in ranks
    for figure in ("33 held-out e-mails", "2.00%", "IPS 5.20%", "SNIPS 5.80%", "robust 5.90%", "6.10%", "size 15.1"):
        assert figure in estimates, figure


def test_of_many_facts_the_picture_has_those_that_moved_most() -> None:
    nodes = [{**NODE, "id": f"f{number}"} for number in range(picture.MOST_FACTS + 5)]
    before = {node["id"]: 1.0 for node in nodes}
    after = {node["id"]: 1.0 + 0.01 * number for number, node in enumerate(nodes)}
    drawn = graph_picture(nodes, [{"source": "f0", "relation": "part_of", "target": "f64"}], before, after)
    assert drawn["left_out"] == 5 and drawn["edges"] == []
    assert [node["id"] for node in drawn["nodes"]] == [f"f{number}" for number in range(picture.MOST_FACTS + 4, 4, -1)]
    places = [(node["x"], node["y"]) for node in drawn["nodes"]]
    assert len(set(places)) == len(places) and max(y for _, y in places) < drawn["height"]
