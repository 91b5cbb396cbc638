"""A policy's server: a model that says the log probability of every token that it samples."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.fakes.language_model import OpenAIServer, all_called, call_text, completion
from tests.fakes.server import Answer, Request
from training.task import Policy

OWNER = "ann.lee@example.com"
Call = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
Turn = str | Call | list[Call]


class ScriptedPolicy(OpenAIServer):
    """Plays the next of `replies`, one token per character; several at once for a request of `n` choices."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Turn] = []
        self.seconds_per_reply = 0.0
        self.tokens_between_looks: int | None = None
        """By how much the token counter of `/metrics` grows between two looks at it; `None`: there are no metrics."""
        self.tokens = 0

    @property
    def policy(self) -> Policy:
        return Policy(base_url=self.url, model="scripted", temperature=1.0)

    def respond(self, request: Request) -> Answer:
        if request.method == "GET":
            if self.tokens_between_looks is None:
                return 404
            self.tokens += self.tokens_between_looks
            return {"computed_tokens": self.tokens}
        asked = request.json()
        self.requests.append(asked)
        time.sleep(self.seconds_per_reply)
        written = [_written(self.replies.pop(0)) for _ in range(asked.get("n") or 1)]
        tokens = [
            [_token(index, piece.encode(), -0.5) for index, piece in enumerate([*text, "<|im_end|>"])]
            for text, _ in written
        ]
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        messages = (message for _, message in written)
        return completion(*messages, model="scripted", logprobs=tokens, usage=usage)


class MailPolicy(OpenAIServer):
    """Searches, reads the first mail that was found, then answers `self.answer`; slowly or not at all if a test says so.

    It is also what `serving.service.PolicyServer` is to a service.
    """

    capacity = 2
    up = True

    def __init__(self) -> None:
        super().__init__()
        self.aborted = 0
        self.calm()

    def calm(self) -> None:
        """Go back to how it was at first."""
        self.status = 200
        self.error = "Traceback: secret"
        self.silent = False
        self.reads = True
        self.answer = "room 4B"
        self.cites = True
        self.seconds = 0.0
        self.piece_seconds = 0.0
        self.go_on = threading.Event()
        self.go_on.set()
        self.requests.clear()

    @property
    def base_url(self) -> str:
        return self.url

    def healthy(self) -> bool:
        return self.up

    def close(self) -> None:
        pass

    def turn(self, messages: list[dict[str, Any]]) -> Turn:
        if self.silent:
            return "I would rather not."
        seen = [message["content"] for message in messages if message["role"] == "tool"]
        if not seen:
            return "search_inbox_tool", {"keywords": ["budget", "review"]}
        found = seen[0].split()[0]
        if self.reads and len(seen) == 1 and found.isdigit():
            return "read_email_tool", {"email_id": int(found)}
        return "return_final_answer_tool", {
            "answer": self.answer,
            "source_ids": [int(found)] if self.cites and found.isdigit() else [],
        }

    def respond(self, request: Request) -> Answer:
        if request.method == "GET":
            return {}
        asked = request.json()
        self.requests.append(asked)
        deadline = time.monotonic() + self.seconds
        while not self.go_on.is_set() or time.monotonic() < deadline:
            if request.hung_up():
                self.aborted += 1
                return None
            time.sleep(0.01)
        if self.status != 200:
            return self.status, {"error": {"message": self.error}}
        text, message = _written(self.turn(asked["messages"]))
        return self._streamed(text, message) if asked.get("stream") else completion(message)

    def _streamed(self, text: str, message: dict[str, Any]) -> Iterator[bytes]:
        whole = text.encode()
        for start in range(0, len(whole), 3):
            yield _chunk({}, {"content": [_token(1, whole[start : start + 3], 0.0)]})
            time.sleep(self.piece_seconds)
        yield _chunk(message, None)
        yield _chunk({}, None, "tool_calls" if "tool_calls" in message else "stop")
        yield b"data: [DONE]\n\n"


def _written(turn: Turn) -> tuple[str, dict[str, Any]]:
    """What the policy samples, and the message that a client is told."""
    if isinstance(turn, str):
        return turn, {"role": "assistant", "content": turn}
    calls = turn if isinstance(turn, list) else [turn]
    return "\n".join(call_text(*call) for call in calls), all_called(*calls)


def _token(number: int, text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": f"token_id:{number}", "bytes": list(text), "logprob": logprob, "top_logprobs": []}


def _chunk(delta: dict[str, Any], logprobs: Any, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    head = {"id": "1", "created": 0, "model": "m", "object": "chat.completion.chunk"}
    return f"data: {json.dumps(head | {'choices': [choice]})}\n\n".encode()
