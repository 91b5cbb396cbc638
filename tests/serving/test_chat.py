"""OpenAI's chat completions, asked by OpenAI's own client, by LangChain's, and by what Open WebUI sends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import SecretStr

from serving.chat import GAVE_UP, MODEL
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import ANN, BO, GOOD, scripted_app, served
from tests.serving.service_client import ANNS_KEY, KEYS, OWNER_KEY, bearer, waited

QUESTION: Any = {"role": "user", "content": GOOD["question"]}
SOURCES = "\n\nSources:\n[1] 2024-03-01, bo@kestrel.example: Budget review"

pytestmark = pytest.mark.usefixtures("calm")


@pytest.fixture(scope="module")
def url(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(scripted_app(policy, tmp_path_factory.mktemp("chat"), key=OWNER_KEY, keys=KEYS)) as address:
        yield f"{address}/v1"


@pytest.fixture
def client(url: str) -> OpenAI:
    return OpenAI(base_url=url, api_key=ANNS_KEY, max_retries=0)


def last_question(policy: MailPolicy) -> str:
    return str(next(m["content"] for m in policy.requests[-1]["messages"] if m["role"] == "user"))


def test_models_are_the_inboxes_of_the_key(url: str, client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL, ANN]
    owner = OpenAI(base_url=url, api_key=OWNER_KEY)
    assert set(ids := [model.id for model in owner.models.list()]) >= {ANN, BO} and MODEL not in ids


@pytest.mark.parametrize("model", [MODEL, ANN])
def test_an_answer_with_citations(client: OpenAI, model: str) -> None:
    done = client.chat.completions.create(model=model, messages=[QUESTION], temperature=0.3, max_tokens=9, user="u")
    assert done.choices[0].message.content == f"room 4B{SOURCES}" and done.choices[0].finish_reason == "stop"
    [citation] = (done.model_extra or {})["citations"]
    assert citation["message_id"] == "<review@kestrel.example>" and citation["proves"]
    assert "takes place in room 4B" in citation["passages"][0]


def test_a_stream(client: OpenAI) -> None:
    chunks = list(client.chat.completions.create(model=MODEL, messages=[QUESTION], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == f"room 4B{SOURCES}"
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].choices[0].finish_reason == "stop"
    assert (chunks[-1].model_extra or {})["citations"][0]["proves"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_an_answer_is_one_line_of_a_stream(url: str, policy: MailPolicy) -> None:
    """Whatever a client takes for the end of a line."""
    policy.answer = "room\u20284B, caf\u00e9"
    body = {"stream": True, "model": ANN, "messages": [QUESTION]}
    with httpx.stream(
        "POST", f"{url}/chat/completions", json=body, headers=bearer(ANNS_KEY), timeout=60, trust_env=False
    ) as answer:
        chunks = [
            json.loads(line.removeprefix("data: ")) for line in answer.iter_lines() if line and "[DONE]" not in line
        ]
    said = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert said.startswith(policy.answer)


def test_a_follow_up_has_the_exchange_before_it(client: OpenAI, policy: MailPolicy) -> None:
    said = {"role": "assistant", "content": f"room 4B{SOURCES}"}
    older: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    messages: Any = [*older, said, QUESTION, said, {"role": "user", "content": [{"type": "text", "text": "And when?"}]}]
    client.chat.completions.create(model=MODEL, messages=messages)
    asked = last_question(policy)
    assert f"Before: {GOOD['question']} Answer: room 4B Now: And when?" in asked
    assert "Hello" not in asked and "Sources" not in asked and "brief" not in asked


def test_an_agent_that_gives_up(client: OpenAI, policy: MailPolicy) -> None:
    policy.silent = True
    done = client.chat.completions.create(model=MODEL, messages=[QUESTION])
    assert done.choices[0].message.content == GAVE_UP and (done.model_extra or {})["citations"] == []
    chunks = client.chat.completions.create(model=MODEL, messages=[QUESTION], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == GAVE_UP


def test_langchain(url: str) -> None:
    model = ChatOpenAI(base_url=url, api_key=SecretStr(ANNS_KEY), model=MODEL, max_retries=0)
    asked = [HumanMessage(GOOD["question"]), AIMessage("room 4B"), HumanMessage("Where is the budget review?")]
    assert str(model.invoke(asked).content).startswith("room 4B")
    assert "".join(str(piece.content) for piece in model.stream(asked)).endswith("Budget review")


def test_what_open_webui_sends(url: str) -> None:
    """A chat, and the request for its title, which comes with a system prompt and without a stream."""
    body = {"stream": True, "model": ANN, "messages": [QUESTION], "stream_options": {"include_usage": True}}
    headers = bearer(ANNS_KEY) | {"X-OpenWebUI-User-Name": "Ann"}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=60, trust_env=False)
    assert answer.headers["content-type"].startswith("text/event-stream") and answer.text.endswith("data: [DONE]\n\n")
    title = {"model": ANN, "messages": [QUESTION], "stream": False, "max_completion_tokens": 1000, "metadata": {"a": 1}}
    assert httpx.post(f"{url}/chat/completions", json=title, headers=headers, trust_env=False).status_code == 200


def test_what_is_left_out_may_be_null(url: str) -> None:
    """OpenAI's interface allows it, and clients with a field for every option send it."""
    body = {"model": ANN, "messages": [QUESTION], "stream": None, "n": None, "tools": None, "response_format": None}
    answer = httpx.post(f"{url}/chat/completions", json=body, headers=bearer(ANNS_KEY), trust_env=False)
    assert answer.status_code == 200 and answer.json()["object"] == "chat.completion"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools: leave it out"),
        ({"n": 2}, 400, "n: only one answer"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format: leave it out"),
        ({"messages": []}, 422, "messages"),
        ({"messages": [{"role": "user", "content": "x"}] * 401}, 422, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, 400, "the last one must be a question"),
        ({"messages": [{"role": "user", "content": " "}]}, 400, "the last one must be a question"),
        ({"messages": [{"role": "pirate", "content": "x"}]}, 422, "messages"),
        ({"messages": [{"role": "user", "content": "x" * 4001}]}, 422, "messages: has 4,001 characters"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
            400,
            "a part of type image_url is not understood",
        ),
        ({"model": BO}, 404, "unknown inbox"),
        ({"model": "gpt-4.1"}, 404, "unknown inbox"),
        ({"model": "\ud800"}, 422, "model"),
        ({"stream": "sometimes"}, 422, "stream"),
    ],
)
def test_bad_requests(url: str, body: dict[str, Any], status: int, said: str) -> None:
    good = {"model": MODEL, "messages": [QUESTION]}
    answer = httpx.post(
        f"{url}/chat/completions",
        content=json.dumps(good | body),
        headers=bearer(ANNS_KEY) | {"Content-Type": "application/json"},
        trust_env=False,
    )
    assert answer.status_code == status and said in answer.json()["error"]["message"], answer.text


