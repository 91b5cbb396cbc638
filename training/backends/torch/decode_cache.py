"""Attention of all decoding sequences at once, over copies of their keys and values that lie side by side.

In the pool every sequence has a region of its own length somewhere, so attention is computed for one after the other, which
takes more of a decoding step than the layers do. Here each has a row of one block, and what all of them begin with is kept
once and attended to in one product (Juravsky et al. 2024, https://arxiv.org/abs/2402.05099).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from training.backends.torch.attention import KVPool
from training.backends.torch.token_tree import common_prefix

_FEWEST = 8
"""With fewer sequences one after the other is as fast."""
_ROUND = 128
"""The length of a row is a multiple of this: fewer blocks are made anew when a longer sequence comes."""


class PooledSequence(Protocol):
    """A sequence in the pool: `ids`, of which `computed` have keys and values, in a region of `size` from `start`. Hashable."""

    adapter_key: str
    ids: np.ndarray
    computed: int
    start: int
    size: int


class DecodeCache:
    """Rows for at most `sequences` sequences, of at most `tokens` tokens together, beside `pool`, which stays complete."""

    def __init__(self, pool: KVPool, sequences: int, tokens: int) -> None:
        self._pool = pool
        self._sequences = sequences
        self._tokens = tokens
        self.clear()

    def clear(self) -> None:
        """Forget everything; whatever is planned next is copied anew."""
        self._rows: dict[PooledSequence, int] = {}
        self._length = 0
        self._prefix_ids = np.empty(0, dtype=np.int64)
        self._adapter_key: str | None = None
        self.prefix = self.block = torch.empty(0)

    def plan(self, decoding: Sequence[PooledSequence]) -> tuple[list[int], DecodePlan] | None:
        """Which of the sequences of this step have a row, and attention for those; `None` when there are too few.

        Each has the same adapter and one token to compute, the one after its `computed`. A sequence keeps its row as long
        as no step is without it.
        """
        if len(decoding) < _FEWEST:
            self._rows = {}
            return None
        self._rows = {sequence: self._rows[sequence] for sequence in decoding if sequence in self._rows}
        fresh = [sequence for sequence in decoding if sequence not in self._rows]
        if fresh and not self._rows:
            self._share(fresh)
        shared = min((common_prefix(self._prefix_ids, s.ids[: s.computed]) for s in fresh), default=len(self._prefix_ids))
        length = max(sequence.size for sequence in decoding) - shared
        if shared < len(self._prefix_ids) or length > self._length:
            self._prefix_ids = self._prefix_ids[:shared]
            self._rows, fresh = {}, list(decoding)
            if length > self._length:
                self._allocate(length)
        free = sorted(set(range(self.block.shape[3])) - set(self._rows.values()))
        for sequence, row in zip(fresh, free, strict=False):
            self._rows[sequence] = row
            begin, end = sequence.start + shared, sequence.start + sequence.computed
            self.block[:, :, :, row, : end - begin] = self._pool.store[:, :, :, begin:end]
        members = [index for index, sequence in enumerate(decoding) if sequence in self._rows]
        rows = [self._rows[decoding[index]] for index in members]
        return members, DecodePlan(self, shared, rows, [decoding[index].computed - shared for index in members])

    def _share(self, sequences: Sequence[PooledSequence]) -> None:
        """Keep what all of these, which have the same adapter, begin with."""
        first = sequences[0]
        shared = min(common_prefix(first.ids[: first.computed], sequence.ids[: sequence.computed]) for sequence in sequences)
        if first.adapter_key != self._adapter_key or not np.array_equal(first.ids[:shared], self._prefix_ids):
            self._adapter_key, self._prefix_ids = first.adapter_key, first.ids[:shared].copy()
            self.prefix = self._pool.store[:, :, :, first.start : first.start + shared].clone()

    def _allocate(self, length: int) -> None:
        self._length = -(-length // _ROUND) * _ROUND
        layers, two, kv_heads, _, head_dim = self._pool.store.shape
        count = max(1, min(self._sequences, self._tokens // self._length))
        self.block = torch.empty(0)  # frees the old one before a new one is taken
        # Zeros: what lies behind the end of a sequence has no weight, but must be a number. On CPU memory is taken as it is written.
        self.block = self._pool.store.new_zeros(layers, two, kv_heads, count, self._length, head_dim)


class DecodePlan:
    """Attention for one forward pass of sequences with rows in a `DecodeCache`."""

    def __init__(self, cache: DecodeCache, shared: int, rows: Sequence[int], places: Sequence[int]) -> None:
        """`shared`: how many tokens of the prefix all have; `places`: where in its row the token of each sequence goes."""
        block = cache.block
        self._block = block
        self._prefix = cache.prefix[:, :, :, :shared]
        self._rows = torch.tensor(rows, device=block.device)
        self._places = torch.tensor(places, device=block.device)
        self._height, self._width = max(rows) + 1, max(places) + 1
        self._mask = torch.zeros(self._height, 1, self._width, dtype=block.dtype, device=block.device)
        hidden = torch.arange(self._width, device=block.device) > self._places[:, None]
        self._mask[self._rows] = torch.zeros_like(hidden, dtype=block.dtype).masked_fill_(hidden, float("-inf"))[:, None]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """`query` [heads, n, d], `key` and `value` [kv_heads, n, d] of the n sequences -> [n, heads, d]."""
        (keys, values), (prefix_keys, prefix_values) = self._block[layer], self._prefix[layer]
        keys[:, self._rows, self._places] = key
        values[:, self._rows, self._places] = value
        kv_heads, shared = keys.shape[0], prefix_keys.shape[1]
        repeat = query.shape[0] // kv_heads
        grouped = query.new_zeros(kv_heads, self._height, repeat, query.shape[2])
        grouped[:, self._rows] = query.unflatten(0, (kv_heads, repeat)).transpose(1, 2) * scale
        heads = range(kv_heads)
        own = torch.stack([torch.bmm(grouped[head], keys[head, : self._height, : self._width].mT) for head in heads])
        own += self._mask
        common = torch.bmm(grouped.flatten(1, 2), prefix_keys.mT).view(*grouped.shape[:3], shared)
        shares = torch.softmax(torch.cat([common, own], dim=-1), dim=-1, dtype=torch.float32).to(query.dtype)
        out = torch.bmm(shares[..., :shared].flatten(1, 2), prefix_values).view_as(grouped)
        for head in heads:
            out[head] += torch.bmm(shares[head, ..., shared:], values[head, : self._height, : self._width])
        return out[:, self._rows].transpose(0, 1).flatten(1, 2)
