"""Token sequences that share prefixes, laid out so that every shared token is computed once.

Rollouts of a group share their prompt, and often their first calls and the tool's replies. Demonstrations share system
prompt and tools. A compressed trie over the ids finds all shared prefixes, across groups too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A sequence `ids` and the positions (ascending, from 1 on) of the tokens to predict."""

    ids: np.ndarray
    targets: np.ndarray

    @property
    def inputs(self) -> np.ndarray:
        """Tokens that the model reads: all before the last target."""
        return self.ids[: self.targets[-1]]


@dataclass(frozen=True)
class TokenTree:
    """A row of tokens in segments, each after its parent.

    `ids` and `positions` have one entry per unique token; segment i has `lengths[i]` of them and attends to the
    segments of `paths[i]` (root first, i last). `rows[j]` is the entry whose output predicts `labels[j]`; j counts the
    targets of all samples in order.
    """

    ids: np.ndarray
    positions: np.ndarray
    lengths: list[int]
    paths: list[list[int]]
    rows: np.ndarray
    labels: np.ndarray


def build_tree(samples: Sequence[Sample]) -> TokenTree:
    """Return the compressed trie of the samples' inputs."""
    inputs = [sample.inputs for sample in samples]
    entries = [np.empty(len(ids), np.int64) for ids in inputs]
    ids: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    lengths: list[int] = []
    paths: list[list[int]] = []
    total = 0
    # (samples that agree on their first `start` tokens, start, path of segments up to there)
    open_nodes: list[tuple[list[int], int, list[int]]] = [(list(range(len(samples))), 0, [])]
    while open_nodes:
        members, start, path = open_nodes.pop()
        branches: dict[int, list[int]] = {}
        for member in members:
            if len(inputs[member]) > start:
                branches.setdefault(int(inputs[member][start]), []).append(member)
        for branch in branches.values():
            first = inputs[branch[0]]
            end = min(common_prefix(first, inputs[member]) for member in branch)
            segment = len(lengths)
            ids.append(first[start:end])
            positions.append(np.arange(start, end))
            lengths.append(end - start)
            paths.append([*path, segment])
            for member in branch:
                entries[member][start:end] = np.arange(total, total + end - start)
            total += end - start
            open_nodes.append((branch, end, paths[-1]))
    return TokenTree(
        np.concatenate(ids),
        np.concatenate(positions),
        lengths,
        paths,
        np.concatenate([own[s.targets - 1] for own, s in zip(entries, samples, strict=True)]),
        np.concatenate([s.ids[s.targets] for s in samples]),
    )


def micro_batches(samples: Sequence[Sample], budget: int) -> list[list[int]]:
    """Return indices of samples in batches of at most `budget` unique tokens; a longer sample is a batch of its own.

    Samples with long common prefixes end up together.
    """
    order = sorted(range(len(samples)), key=lambda i: samples[i].inputs.tolist())
    batches: list[list[int]] = []
    used = 0
    for i in order:
        ids = samples[i].inputs
        # In sorted order no earlier sample shares more than the previous one.
        shared = common_prefix(samples[batches[-1][-1]].inputs, ids) if batches else 0
        if not batches or used + len(ids) - shared > budget:
            batches.append([])
            used, shared = 0, 0
        batches[-1].append(i)
        used += len(ids) - shared
    return batches


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Return the length of the common prefix."""
    n = min(len(a), len(b))
    differing = np.flatnonzero(a[:n] != b[:n])
    return int(differing[0]) if len(differing) else n
