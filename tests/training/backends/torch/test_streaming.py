"""A streamed reply, put together by the client, is the reply that is not streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from transformers import AutoTokenizer

from training.backends.torch import PolicyServer
from training.backends.torch.chat_format import ChatFormat

pytestmark = pytest.mark.service

USER = [{"role": "user", "content": "read the mails"}]
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "strict": True,
        "parameters": {"type": "object", "properties": {"keywords": {"type": "array", "items": {"type": "string"}}}},
    },
}
CALL = '<tool_call>\n{"name": "search", "arguments": {"keywords": ["%s"]}}\n</tool_call>'


@pytest.fixture
def says(llama_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Callable[[], None]]:
    """`says(text)` gives a call after which the model says `text` to the next request, whatever it is."""
    chat = ChatFormat(AutoTokenizer.from_pretrained(llama_dir))

    def script(text: str) -> Callable[[], None]:
        def begin() -> None:
            ids = iter([*chat.tokenize(text), chat.tokenizer.eos_token_id])
            monkeypatch.setattr("training.backends.torch.engine.sample", lambda *_: ([next(ids)], [-0.5]))

        return begin

    return script


def request(**changes: Any) -> dict[str, Any]:
    return {"model": "base", "messages": USER, "max_tokens": 60, "logprobs": True, **changes}


def both(
    client: openai.OpenAI, begin: Callable[[], None] = lambda: None, **changes: Any
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The choices of a whole reply and of the same one streamed, as the client puts them together."""
    begin()
    whole = client.chat.completions.create(**request(**changes))
    begin()
    streamed = assembled(client, **changes)
    for one, other in zip(whole.choices, streamed.choices, strict=True):
        expected = [token.logprob for token in one.logprobs.content]
        assert [token.logprob for token in other.logprobs.content] == pytest.approx(expected, abs=1e-4)
    return comparable(whole), comparable(streamed)


def assembled(client: openai.OpenAI, **changes: Any) -> Any:
    with client.chat.completions.stream(**request(**changes)) as stream:
        try:
            return stream.get_final_completion()
        except openai.LengthFinishReasonError as error:  # the client would not parse it, but it has put it together
            return error.completion


def comparable(completion: Any) -> list[dict[str, Any]]:
    choices = []
    for choice in completion.choices:
        calls = [(call.type, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
        choices.append(
            {
                "index": choice.index,
                "content": choice.message.content,
                "calls": calls,
                "finish_reason": choice.finish_reason,
                "tokens": [token.token for token in choice.logprobs.content],
            }
        )
    return choices


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0},
        {"seed": 3},
        {"n": 3, "seed": 4},
        {"seed": 3, "tools": [SEARCH]},
        {"seed": 8, "top_p": 0.9, "extra_body": {"min_p": 0.1}},
    ],
)
def test_random_replies(client: openai.OpenAI, changes: dict[str, Any]) -> None:
    whole, streamed = both(client, **changes)
    assert whole == streamed
    assert whole[0]["content"]


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, 世界 👋",
        "",
        "  two words  ",
        "I look.\n" + CALL % "a",
        " \n" + CALL % "the 世界" + "\n" + CALL % "b",
        "I look <tool_cal of course",
        "I look.\n" + CALL % "a" + "<tool_call>nonsense</tool_call> so",
        "ends with <tool",
    ],
)
def test_forced_replies(client: openai.OpenAI, says: Callable[[str], Callable[[], None]], text: str) -> None:
    whole, streamed = both(client, says(text), tools=[SEARCH], max_tokens=400)
    assert whole == streamed
    assert len(whole[0]["calls"]) == (0 if "nonsense" in text else text.count("</tool_call>"))


@pytest.mark.parametrize("stop", ["world", ["nothing", "lo w"], "é", "d!!"])
def test_stop_sequences_never_show(
    client: openai.OpenAI, says: Callable[[str], Callable[[], None]], stop: str | list[str]
) -> None:
    whole, streamed = both(client, says("Hello wo, hello world! é à"), stop=stop)
    assert whole == streamed


def test_text_comes_as_it_is_sampled_with_usage_at_the_end(
    client: openai.OpenAI, says: Callable[[str], Callable[[], None]]
) -> None:
    begin = says("read the mails and search them")
    begin()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(**request(**options), extra_body={"return_token_ids": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len(chunks) > 6
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices == []
    tokens = sum(len(chunk.choices[0].logprobs.content) for chunk in chunks[:-1] if chunk.choices[0].logprobs)
    assert (chunks[-1].usage.completion_tokens, chunks[-1].usage.prompt_tokens) == (
        tokens,
        len(chunks[0].prompt_token_ids),
    )
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    begin()
    with client.chat.completions.with_streaming_response.create(**request(stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert all("usage" not in json.loads(line.removeprefix("data: ")) for line in lines[:-1])


def test_the_next_turn_begins_with_the_ids_that_were_streamed(client: openai.OpenAI) -> None:
    def token_ids(completion: Any) -> list[int]:
        return [int(token.token.removeprefix("token_id:")) for token in completion.choices[0].logprobs.content]

    first = assembled(client, seed=11)
    messages = [*USER, {"role": "assistant", "content": first.choices[0].message.content}, *USER]
    again = client.chat.completions.create(**request(messages=messages), extra_body={"return_token_ids": True})
    sampled = token_ids(first)
    prompt = again.prompt_token_ids
    assert any(prompt[i : i + len(sampled)] == sampled for i in range(len(prompt)))


def test_a_client_that_leaves_in_the_middle_frees_its_place(server: PolicyServer, client: openai.OpenAI) -> None:
    before = server._engine.counters["sampled_tokens"]
    stream = client.chat.completions.create(**request(stream=True, n=2, max_tokens=900, temperature=0))
    for _, _ in zip(range(6), stream, strict=False):
        pass
    stream.close()
    deadline = time.monotonic() + 300
    while server._engine.running() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server._engine.running() == 0
    assert server._engine.counters["sampled_tokens"] - before < 2 * 900, "not to the end"
    assert client.chat.completions.create(**request(max_tokens=2)).choices


def test_an_engine_that_fails_in_the_middle_says_so(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter([70, 71])

    def failing(*_: Any) -> tuple[list[int], list[float]]:
        token = next(tokens, None)
        if token is None:
            raise RuntimeError("out of memory")
        return [token], [-0.5]

    monkeypatch.setattr("training.backends.torch.engine.sample", failing)
    stream = client.chat.completions.create(**request(stream=True))
    with pytest.raises(openai.APIError, match="out of memory"):
        list(stream)


def test_a_call_that_is_being_written_shows_in_the_log_probabilities(
    client: openai.OpenAI, says: Callable[[str], Callable[[], None]]
) -> None:
    says(CALL % "a")()
    chunks = list(client.chat.completions.create(**request(tools=[SEARCH]), stream=True))
    called = next(number for number, chunk in enumerate(chunks) if chunk.choices[0].delta.tool_calls)
    early = [chunk.choices[0] for chunk in chunks[:called] if chunk.choices[0].logprobs]
    text = b"".join(bytes(token.bytes or []) for choice in early for token in choice.logprobs.content or [])
    assert len(early) > 5 and b'"name": "search"' in text
    assert not any(choice.delta.content for choice in early)
