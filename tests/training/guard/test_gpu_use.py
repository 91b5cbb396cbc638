"""GPU hours and their price, in the plan and in every row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.toy_run import ToyTask, settings, train
from training.guard import gpu_use
from training.guard.plan import Pace, plan_run
from training.settings import TrainerSettings

PACE = Pace(seconds_per_rollout=10, seconds_per_demonstration=None, tokens_per_rollout=1, source="a test")


def test_the_plan_prices_the_gpus_that_the_backend_occupies() -> None:
    rules = settings(backend="local", gpu_price=3.0, demonstrations=0, max_steps=6)
    planned = plan_run(rules, max_turns=1, max_tokens=1, pace=PACE)
    assert planned.gpu_hours == pytest.approx(6 * 3 * 4 * 10 / 3600) and planned.gpu_cost == pytest.approx(0.6)
    two = plan_run(rules.model_copy(update={"max_steps_off_policy": 1}), max_turns=1, max_tokens=1, pace=PACE)
    assert two.gpu_hours == pytest.approx(0.4)
    assert plan_run(rules.model_copy(update={"gpu_price": None}), max_turns=1, max_tokens=1, pace=PACE).gpu_cost is None
    elsewhere = plan_run(rules.model_copy(update={"backend": "serverless"}), max_turns=1, max_tokens=1, pace=PACE)
    assert elsewhere.gpu_hours is None


def test_every_row_has_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def occupied(settings: TrainerSettings) -> int:
        return 1

    run = train(tmp_path / "cpu", settings(max_steps=1), ToyTask())
    assert all(row.gpu_hours is None and row.gpu_cost is None for row in run.history)
    monkeypatch.setattr(gpu_use, "gpus_occupied", occupied)
    run = train(tmp_path / "gpu", settings(max_steps=1, gpu_price=2.0), ToyTask())
    for row in run.history:
        assert row.gpu_hours == row.seconds / 3600 and row.gpu_cost == 2 * row.gpu_hours
