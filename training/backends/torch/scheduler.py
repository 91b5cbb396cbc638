"""What the engine computes next: which requests run, where their keys and values are kept, and which are evicted.

A request reuses the longest prefix that it shares with a cached sequence, running or finished. If a running prefill is
about to compute a longer one, the request waits for it. Long prompts are computed in chunks next to sequences that decode.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from training.backends.torch.attention import KVPool
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.ngram_speculation import NgramSpeculation
from training.backends.torch.settings import TorchSettings
from training.backends.torch.token_tree import common_prefix
from training.backends.torch.tool_grammar import AllowedTokens

DRAFT_TOKENS = 12
"""Maximum speculative tokens per sequence and step: few guesses are right for longer."""
_MIN_AWAITED_TOKENS = 16
"""A prompt waits for a running prefill that saves it at least this many tokens."""
_MIN_SHARED_TOKENS = 64
"""A reply to the prompt of another one reads its keys and values in place if the prompt has more tokens, and copies fewer."""
_MAX_ADAPTER_WAIT_S = 2.0
"""Once a request for another adapter has waited this long, no request joins the running batch until it is drained."""


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. Temperature 0 is greedy; `seed` makes sampling reproducible."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """Sampled token ids (including an end token) and their log-probabilities at temperature 1."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int


@dataclass(eq=False)
class Request:
    """A prompt to continue. `Engine.submit` documents the callbacks."""

    prompt: np.ndarray
    params: SamplingParams
    adapter: LoraAdapter | None
    is_stop: Callable[[list[int]], bool] | None
    on_token: Callable[[int, float], None] | None
    allowed: AllowedTokens | None
    future: Future[Completion] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    generator: torch.Generator | None = None

    @property
    def adapter_key(self) -> str:
        return self.adapter.key if self.adapter else ""


@dataclass(eq=False)
class Region:
    """Slots `start` to `start + size` of the pool, for the sequences that read them."""

    start: int
    size: int
    readers: int = 1


@dataclass(eq=False)
class Sequence:
    """Tokens whose keys and values are in the pool: the first `shared` at the start of `prefix`, the others in `region`.

    `request` is `None` once the sequence has finished.
    """

    adapter_key: str
    ids: np.ndarray  # room for prompt and completion
    length: int  # known tokens
    computed: int  # known tokens whose keys and values are in the pool
    region: Region
    used: int
    request: Request | None
    prefix: Region | None = None
    shared: int = 0
    reused: int = 0
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)  # drawn ahead: a seed's n-th number samples the n-th token


class Slice(NamedTuple):
    """Tokens of a sequence to compute in one step: `tokens` from `computed` on, the last `drafted` of them guessed."""

    sequence: Sequence
    tokens: int
    drafted: int


