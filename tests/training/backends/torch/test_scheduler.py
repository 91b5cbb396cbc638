"""Which finished sequences stay in the cache when a request has to wait."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from training.backends.torch import TorchSettings
from training.backends.torch.attention import KVPool
from training.backends.torch.ngram_speculation import NgramSpeculation
from training.backends.torch.scheduler import Request, SamplingParams, Scheduler, Sequence


@pytest.fixture
def scheduler() -> Scheduler:
    pool = KVPool(1, 1, 1, tokens=200, dtype=torch.float32, device=torch.device("cpu"))
    return Scheduler(pool, TorchSettings(), NgramSpeculation())


def request(first: int, length: int, max_tokens: int) -> Request:
    """A request whose prompt is `first`, `first` + 1 and so on."""
    return Request(np.arange(first, first + length), SamplingParams(max_tokens), None, None, None, None)


def start(scheduler: Scheduler, asked: Request) -> Sequence:
    """Admit the request and compute its prompt."""
    scheduler.add(asked)
    scheduler.admit()
    sequence = scheduler.running[-1]
    assert sequence.request is asked
    sequence.computed = sequence.length
    return sequence


def cancel_waiting(scheduler: Scheduler) -> None:
    [waits] = scheduler.waiting()
    waits.future.cancel()
    scheduler.drop_cancelled()


def test_a_request_that_does_not_fit_evicts_nothing(scheduler: Scheduler) -> None:
    scheduler.retire(start(scheduler, request(0, 40, 5)))
    start(scheduler, request(1000, 100, 20))
    scheduler.add(request(2000, 90, 10))  # 40 tokens are free and 40 can be evicted
    assert scheduler.admit() == 0 and len(scheduler.running) == 1
    cancel_waiting(scheduler)
    assert start(scheduler, request(0, 30, 5)).reused == 29


def test_a_prompt_that_a_running_sequence_reads_makes_no_room(scheduler: Scheduler) -> None:
    scheduler.retire(start(scheduler, request(0, 100, 5)))
    assert start(scheduler, request(0, 90, 60)).shared == 89
    scheduler.add(request(2000, 50, 10))  # 39 tokens are free, and the finished 100 are read
    assert scheduler.admit() == 0 and len(scheduler.running) == 1
    cancel_waiting(scheduler)
    assert start(scheduler, request(0, 95, 5)).reused == 94
