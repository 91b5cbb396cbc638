"""Never cached: the gate's decision, and answers that ended in errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agent.metrics import Prediction
from steps import caching
from steps.evaluation.compute_metrics import compute_metrics


def test_the_gate_decides_anew_every_time() -> None:
    assert compute_metrics.configuration.enable_cache is False, "else it says promoted and sets no stage"


def test_answers_with_errors_are_asked_again_by_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    expired: list[Any] = []
    client = SimpleNamespace(update_step_run=lambda step, cache_expires_at: expired.append(step))
    monkeypatch.setattr(caching, "Client", lambda: client)
    monkeypatch.setattr(caching, "get_step_context", lambda: SimpleNamespace(step_run=SimpleNamespace(id="this step")))
    answered = Prediction(policy="trained", scenario_id="1", question="When?", reference="14:30", correct=True)
    caching.keep_errors_out_of_cache([answered])
    assert expired == []
    caching.keep_errors_out_of_cache([answered, answered.model_copy(update={"error": "JudgeError", "correct": None})])
    assert expired == ["this step"]
