"""Runs of the trainer on a toy task and a backend that only counts: validation, the best checkpoint, early stops, and kills."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest
from art.local import LocalBackend
from art.serverless.backend import ServerlessBackend

from tests.training.toy_run import (
    CountingBackend,
    CountingModel,
    Killed,
    RecordedProgress,
    ToyTask,
    run_with,
    settings,
    train,
)
from training.backends import require_backend, update_arguments
from training.errors import BadInput
from training.loop.trainer import Trainer, TrainingRun
from training.task import Policy


def test_the_warm_start_keeps_the_order_of_the_task(tmp_path: Path) -> None:
    model = CountingModel(tmp_path)
    backend = CountingBackend(model)
    rules = settings(max_steps=0)
    task = ToyTask()
    asyncio.run(Trainer(task, model, backend, rules, max_tokens=8).run())
    assert [trajectory.metadata["of"] for trajectory in backend.learnt_from] == [str(n) for n in task.demonstrated]


@pytest.mark.parametrize(("demonstrations", "apart"), [(22, True), (23, False)])
def test_questions_of_the_steps_are_not_demonstrated_if_there_are_enough_others(
    tmp_path: Path, demonstrations: int, apart: bool
) -> None:
    task = ToyTask()
    train(tmp_path, settings(demonstrations=demonstrations), task)
    asked = {scenario for _, _, scenario in task.asked}
    assert len(asked) == 18 and len(set(task.demonstrated)) == demonstrations
    assert asked.isdisjoint(task.demonstrated) == apart


def decisions(run: TrainingRun) -> Any:
    """All of a run that a kill must not change: everything but times."""
    timed = {"seconds", "tokens_per_second", "rollout_seconds", "update_seconds", "validation_seconds"}
    rows = [row.model_dump(exclude=timed) for row in run.history]
    return rows, run.checkpoint, run.checkpoint_of, run.stopped


def test_without_validation_nothing_is_held_out_and_the_last_checkpoint_is_returned(tmp_path: Path) -> None:
    task, recorded, rules = ToyTask(), RecordedProgress(), settings()
    run = train(tmp_path, rules, task, recorded)
    assert {temperature for _, temperature, _ in task.asked} == {rules.temperature}
    assert len(set(task.demonstrated)) == 5
    assert all(row.validation_reward is None for row in run.history)
    assert (run.checkpoint_of, run.checkpoint and run.checkpoint.name, run.stopped) == (
        6,
        "0007",
        "max_steps=6 reached",
    )
    assert recorded.reasons == []


def test_validation_is_greedy_on_questions_that_training_never_sees(tmp_path: Path) -> None:
    task, recorded = ToyTask(), RecordedProgress()
    run = train(tmp_path, settings(validate_every=2, max_steps=5), task, recorded)
    trained = {scenario for _, temperature, scenario in task.asked if temperature} | set(task.demonstrated)
    validated = [(model, scenario) for model, temperature, scenario in task.asked if temperature == 0]
    held_out = {scenario for _, scenario in validated}
    assert len(held_out) == 10 and not held_out & trained
    assert [row.step for row in run.history if row.validation_accuracy is not None] == [0, 2, 4, 5]
    assert Counter(model for model, _ in validated) == {"toy@1": 10, "toy@3": 10, "toy@5": 10, "toy@6": 10}
    assert run.history[2].validation_tokens == 100
    assert run.history[2].seconds >= (run.history[2].validation_seconds or 0.0)

    other = ToyTask()
    train(tmp_path / "other", settings(validate_every=2, max_steps=5, seed=7), other)
    assert {scenario for _, temperature, scenario in other.asked if temperature == 0} == held_out


def test_the_best_checkpoint_outlives_later_ones_and_is_returned(tmp_path: Path) -> None:
    recorded = RecordedProgress()
    run = train(tmp_path, settings(validate_every=1, max_steps=8), ToyTask(), recorded)
    accuracies = [row.validation_accuracy or 0.0 for row in run.history]
    assert accuracies.index(max(accuracies)) == 3  # checkpoint 4 comes out of step 3
    assert run.checkpoint_of == 3 and run.checkpoint is not None and run.checkpoint.name == "0004"
    assert sorted(folder.name for folder in run.checkpoint.parent.iterdir()) == ["0001", "0004", "0008", "0009"]
    assert recorded.reasons == [
        f"max_steps=8 reached; best checkpoint: step 3, validation accuracy {max(accuracies):.0%}"
    ]


@pytest.mark.parametrize(
    ("rules", "last", "reason"),
    [
        ({"validate_every": 1, "stop_plateau_steps": 2}, 5, "was never above"),
        ({"validate_every": 3, "stop_target": 0.8}, 3, "reached stop_target=0.8"),
        ({"validate_every": 1, "stop_margin": 0.3}, 1, "before the first step by stop_margin=0.3"),
        ({"validate_every": 1, "stop_margin": 0.3, "demonstrations": 0}, 2, "before the first step by stop_margin=0.3"),
        ({"stop_tokens": 300}, 3, "360 tokens sampled of stop_tokens=300"),
        ({"stop_tokens": 300, "validate_every": 5}, 2, "tokens sampled of stop_tokens=300"),
        ({"stop_seconds": 1e-9}, 0, "of stop_seconds=1e-09"),
    ],
)
def test_a_run_stops_early_and_says_why(tmp_path: Path, rules: dict[str, Any], last: int, reason: str) -> None:
    recorded = RecordedProgress()
    run = train(tmp_path, settings(**rules), ToyTask(), recorded)
    assert run.history[-1].step == last
    assert reason in run.stopped and len(recorded.reasons) == 1 and recorded.reasons[0].startswith(run.stopped)
    if "validate_every" in rules:
        assert run.history[-1].validation_accuracy is not None  # the end of a run can be its best

    again = ToyTask()
    assert decisions(train(tmp_path, settings(**rules), again)) == decisions(run)
    assert again.asked == []


@pytest.mark.parametrize(
    "rules", [{"validate_every": 2}, {"validate_every": 1, "stop_plateau_steps": 2}], ids=["best", "plateau"]
)
def test_a_killed_run_decides_as_if_nothing_had_happened(tmp_path: Path, rules: dict[str, Any]) -> None:
    whole = ToyTask()
    expected = decisions(train(tmp_path / "whole", settings(**rules), whole))
    expected = (expected[0], expected[1].relative_to(tmp_path / "whole"), *expected[2:])
    for number in range(1, len(whole.asked) + 1, 7):
        folder = tmp_path / str(number)
        with pytest.raises(Killed):
            train(folder, settings(**rules), ToyTask(die=lambda policy, count, at=number: count == at))
        found = decisions(train(folder, settings(**rules), ToyTask()))
        assert (found[0], found[1].relative_to(folder), *found[2:]) == expected, f"killed at rollout {number}"


def test_alerts_are_in_the_rows_and_survive_a_restart(tmp_path: Path) -> None:
    class Spammer(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.metrics["suspect_spam"] = "@1" not in policy.model  # from the second step on
            return trajectory

    recorded = RecordedProgress()
    run = train(tmp_path, settings(max_steps=3), Spammer(), recorded)
    assert [[alert.name for alert in row.alerts] for row in recorded.rows] == [[], [], ["spam"], ["spam"]]
    assert recorded.rows[3].alerts[0].sentence == "100% of the rollouts of steps 2 and 3"
    assert train(tmp_path, settings(max_steps=3), Spammer()).history == run.history == recorded.rows


def test_a_validation_that_lost_questions_chooses_no_checkpoint(tmp_path: Path) -> None:
    class Flaky(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            if policy.temperature == 0 and not trajectory.metrics["correct"]:
                raise TimeoutError
            return trajectory

    run = train(tmp_path, settings(validate_every=3), Flaky())
    assert all(row.validation_accuracy is row.validation_reward is None for row in run.history), (
        "only the easy ones are left"
    )
    lost = [row for row in run.history if row.validation_errors]
    assert [row.step for row in lost] == [0, 3, 6] and all(row.validation_errors < 10 for row in lost)
    assert all("is ignored" in row.warnings[-1] and "of 10 questions failed" in row.warnings[-1] for row in lost)
    assert run.checkpoint_of == 6, "the last checkpoint, as in a run without validation"


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ({"stop_margin": 0.1}, "stop_margin=0.1"),
        ({"validation_metric": "win_rate", "ruler_api_base": "http://127.0.0.1:9"}, "validation_metric=win_rate"),
    ],
)
def test_a_start_that_cannot_be_validated_ends_a_run_that_compares_with_it(
    tmp_path: Path, rules: dict[str, Any], named: str
) -> None:
    class Flaky(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            if policy.temperature == 0 and policy.model == "toy@1" and scenario % 4 == 0:
                raise TimeoutError
            return await super().rollout(policy, scenario)

    recorded = f"^validation before the first GRPO step: . of 10 questions failed, more than 2%, so {named} has nothing"
    with pytest.raises(BadInput, match=recorded):
        train(tmp_path, settings(validate_every=3, **rules), Flaky())


def test_the_settings_of_the_loss_reach_the_backend(tmp_path: Path) -> None:
    rules = settings(
        max_steps=1,
        policy_loss="ppo",
        clip_low=0.1,
        clip_high=0.3,
        kl_penalty=0.05,
        advantage_balance=0.2,
        scale_rewards="batch",
    )
    model = CountingModel(tmp_path)
    backend = CountingBackend(model)
    asyncio.run(Trainer(ToyTask(), model, backend, rules, max_tokens=8).run())
    expected = {
        "loss_fn": "ppo",
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "kl_penalty_coef": 0.05,
        "advantage_balance": 0.2,
    }
    assert backend.arguments == {**expected, "scale_rewards": False}
    known = inspect.signature(LocalBackend.train).parameters
    assert set(backend.arguments) <= set(known)
    remote = update_arguments(rules.model_copy(update={"backend": "serverless", "kl_penalty": 0.0}))
    assert remote["ppo"] is True and set(remote) <= set(inspect.signature(ServerlessBackend.train).parameters)
    with pytest.raises(BadInput, match="kl_penalty=0.05: backend=serverless would ignore it; set it to 0"):
        require_backend(rules.model_copy(update={"backend": "serverless"}))


@pytest.mark.parametrize("too_long", [2, 5])
def test_demonstrations_that_are_too_long_are_named(tmp_path: Path, too_long: int) -> None:
    class Short(CountingBackend):
        async def _train_sft(self, *arguments: Any) -> Any:
            async for metrics in super()._train_sft(*arguments):
                yield {**metrics, "data/step_num_dropped_trajectories": float(too_long)}

    rules, recorded = settings(max_steps=1), RecordedProgress()
    if too_long == 5:
        with pytest.raises(BadInput, match="^warm start: all demonstrations are longer than max_context=2048 tokens"):
            run_with(Short, tmp_path, rules, ToyTask())
        return
    run, _ = run_with(Short, tmp_path, rules, ToyTask(), recorded)
    assert (
        recorded.warnings == run.history[0].warnings and "2 of 5 demonstrations are longer than" in recorded.warnings[0]
    )


def test_weights_that_are_no_numbers_end_the_run_and_are_not_kept(tmp_path: Path) -> None:
    class Exploding(CountingBackend):
        broken = True

        async def train(self, model: Any, groups: Any, **named: Any) -> SimpleNamespace:
            await super().train(model, groups, **named)
            return SimpleNamespace(metrics={"loss/train": 0.1, "loss/grad_norm": float("nan") if self.broken else 1.0})

    with pytest.raises(BadInput, match=r"^step 1: loss/grad_norm is nan, .* lower learning_rate"):
        run_with(Exploding, tmp_path, settings(max_steps=1), ToyTask())
    Exploding.broken = False
    run, backend = run_with(Exploding, tmp_path, settings(max_steps=1), ToyTask())
    assert [row.checkpoint_step for row in run.history] == [1, 2] and backend.model.step() == 2


def test_epochs_end_a_run_before_max_steps(tmp_path: Path) -> None:
    task = ToyTask()
    run = train(tmp_path, settings(max_steps=100, groups_per_step=8, rollouts_per_group=2, epochs=1), task)
    longer = settings(max_steps=2, groups_per_step=8, rollouts_per_group=2, epochs=1)
    assert train(tmp_path / "longer", longer, ToyTask()).stopped == "max_steps=2 reached"
    assert run.stopped == "epochs=1 done in 5 steps" and len({scenario for _, _, scenario in task.asked}) == 40


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 12, 12), (0.5, 1, 11), (0.0, 0, 0)])
def test_a_share_of_the_transcripts_is_kept(tmp_path: Path, share: float, least: int, most: int) -> None:
    class Logging(CountingModel):
        kept = 0

        async def log(self, groups: Any = None, **named: Any) -> None:
            self.kept += sum(len(group.trajectories) for group in groups or ())

    model = Logging(tmp_path)
    rules = settings(max_steps=1, log_sample_rate=share)
    asyncio.run(Trainer(ToyTask(), model, CountingBackend(model), rules, max_tokens=8).run())
    assert least <= model.kept <= most


def test_a_question_that_fails_once_is_asked_again(tmp_path: Path) -> None:
    class FailsOnce(ToyTask):
        def __init__(self) -> None:
            super().__init__()
            self.failed: set[tuple[str, int]] = set()

        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            if (policy.model, scenario) not in self.failed:
                self.failed.add((policy.model, scenario))
                raise TimeoutError
            return await super().rollout(policy, scenario)

    rules = settings(validate_every=3)
    run, expected = train(tmp_path / "a", rules, FailsOnce()), train(tmp_path / "b", rules, ToyTask())
    figures = [(row.reward, row.rollout_errors, row.validation_accuracy, row.validation_errors) for row in run.history]
    assert figures == [(row.reward, 0, row.validation_accuracy, 0) for row in expected.history]
    assert not any(row.warnings for row in run.history)


def test_rollouts_that_are_too_long_to_learn_from_are_counted(tmp_path: Path) -> None:
    class Long(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            trajectory.metrics["context_tokens"] = 513 if scenario % 2 else 512
            return trajectory

    task = Long()
    run = train(tmp_path, settings(max_context=512, max_steps=2), task)
    assert sum(row.rollouts_too_long for row in run.history) == sum(scenario % 2 for _, _, scenario in task.asked) > 0
    recorded = [warning for row in run.history for warning in row.warnings]
    assert (
        all("more than max_context=512 tokens and are not trained on" in warning for warning in recorded) and recorded
    )


def test_a_validation_that_takes_most_of_the_questions_is_a_warning(tmp_path: Path) -> None:
    for questions, warnings in ((20, []), (21, ["validation holds out 21 of 40 train questions: add"])):
        recorded = RecordedProgress()
        train(
            tmp_path / str(questions), settings(validate_every=6, validation_questions=questions), ToyTask(), recorded
        )
        assert [warning[:50] for warning in recorded.warnings] == [warning[:50] for warning in warnings]


def test_a_task_without_verdicts_cannot_be_validated_by_accuracy(tmp_path: Path) -> None:
    class Unjudged(ToyTask):
        async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
            trajectory = await super().rollout(policy, scenario)
            del trajectory.metrics["correct"]
            return trajectory

    with pytest.raises(BadInput, match="use validation_metric=reward"):
        train(tmp_path / "a", settings(validate_every=2), Unjudged())
    run = train(tmp_path / "b", settings(validate_every=1, validation_metric="reward"), Unjudged())
    assert run.checkpoint_of == 3 and run.history[3].validation_accuracy is None
    with pytest.raises(BadInput, match="leaves nothing to train on.*set it lower"):
        train(tmp_path / "c", settings(validate_every=2, validation_questions=40), ToyTask())
    with pytest.raises(BadInput, match="needs validation"):
        train(tmp_path / "d", settings(stop_target=0.5), ToyTask())
