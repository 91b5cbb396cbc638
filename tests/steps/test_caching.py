"""Never cached: the gate's decision, and answers that ended in errors."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from steps.evaluation import journal
from steps.evaluation.compute_metrics import compute_metrics


def test_the_gate_decides_anew_every_time() -> None:
    assert compute_metrics.configuration.enable_cache is False, "else it says promoted and sets no stage"


def test_answers_with_errors_are_asked_again_by_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expired, finished = list[Any](), list[Any]()
    client = SimpleNamespace(update_step_run=lambda step, cache_expires_at: expired.append(step))
    context = SimpleNamespace(
        step_run=SimpleNamespace(id="this step"), add_output_metadata=lambda noted, output_name: finished.append(noted)
    )
    monkeypatch.setattr(journal, "Client", lambda: client)
    monkeypatch.setattr(journal, "get_step_context", lambda: context)
    kept = AnswerJournal(tmp_path / "one.jsonl")
    answered = Prediction(policy="trained", scenario_id="1", question="When?", reference="14:30", correct=True)
    failed = answered.model_copy(update={"error": "JudgeError", "correct": None})
    journal.finish_journal(kept, [answered], output="predictions")
    assert expired == [] and finished == [{"journal": "one.jsonl"}]
    journal.finish_journal(kept, [answered, failed], output="predictions")
    assert expired == ["this step"] and len(finished) == 1
