"""Select the rollouts of a group to train on: the subset with the largest reward variance (PODS, arXiv 2504.13818).

Rollouts are cheap compared with the update, and rollouts of equal reward add little. As in the paper, advantages use
the mean and standard deviation of the subset: ART computes them from the group that it receives, and it receives the
subset.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import art


def max_variance_subset(rewards: Sequence[float], size: int) -> list[int]:
    """Return the positions of the `size` rewards with the largest variance, in ascending order.

    The optimum consists of the highest and the lowest rewards (theorem 1 of the paper), so only the split between them
    is searched. Ties go to the more even split.
    """
    ascending = sorted(range(len(rewards)), key=lambda position: rewards[position])
    if size >= len(rewards):
        return sorted(ascending)

    def chosen(highest: int) -> list[int]:
        lowest = size - highest
        return ascending[:lowest] + ascending[len(rewards) - highest :]

    def spread(highest: int) -> tuple[float, float]:
        # Rounded, so that the order of summation does not break ties.
        variance = statistics.pvariance(rewards[position] for position in chosen(highest))
        return round(variance, 12), -abs(highest - size / 2)

    return sorted(chosen(max(range(size + 1), key=spread)))


def downsampled(group: art.TrajectoryGroup, size: int | None, max_context: int) -> art.TrajectoryGroup:
    """Return the group with only the `size` trajectories whose rewards vary most; with all of them when `size` is `None`.

    Trajectories of more than `max_context` tokens are not chosen, because no update learns from them.
    """
    if size is None or size >= len(group.trajectories):
        return group
    fitting = [t for t in group.trajectories if t.metrics.get("context_tokens", 0) <= max_context]
    positions = max_variance_subset([trajectory.reward for trajectory in fitting], size)
    return art.TrajectoryGroup([fitting[position] for position in positions], metadata=group.metadata)
