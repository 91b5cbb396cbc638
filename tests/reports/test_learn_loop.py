"""The page of a learn loop."""

from __future__ import annotations

from reports.learn_loop import learn_loop_html

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


def test_the_page_shows_rates_scores_and_emails_and_escapes_them() -> None:
    row = {"reply_rate": 0.034, "finished": 0.75, "finished_reply_rate": 0.045}
    gain = {"ratio": 2.5, "ratio_interval": [2.1, 2.9], "p": 0.0001}
    shown = learn_loop_html(
        "run",
        iterations=[
            {"iteration": 0, "reward_mean": None},
            {"iteration": 1, "reward_mean": 0.4, "expected_reply_rate": 0.034},
        ],
        evaluation={
            "prospects": 18,
            "expected": True,
            "rows": {"iteration 0": row, "policy and scores": {**row, **gain}},
        },
        nodes=[NODE, {**NODE, "id": "p1", "type": "product"}],
        edges=[{"source": "p1", "relation": "has", "target": "f1"}],
        scores={"before": {"f1": 1.0, "p1": 1.0}, "after": {"f1": 1.62, "p1": 1.0}},
        emails={
            "before": 0,
            "after": 1,
            "baseline": [{**EMAIL, "body": None, "outcome": "max_turns"}],
            "final": [EMAIL],
        },
        simulated=True,
    )
    assert HOSTILE not in shown
    for words in (
        "Feedback is simulated",
        "3.40%",
        "2.10 to 2.90",
        "1.62",
        "no e-mail (max_turns)",
        "expected replies 5.0%",
    ):
        assert words in shown
