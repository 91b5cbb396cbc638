"""A judge on loopback: an OpenAI-compatible server whose replies a test decides."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = str | int
"""What the judge writes, or the HTTP status with which it refuses."""


class JudgeModel(ThreadingHTTPServer):
    """Calls `reply` with the ids of the trajectories that it was shown and with all that it was shown; answers after `seconds`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply: Callable[[list[str], str], Reply] = by_id
        self.seconds = 0.0
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str] = []
        """Of each request, as its header has it."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


def by_id(ids: list[str], asked: str = "") -> str:
    """The first trajectory is the worst, the last one the best; said in reverse, so that order means nothing."""
    return scores({id: number / max(1, len(ids) - 1) for number, id in enumerate(ids)})


def scores(values: dict[str, float]) -> str:
    told = [{"trajectory_id": id, "explanation": f"so good is {id}", "score": value} for id, value in values.items()]
    return json.dumps({"scores": told[::-1]})


def prose(ids: list[str], asked: str = "") -> str:
    return f"I like the first of these {len(ids)} best, but all of them are nice."


def one_short(ids: list[str], asked: str = "") -> str:
    return by_id(ids[:-1])


class _Handler(BaseHTTPRequestHandler):
    server: JudgeModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        self.server.keys.append(self.headers["Authorization"])
        time.sleep(self.server.seconds)
        asked = request["messages"][-1]["content"]
        reply = self.server.reply(re.findall(r'<trajectory id="(\d+)">', asked), asked)
        status = reply if isinstance(reply, int) else 200
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": request["model"]}
        body |= {"choices": [choice], "usage": usage} if status == 200 else {"error": {"message": f"status {status}"}}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""


@contextmanager
def judging() -> Iterator[JudgeModel]:
    server = JudgeModel()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
