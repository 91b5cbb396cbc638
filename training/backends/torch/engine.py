"""Continuous batching on one model: every step computes the next tokens of all running sequences in one ragged row.

Four things keep the work small. A prompt that shares its beginning with any sequence in the cache, running or
finished, copies those keys and values instead of computing them. A prompt that shares it with one that is still
being computed waits for that. Long prompts are computed in chunks, beside which the others go on decoding. Decoding computes
tokens that are likely to follow together with the one that they follow, and keeps those that are then sampled.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from training.backends.torch.attention import CachedAttention, Span
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.ngram_speculation import NgramSpeculation
from training.backends.torch.sampling import sample
from training.backends.torch.settings import TorchSettings
from training.backends.torch.token_tree import common_prefix
from training.backends.torch.tool_grammar import AllowedTokens
from training.errors import BadInput

Result = TypeVar("Result")
_WORTH_WAITING = 16
"""Hold a prompt back when a running prefill will spare it at least this many tokens."""
_SAMPLED_ROWS = 64
"""Rows whose logits are there at the same time: with what sampling makes of them 50 MB for 49,152 words."""
_PATIENCE_S = 2.0
"""Requests for another adapter wait at most this long before the running batch is drained for them."""


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt. Temperature 0 is greedy; `seed` makes sampling reproducible."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """Sampled token ids (with the end token when there is one) and their log-probabilities at temperature 1."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    cached_tokens: int


@dataclass(eq=False)
class _Request:
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
class _Sequence:
    """Tokens whose keys and values occupy a region of the pool. `request` is `None` once it has finished."""

    adapter_key: str
    ids: np.ndarray  # room for prompt and completion
    length: int  # tokens known
    computed: int  # of those, tokens whose keys and values are in the pool
    start: int
    size: int
    used: int
    request: _Request | None
    reused: int = 0
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    uniforms: list[float] = field(default_factory=list)  # drawn for tokens to come: a seed's n-th number is the n-th token's


