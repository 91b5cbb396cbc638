"""A language model on loopback: an OpenAI-compatible server with replies chosen by a test."""

from __future__ import annotations

import json
from typing import Any

from tests.fakes.server import Answer, FakeServer, Request

Reply = str | int | tuple[int, str] | dict[str, Any]
"""What the model writes, the whole message (with tool calls), or the HTTP status with which it refuses, also with its reason."""


class OpenAIServer(FakeServer):
    """Keeps the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """Of each request, as its header has it."""

    @property
    def url(self) -> str:
        return f"{super().url}/v1"


class LanguageModel(OpenAIServer):
    """Answers each chat completion with `answer`."""

    def answer(self, request: dict[str, Any]) -> Reply:
        raise NotImplementedError

    def respond(self, request: Request) -> Answer:
        asked = request.json()
        self.requests.append(asked)
        self.keys.append(request.headers["Authorization"])
        reply = self.answer(asked)
        if isinstance(reply, (int, tuple)):
            status, reason = reply if isinstance(reply, tuple) else (reply, f"status {reply}")
            return status, {"error": {"message": reason}}
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        return completion(message, model=asked["model"], usage=usage)


def completion(*messages: dict[str, Any], logprobs: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A chat completion with one choice per message, whose `logprobs` are in the same order."""
    choices = [
        {"index": index, "finish_reason": "tool_calls" if "tool_calls" in message else "stop", "message": message}
        for index, message in enumerate(messages)
    ]
    for choice, sampled in zip(choices, logprobs or [], strict=bool(logprobs)):
        choice["logprobs"] = {"content": sampled}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, **fields}


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The message that calls a tool."""
    return all_called((name, arguments))


def all_called(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """The message that calls several tools."""
    functions = [{"name": name, "arguments": json.dumps(given, separators=(",", ":"))} for name, given in calls]
    made = [{"id": "call_x", "type": "function", "index": 0, "function": function} for function in functions]
    return {"role": "assistant", "content": None, "tool_calls": made}


def call_text(name: str, arguments: dict[str, Any]) -> str:
    """What a model writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
