"""The tools of the Model Context Protocol, asked by the client of its SDK over HTTP; stdio is in `test_deployment`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from http.client import HTTPConnection
from random import Random
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client

from environment.email_db import Mailbox
from serving import mail_tools
from serving.mail_tools import NOTE
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import ANN, BO, GOOD, scripted_app, served
from tests.serving.service_client import ANNS_KEY, KEYS, OWNER_KEY, bearer, waited

QUESTION = GOOD["question"]
REVIEW, LUNCH = "<review@kestrel.example>", "<lunch@kestrel.example>"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}},
}
JSON = {"Accept": "application/json, text/event-stream"}

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def url(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_app(policy, tmp_path_factory.mktemp("tools"), key=OWNER_KEY, keys=KEYS)) as address:
        yield address


def talk(url: str, talked: Callable[[Client], Awaitable[Any]], key: str = ANNS_KEY, seconds: float = 60) -> Any:
    """What `talked` returns after a conversation of its own."""

    async def converse() -> Any:
        async with (
            httpx2.AsyncClient(headers=bearer(key), timeout=seconds) as http,
            Client(streamable_http_client(f"{url}/mcp", http_client=http)) as client,
        ):
            return await talked(client)

    return asyncio.run(converse())


def call(url: str, tool: str, key: str = ANNS_KEY, **arguments: Any) -> Any:
    return talk(url, lambda client: client.call_tool(tool, arguments), key)


def refusal(url: str, tool: str, key: str = ANNS_KEY, **arguments: Any) -> str:
    result = call(url, tool, key, **arguments)
    assert result.is_error, result
    return str(result.content[0].text)


def test_search_read_and_ask(url: str) -> None:
    async def all_of_them(client: Client) -> tuple[Any, ...]:
        tools = (await client.list_tools()).tools
        found = (await client.call_tool("search_mail", {"keywords": ["budget"]})).structured_content
        read = (await client.call_tool("read_mail", {"message_id": REVIEW})).structured_content
        answer = (await client.call_tool("ask_mailbox", {"question": QUESTION})).structured_content
        cited = await client.read_resource(answer["mails"][0]["uri"])
        return tools, found, read, answer, cited.contents[0].text

    tools, found, read, answer, cited = talk(url, all_of_them)
    assert [tool.name for tool in tools] == ["search_mail", "read_mail", "ask_mailbox"]
    assert all(tool.annotations.read_only_hint for tool in tools)
    assert [mail["message_id"] for mail in found["mails"]] == [REVIEW]
    assert "room 4B" in read["text"] and read["from_address"] == BO and read["next_start"] is None
    assert answer["answer"] == "room 4B" and answer["proven"] and "room 4B" in answer["mails"][0]["passages"][0]
    assert "room 4B" in cited
    assert {mail["date"] for mail in (*found["mails"], read, *answer["mails"])} == {"2024-03-01T09:00:00Z"}, "RFC 3339"
    assert all(result["note"] == NOTE for result in (found, read, answer)) and NOTE in cited


def test_an_older_client_that_we_did_not_write_for(url: str) -> None:
    """The handshake of 2025, written down by hand."""
    answer = httpx.post(f"{url}/mcp", json=INITIALIZE, headers=bearer(ANNS_KEY) | JSON, trust_env=False)
    assert answer.status_code == 200 and answer.json()["result"]["serverInfo"]["name"] == "email-search-agent"
    called = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    called["params"] = {"name": "search_mail", "arguments": {"keywords": ["budget"]}}
    version = {"MCP-Protocol-Version": "2025-06-18"}
    answer = httpx.post(f"{url}/mcp", json=called, headers=bearer(ANNS_KEY) | JSON | version, trust_env=False)
    assert answer.json()["result"]["structuredContent"]["mails"][0]["message_id"] == REVIEW


def test_the_owner_names_the_inbox(url: str) -> None:
    assert "name one" in refusal(url, "search_mail", OWNER_KEY, keywords=["lunch"])
    found = call(url, "search_mail", OWNER_KEY, keywords=["lunch"], inbox=BO).structured_content
    assert [mail["message_id"] for mail in found["mails"]] == [LUNCH]


@pytest.mark.parametrize("inbox", [BO, BO.upper(), f" {BO} ", f"Bo <{BO}>", "*", "%", "' OR 1=1 --", f"{ANN},{BO}"])
def test_a_key_for_one_inbox_sees_no_other(url: str, inbox: str) -> None:
    """Neither by naming another inbox nor by the Message-ID of its mail."""

    async def tried(client: Client) -> list[Any]:
        results = [
            await client.call_tool("search_mail", {"keywords": ["lunch", "mill"], "inbox": inbox}),
            await client.call_tool("read_mail", {"message_id": LUNCH, "inbox": inbox}),
            await client.call_tool("ask_mailbox", {"question": "Where is lunch?", "inbox": inbox}),
            await client.call_tool("read_mail", {"message_id": LUNCH}),
        ]
        for owner in (inbox, ANN):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(f"mail:///{quote(owner, safe='')}/{quote(LUNCH, safe='')}")
            results.append(refused.value)
        return results

    results = talk(url, tried)
    assert all(result.is_error for result in results[:4])
    assert "mill" not in str(results) and "cy@kestrel" not in str(results)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("search_mail", {"keywords": ["budget"], "sent_after": "soon"}, "sent_after: expected a date"),
        ("search_mail", {"keywords": ["budget"], "as_of": "today"}, "query_date"),
        ("search_mail", {"keywords": ["budget"], "max_results": 10**6}, "max_results"),
        ("search_mail", {"keywords": ["x"] * 51}, "keywords: List should have at most 50 items"),
        ("search_mail", {}, "keywords: Field required"),
        ("search_mail", {"keywords": ["x"], "inbox": "anne@kestrel.example"}, "did you mean ann@kestrel.example?"),
        ("read_mail", {"message_id": "<absent@kestrel.example>"}, "there is no mail with this message_id"),
        ("read_mail", {"message_id": REVIEW, "start": -1}, "start"),
        ("search_mail", {"keywords": ["x"], "inbox": "x" * 321}, "inbox: String should have at most 320 characters"),
        ("search_mail", {"keywords": ["x"], "from_address": "x" * 321}, "from_address: String should have at most 320"),
        ("search_mail", {"keywords": ["x"], "to_address": "x" * 321}, "to_address: String should have at most 320"),
        ("ask_mailbox", {"question": " "}, "question: is empty"),
        ("ask_mailbox", {"question": "x" * 4001}, "question: has 4,001 characters"),
    ],
)
def test_bad_arguments_are_said(url: str, tool: str, arguments: dict[str, Any], said: str) -> None:
    line = refusal(url, tool, **arguments)
    assert said in line and "\n" not in line and "http" not in line


def test_a_resource_of_an_inbox_that_is_too_long_is_refused(url: str) -> None:
    async def read(client: Client) -> str:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"mail:///{'x' * 60_000}/{quote(REVIEW, safe='')}")
        return str(refused.value)

    assert talk(url, read) == "the inbox has 60,000 characters: at most 320 are allowed"


def test_mail_after_the_day_of_asking_is_not_there(url: str) -> None:
    assert call(url, "search_mail", keywords=["budget"], as_of="2024-02-01").structured_content["mails"] == []
    assert "no mail" in refusal(url, "read_mail", message_id=REVIEW, as_of="2024-02-01")


def test_keys_hosts_and_bodies_are_checked_as_for_every_route(url: str) -> None:
    def status(headers: dict[str, str], **body: Any) -> int:
        return httpx.post(f"{url}/mcp", headers=headers | JSON, trust_env=False, **body).status_code

    assert status({}, json=INITIALIZE) == 401
    assert status(bearer("not one of its keys"), json=INITIALIZE) == 401
    assert status(bearer(ANNS_KEY) | {"Origin": "https://evil.example"}, json=INITIALIZE) == 403
    assert status(bearer(ANNS_KEY), json=INITIALIZE | {"id": "x" * 300_000}) == 413
    assert 400 <= status(bearer(ANNS_KEY), json=[1, 2]) < 500
    assert 400 <= status(bearer(ANNS_KEY) | {"Content-Type": "application/json"}, content=b"{") < 500


@pytest.mark.parametrize("host", ["agent.example", "agent.example:8443", "127.0.0.1"])
def test_every_name_that_the_service_accepts_is_accepted_here(url: str, host: str) -> None:
    for origin in ({}, {"Origin": f"http://{host}"}):
        headers = bearer(ANNS_KEY) | JSON | {"Host": host} | origin
        answer = httpx.post(f"{url}/mcp", json=INITIALIZE, headers=headers, trust_env=False)
        assert answer.status_code == 200 and answer.json()["result"], answer.text


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_there_is_no_stream_to_hold_and_no_session_to_end(url: str, method: str) -> None:
    headers = bearer(ANNS_KEY) | {"Accept": "text/event-stream"}
    with httpx.stream(method, f"{url}/mcp", headers=headers, trust_env=False) as answer:
        assert answer.status_code == 405 and answer.headers["allow"] == "POST"


def test_the_searches_of_one_caller_are_bounded_until_they_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those whose client has gone away. Other callers are served."""
    begun, go_on = threading.Semaphore(0), threading.Event()
    search = Mailbox.search

    def slow(self: Mailbox, keywords: list[str], **filters: Any) -> Any:
        if keywords == ["slow"]:
            begun.release()
            go_on.wait()
        return search(self, keywords, **filters)

    monkeypatch.setattr(Mailbox, "search", slow)
    monkeypatch.setattr(mail_tools, "CALLS_AT_ONCE", 2)
    called = {"name": "search_mail", "arguments": {"keywords": ["slow"]}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": called})
    headers = bearer(ANNS_KEY) | JSON | {"Content-Type": "application/json"}
    try:
        for _ in range(2):
            with contextlib.closing(HTTPConnection(urlsplit(url).netloc)) as connection:
                connection.request("POST", "/mcp", body, headers)
                assert begun.acquire(timeout=300)
        busy = "this caller has 2 searches and reads running: wait until one ends"
        assert busy in refusal(url, "search_mail", keywords=["budget"])
        assert busy in refusal(url, "read_mail", message_id=REVIEW)
        assert call(url, "search_mail", OWNER_KEY, keywords=["lunch"], inbox=BO).structured_content["mails"]
    finally:
        go_on.set()
    waited(lambda: not call(url, "search_mail", keywords=["budget"]).is_error)


def test_a_client_that_goes_away_stops_the_agent(url: str, policy: MailPolicy) -> None:
    policy.go_on.clear()
    policy.aborted, started = 0, time.monotonic()
    with pytest.raises(BaseExceptionGroup):
        talk(url, lambda client: client.call_tool("ask_mailbox", {"question": QUESTION}), seconds=1)
    waited(lambda: policy.aborted)
    assert time.monotonic() - started < 60, "it was the time limit of the question that stopped it"
    policy.go_on.set()
    assert call(url, "ask_mailbox", question=QUESTION).structured_content["answer"] == "room 4B"


@pytest.mark.parametrize("calls", [150, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_hostile_calls_show_no_mail_of_others(url: str, calls: int) -> None:
    """Tools, resources and chat, with a foreign inbox in many spellings and with what SQL, paths and URIs would notice."""
    random = Random(0)
    pieces = [
        BO,
        BO.upper(),
        LUNCH,
        "lunch",
        "old mill",
        "'",
        '"',
        "--",
        ";",
        "%",
        "*",
        "/",
        "..",
        "\0",
        "\u200b",
        "<",
        ">",
        ",",
    ]
    pieces += [
        " ",
        "\n",
        "OR 1=1",
        "UNION SELECT body FROM email",
        "NEAR",
        "mail:///",
        ANN,
        "@",
        "\ud800",
        "Ｂｏ",
        "%40",
    ]

    def hostile() -> str:
        return "".join(random.choice(pieces) for _ in range(random.randint(1, 4)))

    def body(number: int) -> tuple[str, dict[str, Any]]:
        chat = {"model": hostile(), "messages": [{"role": "user", "content": hostile()}]}
        named = {"inbox": hostile(), "as_of": random.choice(["", "2035-01-01", hostile()])}
        inbox, message = quote(hostile(), errors="replace"), quote(hostile(), errors="replace")
        name, params = random.choice(
            [
                ("tools/call", {"name": "search_mail", "arguments": {"keywords": [hostile(), "lunch"], **named}}),
                ("tools/call", {"name": "search_mail", "arguments": {"keywords": ["mill"], "from_address": hostile()}}),
                (
                    "tools/call",
                    {"name": "read_mail", "arguments": {"message_id": random.choice([LUNCH, hostile()]), **named}},
                ),
                ("tools/call", {"name": "read_mail", "arguments": {"message_id": LUNCH}}),
                ("resources/read", {"uri": f"mail:///{inbox}/{random.choice([quote(LUNCH, safe=''), message])}"}),
                ("chat", chat),
            ]
        )
        if name == "chat":
            return "/v1/chat/completions", chat
        return "/mcp", {"jsonrpc": "2.0", "id": number, "method": name, "params": params}

    headers = bearer(ANNS_KEY) | JSON | {"MCP-Protocol-Version": "2025-06-18", "Content-Type": "application/json"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=60) as client:
        for number in range(calls):
            path, sent = body(number)
            answer = client.post(path, content=json.dumps(sent))
            assert answer.status_code < 500, (sent, answer.text)
            assert "Shall we have lunch" not in answer.text and "cy@kestrel" not in answer.text, (sent, answer.text)
