"""Requests to policy servers: one connection pool per server for all policies, and keys that distinguish rollouts."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import psutil
import pytest
from langchain_core.messages import AIMessage

from agent.graph import connect, sampled_choice
from agent.judges.exact import ExactJudge
from agent.rollout import answer_question
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase
from environment.models import Scenario
from tests.fakes.policy import OWNER, ScriptedPolicy
from training.task import CALL_SEQUENCE, Policy

ANSWER = ("return_final_answer_tool", {"answer": "x", "source_ids": [1]})


def sockets_to(port: int) -> int:
    return sum(
        bool(connection.raddr) and connection.raddr.port == port for connection in psutil.Process().net_connections()
    )


def test_fifty_policies_of_one_server_share_its_connections(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    scripted.protocol = "HTTP/1.1"  # keeps connections open
    scripted.replies = [ANSWER] * 50
    policies = [
        scripted.policy.model_copy(update={"model": f"agent@{step}", "temperature": step / 50, "max_tokens": 10 + step})
        for step in range(50)
    ]
    mailbox = database.mailbox(OWNER, datetime(2001, 2, 1))

    async def episodes() -> int:
        for policy in policies:
            await answer_question(policy, mailbox, "Who?", AgentSettings())
        return sockets_to(scripted.server_address[1])

    assert asyncio.run(episodes()) == 1
    asked = [
        (request["model"], request["temperature"], request["max_completion_tokens"]) for request in scripted.requests
    ]
    assert asked == [(policy.model, policy.temperature, policy.max_tokens) for policy in policies]


def test_min_p_is_sent_only_where_it_is_set(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    mailbox = database.mailbox(OWNER, datetime(2001, 2, 1))
    for min_p in (0.0, 0.1):
        scripted.replies = [ANSWER]
        policy = scripted.policy.model_copy(update={"min_p": min_p})
        asyncio.run(answer_question(policy, mailbox, "Who?", AgentSettings()))
    assert [request.get("min_p") for request in scripted.requests] == [None, 0.1]


def test_only_a_policy_that_must_call_is_held_to_calls(scripted: ScriptedPolicy, database: MailDatabase) -> None:
    mailbox = database.mailbox(OWNER, datetime(2001, 2, 1))
    for must_call in (False, True):
        scripted.replies = [ANSWER]
        policy = scripted.policy.model_copy(update={"must_call": must_call})
        asyncio.run(answer_question(policy, mailbox, "Who?", AgentSettings()))
    assert [request.get("tool_choice") for request in scripted.requests] == [None, "required"]


def test_servers_and_keys_are_not_mixed_up(scripted: ScriptedPolicy) -> None:
    async def clients() -> list[object]:
        other = {"base_url": "http://127.0.0.1:9/v1"}, {"api_key": "another"}, {"model": "another"}
        policies = [scripted.policy, *(scripted.policy.model_copy(update=change) for change in other)]
        return [connect(policy).bound.root_async_client for policy in policies]

    first, server, key, model = asyncio.run(clients())
    assert first is not server and first is not key and first is model


def test_rollouts_with_the_same_calls_have_the_same_call_sequence(
    scripted: ScriptedPolicy, database: MailDatabase, two_mail_question: Scenario
) -> None:
    task = EmailSearchTask(database, [two_mail_question], ExactJudge(), AgentSettings())
    search, other = (("search_inbox_tool", {"keywords": [word]}) for word in ("Heron", "Dana"))
    recorded = []
    for calls in ([search, ANSWER], [search, ANSWER], [other, ANSWER], [search, search, ANSWER]):
        scripted.replies = list(calls)
        recorded.append(asyncio.run(task.rollout(scripted.policy, two_mail_question)).metadata[CALL_SEQUENCE])
    assert recorded[0] == recorded[1] and len(set(recorded)) == 3


@pytest.mark.parametrize(
    ("base_url", "proxied"),
    [("http://127.0.0.1:8000/v1", False), ("http://localhost:8000/v1", False), ("https://api.example.com/v1", True)],
)
def test_a_proxy_of_the_environment_is_for_other_machines(base_url: str, proxied: bool) -> None:
    async def client() -> Any:
        return connect(Policy(base_url=base_url, model="m")).bound.root_async_client._client

    assert asyncio.run(client()).trust_env == proxied


def test_a_model_without_log_probabilities_shows_its_calls() -> None:
    call = {"name": "search_inbox_tool", "args": {"keywords": ["Heron"]}, "id": "1", "type": "tool_call"}
    choice = sampled_choice(AIMessage(content="Let me see.", tool_calls=[call]))
    expected = '<tool_call>\n{"name": "search_inbox_tool", "arguments": {"keywords": ["Heron"]}}\n</tool_call>'
    assert choice.message.content == f"Let me see.\n{expected}" and choice.logprobs is None
