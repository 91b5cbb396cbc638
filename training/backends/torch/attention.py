"""Attention over ragged batches: many sequences in one row of tokens, without padding.

transformers calls `ragged_attention` for every layer. The `plan` in the keyword arguments decides which tokens attend
to which. For serving it is `CachedAttention`, with keys and values in a pool. For training it is `TreeAttention`, which
computes keys and values of shared prefixes once and differentiates through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

RAGGED = "ragged_plan"
_BLOCK = 128
"""Query rows per attention call. Small blocks compute less of what the causal mask hides."""
_ALIGNED = 8
"""Numbers of 16 bits to which a GPU's kernels want the rows of a mask aligned."""
_FEW = 16
"""Maximum new tokens for which a CPU computes attention as two products. The fused kernel takes up to three times as long."""
_TOGETHER = 16
"""Maximum new tokens of a sequence that attends together with others (`_SpanBatch`)."""


class AttentionPlan(Protocol):
    """How the tokens of one forward pass attend to each other."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Return [n, heads, d] for `query` [heads, n, d], `key` and `value` [kv_heads, n, d] of n new tokens."""
        ...


def ragged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    plan: AttentionPlan,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Implement transformers' attention interface for a batch of one row: [1, heads, n, d] -> [1, n, heads, d].

    Values may come in a coarser type than queries and keys, whose positions were encoded in the network's own.
    """
    return plan.attend(module.layer_idx, query[0], key[0], value[0].to(query.dtype), scaling)[None], None


AttentionInterface.register(RAGGED, ragged_attention)


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: CausalMask, scale: float
) -> torch.Tensor:
    """Attend from the last n of t positions: `query` [heads, n, d], `key`/`value` [kv_heads, t, d] -> [n, heads, d].

    Query heads that share a key head become a batch dimension over an expanded (never copied) key.
    """
    heads, n, d = query.shape
    kv_heads, total, _ = key.shape
    repeat = heads // kv_heads
    if n == 1:
        out = F.scaled_dot_product_attention(
            query.view(kv_heads, 1, repeat, d), key[:, None], value[:, None], scale=scale
        )
        return out.reshape(1, heads, d)
    if n <= _FEW and query.device.type == "cpu":
        rows = query.reshape(kv_heads, repeat * n, d)
        scores = torch.baddbmm(mask.last(n, total).repeat(repeat, 1), rows, key.transpose(1, 2), alpha=scale)
        return torch.bmm(scores.softmax(-1), value).view(heads, n, d).transpose(0, 1)
    grouped = query.unflatten(0, (kv_heads, repeat))
    keys = key[:, None].expand(-1, repeat, -1, -1)
    values = value[:, None].expand(-1, repeat, -1, -1)
    blocks = []
    for begin in range(0, n, _BLOCK):
        end = min(begin + _BLOCK, n)
        seen = total - n + end
        blocks.append(
            F.scaled_dot_product_attention(
                grouped[:, :, begin:end],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=mask.last(end - begin, seen),
                scale=scale,
            )
        )
    return torch.cat(blocks, dim=2).flatten(0, 1).transpose(0, 1)


class CausalMask:
    """Additive causal masks, all from one tensor."""

    def __init__(self, longest: int, dtype: torch.dtype, device: torch.device, *, aligned: bool | None = None) -> None:
        """Allocate a mask for at most `longest` positions. `aligned` as in `last`; `None`: on a GPU only."""
        self._longest = longest
        self._aligned = device.type == "cuda" if aligned is None else aligned
        mask = torch.full((_BLOCK, longest + _BLOCK), float("-inf"), dtype=dtype, device=device)
        self._mask = mask.triu_(longest + 1)

    def last(self, n: int, total: int) -> torch.Tensor:
        """Return the mask [n, total] of the last `n` of `total` positions; `n` is at most the size of a block.

        A GPU's kernels read memory in pieces of 16 bytes, and the rows of a view start anywhere. Aligned rows start at multiples
        of these.
        """
        mask = self._mask[:n, self._longest + n - total : self._longest + n]
        if not self._aligned:
            return mask
        whole = mask.new_empty(n, -(-total // _ALIGNED) * _ALIGNED)
        whole[:, :total] = mask
        return whole[:, :total]


class KVPool:
    """Keys and values of up to `tokens` tokens for every layer; sequences own contiguous regions of it."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.tokens = tokens
        self._empty = partial(torch.empty, layers, 2, kv_heads, tokens, head_dim, dtype=dtype, device=device)
        self.clear()

    def clear(self) -> None:
        """Forget everything. On CPU, memory is allocated only as regions are written."""
        self.store: torch.Tensor = torch.empty(0)  # frees the old tensor before the new one is allocated
        self.store = self._empty()
        self._free: list[tuple[int, int]] = [(0, self.tokens)]  # (start, size), ordered, never adjacent

    def free_tokens(self) -> int:
        return sum(size for _, size in self._free)

    def allocate(self, size: int) -> int | None:
        """Return the start of a free region of `size` tokens (first fit), or `None` when no hole is large enough."""
        for i, (start, free) in enumerate(self._free):
            if free >= size:
                if free == size:
                    del self._free[i]
                else:
                    self._free[i] = (start + size, free - size)
                return start
        return None

    def release(self, start: int, size: int) -> None:
        if size <= 0:
            return
        merged: list[tuple[int, int]] = []
        for hole in sorted([*self._free, (start, size)]):
            if merged and sum(merged[-1]) == hole[0]:
                merged[-1] = (merged[-1][0], merged[-1][1] + hole[1])
            else:
                merged.append(hole)
        self._free = merged

    def copy(self, source: int, target: int, count: int) -> None:
        self.store[:, :, :, target : target + count] = self.store[:, :, :, source : source + count]