def test_keys(url: str, client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError, match="this key is not known"):
        OpenAI(base_url=url, api_key="wrong").chat.completions.create(model=ANN, messages=[QUESTION])
    with pytest.raises(openai.NotFoundError, match="name an inbox"):
        OpenAI(base_url=url, api_key=OWNER_KEY).chat.completions.create(model=MODEL, messages=[QUESTION])


def test_two_hundred_messages_are_one_conversation(client: OpenAI) -> None:
    turns: Any = [QUESTION, {"role": "assistant", "content": "room 4B"}] * 100
    done = client.chat.completions.create(model=MODEL, messages=[*turns, QUESTION])
    assert str(done.choices[0].message.content).startswith("room 4B")


def test_a_client_that_goes_away_stops_the_agent(client: OpenAI, policy: MailPolicy) -> None:
    policy.aborted = 0
    for stream in (False, True):
        policy.go_on.clear()
        with pytest.raises(openai.APITimeoutError):
            list(client.chat.completions.create(model=MODEL, messages=[QUESTION], stream=stream, timeout=1))
        waited(lambda: policy.aborted)
        policy.aborted = 0
        policy.go_on.set()


def test_an_error_in_a_stream_is_said(client: OpenAI, policy: MailPolicy) -> None:
    policy.status = 500
    with pytest.raises(openai.APIError, match="the model's server failed"):
        list(client.chat.completions.create(model=MODEL, messages=[QUESTION], stream=True))
