"""The training page."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from reports.training import training_html
from training.record.history import AskedQuestion, DecisionFigures, StepRecord

WARM = {
    "step": 0,
    "phase": "warm_start",
    "checkpoint_step": 1,
    "seconds": 72.0,
    "demonstrations": 96,
    "reward": None,
    "loss": 9.0,
}
ROWS = [
    {
        "step": i,
        "phase": "grpo",
        "checkpoint_step": i + 1,
        "seconds": 40.0 + i,
        "reward": 0.1 * i,
        "accuracy": i / 20,
        "done": True,
    }
    for i in range(1, 15)
]


def columns(text: str) -> list[str]:
    return re.findall(r'data-column="([^"]*)"', text)


def test_numeric_columns_become_charts_in_order_and_bookkeeping_does_not() -> None:
    text = training_html([WARM, *ROWS], "Run 1")
    assert columns(text) == ["reward", "accuracy", "seconds"]
    assert "14 steps" in text
    assert "96 demonstrations, 1 min 12 s" in text
    assert "0.10 → 1.40" in text
    assert text.count('class="smooth"') == 3


def test_missing_values_and_short_histories_are_drawn_as_far_as_they_go() -> None:
    text = training_html([{"step": 3, "loss": float("nan"), "kl": 0.5}, {"step": 4, "loss": 1.0, "kl": None}])
    assert columns(text) == ["loss", "kl"]
    assert text.count('class="dot"') == 2
    assert "No finished step yet" in training_html([])
    assert columns(training_html([WARM])) == ["seconds", "loss", "demonstrations"]


def alert(name: str, sentence: str, question: str) -> dict:
    return {
        "name": name,
        "sentence": sentence,
        "examples": [{"scenario_id": "q7", "question": question, "reward": 1.25}],
    }


def test_alerts_are_listed_once_with_their_steps_and_latest_figures() -> None:
    quiet = {**ROWS[0], "alerts": []}
    raised = [
        {**ROWS[1], "alerts": [alert("source_spam", "50% of the rollouts", "Who?")]},
        {
            **ROWS[2],
            "alerts": [alert("source_spam", "70% of the rollouts", "Where?"), alert("length_drift", "longer", "Why?")],
        },
    ]
    text = training_html([quiet, *raised])
    section = text[text.index("<h2>Alerts</h2>") : text.index('<div class="charts">')]
    assert section.count("source_spam") == 1 and "<td>2, 3</td>" in section and "<td>3</td>" in section
    assert "70% of the rollouts" in section and "50%" not in section
    assert "Where?" in section and "q7, reward 1.25" in section
    assert text.index("<h2>Alerts</h2>") < text.index("<figure")
    assert "<td>source_spam, length_drift</td>" in text  # the history's own column
    assert "None in 1 steps" in training_html([quiet])
    assert "Alerts" not in training_html(ROWS)  # a history from before there were alerts
    hostile = {**ROWS[1], "alerts": [alert("<b>", "<i>", "<script>alert(1)</script>")]}
    assert training_html([hostile]).count("<script") == 2


def test_validation_has_its_own_charts_and_empty_columns_are_left_out() -> None:
    rows = [{**row, "validation_accuracy": None, "validation_tokens": 0, "entropy": None} for row in ROWS]
    assert "validation_accuracy" not in training_html(rows)
    rows[4]["validation_accuracy"], rows[9]["validation_accuracy"] = 0.5, 0.75
    text = training_html(rows)
    assert columns(text) == ["validation_accuracy", "reward", "accuracy", "seconds"]
    assert "accuracy on held-out questions" in text and "entropy" not in text


def test_the_page_of_a_service_is_linked_where_there_can_be_one() -> None:
    address = "http://localhost:8080/"
    assert f'<a href="{address}">' in training_html(ROWS, ask_at=address)
    assert "<a href" not in training_html(ROWS)


def test_hostile_names_and_values_stay_text() -> None:
    hostile = '</script><script>alert(1)</script>"'
    text = training_html([{"step": 1, hostile: 2.0, "phase": hostile, "note": hostile}], hostile, subtitle=hostile)
    assert text.count("<script") == 2


numbers = st.floats(allow_nan=True, allow_infinity=True) | st.integers() | st.none() | st.booleans()


@given(st.lists(st.dictionaries(st.sampled_from(["reward", "loss", "kl", "seconds"]), numbers), max_size=20))
def test_any_numbers_can_be_drawn(rows: list[dict]) -> None:
    text = training_html([{"step": i, **row} for i, row in enumerate(rows)])
    for path in re.findall(r' d="([^"]*)"', text):
        assert "nan" not in path
        assert "inf" not in path


def test_the_held_out_curve_begins_with_the_warm_start_and_is_compared_with_it() -> None:
    warm = {**WARM, "validation_accuracy": 0.5}
    steps = [{**row, "validation_accuracy": 0.5 + row["step"] / 40} for row in ROWS]
    text = training_html([warm, *steps])
    assert columns(text)[0] == "validation_accuracy"
    held_out = text.partition('data-column="validation_accuracy"')[2].partition("</figure>")[0]
    assert 'data-first="0.0"' in held_out and "imitation alone" in held_out
    assert text.count("imitation alone") == 1
    assert "imitation alone" not in training_html([WARM, *steps])
    untouched = {"step": 0, "phase": "untouched", "checkpoint_step": 0, "seconds": 1.0, "validation_accuracy": 0.25}
    text = training_html([untouched, *steps])
    assert "untouched base" in text and "imitation alone" not in text
    text = training_html([{**untouched, "phase": "continued"}, *steps])
    assert ">start</text>" in text and "imitation alone" not in text


def test_a_row_of_the_trainer_is_shown_whole() -> None:
    asked = [AskedQuestion(index=7, rollouts=6, right=4), AskedQuestion(index=9, rollouts=0)]
    row = StepRecord(
        step=1, phase="grpo", checkpoint_step=2, seconds=60.0, reward=0.5, questions=asked, warnings=["one failed"]
    )
    text = training_html([WARM, row.model_dump()])
    assert "7: 4 of 6, 9: - of 0" in text and "one failed" in text


def test_decisions_have_a_chart_of_right_moves_each() -> None:
    def row(step: int, right: float) -> dict:
        asked = [AskedQuestion(index=3, decision="query", rollouts=8, right=5)]
        decisions = {"query": DecisionFigures(groups=9, with_spread=4, right=right)}
        record = StepRecord(
            step=step, phase="grpo", checkpoint_step=step, seconds=9.0, questions=asked, decisions=decisions
        )
        return record.model_dump()

    text = training_html([row(1, 0.5), row(2, 0.6), row(3, 0.75)])
    assert "right moves at query" in columns(text)
    assert "query 0.75" in text and "3 query: 5 of 8" in text
