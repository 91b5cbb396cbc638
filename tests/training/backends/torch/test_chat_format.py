"""Messages to ids and back: tool calls, and the ids that were really sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from training.backends.torch.chat_format import ChatFormat, ParsedReply
from training.errors import BadInput

pytestmark = pytest.mark.service

TOOLS = [
    {
        "function": {"parameters": {"type": "object", "properties": {"q": {"type": "string"}}}, "name": "search"},
        "type": "function",
    }
]
USER = [{"role": "system", "content": "read the mails"}, {"role": "user", "content": "who?"}]


@pytest.fixture(scope="module")
def chat(llama_dir: Path) -> ChatFormat:
    return ChatFormat(AutoTokenizer.from_pretrained(llama_dir))


def call(arguments: str, name: str = "search") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_several_calls_with_text_before_them(chat: ChatFormat) -> None:
    reply = chat.parse("I look.\n" + call('{"q":"a"}') + "\n" + call('{"q": "b"}', "read"), TOOLS)
    assert reply.content == "I look."
    assert [c["function"]["name"] for c in reply.tool_calls] == ["search", "read"]
    assert [json.loads(c["function"]["arguments"]) for c in reply.tool_calls] == [{"q": "a"}, {"q": "b"}]
    assert len({c["id"] for c in reply.tool_calls}) == 2


def test_the_last_call_may_be_unclosed(chat: ChatFormat) -> None:
    reply = chat.parse('<tool_call>\n{"name": "search", "arguments": {"q": "a"}}', TOOLS)
    assert reply.content is None
    assert len(reply.tool_calls) == 1


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "search", "arguments": {"q": "a"}\n</tool_call>',
        '<tool_call>\n{"name": "search", "arguments": ',
        '<tool_call>\n{"name": 3, "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "search", "arguments": ["a"]}\n</tool_call>',
        "<tool_call>\n[]\n</tool_call>",
        '<tool_call>\n{"name": "search", "arguments": {"q": "half of an emoji: \\ud83d"}}\n</tool_call>',
        call("{}") + "<tool_call>nonsense</tool_call>",
    ],
)
def test_malformed_calls_stay_plain_text(chat: ChatFormat, text: str) -> None:
    assert chat.parse(text, TOOLS) == ParsedReply(text, [])


def test_without_tools_nothing_is_parsed(chat: ChatFormat) -> None:
    assert chat.parse(call("{}"), None) == ParsedReply(call("{}"), [])


@given(st.text())
def test_any_text_parses(chat: ChatFormat, text: str) -> None:
    reply = chat.parse("<tool_call>" + text, TOOLS)
    assert reply.tool_calls or reply.content == "<tool_call>" + text


@given(st.lists(st.sampled_from(range(3, 320)), max_size=30))
def test_token_bytes_add_up_to_the_text(chat: ChatFormat, ids: list[int]) -> None:
    joined = bytes(byte for token in ids for byte in chat.token_bytes(token))
    assert joined.decode(errors="replace") == chat.decode(ids)


def sampled(chat: ChatFormat, text: str) -> list[int]:
    """Ids for `text` that its tokenizer would never produce: one per byte."""
    table = {chat.token_bytes(i)[0]: i for i in range(3, 320) if len(chat.token_bytes(i)) == 1}
    return [table[byte] for byte in text.encode()]


@pytest.mark.parametrize("ended", [True, False])
def test_a_resent_tool_call_keeps_its_sampled_ids(chat: ChatFormat, ended: bool) -> None:
    prompt = chat.encode(USER, TOOLS)
    ids = sampled(chat, call('{"q":"a"}')) + ([2] if ended else [])
    reply = chat.parse(chat.decode(ids), TOOLS)
    chat.remember(USER, TOOLS, prompt, reply, ids)
    resent = {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": reply.tool_calls[0]["id"],
                "type": "function",
                "function": {"name": "search", "arguments": '{"q":   "a"}'},
            }
        ],
    }
    tool = {"role": "tool", "tool_call_id": reply.tool_calls[0]["id"], "content": "nothing"}
    after = chat.tokenizer.encode(
        "\n<|im_start|>tool\nnothing<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    )
    expected = prompt + ids + ([] if ended else [2]) + after
    assert chat.encode([*USER, resent, tool], TOOLS) == expected


def test_equal_texts_with_different_ids_are_told_apart(chat: ChatFormat) -> None:
    prompt = chat.encode(USER, None)
    text = "the mails"
    spelled, merged = [*sampled(chat, text), 2], [*chat.tokenize(text), 2]
    assert spelled != merged
    for ids, name in ((spelled, "one"), (merged, "two")):
        chat.remember(USER, None, prompt, chat.parse(text, None), ids, name)
    messages = [*USER, {"role": "assistant", "content": text}, {"role": "user", "content": "and?"}]
    for ids, name in ((spelled, "one"), (merged, "two")):
        assert chat.encode(messages, None, name)[: len(prompt) + len(ids)] == prompt + ids


def test_two_calls_with_equal_texts_are_told_apart_by_their_ids(chat: ChatFormat) -> None:
    prompt = chat.encode(USER, TOOLS)
    variants = [sampled(chat, call(arguments)) + [2] for arguments in ('{"q":"a"}', '{"q": "a"}')]
    replies = [chat.parse(chat.decode(ids), TOOLS) for ids in variants]
    for ids, reply in zip(variants, replies, strict=True):
        chat.remember(USER, TOOLS, prompt, reply, ids)
    for ids, reply in zip(variants, replies, strict=True):
        tool = {"role": "tool", "tool_call_id": reply.tool_calls[0]["id"], "content": "x"}
        assert chat.encode([*USER, reply.message(), tool], TOOLS)[: len(prompt) + len(ids)] == prompt + ids


def test_broken_arguments_from_a_client_are_refused(chat: ChatFormat) -> None:
    message = {"role": "assistant", "tool_calls": [{"function": {"name": "search", "arguments": "{"}}]}
    with pytest.raises(BadInput, match="not JSON"):
        chat.encode([*USER, message], TOOLS)


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"content": 5}, "The content of a message is 5"),
        ({"tool_calls": ["search"]}, "The tool_calls of a message are"),
        ({"tool_calls": [{"function": "search"}]}, "The tool_calls of a message are"),
    ],
)
def test_malformed_messages_of_a_client_are_refused(chat: ChatFormat, message: dict[str, object], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        chat.encode([*USER, {"role": "assistant", **message}], TOOLS)
    assert chat.encode([{"role": "user", "content": [{"type": "text", "text": None}]}], None)
