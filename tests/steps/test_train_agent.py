"""The task that the training step hands to the trainer, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from agent.reward_weights import RewardWeights
from configs.schema import TrainingConfig
from steps.training import train_agent, training_run
from steps.training.outputs import alerts_about, nothing_learnt
from tests.tiny_checkpoint import tiny_checkpoint
from training.errors import BadInput
from training.loop.trainer import TrainingRun
from training.record.history import StepRecord


def task_of(config: TrainingConfig) -> Any:
    return train_agent.mail_task(config, None, [])  # type: ignore[arg-type]


def test_the_weights_of_the_reward_come_from_the_configuration() -> None:
    config = TrainingConfig.model_validate({"verifiable_weights": {"few_turns": 0.5}})
    assert task_of(config).weights == RewardWeights(few_turns=0.5)


def test_the_demonstrated_queries_come_from_the_configuration() -> None:
    shown = task_of(TrainingConfig(name_queries=0.1, max_wrong_reads=0)).show
    assert (shown.name_queries, shown.max_wrong_reads) == (0.1, 0)


def test_rewards_and_validation_follow_the_configured_judge() -> None:
    assert isinstance(task_of(TrainingConfig()).judge, ExactJudge)
    judge = task_of(TrainingConfig(judge="llm", judge_model="openai/own")).judge
    assert isinstance(judge, LLMJudge) and judge.model == "openai/own"


def test_a_checkpoint_of_another_shape_is_refused_when_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule knows only then which version is in production."""
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    base = {"source": str(tmp_path / "base-1"), "checksum": checkpoint.manifest.base_model_checksum}
    files = SimpleNamespace(id=checkpoint.manifest.base_model, checksum=base["checksum"], path=Path(base["source"]))
    monkeypatch.setattr(training_run, "base_model_files", lambda *_, **__: files)
    monkeypatch.setattr(training_run, "find_checkpoint", lambda _: SimpleNamespace(checkpoint=checkpoint))
    with pytest.raises(BadInput, match="^lora_rank=16 does not fit the checkpoint to continue from, which has 2"):
        train_agent.train_agent.entrypoint(TrainingConfig(lora_rank=16), "r1", base, None, [], start="an id")


def test_a_run_without_a_checkpoint_says_why() -> None:
    def run(*rows: StepRecord) -> TrainingRun:
        known = {
            "checkpoint": None,
            "checkpoint_of": 0,
            "warm_start": None,
            "resumed_from": None,
            "stopped": "stop_tokens",
        }
        return TrainingRun(history=list(rows), folder=Path(), **known)

    def row(trained: int) -> StepRecord:
        return StepRecord(step=1, phase="grpo", checkpoint_step=0, seconds=1.0, reward=-1.0, groups_trained=trained)

    assert "nothing was trained (stop_tokens)" in nothing_learnt(run())
    flat = nothing_learnt(run(row(0)))
    assert "in every group all rollouts earned the same reward (step means -1.00)" in flat and "Raise rollouts" in flat
    assert "the backend left no checkpoint" in nothing_learnt(run(row(2)))


@pytest.mark.parametrize(("ahead", "found"), [(0, {"early", "of step 5"}), (1, {"early", "of step 5", "of step 6"})])
def test_a_checkpoint_has_the_alerts_of_the_rollouts_that_it_sampled(ahead: int, found: set[str]) -> None:
    """The rollouts of step 5 are the first of the checkpoint of step 4."""
    named = {3: "early", 5: "of step 5", 6: "of step 6", 7: "late"}
    history = [
        SimpleNamespace(step=step, alerts=[SimpleNamespace(name=named[step])] if step in named else [])
        for step in range(9)
    ]
    run = TrainingRun.model_construct(history=history, checkpoint_of=4)  # type: ignore[call-arg]
    assert alerts_about(run, ahead) == found