@dataclass(frozen=True)
class Span:
    """New tokens `begin:end` of the row belong to a sequence that then has `total` tokens.

    Its first `shared` tokens are stored at `shared_start`, where other sequences may have them too, the others at `start`.
    """

    begin: int
    end: int
    start: int
    total: int
    shared: int = 0
    shared_start: int = 0

    @property
    def new(self) -> int:
        """Number of new tokens."""
        return self.end - self.begin

    @property
    def own(self) -> int:
        """Number of tokens at `start`."""
        return self.total - self.shared


class CachedAttention:
    """Serving: append the new keys and values to each sequence's region, then attend within that region."""

    def __init__(self, pool: KVPool, spans: Sequence[Span], *, together: bool | None = None) -> None:
        """`together`: sequences with few new tokens attend in one call. `None` does so on a GPU only, because a CPU loses
        more time with padding than with calls.
        """
        store = pool.store
        self._store = store
        most = _TOGETHER if (store.is_cuda if together is None else together) else 0
        short = [s for s in spans if s.new <= most]
        self._batch = _SpanBatch(short, store.dtype, store.device) if short else None
        alone = [s for s in spans if s.new > most]
        siblings = [s for s in alone if s.shared and s.new <= _FEW and store.device.type == "cpu"]
        self._siblings = [list(group) for _, group in groupby(sorted(siblings, key=_prefix), key=_prefix)]
        self._spans = [s for s in alone if s not in siblings]
        self._mask = CausalMask(
            max((s.total for s in alone if s.new > 1 or s.shared), default=0), store.dtype, store.device
        )
        slots = [torch.arange(s.start + s.own - s.new, s.start + s.own) for s in spans]
        self.slots = torch.cat(slots).to(store.device)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        keys, values = self._store[layer].unbind()
        keys.index_copy_(1, self.slots, key)
        values.index_copy_(1, self.slots, value)
        out = query.new_empty(query.shape[1], query.shape[0], query.shape[2])
        if self._batch is not None:
            self._batch.attend(query, keys, values, scale, out)
        for span in self._spans:
            out[span.begin : span.end] = grouped_attention(
                query[:, span.begin : span.end], _stored(keys, span), _stored(values, span), self._mask, scale
            )
        for siblings in self._siblings:
            _attend_siblings(siblings, query, keys, values, self._mask, scale, out)
        return out


def _prefix(span: Span) -> tuple[int, int]:
    return span.shared_start, span.shared


def _stored(entries: torch.Tensor, span: Span) -> torch.Tensor:
    """Return the keys or values [kv_heads, total, d] of a span."""
    own = entries[:, span.start : span.start + span.own]
    if not span.shared:
        return own
    return torch.cat([entries[:, span.shared_start : span.shared_start + span.shared], own], dim=1)


