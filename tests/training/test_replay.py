"""Groups of earlier steps are learnt from again, as they were recorded, before and after a kill."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest
import torch
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from tests.training.backends.torch.tiny_models import save_tiny_model
from tests.training.toy_run import CountingBackend, CountingModel, Killed, ToyTask, run_with, settings
from training.backends.torch import TorchBackend
from training.batch import describe_batch
from training.replay import ReplayBuffer
from training.task import Policy

TOOL = {
    "type": "function",
    "function": {"name": "guess", "description": "", "parameters": {"type": "object", "properties": {}}},
}


class Labelled(ToyTask):
    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        """Rewards tell which question and which policy a rollout is of."""
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = scenario + self.number_in_group(policy, scenario) / 10
        return trajectory


class Keeping(CountingBackend):
    def __init__(self, model: CountingModel) -> None:
        super().__init__(model)
        self.trained: list[list[int]] = []
        """Of each update, the questions of its groups."""

    async def train(self, model: Any, groups: Any, **named: Any) -> SimpleNamespace:
        self.trained.append([int(group.trajectories[0].reward) for group in groups])
        return await super().train(model, groups, **named)


@pytest.mark.parametrize("steps", [1, 2])
def test_an_update_is_given_the_groups_of_the_last_steps_too(steps: int, tmp_path: Path) -> None:
    run, plain = run_with(Keeping, tmp_path / "plain", settings(max_steps=4), Labelled())
    replayed, backend = run_with(Keeping, tmp_path / "replay", settings(max_steps=4, replay_steps=steps), Labelled())
    fresh = plain.trained
    for step, trained in enumerate(backend.trained):
        earlier = [question for of_step in fresh[max(0, step - steps) : step] for question in of_step]
        assert trained == fresh[step] + earlier
    assert [row.rollouts_replayed for row in replayed.history[1:]] == [12 * min(step, steps) for step in range(4)]
    assert [row.reward for row in replayed.history] == [row.reward for row in run.history], (
        "figures are of the fresh ones"
    )


def test_a_resumed_run_replays_the_same_groups_as_an_uninterrupted_one(tmp_path: Path) -> None:
    rules = settings(max_steps=4, replay_steps=2)
    _, whole = run_with(Keeping, tmp_path / "whole", rules, Labelled())
    for kill, done in ((14, 1), (30, 2), (45, 3)):
        with pytest.raises(Killed):
            run_with(Keeping, tmp_path / str(kill), rules, Labelled(die=lambda _, number, at=kill: number == at))
        _, again = run_with(Keeping, tmp_path / str(kill), rules, Labelled())
        assert again.trained == whole.trained[done:]


class Settled(Labelled):
    """From the checkpoint of step 2 on, no question has spread, so all later steps share that checkpoint."""

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        if policy.model == "toy@3":
            trajectory.reward = float(scenario)
        return trajectory


def test_a_run_set_back_over_steps_without_an_update_replays_the_same_groups(tmp_path: Path) -> None:
    rules = settings(max_steps=6, replay_steps=1)
    run, whole = run_with(Keeping, tmp_path, rules, Settled())
    assert [row.checkpoint_step for row in run.history] == [1, 2, 3, 3, 3, 3, 3]
    (CountingModel(tmp_path).checkpoints / "0003").rmdir()
    _, again = run_with(Keeping, tmp_path, rules, Settled())
    assert again.trained == whole.trained[1:]


def sampled_group(rewards: list[float], *, named: bool = True) -> art.TrajectoryGroup:
    """Rollouts of one reply of five tokens each, with ids of their own."""

    def reply(number: int) -> Choice:
        ids = [20 + (7 * number + position) % 40 for position in range(5)]
        tokens = [
            {
                "token": f"token_id:{id}" if named else "x",
                "bytes": [120],
                "logprob": -0.1 * (position + 1),
                "top_logprobs": [],
            }
            for position, id in enumerate(ids)
        ]
        message = ChatCompletionMessage(role="assistant", content="xxxxx")
        return Choice(
            index=0, finish_reason="stop", message=message, logprobs=ChoiceLogprobs.model_validate({"content": tokens})
        )

    opening = {"role": "user", "content": "1 to 3"}
    return art.TrajectoryGroup(
        [
            art.Trajectory(
                messages_and_choices=[opening, reply(number)],
                tools=[TOOL],
                reward=reward,
                metadata={"scenario_id": "7"},
            )
            for number, reward in enumerate(rewards)
        ]
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), "llama")


def packed(base: Path, groups: list[art.TrajectoryGroup], scale: bool = True) -> dict[str, torch.Tensor]:
    backend = TorchBackend(path=str(base / "art"))
    random.seed(0)
    return backend._get_packed_tensors(new_model(base), groups, 0.0, False, scale, False, None, 1024)  # type: ignore[return-value]


def new_model(base: Path) -> art.TrainableModel:
    return art.TrainableModel(name="toy", project="tests", base_model=str(base), base_path=str(base / "art"))


def test_replayed_groups_are_packed_as_they_were_sampled(base: Path, tmp_path: Path) -> None:
    groups = [sampled_group([0.0, 1.0, 0.5]), sampled_group([1.0, 0.0])]
    buffer = ReplayBuffer(tmp_path, 1)
    buffer.remember(3, groups, resumable=2)
    before, after = packed(base, groups), packed(base, ReplayBuffer(tmp_path, 1).recall(4))
    for name in ("tokens", "assistant_mask", "logprobs", "advantages", "weights"):
        assert torch.equal(before[name].nan_to_num(9.0), after[name].nan_to_num(9.0)), name
    assert int(before["assistant_mask"].sum()) == 20 and buffer.recall(3) == [] and buffer.recall(5) == []


def test_the_spread_of_a_group_or_of_the_batch_scales_the_advantages(base: Path) -> None:
    """By group a narrow and a wide group pull alike; by batch the wide one pulls as much more as its rewards differ more."""
    groups = [sampled_group([0.0, 1.0]), sampled_group([0.0, 0.1])]

    def pulls(scale: bool, factor: float = 1.0) -> list[float]:
        scaled = [sampled_group([factor * t.reward for t in group.trajectories]) for group in groups]
        tensors = packed(base, scaled, scale)
        sizes = tensors["advantages"][tensors["assistant_mask"]].abs()
        assert sizes.mean() == pytest.approx(1.0, abs=1e-4), "ART's packing makes the mean magnitude of a batch 1"
        return sorted({round(float(size), 3) for size in sizes})

    assert pulls(True) == [1.0]
    assert pulls(False) == pytest.approx([2 / 11, 20 / 11], abs=1e-3)
    assert pulls(False, factor=5.0) == pulls(False), "so no division is the same as one by the deviation of the batch"


def test_one_line_describes_the_batch_before_the_first_update(base: Path) -> None:
    backend, model = TorchBackend(path=str(base / "art")), new_model(base)
    state = random.getstate()
    line = describe_batch(backend, model, [sampled_group([0.0, 1.0, 0.5, 0.5])], scale=True, balance=0.0)
    assert random.getstate() == state
    # The two rollouts in the middle have no advantage, and ART leaves them out.
    assert line.startswith("learning from 10 tokens, ")
    better = describe_batch(backend, model, [sampled_group([0.0, 1.0, 0.5, 0.5])], scale=True, balance=1.0)
    assert better.startswith("learning from 5 tokens, "), "those of the rollout below the mean change nothing"
    assert (
        "log-probabilities recorded for 100%, 0 tokens retokenised; rewards 0.00 to 1.00, standard deviation 0.35"
        in line
    )
    unnamed = describe_batch(backend, model, [sampled_group([0.0, 1.0], named=False)], scale=True, balance=0.0)
    assert ", 0 tokens retokenised" not in unnamed
    assert describe_batch(object(), model, [sampled_group([0.0, 1.0])], scale=True, balance=0.0).startswith(
        "learning from 10 sampled tokens"
    )
