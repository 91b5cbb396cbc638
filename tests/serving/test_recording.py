"""Answers on their way to the pipeline runs that record them, while the runs are slow or fail."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from serving.access import Caller
from serving.answering import Deployed
from serving.bodies import TaskQuestion, TaskReply
from serving.metrics import Metrics
from serving.recording import MAX_BEHIND
from serving.service import describe_model
from serving.settings import ServingSettings
from serving.task_service import TaskAnswering, TaskService
from tests.serving.service_client import waited
from training.plugin import Attempt
from training.task import Policy

CAPACITY = 100


async def attempt(*_: object, **__: object) -> Attempt:
    return Attempt(correct=False, turns=1)


@contextlib.asynccontextmanager
async def opened(record: Callable[[TaskService, TaskReply], object]) -> AsyncIterator[TaskAnswering]:
    server: Any = SimpleNamespace(base_url="", capacity=CAPACITY, healthy=lambda: True, close=lambda: None)
    task: Any = SimpleNamespace(attempt=attempt)
    model = describe_model("here", "t123456789", 3, "a model")
    policy = Policy(base_url="http://127.0.0.1:9", model="m")
    service = TaskService(server, lambda _: policy, model, task, str, lambda: None)
    deployed = Deployed(
        lambda: service,
        service.close,
        lambda reply: record(service, reply),
        "words",
        ServingSettings(),
        Metrics(),
        several_keys=False,
    )
    answering = TaskAnswering(deployed)
    async with answering.opened():
        yield answering


async def answer(answering: TaskAnswering, request_id: str) -> None:
    caller = Caller("owner", None)
    with answering.place(caller) as ticket:
        await answering.answer(ticket, answering.accepted(TaskQuestion(question="hello")), None, caller, request_id)


def test_answers_that_wait_to_be_recorded_stay_when_later_ones_are_dropped() -> None:
    begun, go_on, taken = threading.Event(), threading.Event(), []

    def record(service: TaskService, reply: TaskReply) -> None:
        begun.set()
        go_on.wait()
        service.take_recorded(reply.metadata.request_id)
        taken.append(reply.metadata.request_id)

    async def ask_faster_than_runs_are_recorded() -> None:
        async with opened(record) as answering:
            try:
                await answer(answering, "0")
                await asyncio.to_thread(begun.wait)
                for first in range(1, 2_000, CAPACITY):
                    await asyncio.gather(*(answer(answering, str(n)) for n in range(first, first + CAPACITY)))
                with pytest.raises(KeyError):
                    answering.service.take_recorded("1999")
            finally:
                go_on.set()
            await asyncio.to_thread(waited, lambda: len(taken) == 1 + MAX_BEHIND)

    asyncio.run(ask_faster_than_runs_are_recorded())
    assert set(taken) == {str(n) for n in range(1 + MAX_BEHIND)}


def test_an_answer_whose_run_fails_is_not_kept() -> None:
    done = threading.Event()

    def record(*_: object) -> None:
        done.set()
        raise RuntimeError("the pipeline run failed")

    async def ask() -> None:
        async with opened(record) as answering:
            await answer(answering, "0")
            await asyncio.to_thread(done.wait)
            await answer(answering, "1")
            await asyncio.to_thread(answering.recorder.close, 60)
            for request_id in ("0", "1"):
                with pytest.raises(KeyError):
                    answering.service.take_recorded(request_id)

    asyncio.run(ask())
