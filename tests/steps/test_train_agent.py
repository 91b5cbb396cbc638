"""Arguments that the training step passes to the trainer."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.judges.exact import ExactJudge
from agent.judges.llm import LLMJudge
from agent.reward_weights import RewardWeights
from agent.settings import DemonstrationSettings
from configs.schema import TrainingConfig
from steps.training import train_agent as module
from steps.training.outputs import alerts_about, nothing_learnt
from tests.tiny_checkpoint import tiny_checkpoint
from training.errors import BadInput
from training.history import StepRecord
from training.trainer import TrainingRun


class Handed(Exception):
    """The task that the trainer was given."""


def task_of(config: TrainingConfig, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run_training(task: Any, **_: Any) -> None:
        raise Handed(task)

    monkeypatch.setattr(module, "run_training", run_training)
    monkeypatch.setattr(module, "base_model_files", lambda *_, **__: SimpleNamespace(checksum="c" * 64, path="base"))
    monkeypatch.setattr(module, "require_ready", lambda *_, **__: None)
    monkeypatch.setattr(module, "open_console", lambda *_: nullcontext())
    monkeypatch.setattr(module, "with_wandb", lambda *_: nullcontext())
    monkeypatch.setattr(
        module, "_experiment", lambda *_: SimpleNamespace(resuming=lambda *_: SimpleNamespace(save=lambda _: None))
    )
    with pytest.raises(Handed) as handed:
        module.train_agent.entrypoint(
            config, "r1", {"source": "base", "checksum": "c" * 64, "content": "d" * 64}, None, []
        )
    return handed.value.args[0]


def test_the_weights_of_the_reward_come_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainingConfig.model_validate({"verifiable_weights": {"few_turns": 0.5}})
    assert task_of(config, monkeypatch).weights == RewardWeights(few_turns=0.5)


def test_the_demonstrated_queries_come_from_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = task_of(TrainingConfig(name_queries=0.1, reads_in_vain=0), monkeypatch).show
    assert shown == DemonstrationSettings(name_queries=0.1, reads_in_vain=0)


def test_rewards_and_validation_follow_the_configured_judge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingConfig, "require_judge", lambda self: None)
    assert isinstance(task_of(TrainingConfig(), monkeypatch).judge, ExactJudge)
    judge = task_of(TrainingConfig(judge="llm", judge_model="openai/own"), monkeypatch).judge
    assert isinstance(judge, LLMJudge) and judge.model == "openai/own"


def test_a_checkpoint_of_another_shape_is_refused_when_the_run_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule knows only then which version is in production."""
    checkpoint = tiny_checkpoint(tmp_path, seed=1)
    base = {"source": str(tmp_path / "base-1"), "checksum": checkpoint.manifest.base_model_checksum}
    files = SimpleNamespace(id=checkpoint.manifest.base_model, checksum=base["checksum"], path=Path(base["source"]))
    monkeypatch.setattr(module, "base_model_files", lambda *_, **__: files)
    monkeypatch.setattr(module, "find_checkpoint", lambda _: SimpleNamespace(checkpoint=checkpoint))
    with pytest.raises(BadInput, match="^lora_rank=16 does not fit the checkpoint to continue from, which has 2"):
        module.train_agent.entrypoint(TrainingConfig(lora_rank=16), "r1", base, None, [], start="an id")


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
