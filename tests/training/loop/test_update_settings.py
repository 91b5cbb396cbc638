"""Every setting of the update changes the adapter that a real model of a tiny size ends with."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import art
import pytest
import torch
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from safetensors.torch import load_file

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends import open_backend, update_arguments
from training.loop.updates import grpo_learning_rate
from training.settings import TrainerSettings

pytestmark = pytest.mark.service

TORCH = {"threads": 1, "lora_plus_ratio": 1.0}
BASE = {
    "learning_rate": 1e-3,
    "learning_rate_schedule": "constant",
    "warm_up_steps": 1,
    "advantage_balance": 0.0,
    "scale_rewards": "group",
    "turn_credit": 0.0,
    "max_steps_off_policy": 1,
    "lora_rank": 4,
    "seed": 0,
    "torch": TORCH,
}
COSINE, PPO = {"learning_rate_schedule": "cosine"}, {"policy_loss": "ppo"}
OTHER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"learning_rate": 2e-3}),
    ({}, {"warm_up_steps": 8}),
    ({}, COSINE),
    (COSINE, {"groups_per_step": 12}),
    ({}, {"scale_rewards": "batch"}),
    ({}, PPO),
    (PPO, {"clip_low": 0.9}),
    (PPO, {"clip_high": 9.0}),
    ({}, {"clip_low": 0.2}),
    ({}, {"clip_high": 0.2}),
    ({}, {"kl_penalty": 0.5}),
    ({}, {"advantage_balance": 1.0}),
    ({}, {"advantage_balance": -0.5}),
    ({}, {"turn_credit": 0.5}),
    ({}, {"lora_rank": 2}),
    ({}, {"lora_layers": 2}),
    ({}, {"seed": 1}),
    ({}, {"torch": {**TORCH, "lora_plus_ratio": 4.0}}),
]
"""Settings in addition to `BASE`, and the one that changes."""


def reply(first: int, logprob: float) -> Choice:
    tokens = [
        {"token": f"token_id:{first + number}", "bytes": [120], "logprob": logprob, "top_logprobs": []}
        for number in range(4)
    ]
    return Choice(
        index=0,
        finish_reason="stop",
        message=ChatCompletionMessage(role="assistant", content="xxxx"),
        logprobs=ChoiceLogprobs.model_validate({"content": tokens}),
    )


def rollout(number: int, found: str, reward: float) -> art.Trajectory:
    """Recorded probabilities of its first reply are above the policy's and those of its second below: ratios of all sizes."""
    turns: list[Any] = [
        {"role": "user", "content": "who?"},
        reply(20 + 9 * number, -4.0),
        {"role": "tool", "tool_call_id": "1", "content": found},
        reply(24 + 9 * number, -8.0),
    ]
    return art.Trajectory(messages_and_choices=turns, reward=reward, metadata={"scenario_id": "7"})


def groups() -> list[art.TrajectoryGroup]:
    """Two groups of a different spread; in the first, two rollouts find the same mail."""
    return [
        art.TrajectoryGroup([rollout(0, "mail 1", 1.0), rollout(1, "mail 1", 0.2), rollout(2, "mail 2", 0.0)]),
        art.TrajectoryGroup([rollout(3, "mail 3", 0.6), rollout(4, "mail 4", 0.5), rollout(5, "mail 3", 0.3)]),
    ]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")


def adapter(tiny: Path, folder: Path, changes: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The adapter after two updates. A KL penalty has no effect on the first, which begins at the base."""
    settings = TrainerSettings.model_validate({**BASE, **changes})

    async def run() -> str:
        random.seed(0)
        backend = open_backend(settings, folder)
        model = art.TrainableModel(name="toy", project="tests", base_model=str(tiny), base_path=str(folder))
        await model.register(backend)
        for step in (2, 3):
            rate = grpo_learning_rate(settings, step, len(groups()))
            result = await backend.train(model, groups(), learning_rate=rate, **update_arguments(settings))
        await backend.close()
        return str(result.checkpoint_path)

    return load_file(Path(asyncio.run(run())) / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def plain(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return adapter(tiny, tmp_path_factory.mktemp("plain"), {})


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_equal_settings_make_an_equal_adapter(tiny: Path, plain: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert equal(adapter(tiny, tmp_path, {}), plain)


@pytest.mark.parametrize(("given", "changes"), OTHER, ids=str)
def test_another_value_makes_another_adapter(
    given: dict[str, Any], changes: dict[str, Any], tiny: Path, plain: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    before = adapter(tiny, tmp_path / "before", given) if given else plain
    assert not equal(adapter(tiny, tmp_path / "after", {**given, **changes}), before)
