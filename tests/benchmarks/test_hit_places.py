"""The place of the right mail among the hits, and the parts of accuracy."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from agent.metrics import Prediction
from benchmarks.hit_places import main, read_predictions

OWNER, ASKED = "ann.lee@example.com", "When is the Heron review?"
BODIES = {
    1: "The Heron review was moved by Dana Wolf.",
    2: "The review of Heron takes place on Tuesday at 3 pm, in Room 4B.",
    3: "Lunch.",
}
MAIL = {"from": "bob@example.com", "to": [OWNER], "cc": [], "bcc": [], "date": datetime(2001, 1, 2, tzinfo=UTC)}


@pytest.fixture
def folders(tmp_path: Path) -> list[str]:
    """Folders of mails and of questions; the mail of the first question is hit 1, that of the second hit 2."""
    mails = [{**MAIL, "message_id": f"<{n}@x>", "subject": f"Note {n}", "body": body} for n, body in BODIES.items()]
    asked = {"how_realistic": 1.0, "inbox_address": OWNER, "query_date": "2001-02-01"}
    questions = [
        {
            **asked,
            "id": "q1",
            "question": "Where is the Tuesday review?",
            "answer": "Room 4B",
            "message_ids": ["<2@x>"],
        },
        {**asked, "id": "q2", "question": ASKED, "answer": "Tuesday at 3 pm", "message_ids": ["<2@x>"]},
        {**asked, "id": "q3", "question": ASKED, "answer": "Dana Wolf", "message_ids": ["<1@x>"]},
    ]
    for name, rows in (("mails", mails), ("questions", questions)):
        (tmp_path / name).mkdir()
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name / "train.parquet")
    return [str(tmp_path / "mails"), str(tmp_path / "questions"), "--held-out-fraction", "0.999"]


def measured(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(sys, "argv", ["hit_places", *arguments])
    assert main() == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_places_and_passages_of_the_typed_question(
    folders: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = measured(folders, monkeypatch, capsys)["retrieval"]
    assert found["all"]["questions"] == 3 and sum(row["questions"] for row in found.values()) == 6
    assert set(found) <= {"1", "2", "all"} and {"1", "2"} <= set(found)
    assert found["all"]["with_facts"] == 3 and found["all"]["in_passage"] == found["all"]["in_read"] == 1.0
    assert found["1"]["all_in_first"] == 1.0 and found["2"]["all_in_first"] == 0.0
    short = measured([*folders, "--passage-chars", "0", "--read-chars", "100"], monkeypatch, capsys)["retrieval"]
    assert short["all"]["in_passage"] < 1.0 == short["all"]["in_read"], "eight words do not say everything"


def test_accuracy_is_the_right_mail_times_the_right_answer_given_it(
    folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"inbox_address": OWNER, "query_date": "2001-02-01", "question": ASKED, "gold_ids": ("<2@x>",)}
    answers = [("3 pm on Tuesday", 2, True), ("Tuesday", 2, False), ("Monday", 1, False), ("Tuesday at 3 pm", 1, True)]
    predictions = [
        Prediction(
            policy="trained",
            scenario_id=f"p{number}",
            reference="Tuesday at 3 pm",
            answer=answer,
            source_ids=(f"<{cited}@x>",),
            correct=correct,
            **known,
        )
        for number, (answer, cited, correct) in enumerate(answers)
    ]
    predictions.append(predictions[0].model_copy(update={"sample": 1}))
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(prediction.model_dump_json() + "\n" for prediction in predictions))
    [(policy, rows)] = measured([*folders, "--predictions", str(file)], monkeypatch, capsys)["policies"].items()
    assert policy == "trained" and list(rows)[-1] == "all" and len(rows) == 2
    expected = {"questions": 4, "right_mail": 0.5, "correct_given_it": 0.5, "correct": 0.5, "facts": 0.625}
    assert rows["all"] == expected
    as_list = tmp_path / "answers.json"
    as_list.write_text(json.dumps([json.loads(line) for line in file.read_text().splitlines()]))
    assert measured([*folders, "--predictions", str(as_list)], monkeypatch, capsys)["policies"]["trained"] == rows


def test_a_line_separator_in_an_answer_ends_no_line(tmp_path: Path) -> None:
    known = {"inbox_address": OWNER, "question": ASKED, "reference": "Tuesday"}
    given = Prediction(policy="trained", scenario_id="p1", answer="on\u2028Tuesday\x85at 3", **known)
    (tmp_path / "answers.jsonl").write_text(f"{given.model_dump_json()}\n", encoding="utf-8")
    assert read_predictions(tmp_path / "answers.jsonl") == [given]
    head = '{"class": "agent.metrics.Prediction", "count": 1}'
    (tmp_path / "values.jsonl").write_text(f"{head}\n{given.model_dump_json()}\n", encoding="utf-8")
    assert read_predictions(tmp_path / "values.jsonl") == [given], "as it is in the artifact store"


@pytest.mark.parametrize("content", [None, "", "no json", "[]", '{"policy": 1}'])
def test_bad_predictions_are_one_line(
    content: str | None,
    folders: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "answers.jsonl"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr(sys, "argv", ["hit_places", *folders, "--predictions", str(file)])
    assert main() == 2
    told = capsys.readouterr()
    assert told.err.startswith("error: ") and told.err.count("\n") == 1 and not told.out