class Engine:
    """Owns the model; `submit` from any thread, `run_exclusive` to do something else with it.

    All of it is computed in one thread. OpenMP has a team of threads for each that computes, and once there are more of them
    than processors they no longer spin at a barrier but sleep, which costs a tenth.
    """

    def __init__(self, network: PolicyNetwork, settings: TorchSettings) -> None:
        self.network = network
        self._settings = settings
        self._pool = network.kv_pool(settings.kv_cache_tokens)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Sequence] = []
        self._finished: list[_Sequence] = []
        self._wake = threading.Condition()
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False
        self._clock = itertools.count()
        self._generator = torch.Generator().manual_seed(settings.seed)
        self._speculation = NgramSpeculation()
        names = ("requests", "steps", "computed_tokens", "reused_tokens", "sampled_tokens", "drafted_tokens", "accepted_tokens")
        self.counters = dict.fromkeys(names, 0)
        self.busy_seconds = 0.0
        self._update_seconds = 0.0
        self._update_begun: float | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def max_tokens(self) -> int:
        """Most tokens that prompt and completion may have together."""
        return min(self.network.context_length, self._settings.kv_cache_tokens)

    def submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        adapter: LoraAdapter | None = None,
        is_stop: Callable[[list[int]], bool] | None = None,
        on_token: Callable[[int, float], None] | None = None,
        allowed: AllowedTokens | None = None,
    ) -> Future[Completion]:
        """Queue a prompt. Cancel the future to give its place back. Raises `BadInput` when it cannot fit.

        `is_stop` is asked with the ids sampled so far, `on_token` is told each of them and its log-probability before
        the future is done; all sequences wait for them. `allowed` restricts what is sampled, and the log-probabilities
        are then those among the tokens that it allows.
        """
        total = len(prompt_ids) + params.max_tokens
        if not prompt_ids:
            raise BadInput("The prompt is empty.")
        if total > self.max_tokens:
            raise BadInput(
                f"The prompt has {len(prompt_ids)} tokens and max_tokens is {params.max_tokens}: together {total}, "
                f"but this model can hold {self.max_tokens}. Shorten the prompt or ask for fewer tokens."
            )
        request = _Request(np.asarray(prompt_ids, dtype=np.int64), params, adapter, is_stop, on_token, allowed)
        if params.seed is not None:
            request.generator = torch.Generator().manual_seed(params.seed)
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._waiting.append(request)
            self.counters["requests"] += 1
            self._wake.notify()
        return request.future

    def run_exclusive(self, work: Callable[[], Result]) -> Result:
        """What `work` returns, done by the engine's thread with the model to itself: no step runs meanwhile.

        Waiting and running requests go on afterwards. The finished conversations leave the cache before and after it, and
        the cache's memory is free meanwhile when nothing is running.
        """
        future: Future[Result] = Future()
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._work.append((work, future))
            self._wake.notify()
        return future.result()

    def _forget(self) -> None:
        for sequence in list(self._finished):
            self._evict(sequence)
        if not self._running:
            self._pool.clear()

    def waiting(self) -> int:
        return len(self._waiting)

    def running(self) -> int:
        return len(self._running)

    def close(self) -> None:
        """Stop; open requests fail with an error."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for request in [*self._waiting, *(s.request for s in self._running)]:
            if request is not None and not request.future.done():
                request.future.set_exception(RuntimeError("the engine was closed"))
        for _, future in self._work:
            future.set_exception(RuntimeError("the engine was closed"))

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._waiting or self._running or self._work):
                    self._wake.wait()
                if self._closed:
                    return
                work = self._work.popleft() if self._work else None
            if work is not None:
                self._do(*work)
                continue
            with torch.inference_mode():
                started = time.monotonic()
                try:
                    self._step()
                except Exception as error:
                    self._fail_all(error)
                self.busy_seconds += time.monotonic() - started

    @property
    def update_seconds(self) -> float:
        """Time spent on work that has the model to itself, up to now."""
        begun = self._update_begun
        return self._update_seconds + (time.monotonic() - begun if begun is not None else 0.0)

    def _do(self, work: Callable[[], Any], future: Future[Any]) -> None:
        self._update_begun = started = time.monotonic()
        try:
            self._run_work(work, future)
        finally:
            self._update_begun = None
            self._update_seconds += time.monotonic() - started

    def _run_work(self, work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            self._forget()
            result = work()
        except BaseException as error:
            self._forget()
            future.set_exception(error)
        else:
            self._forget()
            future.set_result(result)

    def _fail_all(self, error: Exception) -> None:
        """A step that cannot be computed fails its requests, not the engine."""
        failed, self._running = self._running, []
        for sequence in failed:
            self._pool.release(sequence.start, sequence.size)
            if sequence.request and not sequence.request.future.done():
                sequence.request.future.set_exception(error)

    def _step(self) -> None:
        self._drop_cancelled()
        self._admit()
        if not self._running:
            return
        batch = self._choose_tokens()
        spans, begin = [], 0
        for sequence, count, _ in batch:
            spans.append(Span(begin, begin + count, sequence.start, sequence.computed + count))
            begin += count
        network = self.network
        rows = [(s.computed, s.computed + count) for s, count, _ in batch]
        ids = np.concatenate([s.ids[a:b] for (s, _, _), (a, b) in zip(batch, rows, strict=True)])
        positions = np.concatenate([np.arange(a, b) for a, b in rows])
        network.merge(next((s.request.adapter for s, _, _ in batch if s.request), None))
        hidden = network.hidden(
            torch.from_numpy(ids).to(network.device),
            torch.from_numpy(positions).to(network.device),
            CachedAttention(self._pool, spans),
        )
        ready: list[tuple[_Sequence, int]] = []
        predicting: list[int] = []
        for (sequence, count, drafted), span in zip(batch, spans, strict=True):
            sequence.computed += count - drafted
            if sequence.computed == sequence.length:
                ready.append((sequence, drafted))
                predicting.extend(range(span.end - 1 - drafted, span.end))
        self.counters["steps"] += 1
        self.counters["computed_tokens"] += begin
        if ready:
            self._sample(ready, hidden[predicting])

    def _choose_tokens(self) -> list[tuple[_Sequence, int, int]]:
        """(sequence, how many of its tokens to compute, how many of these are guessed): decoding first, then prompts in order.

        Guessed tokens are written behind the known ones.
        """
        drafted = {s: self._draft(s) for s in self._running if s.length - s.computed == 1}
        budget = max(1, self._settings.step_tokens - len(drafted) - sum(drafted.values()))
        batch = []
        for sequence in self._running:
            if sequence in drafted:
                batch.append((sequence, 1 + drafted[sequence], drafted[sequence]))
            elif budget > 0:
                count = min(sequence.length - sequence.computed, budget)
                budget -= count
                batch.append((sequence, count, 0))
        return batch

    def _draft(self, sequence: _Sequence) -> int:
        """Guess the tokens after the next one, as many as a step has room for and as may be sampled.

        None of a restricted reply: what it allows next is known when the token before is.
        """
        request, known = sequence.request, sequence.length
        if request is None or request.allowed:
            return 0
        left = request.params.max_tokens - len(sequence.sampled) - 1
        room = max(0, self._settings.step_tokens // len(self._running) - 1)
        guessed = self._speculation.propose(sequence.ids[:known], min(self._settings.draft_tokens, left, room))
        sequence.ids[known : known + len(guessed)] = guessed
        return len(guessed)

    def _sample(self, ready: list[tuple[_Sequence, int]], hidden: torch.Tensor) -> None:
        """The next tokens of every sequence: after each row of `hidden` one, as long as what was sampled before it is what was guessed.

        So each token is drawn from the model's distribution after the tokens before it, whatever was guessed.
        """
        requests: list[_Request] = []
        uniforms: list[float] = []
        forbidden: list[np.ndarray | None] = []
        for sequence, drafted in ready:
            request = sequence.request
            assert request is not None, "a running sequence"
            forbidden += [~request.allowed(sequence.sampled) if request.allowed else None] * (drafted + 1)
            while len(sequence.uniforms) <= drafted:
                generator = request.generator or self._generator
                sequence.uniforms.append(torch.rand((), dtype=torch.float64, generator=generator).item())
            requests += [request] * (drafted + 1)
            uniforms += sequence.uniforms[: drafted + 1]
        sampled: list[tuple[int, float]] = []
        for begin in range(0, len(requests), _SAMPLED_ROWS):
            rows = slice(begin, begin + _SAMPLED_ROWS)
            logits = self.network.logits(hidden[rows])
            for row, tokens in zip(logits, forbidden[rows], strict=True):
                if tokens is not None:
                    row.masked_fill_(torch.from_numpy(tokens).to(logits.device), float("-inf"))
            temperatures, top_ps = [r.params.temperature for r in requests[rows]], [r.params.top_p for r in requests[rows]]
            drawn = sample(logits, temperatures, top_ps, torch.tensor(uniforms[rows], dtype=torch.float64))
            sampled += zip(*drawn, strict=True)
        begin = 0
        for sequence, drafted in ready:
            guessed = sequence.ids[sequence.length : sequence.length + drafted].tolist()
            self._accept(sequence, guessed, sampled[begin : begin + drafted + 1])
            begin += drafted + 1

    def _accept(self, sequence: _Sequence, drafted: list[int], rows: list[tuple[int, float]]) -> None:
        """Append the first of the sampled (token, log-probability), and each further one whose token before it was guessed right."""
        self.counters["drafted_tokens"] += len(drafted)
        for number, (token, logprob) in enumerate(rows):
            if number:
                sequence.computed += 1  # the token before, as it was guessed
                self.counters["accepted_tokens"] += 1
            self._append(sequence, token, logprob)
            if sequence.request is None or drafted[number : number + 1] != [token]:
                break

    def _append(self, sequence: _Sequence, token: int, logprob: float) -> None:
        """All that is counted and kept of a token is so before its request hears of it."""
        request = sequence.request
        assert request is not None, "a running sequence"
        sequence.sampled.append(token)
        sequence.logprobs.append(logprob)
        sequence.uniforms.pop(0)
        sequence.ids[sequence.length] = token
        sequence.length += 1
        self._speculation.learn(sequence.ids, sequence.length - 1, sequence.length)
        self.counters["sampled_tokens"] += 1
        if request.on_token:
            request.on_token(token, logprob)
        if token in self.network.end_ids or (request.is_stop and request.is_stop(sequence.sampled)):
            self._finish(sequence, "stop")
        elif len(sequence.sampled) == request.params.max_tokens:
            self._finish(sequence, "length")

    def _finish(self, sequence: _Sequence, reason: str) -> None:
        request = sequence.request
        self._retire(sequence)
        if request and request.future.set_running_or_notify_cancel():
            request.future.set_result(Completion(sequence.sampled, sequence.logprobs, reason, sequence.reused))

    def _retire(self, sequence: _Sequence) -> None:
        """From running to finished: what is computed stays in the cache, the rest of the region is free again."""
        self._running.remove(sequence)
        self._pool.release(sequence.start + sequence.computed, sequence.size - sequence.computed)
        sequence.size = sequence.length = sequence.computed
        sequence.request = None
        sequence.used = next(self._clock)
        if sequence.size:
            self._finished.append(sequence)

    def _drop_cancelled(self) -> None:
        with self._wake:
            for request in [r for r in self._waiting if r.future.cancelled()]:
                self._waiting.remove(request)
        for sequence in [s for s in self._running if s.request and s.request.future.cancelled()]:
            self._retire(sequence)

    def _admit(self) -> None:
        with self._wake:
            waiting = list(self._waiting)
        if not waiting:
            return
        current = self._running[0].adapter_key if self._running else waiting[0].adapter_key
        now = time.monotonic()
        if self._running and any(r.adapter_key != current and now - r.arrived > _PATIENCE_S for r in waiting):
            return  # drain, so that the other adapter gets its turn
        for request in waiting:
            if len(self._running) >= self._settings.max_running:
                return
            if request.adapter_key == current and not self._start(request):
                return

    def _start(self, request: _Request) -> bool:
        """Give `request` a region and its cached prefix. False when there is no room until others finish."""
        source, shared = None, 0
        most_promised = 0
        for sequence in [*self._running, *self._finished]:
            if sequence.adapter_key != request.adapter_key:
                continue
            common = common_prefix(request.prompt, sequence.ids[: sequence.length])
            most_promised = max(most_promised, common)
            if min(common, sequence.computed) > shared:
                source, shared = sequence, min(common, sequence.computed)
        # The last prompt token is always computed: its hidden state predicts the first new token.
        shared = min(shared, len(request.prompt) - 1)
        if min(most_promised, len(request.prompt) - 1) - shared >= _WORTH_WAITING:
            return True  # held back: a running prefill is about to compute what it shares
        size = len(request.prompt) + request.params.max_tokens
        start = self._allocate(size, keep=source)
        if start is None and not self._running:  # only the sequence to copy from is in the way: give up the reuse
            source, shared = None, 0
            start = self._allocate(size, keep=None)
        if start is None:
            return False
        if source is not None and shared:
            self._pool.copy(source.start, start, shared)
            source.used = next(self._clock)
            if source.request is None and shared >= source.length - 1:
                self._evict(source)  # its whole content lives on in the new sequence
        ids = np.empty(size, dtype=np.int64)
        ids[: len(request.prompt)] = request.prompt
        with self._wake:
            self._waiting.remove(request)
        self._running.append(
            _Sequence(
                adapter_key=request.adapter_key,
                ids=ids,
                length=len(request.prompt),
                computed=shared,
                start=start,
                size=size,
                used=next(self._clock),
                request=request,
                reused=shared,
            )
        )
        self.counters["reused_tokens"] += shared
        return True

    def _allocate(self, size: int, keep: _Sequence | None) -> int | None:
        while (start := self._pool.allocate(size)) is None:
            victims = [s for s in self._finished if s is not keep]
            if not victims:
                return None
            self._evict(min(victims, key=lambda s: s.used))
        return start

    def _evict(self, sequence: _Sequence) -> None:
        self._finished.remove(sequence)
        self._pool.release(sequence.start, sequence.size)
