"""Continuous batching on one model: each step computes the next tokens of all running sequences in one ragged row.

The scheduler decides what a step computes. The engine runs the model and samples. Decoding is speculative: a step
computes guessed tokens together with the known one, and keeps the guesses up to the first that sampling rejects.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np
import torch

from training.backends.torch.attention import CachedAttention, Span
from training.backends.torch.lora import LoraAdapter
from training.backends.torch.network import PolicyNetwork
from training.backends.torch.ngram_speculation import NgramSpeculation
from training.backends.torch.sampling import sample
from training.backends.torch.scheduler import Completion, Request, SamplingParams, Scheduler, Sequence
from training.backends.torch.settings import TorchSettings
from training.backends.torch.tool_grammar import AllowedTokens
from training.errors import BadInput

__all__ = ["Completion", "Engine", "SamplingParams"]

Result = TypeVar("Result")
_SAMPLED_ROWS = 64
"""Rows whose logits exist at the same time: with sampling's copies 50 MB for a vocabulary of 49,152."""

_COUNTERS = [
    *("requests", "steps", "computed_tokens", "reused_tokens"),
    *("sampled_tokens", "drafted_tokens", "accepted_tokens"),
]


class Engine:
    """Own the model: `submit` prompts from any thread, or run other work on the model with `run_exclusive`.

    One thread does all computing. Each computing thread gets an OpenMP team of its own; with more team threads than
    processors, barriers put threads to sleep instead of spinning, which costs a tenth of the speed.
    """

    def __init__(self, network: PolicyNetwork, settings: TorchSettings) -> None:
        self.network = network
        self._settings = settings
        self._pool = network.kv_pool(settings.kv_cache_tokens)
        self._speculation = NgramSpeculation()
        self._scheduler = Scheduler(self._pool, settings, self._speculation)
        self._wake = threading.Condition()
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._closed = False
        self._generator = torch.Generator().manual_seed(settings.seed)
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.busy_seconds = 0.0
        self._update_seconds = 0.0
        self._update_begun: float | None = None
        self._thread = threading.Thread(target=self._loop, name="engine", daemon=True)
        self._thread.start()

    @property
    def max_tokens(self) -> int:
        """Maximum length of prompt and completion together, in tokens."""
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
        """Queue a prompt. Cancel the future to give its place back. Raise `BadInput` when it cannot fit.

        `is_stop` gets the ids sampled so far and ends the completion by returning True. `on_token` gets each id with
        its log-probability before the future is done. Both block all sequences. `allowed` restricts the sampled
        tokens; log-probabilities are then those of the restricted distribution.
        """
        total = len(prompt_ids) + params.max_tokens
        if not prompt_ids:
            raise BadInput("The prompt is empty.")
        if total > self.max_tokens:
            raise BadInput(
                f"The prompt has {len(prompt_ids)} tokens and max_tokens is {params.max_tokens}: together {total}, "
                f"but this model can hold {self.max_tokens}. Shorten the prompt or ask for fewer tokens."
            )
        request = Request(np.asarray(prompt_ids, dtype=np.int64), params, adapter, is_stop, on_token, allowed)
        if params.seed is not None:
            request.generator = torch.Generator().manual_seed(params.seed)
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._scheduler.add(request)
            self.counters["requests"] += 1
            self._wake.notify()
        return request.future

    def run_exclusive(self, work: Callable[[], Result]) -> Result:
        """Run `work` in the engine's thread while no step runs. Return its result or raise its exception.

        Waiting and running requests continue afterwards. Finished sequences leave the cache before and after the work.
        If no request is running, the cache's memory is free for the work.
        """
        future: Future[Result] = Future()
        with self._wake:
            if self._closed:
                raise RuntimeError("the engine is closed")
            self._work.append((work, future))
            self._wake.notify()
        return future.result()

    def waiting(self) -> int:
        return len(self._scheduler.waiting())

    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def update_seconds(self) -> float:
        """Time spent on exclusive work so far, including work in progress."""
        begun = self._update_begun
        return self._update_seconds + (time.monotonic() - begun if begun is not None else 0.0)

    def close(self) -> None:
        """Stop. Open requests fail with an error."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()
        for request in [*self._scheduler.waiting(), *self._scheduler.abort()]:
            if not request.future.done():
                request.future.set_exception(RuntimeError("the engine was closed"))
        for _, future in self._work:
            future.set_exception(RuntimeError("the engine was closed"))

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not (self._closed or self._scheduler.running or self._work or self._scheduler.waiting()):
                    self._wake.wait()
                if self._closed:
                    return
                work = self._work.popleft() if self._work else None
            if work is not None:
                self._run(*work)
                continue
            with torch.inference_mode():
                started = time.monotonic()
                try:
                    self._step()
                except Exception as error:  # a step that cannot be computed fails its requests, not the engine
                    for request in self._scheduler.abort():
                        if not request.future.done():
                            request.future.set_exception(error)
                self.busy_seconds += time.monotonic() - started

    def _run(self, work: Callable[[], Any], future: Future[Any]) -> None:
        self._update_begun = started = time.monotonic()
        try:
            self._scheduler.forget()
            result = work()
        except BaseException as error:
            self._leave_exclusive(started)
            future.set_exception(error)
        else:
            self._leave_exclusive(started)
            future.set_result(result)

    def _leave_exclusive(self, started: float) -> None:
        self._scheduler.forget()
        self._update_begun = None
        self._update_seconds += time.monotonic() - started

    def _step(self) -> None:
        self._scheduler.drop_cancelled()
        self.counters["reused_tokens"] += self._scheduler.admit()
        if not self._scheduler.running:
            return
        step = self._scheduler.next_step()
        spans, begin = [], 0
        for sequence, count, _ in step:
            total, region, prefix = sequence.computed + count, sequence.region, sequence.prefix
            spans.append(
                Span(begin, begin + count, region.start, total, sequence.shared, prefix.start if prefix else 0)
            )
            begin += count
        network = self.network
        ids = np.concatenate([s.ids[s.computed : s.computed + count] for s, count, _ in step])
        positions = np.concatenate([np.arange(s.computed, s.computed + count) for s, count, _ in step])
        network.merge(next((s.request.adapter for s, _, _ in step if s.request), None))
        hidden = network.hidden(
            torch.from_numpy(ids).to(network.device),
            torch.from_numpy(positions).to(network.device),
            CachedAttention(self._pool, spans),
        )
        ready: list[tuple[Sequence, int]] = []
        predicting: list[int] = []
        for (sequence, count, drafted), span in zip(step, spans, strict=True):
            sequence.computed += count - drafted
            if sequence.computed == sequence.length:
                ready.append((sequence, drafted))
                predicting.extend(range(span.end - 1 - drafted, span.end))
        self.counters["steps"] += 1
        self.counters["computed_tokens"] += begin
        if ready:
            self._sample(ready, hidden[predicting])

    def _sample(self, ready: list[tuple[Sequence, int]], hidden: torch.Tensor) -> None:
        """Sample after each row of `hidden`, and keep a token as long as all guesses before it were sampled too.

        Every kept token is thus drawn from the model's distribution after its predecessors. Guesses never change it.
        """
        requests: list[Request] = []
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
            temperatures = [request.params.temperature for request in requests[rows]]
            top_ps = [request.params.top_p for request in requests[rows]]
            min_ps = [request.params.min_p for request in requests[rows]]
            drawn = sample(logits, temperatures, top_ps, min_ps, torch.tensor(uniforms[rows], dtype=torch.float64))
            sampled += zip(*drawn, strict=True)
        begin = 0
        for sequence, drafted in ready:
            guessed = sequence.ids[sequence.length : sequence.length + drafted].tolist()
            self._accept(sequence, guessed, sampled[begin : begin + drafted + 1])
            begin += drafted + 1

    def _accept(self, sequence: Sequence, drafted: list[int], rows: list[tuple[int, float]]) -> None:
        """Append the first sampled (token, log-probability), and each next one while the token before was guessed right."""
        self.counters["drafted_tokens"] += len(drafted)
        for number, (token, logprob) in enumerate(rows):
            if number:
                sequence.computed += 1  # the token before, as it was guessed
                self.counters["accepted_tokens"] += 1
            self._append(sequence, token, logprob)
            if sequence.request is None or drafted[number : number + 1] != [token]:
                break

    def _append(self, sequence: Sequence, token: int, logprob: float) -> None:
        """Append a sampled token. Update counters before invoking `on_token`."""
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
            self._finish(sequence, request, "stop")
        elif len(sequence.sampled) == request.params.max_tokens:
            self._finish(sequence, request, "length")

    def _finish(self, sequence: Sequence, request: Request, reason: str) -> None:
        self._scheduler.retire(sequence)
        if request.future.set_running_or_notify_cancel():
            request.future.set_result(Completion(sequence.sampled, sequence.logprobs, reason, sequence.reused))
