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
from training.checkpoint import ADAPTER_CONFIG, ADAPTER_WEIGHTS
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


@pytest.mark.parametrize(
    ("before", "seconds"), [(600.0, (690.0, 610.0, 610.0)), (None, (None, None, None)), ("nothing", (90.0, 10.0, 10.0))]
)
def test_the_checkpoints_of_a_run_include_the_training_that_it_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: Any, seconds: tuple[float | None, ...]
) -> None:
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        (tmp_path / name).write_text(name)
    fits = {"require_base": lambda files: None, "require_shape": lambda rank, layers: None, "path": tmp_path}
    manifest = SimpleNamespace(alerts=("reward_jump", "length_drift"), seconds=before)
    files = SimpleNamespace(id="tiny", checksum="of the base", path=tmp_path)
    monkeypatch.setattr(training_run, "base_model_files", lambda *_, **__: files)
    monkeypatch.setattr(training_run, "require_ready", lambda *_, **__: None)
    earlier = SimpleNamespace(checkpoint=SimpleNamespace(**fits, manifest=manifest))
    monkeypatch.setattr(training_run, "find_checkpoint", lambda _: earlier)
    base = {"source": "a folder", "checksum": "of the base", "content": "of all files"}
    start = None if before == "nothing" else "an id"
    begun = training_run.Begun(TrainingConfig(), "r1", base, start, tmp_path)
    rows = [
        StepRecord(step=step, phase="grpo", checkpoint_step=step, seconds=seconds)
        for step, seconds in enumerate((10.0, 30.0, 50.0, 70.0))
    ]
    folders = {"checkpoint": tmp_path, "warm_start": tmp_path, "folder": tmp_path}
    run = TrainingRun(history=rows, checkpoint_of=2, resumed_from=None, stopped="max_steps", **folders)
    experiment = begun.experiment(code="c", data={}, seeds={})
    trained, first = (checkpoint.manifest for checkpoint in begun.checkpoints_of(run, experiment))
    assert (trained.seconds, trained.start_seconds, first.seconds) == seconds
    inherited = () if start is None else ("length_drift", "reward_jump")
    assert (trained.alerts, first.alerts, first.step) == (inherited, inherited, 0)


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
