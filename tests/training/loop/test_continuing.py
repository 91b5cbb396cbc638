"""Runs that start from an adapter which exists already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training import toy_run
from tests.training.toy_run import CountingBackend, Killed, RecordedProgress, ToyTask, run_with, settings
from training.errors import BadInput
from training.guard.plan import plan_run
from training.loop.trainer import TrainingRun

WEIGHTS = b"an adapter's weights"


@pytest.fixture(autouse=True)
def skilled_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(toy_run.SKILL, 0, 0.5)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(WEIGHTS)
    return folder


def train(
    folder: Path, adapter: Path, task: ToyTask, recorded: RecordedProgress | None = None, **changes: Any
) -> TrainingRun:
    return toy_run.train(folder, settings(continue_from="r1", **changes), task, recorded, adapter)


def test_the_first_rollouts_are_those_of_the_start_and_nothing_is_demonstrated(tmp_path: Path, adapter: Path) -> None:
    task = ToyTask()
    run = train(tmp_path / "run", adapter, task, max_steps=2)
    assert [row.phase for row in run.history] == ["continued", "grpo", "grpo"]
    assert task.asked[0][0] == "toy@0" and task.demonstrated == []
    assert run.warm_start is not None and (run.warm_start / "adapter_model.safetensors").read_bytes() == WEIGHTS
    assert run.history[0].checkpoint_digest is not None


def test_the_start_is_validated_and_is_the_result_if_no_step_improves(
    tmp_path: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(toy_run.SKILL, 0, 1.0)
    run = train(tmp_path / "run", adapter, ToyTask(), max_steps=3, validate_every=1)
    assert run.checkpoint_of == 0 and run.checkpoint is not None
    assert (run.checkpoint / "adapter_model.safetensors").read_bytes() == WEIGHTS


def test_a_killed_run_goes_on_and_does_not_start_again(tmp_path: Path, adapter: Path) -> None:
    whole = train(tmp_path / "whole", adapter, ToyTask(), validate_every=2)
    for number in (3, 30):
        folder = tmp_path / str(number)
        with pytest.raises(Killed):
            train(folder, adapter, ToyTask(die=lambda policy, count, at=number: count == at), validate_every=2)
        run = train(folder, adapter, ToyTask(), validate_every=2)
        assert [row.reward for row in run.history] == [row.reward for row in whole.history]
        assert run.checkpoint_of == whole.checkpoint_of


def test_invalid_starts_are_refused_and_the_plan_has_no_warm_start(tmp_path: Path, adapter: Path) -> None:
    with pytest.raises(BadInput, match="max_steps=0 with continue_from: nothing would be trained"):
        train(tmp_path / "run", adapter, ToyTask(), max_steps=0)
    with pytest.raises(BadInput, match="backend=serverless begins with the base model"):
        train(tmp_path / "run", adapter, ToyTask(), backend="serverless")
    planned = plan_run(settings(continue_from="r1", validate_every=3), max_turns=1, max_tokens=1, pace=None)
    assert (planned.demonstrations, planned.validation_rollouts) == (0, 30)


def test_a_warm_start_that_continues_counts_the_time_before_it_was_killed(tmp_path: Path) -> None:
    class Continuing(CountingBackend):
        async def _train_sft(self, *arguments: Any) -> Any:
            yield {"loss/train": 3.0}
            yield {"loss/train": 2.0, "time/earlier_s": 1000.0}
            async for metrics in super()._train_sft(*arguments):
                yield metrics

    recorded = RecordedProgress()
    run, _ = run_with(Continuing, tmp_path / "run", settings(max_steps=1), ToyTask(), recorded)
    assert 1000 < run.history[0].seconds < 1100 and run.history[0].loss == 1.0
    name = "warm start on 5 demonstrations"
    assert recorded.stages[:2] == [[name, 3, 2], [f"rest of the {name}", 1, 1]], (
        "the pace is that of the batches of this process"
    )
