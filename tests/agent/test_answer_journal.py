"""The journal of an evaluation: what is kept, what is asked again, and what a killed run leaves behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from training.errors import BadInput


def prediction(answer: str | None, *, policy: str = "trained", error: str | None = None) -> Prediction:
    return Prediction(
        policy=policy, scenario_id="test-0", question="Who?", reference="Dana", answer=answer, sample=2, error=error
    )


@given(st.text())
def test_any_answer_comes_back_as_it_was(tmp_path_factory: pytest.TempPathFactory, answer: str) -> None:
    path = tmp_path_factory.mktemp("journal") / "evaluations" / "one.jsonl"
    kept = prediction(answer)
    AnswerJournal(path).add(kept)
    again = AnswerJournal(path)
    assert again.answers == 1 and again.find("trained", 2, "test-0") == kept
    assert again.find("trained", 0, "test-0") is None and again.find("base", 2, "test-0") is None


def test_half_of_a_surrogate_pair_is_kept_as_a_question_mark(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    journal = AnswerJournal(path)
    journal.add(prediction("half \ud83d of a pair, and a whole 🌍"))
    journal.add(prediction("Dana", policy="base"))
    again = AnswerJournal(path)
    kept = again.find("trained", 2, "test-0")
    assert again.answers == 2 and kept is not None and kept.answer == "half ? of a pair, and a whole 🌍"


def test_answers_that_ended_in_an_error_are_asked_again(tmp_path: Path) -> None:
    AnswerJournal(tmp_path / "one.jsonl").add(prediction(None, error="TimeoutError"))
    assert AnswerJournal(tmp_path / "one.jsonl").answers == 0


def test_a_line_cut_off_by_a_kill_costs_that_answer_only(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    journal = AnswerJournal(path)
    for policy in ("base", "trained"):
        journal.add(prediction("Dana", policy=policy))
    path.write_bytes(path.read_bytes()[:-20])
    again = AnswerJournal(path)
    assert again.find("base", 2, "test-0") and not again.find("trained", 2, "test-0")
    again.add(prediction("Dana", policy="trained"))
    assert AnswerJournal(path).answers == 2


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "evaluations").write_text("a file")
    with pytest.raises(BadInput, match=r"cannot keep answers in .*one\.jsonl"):
        AnswerJournal(tmp_path / "evaluations" / "one.jsonl")