def _attend_siblings(
    siblings: Sequence[Span],
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: CausalMask,
    scale: float,
    out: torch.Tensor,
) -> None:
    """Write to the spans' rows of `out`, as `_SpanBatch.attend` does, for spans with the same shared tokens.

    All queries are multiplied with the shared keys in one product, and all weights with the shared values.
    """
    heads, _, d = query.shape
    kv_heads = len(keys)
    repeat = heads // kv_heads
    prefix = slice(siblings[0].shared_start, siblings[0].shared_start + siblings[0].shared)
    rows = [query[:, s.begin : s.end].reshape(kv_heads, repeat * s.new, d) for s in siblings]
    of_prefix = torch.matmul(torch.cat(rows, dim=1), keys[:, prefix].transpose(1, 2)).mul_(scale)
    weights, mixed = [], []
    for span, row, scores in zip(siblings, rows, of_prefix.split([r.shape[1] for r in rows], dim=1), strict=True):
        own = slice(span.start, span.start + span.own)
        hidden = mask.last(span.new, span.own).repeat(repeat, 1)
        of_own = torch.baddbmm(hidden, row, keys[:, own].transpose(1, 2), alpha=scale)
        weight = torch.cat([scores, of_own], dim=2).softmax(-1)
        weights.append(weight[:, :, : span.shared])
        mixed.append(torch.matmul(weight[:, :, span.shared :], values[:, own]))
    together = torch.cat(mixed, dim=1) + torch.matmul(torch.cat(weights, dim=1), values[:, prefix])
    for span, one in zip(siblings, together.split([r.shape[1] for r in rows], dim=1), strict=True):
        out[span.begin : span.end] = one.reshape(heads, span.new, d).transpose(0, 1)


class _SpanBatch:
    """Spans whose tokens attend in one call, padded to the most new tokens and to the longest sequence.

    On a GPU a call takes longer to start than to compute, and there is one for each sequence and layer otherwise.
    """

    def __init__(self, spans: Sequence[Span], dtype: torch.dtype, device: torch.device) -> None:
        begins, ends, starts, totals, shared, shared_starts = (
            torch.tensor([getattr(span, name) for span in spans])[:, None]
            for name in ("begin", "end", "start", "total", "shared", "shared_start")
        )
        counts = ends - begins
        longest = -(-int(totals.max()) // _ALIGNED) * _ALIGNED
        # Padding repeats the last token of its span, and so computes and stores the same result again.
        new = torch.arange(int(counts.max())).minimum(counts - 1)
        self._rows = (begins + new).to(device)
        places = torch.arange(longest).minimum(totals - 1)
        self._slots = (places + torch.where(places < shared, shared_starts, starts - shared)).to(device)
        hidden = torch.arange(longest) > (totals - counts + new)[:, :, None]
        self._mask = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))[:, None].to(device)

    def attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, out: torch.Tensor
    ) -> None:
        """Write to the spans' rows of `out` [n, heads, d]; `query` [heads, n, d], `keys` and `values` [kv_heads, slots, d]."""
        heads, _, d = query.shape
        batch, new = self._rows.shape
        repeat = heads // len(keys)
        # The query heads of a key head are further rows of the same product.
        grouped = query[:, self._rows].unflatten(0, (len(keys), repeat)).permute(2, 0, 1, 3, 4)
        mixed = F.scaled_dot_product_attention(
            grouped.reshape(batch, len(keys), repeat * new, d),
            keys[:, self._slots].transpose(0, 1),
            values[:, self._slots].transpose(0, 1),
            attn_mask=self._mask.repeat(1, 1, repeat, 1).expand(-1, len(keys), -1, -1),
            scale=scale,
        )
        mixed = mixed.unflatten(2, (repeat, new)).permute(0, 3, 1, 2, 4)
        out[self._rows] = mixed.flatten(2, 3)


class TreeAttention:
    """Training: every segment of a token tree attends to its ancestors and causally to itself."""

    def __init__(
        self, lengths: Sequence[int], paths: Sequence[Sequence[int]], dtype: torch.dtype, device: torch.device
    ) -> None:
        """`lengths[i]` tokens in segment i; `paths[i]` the segments from the root to i, i included."""
        self._lengths = list(lengths)
        self._paths = paths
        self._mask = CausalMask(max(sum(lengths[p] for p in path) for path in paths), dtype, device)

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        # One split per tensor: its backward is one concatenation, where slicing would add up full-size zeros.
        queries = query.split(self._lengths, dim=1)
        keys = key.split(self._lengths, dim=1)
        values = value.split(self._lengths, dim=1)
        out = []
        for q, path in zip(queries, self._paths, strict=True):
            k = keys[path[0]] if len(path) == 1 else torch.cat([keys[p] for p in path], dim=1)
            v = values[path[0]] if len(path) == 1 else torch.cat([values[p] for p in path], dim=1)
            out.append(grouped_attention(q, k, v, self._mask, scale))
        return torch.cat(out)
