"""Advantages of single turns, relative to other rollouts of the group in the same state (GiGPO, arXiv 2505.10978).

All rollouts of a question share the state before the first turn, and rollouts with the same observation share the state
after it. Comparing returns within a state blames a good reply in a failing rollout less than a reply from which no
rollout recovered. The only cost is arithmetic on rewards.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

import art
from openai.types.chat.chat_completion import Choice

_DISCOUNT = 0.95
"""Discount of the reward per turn before the last, as in the paper."""


def turn_advantages(trajectories: Sequence[art.Trajectory], *, scale: bool) -> list[list[float]]:
    """Return an advantage per sampled turn of each trajectory of a group.

    The state of a turn is the last message before it, and its return the discounted reward. The advantage is the return
    minus the mean over the group's turns in that state, divided by their standard deviation if `scale`. It is 0 in a
    state that occurs once.
    """
    returns: defaultdict[str, list[float]] = defaultdict(list)
    visits: list[list[tuple[str, float]]] = []
    for trajectory in trajectories:
        states = _states(trajectory)
        visited = [
            (state, trajectory.reward * _DISCOUNT ** (len(states) - 1 - turn)) for turn, state in enumerate(states)
        ]
        visits.append(visited)
        for state, value in visited:
            returns[state].append(value)

    def advantage(state: str, value: float) -> float:
        difference = value - statistics.fmean(returns[state])
        return difference / (statistics.pstdev(returns[state]) + 1e-6) if scale else difference

    return [[advantage(state, value) for state, value in visited] for visited in visits]


def credited_tokens(mask: Sequence[int], advantage: float, turns: Sequence[float], weight: float) -> list[float]:
    """Return the advantage per token: the trajectory's, plus `weight` times that of the turn which the token was sampled in.

    A turn is a run of ones in `mask`. Raises ValueError when there are not as many runs as turns.
    """
    turn, credited = -1, [math.nan] * len(mask)
    for position, sampled in enumerate(mask):
        if not sampled:
            continue
        if not position or not mask[position - 1]:
            turn += 1
        if turn < len(turns):
            credited[position] = advantage + weight * turns[turn]
    if turn + 1 != len(turns):
        raise ValueError(f"{turn + 1} runs of sampled tokens and {len(turns)} turns")
    return [advantage if math.isnan(value) else value for value in credited]


def _states(trajectory: art.Trajectory) -> list[str]:
    """Return the state before each sampled turn."""
    states, last = [], ""
    for turn in trajectory.messages_and_choices:
        if not isinstance(turn, Choice):
            last = str(turn.get("content"))
        elif turn.logprobs is not None and turn.logprobs.content:
            states.append(last)
    return states
