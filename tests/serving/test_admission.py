from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.admission import Admission, TurnedAway


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 600))


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class Work:
    """Questions that are answered until they are released; `begun` is the order in which they were."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.begun: list[str] = []
        self.done = asyncio.Event()

    def ask(self, name: str, caller: str = "ann", *, submitted: bool = False) -> asyncio.Task[None]:
        ticket = self.admission.submitted(caller) if submitted else self.admission.join(caller)

        async def answer() -> None:
            async with ticket:
                self.begun.append(name)
                await self.done.wait()

        return asyncio.create_task(answer())


def test_submitted_questions_leave_places_for_people() -> None:
    async def test() -> None:
        work = Work(Admission(4, max_waiting=4, max_wait=300))
        tasks = [work.ask(f"submitted {number}", submitted=True) for number in range(10)]
        await settle()
        assert work.admission.running == 2
        tasks += [work.ask("a"), work.ask("b")]
        await settle()
        assert work.begun[-2:] == ["a", "b"]
        work.done.set()
        await asyncio.gather(*tasks)
        assert len(work.begun) == 12 and work.admission.running == 0

    run(test)


def test_one_key_does_not_fill_the_queue() -> None:
    async def test() -> None:
        work = Work(Admission(1, max_waiting=4, max_wait=300, per_caller=2))
        tasks = [work.ask("first")]
        await settle()
        tasks += [work.ask("second"), work.ask("third")]
        with pytest.raises(TurnedAway) as refusal:
            work.ask("fourth")
        assert refusal.value.status == 429
        tasks.append(work.ask("other", "bo"))
        await settle()
        work.done.set()
        await asyncio.gather(*tasks)

    run(test)


def test_no_request_waits_longer_than_the_limit_and_places_are_returned() -> None:
    async def test() -> None:
        work = Work(Admission(1, max_waiting=2, max_wait=2))
        first = work.ask("first")
        await settle()
        late, gone = work.ask("late"), work.ask("gone")
        await settle()
        gone.cancel()
        with pytest.raises(TurnedAway) as refusal:
            await late
        assert refusal.value.status == 503 and refusal.value.retry_after >= 1
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert (work.admission.running, work.admission.waiting) == (1, 0)
        work.done.set()
        await first
        await work.ask("next")
        assert work.begun == ["first", "next"]

    run(test)
