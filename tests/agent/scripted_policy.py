"""A policy server with replies scripted by a test."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from training.task import Policy

Call = tuple[str, dict[str, Any]]
OWNER = "ann.lee@example.com"


class ScriptedPolicy(ThreadingHTTPServer):
    """Replies with the next of `replies`: a text (sampled, one token per character), a (tool, arguments) pair or several."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies: list[str | Call | list[Call]] = []
        self.requests: list[dict[str, Any]] = []
        self.seconds_per_reply = 0.0
        self.tokens_between_looks: int | None = None
        """By how much the token counter of `/metrics` grows between two looks at it; `None`: there are no metrics."""
        self.tokens = 0

    @property
    def policy(self) -> Policy:
        return Policy(base_url=f"http://127.0.0.1:{self.server_address[1]}/v1", model="scripted", temperature=1.0)


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedPolicy

    def do_GET(self) -> None:
        if self.server.tokens_between_looks is None:
            self.send_error(404)
            return
        self.server.tokens += self.server.tokens_between_looks
        self._send(json.dumps({"computed_tokens": self.server.tokens}).encode())

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        time.sleep(self.server.seconds_per_reply)
        choices = [_choice(index, self.server.replies.pop(0)) for index in range(request.get("n") or 1)]
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        envelope = {"id": "x", "object": "chat.completion", "created": 0, "model": "scripted"}
        self._send(json.dumps({**envelope, "choices": choices, "usage": usage}).encode())

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""


def _choice(index: int, reply: str | Call | list[Call]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply}
    text, finish = reply, "stop"
    if not isinstance(reply, str):
        calls = reply if isinstance(reply, list) else [reply]
        text, finish = "\n".join(call_text(*call) for call in calls), "tool_calls"
        message = {"role": "assistant", "content": None, "tool_calls": []}
        for name, arguments in calls:
            function = {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))}
            message["tool_calls"].append({"id": "call_x", "type": "function", "function": function})
    tokens = [
        {"token": f"token_id:{index}", "bytes": list(piece.encode()), "logprob": -0.5, "top_logprobs": []}
        for index, piece in enumerate([*text, "<|im_end|>"])
    ]
    return {"index": index, "finish_reason": finish, "message": message, "logprobs": {"content": tokens}}


def call_text(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
