"""What warns, what keeps a version out of production, and what ends a run: the levels of docs/training.md."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest
from art.metrics_taxonomy import TRAIN_GRADIENT_STEPS_KEY

from steps.training.outputs import alerts_about, nothing_learnt
from tests.training.toy_run import CountingBackend, RecordedProgress, ToyTask, run_with, settings, train
from training.errors import BadInput
from training.record.history import HISTORY_FILE, read_history
from training.task import SUSPECT, Policy


def test_a_warning_of_the_health_monitor_ends_nothing_and_blocks_nothing(tmp_path: Path) -> None:
    class Slow(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            await asyncio.sleep(0.02)
            return await super().rollout(policy, scenario)

    rules = settings(max_steps=2, health_seconds=0.01, health={"disk_bytes": 10**18})
    run = train(tmp_path, rules, Slow())
    assert any("GB are free on the disk" in warning for row in run.history for warning in row.warnings)
    assert run.stopped == "max_steps=2 reached" and run.checkpoint is not None and not alerts_about(run, 0)


def test_an_alert_does_not_end_the_run_and_goes_with_its_checkpoint(tmp_path: Path) -> None:
    class Padding(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.metrics[f"{SUSPECT}padding"] = True
            return trajectory

    run = train(tmp_path, settings(max_steps=2), Padding())
    assert run.stopped == "max_steps=2 reached" and run.checkpoint is not None
    assert alerts_about(run, 0) == {"padding"}


@pytest.mark.parametrize(("where", "rate"), [("warm start", "warm_start_learning_rate"), ("step 1", "learning_rate")])
def test_a_loss_that_is_not_finite_ends_the_run_and_its_weights_are_not_kept(
    where: str, rate: str, tmp_path: Path
) -> None:
    class Diverging(CountingBackend):
        of: dict[str, float] = {where: float("nan")}

        async def train(self, *arguments: Any, **named: Any) -> SimpleNamespace:
            await super().train(*arguments, **named)
            return SimpleNamespace(metrics={"loss/train": self.of.get("step 1", 0.1)})

        async def _train_sft(self, *arguments: Any) -> Any:
            async for _ in super()._train_sft(*arguments):
                yield {"loss/train": self.of.get("warm start", 1.0)}

    with pytest.raises(BadInput, match=rf"^{where}: loss/train is nan, .* are not kept; lower {rate}, "):
        run_with(Diverging, tmp_path, settings(max_steps=1), ToyTask())
    [history] = tmp_path.rglob(HISTORY_FILE) if where == "step 1" else [None]
    finished = read_history(history) if history else []
    assert [row.step for row in finished] == ([0] if where == "step 1" else [])
    Diverging.of = {}
    again, _ = run_with(Diverging, tmp_path, settings(max_steps=1), ToyTask())
    assert [row.step for row in again.history] == [0, 1] and again.history[: len(finished)] == finished


def test_a_run_without_spread_in_any_group_has_no_checkpoint(tmp_path: Path) -> None:
    class Alike(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.reward = -1.0
            return trajectory

    recorded = RecordedProgress()
    run, backend = run_with(CountingBackend, tmp_path, settings(max_steps=3, demonstrations=0), Alike(), recorded)
    assert (
        run.checkpoint is None
        and backend.model.step() == 0
        and [row.groups_trained for row in run.history] == [0, 0, 0]
    )
    assert nothing_learnt(run).startswith("nothing was learnt in 3 steps")


def test_a_step_that_the_backend_skips_is_not_counted_as_trained(tmp_path: Path) -> None:
    class Skipping(CountingBackend):
        async def train(self, *arguments: Any, **named: Any) -> SimpleNamespace:
            await super().train(*arguments, **named)
            return SimpleNamespace(metrics={TRAIN_GRADIENT_STEPS_KEY: float(self.model.step() > 2)})

    run, _ = run_with(Skipping, tmp_path, settings(max_steps=2), ToyTask())
    assert [(row.groups_trained > 0, row.rollouts_trained > 0) for row in run.history[1:]] == [
        (False, False),
        (True, True),
    ]
