"""Turns have an advantage of their own among rollouts in the same state, and the update carries it token by token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import art
import pytest
import torch
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from tests.training.backends.torch.tiny_models import save_tiny_model
from training.backends import open_backend, require_backend, require_effect
from training.backends.torch import TorchBackend, TorchSettings
from training.backends.torch.adapter_trainer import unpack
from training.errors import BadInput
from training.scoring.turn_credit import credited_tokens, turn_advantages
from training.settings import TrainerSettings

pytestmark = pytest.mark.service


def reply(first: int, count: int) -> Choice:
    tokens = [
        {"token": f"token_id:{20 + first + number}", "bytes": [120], "logprob": -0.1, "top_logprobs": []}
        for number in range(count)
    ]
    message = ChatCompletionMessage(role="assistant", content="x" * count)
    return Choice(
        index=0, finish_reason="stop", message=message, logprobs=ChoiceLogprobs.model_validate({"content": tokens})
    )


def rollout(number: int, seen: list[str], reward: float) -> art.Trajectory:
    """Asked "who?", then told the texts in `seen`, with a reply of 2, 3, ... tokens to each."""
    turns: list[Any] = [{"role": "user", "content": "who?"}]
    for turn, text in enumerate([*seen, None]):
        turns.append(reply(10 * number + 3 * turn, turn + 2))
        if text is not None:
            turns.append({"role": "tool", "tool_call_id": "call", "content": text})
    return art.Trajectory(messages_and_choices=turns, reward=reward)


GROUP = [rollout(0, ["mail 1"], 1.0), rollout(1, ["mail 1"], 0.0), rollout(2, ["mail 2"], 0.5), rollout(3, [], 0.2)]


def test_a_turn_is_compared_with_turns_in_the_same_state() -> None:
    plain = turn_advantages(GROUP, scale=False)
    first = [0.95, 0.0, 0.95 * 0.5, 0.2]  # discounted by the turn that follows
    mean = sum(first) / 4
    assert [turns[0] for turns in plain] == pytest.approx([value - mean for value in first])
    assert [turns[1:] for turns in plain] == [[0.5], [-0.5], [0.0], []], "nobody else saw mail 2"
    scaled = turn_advantages(GROUP, scale=True)
    assert [turns[1] for turns in scaled[:3]] == pytest.approx([1.0, -1.0, 0.0], abs=1e-5)


def test_tokens_have_the_credit_of_their_turn() -> None:
    assert credited_tokens([0, 1, 1, 0, 1], 0.5, [1.0, -2.0], 0.25) == [0.5, 0.75, 0.75, 0.5, 0.0]
    with pytest.raises(ValueError, match="2 runs of sampled tokens and 1 turns"):
        credited_tokens([0, 1, 1, 0, 1], 0.5, [1.0], 0.25)


@pytest.mark.parametrize("scale", [True, False])
def test_the_update_carries_it_token_by_token(scale: bool, tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "base", "llama")
    model = art.TrainableModel(name="toy", project="tests", base_model=str(base), base_path=str(tmp_path / "art"))

    def by_tokens(credit: float, seed: int) -> dict[int, torch.Tensor]:
        """First sampled id of a rollout -> advantages of its sampled tokens."""
        random.seed(seed)
        backend = TorchBackend(path=str(tmp_path / "art"), settings=TorchSettings(turn_credit=credit))
        packed = backend._get_packed_tensors(model, [art.TrajectoryGroup(GROUP)], 0.0, False, scale, False, None, 1024)
        assert int(packed["input_pos"].max()) < 200
        sizes = (packed["advantages"].abs() * packed["weights"])[packed["assistant_mask"]]
        assert sizes.mean() == pytest.approx(1.0, abs=1e-5)
        return {int(s.ids[s.targets[0]]): t.advantages for s, t in zip(*unpack(packed), strict=True)}

    plain, credited = by_tokens(0.0, 0), by_tokens(0.5, 1)
    assert credited.keys() == plain.keys() == {20, 30, 40, 50}
    assert all(len(set(advantages.tolist())) == 1 for advantages in plain.values())
    rewards = torch.tensor([t.reward for t in GROUP])
    of_rollouts = rewards - rewards.mean()
    if scale:
        of_rollouts /= rewards.std(correction=0) + 1e-6
    expected = [
        torch.tensor(
            [float(whole) + 0.5 * turn for turn, size in zip(turns, (2, 3), strict=False) for _ in range(size)]
        )
        for whole, turns in zip(of_rollouts, turn_advantages(GROUP, scale=scale), strict=True)
    ]
    factor = credited[20][0] / expected[0][0]
    for number, values in enumerate(expected):
        torch.testing.assert_close(credited[20 + 10 * number], values * factor, atol=1e-4, rtol=1e-4)
    again = by_tokens(0.5, 7)
    assert all(torch.equal(again[first], credited[first]) for first in again), "whatever the order of packing"


def test_a_rollout_with_the_mean_reward_is_learnt_from_by_its_turns(tmp_path: Path) -> None:
    """Its whole advantage is 0, so ART would leave it out; its last turn is worse than another one in the same state."""
    group = [rollout(0, ["mail 1"], 1.0), rollout(1, ["mail 2"], 0.0), rollout(2, ["mail 1"], 0.5)]
    base = save_tiny_model(tmp_path / "base", "llama")
    model = art.TrainableModel(name="toy", project="tests", base_model=str(base), base_path=str(tmp_path / "art"))
    sampled = {}
    for credit in (0.0, 0.5):
        backend = TorchBackend(path=str(tmp_path / "art"), settings=TorchSettings(turn_credit=credit))
        packed = backend._get_packed_tensors(model, [art.TrajectoryGroup(group)], 0.0, False, False, False, None, 1024)
        by_first = {int(s.ids[s.targets[0]]): t.advantages for s, t in zip(*unpack(packed), strict=True)}
        sampled[credit] = by_first
    assert sampled[0.0].keys() == {20, 30} and sampled[0.5].keys() == {20, 30, 40}
    assert sampled[0.5][40][-1] < 0 < sampled[0.5][20][-1]


def test_the_setting_reaches_the_torch_backend_and_no_other(tmp_path: Path) -> None:
    backend = open_backend(TrainerSettings(turn_credit=0.5), tmp_path)
    assert backend._settings.turn_credit == 0.5  # type: ignore[attr-defined]
    assert open_backend(TrainerSettings(), tmp_path)._settings.turn_credit == 1.0  # type: ignore[attr-defined]
    require_effect(TrainerSettings(backend="serverless"))
    with pytest.raises(BadInput, match=r"^turn_credit=0.5: backend=serverless would ignore it; set it to null$"):
        require_backend(TrainerSettings(backend="serverless", turn_credit=0.5))


@pytest.mark.parametrize("credit", [0.0, 1.0])
def test_nothing_is_learnt_when_the_only_good_rollout_is_too_long(credit: float, tmp_path: Path) -> None:
    """The mean over no advantages would be 0, and every advantage 0 / 0."""
    group = [rollout(0, ["mail " * 200], 1.0), *(rollout(number, [f"mail {number}"], 0.0) for number in (1, 2, 3))]
    base = save_tiny_model(tmp_path / "base", "llama")
    model = art.TrainableModel(name="toy", project="tests", base_model=str(base), base_path=str(tmp_path / "art"))
    model._internal_config = {"init_args": {"max_seq_length": 128}}
    backend = TorchBackend(path=str(tmp_path / "art"), settings=TorchSettings(turn_credit=credit))

    def packed(balance: float) -> Any:
        return backend._get_packed_tensors(
            model, [art.TrajectoryGroup(group)], balance, False, False, False, None, 1024
        )

    assert packed(1.0) is None
    both = packed(0.0)
    assert both["advantages"][both["assistant_mask"]].isfinite().all()