class Scheduler:
    """Admits requests, assigns regions of the pool and chooses the tokens of each step.

    `add`, `waiting` and `running` may be called from any thread, everything else from the engine's alone.
    """

    def __init__(self, pool: KVPool, settings: TorchSettings, speculation: NgramSpeculation) -> None:
        self._pool = pool
        self._settings = settings
        self._speculation = speculation
        self._lock = threading.Lock()
        self._waiting: deque[Request] = deque()
        self.running: list[Sequence] = []
        self._finished: list[Sequence] = []
        self._clock = itertools.count()

    def add(self, request: Request) -> None:
        """Queue a request."""
        with self._lock:
            self._waiting.append(request)

    def waiting(self) -> list[Request]:
        """Return the requests that do not run yet."""
        with self._lock:
            return list(self._waiting)

    def drop_cancelled(self) -> None:
        """Give back the place of every request whose future was cancelled."""
        with self._lock:
            self._waiting = deque(r for r in self._waiting if not r.future.cancelled())
        for sequence in [s for s in self.running if s.request and s.request.future.cancelled()]:
            self.retire(sequence)

    def admit(self) -> int:
        """Start the waiting requests that fit, for one adapter at a time. Return the tokens reused from the cache."""
        waiting = self.waiting()
        if not waiting:
            return 0
        current = self.running[0].adapter_key if self.running else waiting[0].adapter_key
        now = time.monotonic()
        if self.running and any(r.adapter_key != current and now - r.arrived > _MAX_ADAPTER_WAIT_S for r in waiting):
            return 0  # drain the batch, so that the other adapter gets its turn
        reused = 0
        for request in waiting:
            if len(self.running) >= self._settings.max_running:
                break
            if request.adapter_key != current:
                continue
            source, shared, promised = self._longest_prefix(request)
            if promised - shared >= _MIN_AWAITED_TOKENS:
                continue  # a running prefill is about to compute what it shares
            sequence = self._start(request, source, shared)
            if sequence is None:
                break
            reused += sequence.reused
        return reused

    def _longest_prefix(self, request: Request) -> tuple[Sequence | None, int, int]:
        """Return the cached sequence that shares most with the prompt, how much of that is computed, and how much will be.

        The last prompt token is always computed: its hidden state predicts the first new token.
        """
        source, shared, promised = None, 0, 0
        for sequence in [*self.running, *self._finished]:
            if sequence.adapter_key != request.adapter_key:
                continue
            common = common_prefix(request.prompt, sequence.ids[: sequence.length])
            promised = max(promised, common)
            if min(common, sequence.computed) > shared:
                source, shared = sequence, min(common, sequence.computed)
        most = len(request.prompt) - 1
        return source, min(shared, most), min(promised, most)

    def _start(self, request: Request, source: Sequence | None, reused: int) -> Sequence | None:
        """Give `request` a region, and the cached prefix. Return `None` when there is no room until others finish.

        Replies to one prompt read one copy of it. All other prefixes are copied, so that no conversation is in many pieces.
        """
        size = len(request.prompt) + request.params.max_tokens
        prefix = _whole_prompt(source, reused) if source and reused == len(request.prompt) - 1 else None
        shared = reused if prefix else 0
        if prefix:
            prefix.readers += 1
        start = self._allocate(size - shared, keep=source)
        if start is None and not self.running:  # only the sequence to copy from is in the way: give up the reuse
            if prefix:
                self._leave(prefix)
            source, prefix, reused, shared = None, None, 0, 0
            start = self._allocate(size, keep=None)
        if start is None:
            if prefix:
                self._leave(prefix)
            return None
        if source is not None and reused:
            if not prefix:
                self._copy(source, start, reused)
            source.used = next(self._clock)
            if source.request is None and reused >= source.length - 1:
                self._evict(source)  # the new sequence holds all of its content
        ids = np.empty(size, dtype=np.int64)
        ids[: len(request.prompt)] = request.prompt
        with self._lock:
            self._waiting.remove(request)
        sequence = Sequence(
            adapter_key=request.adapter_key,
            ids=ids,
            length=len(request.prompt),
            computed=reused,
            region=Region(start, size - shared),
            used=next(self._clock),
            request=request,
            prefix=prefix,
            shared=shared,
            reused=reused,
        )
        self.running.append(sequence)
        return sequence

    def _copy(self, source: Sequence, start: int, count: int) -> None:
        """Copy the keys and values of the first `count` tokens of `source` to the slots from `start` on."""
        shared = min(count, source.shared)
        if source.prefix:
            self._pool.copy(source.prefix.start, start, shared)
        self._pool.copy(source.region.start, start + shared, count - shared)

    def next_step(self) -> list[Slice]:
        """Return what to compute next: one token of every decoding sequence with its guesses, then prompts in order.

        Guessed tokens are written to the sequence's `ids` after the known ones.
        """
        drafted = {s: self._draft(s) for s in self.running if s.length - s.computed == 1}
        budget = max(1, self._settings.step_tokens - len(drafted) - sum(drafted.values()))
        step = []
        for sequence in self.running:
            if sequence in drafted:
                step.append(Slice(sequence, 1 + drafted[sequence], drafted[sequence]))
            elif budget > 0:
                count = min(sequence.length - sequence.computed, budget)
                budget -= count
                step.append(Slice(sequence, count, 0))
        return step

    def _draft(self, sequence: Sequence) -> int:
        """Guess tokens after the next one, within the step's and the request's limits. Return their number.

        A restricted reply has none: its allowed tokens depend on the token before.
        """
        request, known = sequence.request, sequence.length
        if request is None or request.allowed:
            return 0
        left = request.params.max_tokens - len(sequence.sampled) - 1
        room = max(0, self._settings.step_tokens // len(self.running) - 1)
        guessed = self._speculation.propose(sequence.ids[:known], min(DRAFT_TOKENS, left, room))
        sequence.ids[known : known + len(guessed)] = guessed
        return len(guessed)

    def retire(self, sequence: Sequence) -> None:
        """Finish a running sequence. Its computed tokens stay in the cache; the rest of its region is free again."""
        self.running.remove(sequence)
        region, kept = sequence.region, sequence.computed - sequence.shared
        self._pool.release(region.start + kept, region.size - kept)
        region.size = kept
        sequence.length = sequence.computed
        sequence.request = None
        sequence.used = next(self._clock)
        if sequence.length:
            self._finished.append(sequence)

    def abort(self) -> list[Request]:
        """Remove all running sequences without caching them. Return their requests."""
        aborted, self.running = self.running, []
        for sequence in aborted:
            self._leave_all(sequence)
        return [sequence.request for sequence in aborted if sequence.request]

    def forget(self) -> None:
        """Empty the cache of finished sequences. Its memory is freed when nothing runs."""
        for sequence in list(self._finished):
            self._evict(sequence)
        if not self.running:
            self._pool.clear()

    def _allocate(self, size: int, keep: Sequence | None) -> int | None:
        """Return the start of a region. Evict the least recently used sequences, but none if that could not make enough room."""
        victims = sorted((s for s in self._finished if s is not keep), key=lambda s: s.used, reverse=True)
        reads = Counter(region for s in victims for region in (s.region, s.prefix) if region)
        evictable = sum(region.size for region, readers in reads.items() if readers == region.readers)
        if self._pool.free_tokens() + evictable < size:
            return None
        while (start := self._pool.allocate(size)) is None and victims:
            self._evict(victims.pop())
        return start

    def _evict(self, sequence: Sequence) -> None:
        self._finished.remove(sequence)
        self._leave_all(sequence)

    def _leave_all(self, sequence: Sequence) -> None:
        self._leave(sequence.region)
        if sequence.prefix:
            self._leave(sequence.prefix)

    def _leave(self, region: Region) -> None:
        region.readers -= 1
        if not region.readers:
            self._pool.release(region.start, region.size)


def _whole_prompt(source: Sequence, count: int) -> Region | None:
    """Return the region that holds the first `count` tokens of `source` in one piece, if they are worth sharing."""
    if count < _MIN_SHARED_TOKENS:
        return None
    if source.prefix:
        return source.prefix if count <= source.shared else None
    return source.region
