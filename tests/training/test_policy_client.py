from __future__ import annotations

import asyncio

from training.policy_client import policy_client
from training.task import Policy


def test_policies_of_one_server_share_a_client_within_an_event_loop() -> None:
    base = Policy(base_url="http://127.0.0.1:9/v1", model="step-1")

    async def clients() -> list[object]:
        others = ({"model": "step-2"}, {"api_key": "another"}, {"base_url": "http://127.0.0.1:8/v1"})
        return [policy_client(policy) for policy in (base, *(base.model_copy(update=other) for other in others))]

    # Not asyncio.run, which ART patches to use one loop again and again.
    one, another = asyncio.new_event_loop(), asyncio.new_event_loop()
    first, same, of_another_key, of_another_server = one.run_until_complete(clients())
    assert first is same
    of_another_loop = another.run_until_complete(clients())[0]
    assert len({id(client) for client in (first, of_another_key, of_another_server, of_another_loop)}) == 4
    for loop in (one, another):
        loop.close()
