"""Answers with their proof, and the events on the way to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

import serving.answering
import serving.service
from environment.email_db import Mailbox, MailDatabase
from serving.app import ServiceApp
from serving.bodies import Reply
from serving.events import EventQueue
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import GOOD, HOSTILE
from tests.serving.service_client import asked, events, waited

pytestmark = pytest.mark.usefixtures("calm")


def test_answer_with_its_proof(client: TestClient, policy: MailPolicy) -> None:
    response = asked(client)
    assert response.status_code == 200
    reply = response.json()
    assert {key: reply[key] for key in ("question", "answer", "source_ids", "success", "proven")} == {
        "question": GOOD["question"],
        "answer": "room 4B",
        "source_ids": ["<review@kestrel.example>"],
        "success": True,
        "proven": True,
    }
    (source,) = reply["sources"]
    (mark,) = source["marks"]
    assert source["body"][mark["start"] : mark["end"]] == "room 4B" and HOSTILE in source["body"]
    assert reply["metadata"]["request_id"] == response.headers["x-request-id"]
    assert reply["metadata"]["episode"]["outcome"] == "answered"
    assert {request["temperature"] for request in policy.requests} == {0}


def test_the_run_is_recorded_behind_the_answer(client: TestClient, app: ServiceApp, records: list[Reply]) -> None:
    reply = asked(client).json()
    waited(lambda: records and records[-1].metadata.run_name == reply["metadata"]["run_name"])
    assert app.answering.service.take_recorded(records[-1].metadata.request_id).answer == "room 4B"


def test_an_answer_that_the_mail_does_not_have_is_not_proven(client: TestClient, policy: MailPolicy) -> None:
    policy.answer = "room 12"
    reply = asked(client).json()
    assert (reply["success"], reply["proven"], reply["sources"][0]["found"]) == (True, False, False)


@pytest.mark.parametrize("change", [{"reads": False}, {"cites": False}])
def test_success_needs_a_cited_mail_that_was_read(
    client: TestClient, policy: MailPolicy, change: dict[str, bool]
) -> None:
    policy.__dict__.update(change)
    reply = asked(client).json()
    assert (reply["answer"], reply["success"]) == ("room 4B", False)
    assert reply["metadata"]["episode"]["outcome"] == "unproven"


def test_giving_up_is_an_honest_answer(client: TestClient, policy: MailPolicy) -> None:
    policy.silent = True
    reply = asked(client).json()
    assert (reply["answer"], reply["source_ids"], reply["success"]) == (None, [], False)
    assert reply["metadata"]["episode"]["outcome"] == "no_tool_call"


def test_mail_after_the_query_date_is_not_there(client: TestClient) -> None:
    assert "<review@kestrel.example>" not in asked(client, parameters=GOOD | {"query_date": "2024-02-01"}).text


@pytest.mark.parametrize("path", ["/invoke", "/stream", "/submit"])
def test_a_question_is_parsed_and_its_inbox_looked_up_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    parsed: list[str] = []
    looked_up: list[str] = []
    for owner, name, calls in (
        (serving.answering, "parse_query_date", parsed),
        (serving.service, "parse_query_date", parsed),
        (MailDatabase, "_address_id", looked_up),
    ):
        original = getattr(owner, name)

        def noted(*arguments: Any, original: Any = original, calls: list[str] = calls) -> Any:
            calls.append(arguments[-1])
            return original(*arguments)

        monkeypatch.setattr(owner, name, noted)
    response = client.post(path, json={"parameters": GOOD})
    if path == "/submit":
        url = response.json()["urls"][0]
        waited(lambda: client.get(url).json()["status"] == "done")
    assert "room 4B" in (client.get(url).text if path == "/submit" else response.text)
    assert (parsed, looked_up) == ([GOOD["query_date"]], [GOOD["inbox_address"]])


def test_warm_up_samples_one_token(client: TestClient, app: ServiceApp, policy: MailPolicy) -> None:
    policy.silent = True
    app.answering.service.warm_up()
    assert [request["max_completion_tokens"] for request in policy.requests] == [1]


def test_events_describe_the_episode_in_order(client: TestClient, policy: MailPolicy) -> None:
    policy.answer = 'room 4B – "näher" 😀'
    recorded = events(client)
    kinds = [kind for kind, _ in recorded if kind != "token"]
    assert kinds == ["step", "step", "source", "step", "answer"]
    assert recorded[0][1] == {"number": 1, "action": "search", "keywords": ["budget", "review"], "found": 1}
    assert "".join(data["text"] for kind, data in recorded if kind == "token") == policy.answer
    source = next(data for kind, data in recorded if kind == "source")
    assert source["subject"] == "Budget review"
    assert recorded[-1][1]["answer"] == policy.answer and recorded[-1][1]["sources"][0]["read"]


@pytest.mark.parametrize(
    "written",
    [
        '<tool_call>\n{{"name": "return_final_answer_tool", "arguments": {{"answer": {}, "source_ids": [1]}}}}\n</tool_call>',
        ">>return {} 1",
        '>>return={{"answer": {}, "source_ids": []}}',
    ],
)
@given(answer=st.text(), ascii=st.booleans(), size=st.integers(1, 9))
def test_an_answer_is_sent_while_it_is_written(written: str, answer: str, ascii: bool, size: int) -> None:
    async def sent() -> str:
        queue = EventQueue(cast(Mailbox, None))
        text = written.format(json.dumps(answer, ensure_ascii=ascii)).encode()
        for start in range(0, len(text), size):
            queue.sampled(text[start : start + size])
        await asyncio.sleep(0)
        pieces = []
        while event := queue.get_nowait():
            assert event.event == "token"
            pieces.append(event.data["text"])
        return "".join(pieces)

    assert asyncio.run(sent()) == answer


def test_a_failure_ends_the_stream_with_an_error(client: TestClient, policy: MailPolicy) -> None:
    policy.status = 400
    kind, data = events(client)[-1]
    assert kind == "error" and data["status"] == 500 and "secret" not in data["error"]
