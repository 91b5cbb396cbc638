"""A reply that has to be a call is one, whatever the model would rather say, with the log-probabilities that it was sampled with."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.tool_grammar import ANY_TOOL, ToolGrammar

pytestmark = pytest.mark.service

USER = [{"role": "user", "content": "read the mails"}]


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


COLOURS = ["red", "reddish", 'bl"ue', "grün"]
TOOLS = [
    tool("paint", colour={"enum": COLOURS}),
    tool("count", number={"type": "integer", "minimum": 0, "maximum": 99}),
]
PAINT = {"type": "function", "function": {"name": "paint"}}


def ask(client: openai.OpenAI, **changes: Any) -> Any:
    return client.chat.completions.create(
        **{"model": "base", "messages": USER, "tools": TOOLS, "max_tokens": 200, "logprobs": True, **changes},
        extra_body={"return_token_ids": True},
    )


@pytest.mark.parametrize("marks", [[], ["<tool_call>", "</tool_call>"]], ids=["as text", "as tokens"])
def test_a_call_can_be_written_whether_or_not_its_marks_are_tokens(llama_dir: Path, marks: list[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(llama_dir)
    tokenizer.add_tokens(marks)
    allowed = ToolGrammar(tokenizer, len(tokenizer)).one_call(TOOLS, ANY_TOOL)
    call = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red"}}\n</tool_call><|im_end|>'
    ids = tokenizer.encode(call, add_special_tokens=False)
    assert all(mark in tokenizer.convert_ids_to_tokens(ids) for mark in marks)
    for place, token in enumerate(ids):
        assert allowed(ids[:place])[token], tokenizer.decode(ids[: place + 1])


def is_valid(call: Any) -> bool:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "paint":
        return arguments.keys() == {"colour"} and arguments["colour"] in COLOURS
    return call.function.name == "count" and arguments.keys() == {"number"} and 0 <= arguments["number"] <= 99


def test_a_required_call_comes_and_is_valid(client: openai.OpenAI) -> None:
    reply = ask(client, tool_choice="required", n=12, seed=0, temperature=1.5)
    calls = [choice.message.tool_calls for choice in reply.choices]
    assert all(len(of_reply) == 1 and is_valid(of_reply[0]) for of_reply in calls)
    assert {of_reply[0].function.name for of_reply in calls} == {"paint", "count"}
    assert {choice.finish_reason for choice in reply.choices} == {"tool_calls"}


def test_a_named_tool_is_called(client: openai.OpenAI) -> None:
    reply = ask(client, tool_choice=PAINT, n=4, seed=1)
    assert {choice.message.tool_calls[0].function.name for choice in reply.choices} == {"paint"}


def test_logprobs_are_those_among_the_allowed_tokens(client: openai.OpenAI, llama_dir: Path) -> None:
    reply = ask(client, tool_choice=PAINT, seed=2, temperature=0.7)
    content = reply.choices[0].logprobs.content
    sampled = [int(token.token.removeprefix("token_id:")) for token in content]
    tokenizer = AutoTokenizer.from_pretrained(llama_dir)
    chat = ChatFormat(tokenizer)
    text_of = [bytes(chat.token_bytes(token)) for token in range(len(tokenizer))]
    arguments = [json.dumps({"colour": colour}, ensure_ascii=False) for colour in COLOURS]
    replies = [
        f'<tool_call>\n{{"name": "paint", "arguments": {colour}}}\n</tool_call>'.encode() for colour in arguments
    ]
    with torch.no_grad():
        ids = torch.tensor([[*reply.prompt_token_ids, *sampled]])
        logits = AutoModelForCausalLM.from_pretrained(llama_dir)(ids).logits[0, len(reply.prompt_token_ids) - 1 :]
    may_follow = ToolGrammar(tokenizer, len(tokenizer)).one_call(TOOLS, "paint")
    written, expected = b"", []
    for position, token in enumerate(sampled):
        allowed = np.flatnonzero(may_follow(sampled[:position])).tolist()
        for candidate in allowed:
            if candidate == tokenizer.eos_token_id:
                assert written in replies
            else:
                assert any(whole.startswith(written + text_of[candidate]) for whole in replies)
        expected.append(float(logits[position][token] - logits[position][allowed].logsumexp(-1)))
        written += text_of[token]
    assert [token.logprob for token in content] == pytest.approx(expected, abs=1e-4)
    assert sum(expected) < -0.01, "something was left to choose"


def test_concurrent_requests_are_not_restricted(client: openai.OpenAI) -> None:
    alone = ask(client, temperature=0, max_tokens=40).choices[0].message.content
    with ThreadPoolExecutor(3) as threads:
        free = threads.submit(ask, client, temperature=0, max_tokens=40)
        required = [threads.submit(ask, client, tool_choice="required", seed=i) for i in range(2)]
    assert free.result().choices[0].message.content == alone
    assert all(is_valid(reply.result().choices[0].message.tool_calls[0]) for reply in required)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tool_choice": "required", "tools": []}, "tools are: none"),
        ({"tool_choice": {"type": "function", "function": {"name": "fly"}}}, "call of fly is required.*paint, count"),
        ({"tool_choice": {"type": "function"}}, "tool_choice: expected"),
        ({"tool_choice": "perhaps"}, "tool_choice: expected"),
        ({"tool_choice": "required", "tools": [tool("paint", colour={"type": "colour"})]}, "cannot be followed"),
    ],
)
def test_a_call_that_cannot_be_required_is_refused(client: openai.OpenAI, changes: dict, message: str) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        ask(client, **changes)
