"""The cost of verdicts of a paid judge is in the rows, and limited by `stop_cost`."""

from __future__ import annotations

from pathlib import Path

import art

from tests.training.toy_run import ToyTask, settings, train
from training.task import VERDICT_COST, Policy


class PaidVerdicts(ToyTask):
    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        trajectory.metrics[VERDICT_COST] = 0.25
        return trajectory


def test_verdicts_of_a_paid_judge_cost_what_they_cost(tmp_path: Path) -> None:
    rules = settings(max_steps=6, validate_every=1, validation_questions=10, stop_cost=10)
    run = train(tmp_path, rules, PaidVerdicts())
    assert [row.judge_cost for row in run.history] == [2.5, 5.5, 5.5], "ten for validation, and twelve rollouts"
    assert run.stopped == "the judge cost 13.50 USD of stop_cost=10"
    assert train(tmp_path / "free", settings(max_steps=1), ToyTask()).history[1].judge_cost is None
