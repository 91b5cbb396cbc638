"""Clients of the servers that policies are asked at."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

import openai

from training.loopback import is_here
from training.task import Policy

_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], openai.AsyncOpenAI]] = WeakKeyDictionary()


def policy_client(policy: Policy) -> openai.AsyncOpenAI:
    """Return the client of this event loop for the policy's server. Nobody closes it.

    A client of its own for each rollout would load the certificate authorities each time, 50 ms of processor time.
    Connections cannot cross event loops.
    """
    of_this_loop = _clients.setdefault(asyncio.get_running_loop(), {})
    server = (policy.base_url, policy.api_key)
    if server not in of_this_loop:
        of_this_loop[server] = openai.AsyncOpenAI(
            base_url=policy.base_url,
            api_key=policy.api_key,
            max_retries=2,
            timeout=None,
            http_client=openai.DefaultAsyncHttpxClient(trust_env=not is_here(policy.base_url)),
        )
    return of_this_loop[server]
