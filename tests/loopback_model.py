"""A language model on loopback: an OpenAI-compatible server with replies chosen by a test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.local_server import running

Reply = str | int | tuple[int, str] | dict[str, Any]
"""What the model writes, the whole message (with tool calls), or the HTTP status with which it refuses, also with its reason."""


class LoopbackModel(ThreadingHTTPServer):
    """Answers each chat completion with `answer`, and keeps the requests."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """Of each request, as its header has it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def answer(self, request: dict[str, Any]) -> Reply:
        raise NotImplementedError

    @classmethod
    @contextmanager
    def serving(cls) -> Iterator[Self]:
        server = cls()
        with running(server):
            yield server


class _Handler(BaseHTTPRequestHandler):
    server: LoopbackModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.keys.append(self.headers["Authorization"])
        reply = self.server.answer(request)
        refused = (reply, f"status {reply}") if isinstance(reply, int) else reply
        status, reason = refused if isinstance(refused, tuple) else (200, "")
        message = reply if isinstance(reply, dict) else {"role": "assistant", "content": reply}
        choice = {"index": 0, "finish_reason": "tool_calls" if "tool_calls" in message else "stop", "message": message}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": request["model"]}
        body |= {"choices": [choice], "usage": usage} if status == 200 else {"error": {"message": reason}}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""
