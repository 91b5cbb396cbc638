"""Requests and replies that the policy server refuses, or reads as what they are: 400 that names the field, never 500."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from transformers import AutoTokenizer

from training.backends.torch import PolicyServer
from training.backends.torch.chat_format import ChatFormat

pytestmark = pytest.mark.service

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
PLAIN: dict[str, Any] = {
    "model": "base",
    "max_tokens": 2,
    "messages": [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "search", "content": "Ann"},
    ],
    "tools": [TOOL],
}
PLACES: tuple[tuple[str | int, ...], ...] = (
    ("model",),
    ("messages", 0, "role"),
    ("messages", 0, "content"),
    ("messages", 1, "content", 0, "text"),
    ("messages", 2, "tool_calls", 0, "id"),
    ("messages", 2, "tool_calls", 0, "function", "name"),
    ("messages", 2, "tool_calls", 0, "function", "arguments"),
    ("messages", 3, "tool_call_id"),
    ("messages", 3, "name"),
    ("tools", 0, "function", "name"),
    ("tools", 0, "function", "description"),
    ("tools", 0, "function", "parameters"),
    ("stop",),
    ("prompt_cache_key",),
    ("tool_choice",),
)
NESTED = json.loads("[" * 300 + "]" * 300)


def post(server: PolicyServer, body: Any) -> tuple[int, dict[str, Any]]:
    request = Request(
        f"{server.base_url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urlopen(request, timeout=300) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        return error.code, json.load(error)


def at(place: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    body = copy.deepcopy(PLAIN)
    inner: Any = body
    for part in place[:-1]:
        inner = inner[part]
    inner[place[-1]] = value
    return body


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_values_of_every_field_that_cannot_be_used(server: PolicyServer, place: tuple[str | int, ...]) -> None:
    for value in ("\ud800", "a\udfffb", {"\udc00": 1}, 7, 1.5, True, [7], {"a": 7}, NESTED):
        status, said = post(server, at(place, value))
        assert status in (200, 400, 404), (value, said)
        if "\\ud" in json.dumps(value):
            assert status == 400 and "lone surrogate" in said["error"]["message"]
            assert str(place[-1]) in said["error"]["message"]


def test_numbers_for_texts_are_named(server: PolicyServer) -> None:
    for place, named in (
        (("messages", 0, "role"), "role of a message"),
        (("messages", 3, "name"), "name of a message"),
        (("tools", 0, "function", "name"), "tools: 0.function.name"),
        (("tools", 0, "function", "description"), "tools: 0.function.description"),
        (("messages", 2, "tool_calls", 0, "function", "name"), "name of a called function"),
    ):
        status, said = post(server, at(place, 7))
        assert status == 400 and named in said["error"]["message"], said


CHANGING = {
    "logit_bias": {"5": -100},
    "response_format": {"type": "json_object"},
    "frequency_penalty": 0.5,
    "presence_penalty": -1,
    "repetition_penalty": 1.2,
    "top_k": 5,
    "min_tokens": 3,
    "stop_token_ids": [1],
    "ignore_eos": True,
    "guided_json": {"type": "object"},
    "structured_outputs": {"regex": "a"},
    "bad_words": ["a"],
    "parallel_tool_calls": False,
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"enable_thinking": True},
    "add_generation_prompt": False,
    "continue_final_message": True,
    "functions": [{"name": "f"}],
    "a_field_of_tomorrow": 1,
}


def test_fields_that_would_change_the_sample_are_refused(server: PolicyServer) -> None:
    for name, value in CHANGING.items():
        status, said = post(server, PLAIN | {name: value})
        assert status == 400 and said["error"]["message"].startswith(f"{name}: this server does not support it"), said


def test_neutral_values_and_what_changes_nothing_are_accepted(server: PolicyServer) -> None:
    neutral = dict.fromkeys(CHANGING) | {
        "logit_bias": {},
        "response_format": {"type": "text"},
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "parallel_tool_calls": True,
        "user": "ann",
        "metadata": {"a": "b"},
        "top_logprobs": 5,
    }
    status, said = post(server, PLAIN | neutral)
    assert status == 200, said


@pytest.fixture(scope="module")
def chat(llama_dir: Path) -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(llama_dir))


@pytest.mark.parametrize("depth", [65, 400, 900, 980, 1_000, 1_500, 100_000])
@pytest.mark.parametrize("opening", ["[", '{"a": ', '{"name": "search", "arguments": {"q": ['])
def test_a_deeply_nested_reply_is_text(chat: ChatFormat, depth: int, opening: str) -> None:
    closed = {"[": "[" * depth + "]" * depth, '{"a": ': '{"a": ' * depth + "1" + "}" * depth}
    inner = closed.get(opening, "[" * depth + "]" * depth)
    call = inner if opening in closed else '{"name": "search", "arguments": {"q": ' + inner + "}}"
    for text in (f"<tool_call>\n{call}\n</tool_call>", f"<tool_call>\n{opening * depth}"):
        reply = chat.parse(text, [TOOL])
        assert reply.tool_calls == [] and reply.content == text
        messages = [{"role": "user", "content": "Who?"}]
        chat.remember(messages, [TOOL], chat.encode(messages, [TOOL]), reply, [1, 2])
        assert chat.encode([*messages, reply.message(), {"role": "user", "content": "And?"}], [TOOL])


@pytest.mark.parametrize(
    "text", ["</tool_call>", "<tool_call>", 'a </tool_call> "}} b', "\\</tool_call>\n", "<tool_call>{}</tool_call>"]
)
def test_tags_within_the_texts_of_a_call_are_text(chat: ChatFormat, text: str) -> None:
    calls = [{"name": "search", "arguments": {"q": text}}, {"name": "search", "arguments": {text: ["x"]}}]
    written = "\n".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
    for sampled in (written, written.removesuffix("\n</tool_call>"), "I look. " + written):
        parsed = chat.parse(sampled, [TOOL])
        functions = [call["function"] for call in parsed.tool_calls]
        assert [{"name": f["name"], "arguments": json.loads(f["arguments"])} for f in functions] == calls
    assert chat.parse(written.replace("}}\n</", "}} and more\n</", 1), [TOOL]).tool_calls == []
