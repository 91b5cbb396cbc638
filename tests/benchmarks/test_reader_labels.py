"""Verdicts of judges against the labels of a reader."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.metrics import Prediction
from benchmarks.reader_labels import LABELS, Label, checksum, main
from tests.fakes.language_model import LanguageModel, Reply

ANSWERS = {"a": ("Room 4B", True), "b": ("in the big room", True), "c": ("Room 7", False), "d": ("Room 9", False)}


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    known = {"policy": "trained", "question": "Where do we meet?", "reference": "Room 4B"}
    answers = [Prediction(scenario_id=id, answer=answer, **known) for id, (answer, _) in ANSWERS.items()]
    answers.append(Prediction(scenario_id="e", answer=None, **known))
    labels = [Label(scenario_id=id, answer=checksum(answer), right=right) for id, (answer, right) in ANSWERS.items()]
    labels[3] = labels[3].model_copy(update={"answer": checksum("what another policy said")})
    for name, rows in (("answers", answers), ("labels", labels)):
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{row.model_dump_json()}\n" for row in rows))
    return [str(tmp_path / "answers.jsonl"), "--labels", str(tmp_path / "labels.jsonl")]


def run(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["reader_labels", *arguments])
    return main()


class Accepting(LanguageModel):
    def answer(self, request: dict[str, Any]) -> Reply:
        return '{"accept": true}'


def test_judges_are_compared_on_labelled_answers_only(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Accepting() as model:
        assert run([*files, "--judge", "openai/m", "--api-base", model.url], monkeypatch) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    counted = ("answers", "right_accepted", "right_refused", "wrong_accepted", "kappa")
    assert [figures["exact"][name] for name in counted] == [3, 1, 1, 0, 0.4]
    assert [figures["openai/m"][name] for name in counted] == [3, 2, 0, 1, 0.0]


def test_labels_of_other_answers_are_one_line(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(files[2]).write_text('{"scenario_id": "z", "answer": "0", "right": true}\n')
    assert run(files, monkeypatch) == 2
    told = capsys.readouterr().err
    assert "has no label of these answers" in told and told.count("\n") == 1


def test_the_labels_of_the_project_are_one_for_each_answer() -> None:
    labels = [Label.model_validate_json(line) for line in LABELS.read_text().splitlines()]
    assert len({(label.scenario_id, label.answer) for label in labels}) == len(labels) == 199
    assert {len(label.answer) for label in labels} == {16}
