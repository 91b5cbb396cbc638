"""ChatML with Hermes tool calls: what the policy is conditioned on never changes when the conversation grows."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import render_jinja_template

from training.backends.model_sources.wheels import CHATML_HERMES

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search the inbox.",
            "parameters": {
                "type": "object",
                "properties": {
                    "keywords": {"type": "array", "items": {"type": "string"}},
                    "limit": {"type": "integer"},
                    "anything": {},
                },
                "required": ["keywords"],
            },
        },
    },
    {"type": "function", "function": {"name": "stop"}},
]

SIGNATURES = """Tools:
search(keywords: string[], limit?: integer, anything?: any): Search the inbox.
stop()
Call one like this:
<tool_call>
{"name": "tool name", "arguments": {"argument": value}}
</tool_call>"""


def render(messages: list[dict[str, Any]], *, tools: list[dict[str, Any]] | None = None, generate: bool = False) -> str:
    rendered, _ = render_jinja_template(
        [messages], tools=tools, chat_template=CHATML_HERMES.read_text(), add_generation_prompt=generate
    )
    return rendered[0]


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_no_tools_and_no_system_message_add_nothing() -> None:
    assert render([{"role": "user", "content": "Hi"}]) == "<|im_start|>user\nHi<|im_end|>\n"
    assert render([{"role": "user", "content": "Hi"}], generate=True).endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_tools_stand_in_the_system_message() -> None:
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    tail = "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert render([system, user], tools=TOOLS) == "<|im_start|>system\nBe brief.\n\n" + SIGNATURES + tail
    assert render([user], tools=TOOLS) == "<|im_start|>system\n" + SIGNATURES + tail


def test_tool_calls_are_hermes_blocks() -> None:
    first, second = call("search", {"keywords": ['é"<']}), call("read", {"email_id": 3})
    blocks = (
        '<tool_call>\n{"name": "search", "arguments": {"keywords": ["é\\"<"]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read", "arguments": {"email_id": 3}}\n</tool_call>'
    )
    silent = {"role": "assistant", "content": None, "tool_calls": [first, second]}
    assert render([silent]) == f"<|im_start|>assistant\n{blocks}<|im_end|>\n"
    assert (
        render([silent | {"content": "Let me look."}]) == f"<|im_start|>assistant\nLet me look.\n{blocks}<|im_end|>\n"
    )
    assert (
        render([{"role": "tool", "content": "nothing", "tool_call_id": "c"}]) == "<|im_start|>tool\nnothing<|im_end|>\n"
    )


TEXT = st.text(max_size=40)
ARGUMENTS = st.dictionaries(TEXT, st.one_of(TEXT, st.integers(), st.lists(TEXT, max_size=3)), max_size=3)
CALLS = st.lists(st.builds(call, TEXT, ARGUMENTS), min_size=1, max_size=2)
MESSAGES = st.lists(
    st.one_of(
        st.builds(lambda c: {"role": "user", "content": c}, TEXT),
        st.builds(lambda c: {"role": "tool", "content": c}, TEXT),
        st.builds(lambda c: {"role": "assistant", "content": c}, TEXT),
        st.builds(lambda c, calls: {"role": "assistant", "content": c, "tool_calls": calls}, st.none() | TEXT, CALLS),
    ),
    min_size=1,
    max_size=5,
)


@given(messages=MESSAGES, tools=st.sampled_from([None, TOOLS]), system=st.booleans())
def test_every_beginning_is_a_prefix(messages: list[dict[str, Any]], tools: Any, system: bool) -> None:
    if system:
        messages = [{"role": "system", "content": "Be brief."}, *messages]
    whole = render(messages, tools=tools)
    for length in range(1, len(messages)):
        beginning = render(messages[:length], tools=tools)
        assert whole.startswith(beginning)
        if messages[length]["role"] == "assistant":
            assert whole.startswith(render(messages[:length], tools=tools, generate=True))


@given(arguments=ARGUMENTS)
def test_arguments_survive(arguments: dict[str, Any]) -> None:
    text = render([{"role": "assistant", "content": None, "tool_calls": [call("f", arguments)]}])
    body = text.removeprefix("<|im_start|>assistant\n<tool_call>\n").removesuffix("\n</tool_call><|im_end|>\n")
    assert json.loads(body) == {"name": "f", "arguments": arguments}
