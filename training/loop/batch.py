"""Describe the batch of an update in one line, to show whether its tokens are those that were sampled."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

import art
from openai.types.chat.chat_completion import Choice

_ID = "token_id:"
"""Prefix of a token's name in a log-probability when the server returns token ids."""


def describe_batch(
    backend: Any, model: art.TrainableModel, groups: Sequence[art.TrajectoryGroup], *, scale: bool, balance: float
) -> str:
    """Describe tokens, mask, recorded log-probabilities, retokenised tokens and reward spread of `groups`.

    `scale` and `balance` are the `scale_rewards` and `advantage_balance` of the update. Tokens without an advantage, such
    as those of rollouts below the mean at a balance of 1, do not count, because the update ignores them. A retokenised
    token is trained on although it was not sampled; there must be none. Only local backends pack batches on this machine;
    for others the sampled tokens are counted.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    rewards = [trajectory.reward for trajectory in trajectories]
    spread = statistics.fmean(statistics.pstdev(t.reward for t in group.trajectories) for group in groups)
    shown = f"rewards {min(rewards):.2f} to {max(rewards):.2f}, standard deviation {spread:.2f} within a question"
    sampled = Counter(token.token for trajectory in trajectories for token in _sampled_tokens(trajectory))
    total = sum(sampled.values())
    if not hasattr(backend, "_get_packed_tensors"):
        return f"learning from {total:,} sampled tokens with log-probabilities; {shown}"
    state = random.getstate()  # ART shuffles while packing; this description must not change the run
    packed = backend._get_packed_tensors(
        model,
        list(groups),
        advantage_balance=balance,
        allow_training_without_logprobs=False,
        scale_rewards=scale,
        plot_tensors=False,
        packed_sequence_length=None,
        logprob_calculation_chunk_size=1024,
    )
    random.setstate(state)
    if packed is None:
        return f"nothing to learn from: none of the {total:,} sampled tokens can be trained; {shown}"
    mask, ids = packed["assistant_mask"] & (packed["advantages"] != 0), packed["tokens"]
    trained, there = int(mask.sum()), int((packed["group_ids"] != -1).sum())
    recorded = int((mask & ~packed["logprobs"].isnan()).sum())
    known = Counter({int(name.removeprefix(_ID)): count for name, count in sampled.items() if name.startswith(_ID)})
    retokenised = sum((Counter(ids[mask].tolist()) - known).values())
    return (
        f"learning from {trained:,} tokens, {trained / there:.0%} of {there:,}; log-probabilities recorded for "
        f"{recorded / trained:.0%}, {retokenised} tokens retokenised; {shown}"
    )


def _sampled_tokens(trajectory: art.Trajectory) -> list[Any]:
    histories = [trajectory.messages_and_choices, *(h.messages_and_choices for h in trajectory.additional_histories)]
    choices = [turn for turns in histories for turn in turns if isinstance(turn, Choice) and turn.logprobs]
    return [token for choice in choices for token in choice.logprobs.content or []]
