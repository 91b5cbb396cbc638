"""A model that writes questions: an OpenAI-compatible server on loopback whose replies a test decides."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from environment.models import Email

OWNER = "ann.lee@example.com"
THINGS = ("Heron", "Falcon", "Osprey", "Kestrel", "Merlin", "Harrier", "Plover", "Curlew", "Dunlin", "Avocet")


class QuestionModel(ThreadingHTTPServer):
    """Calls `reply` with what it was asked (`{"owner", "questions", "mails"}`): a text, or an int as HTTP status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply: Callable[[dict[str, Any]], str | int] = good_reply
        self.requests: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def asked_about(self) -> list[tuple[int, ...]]:
        """The ids of the mails of every request, in the order of requests."""
        return [tuple(mail["id"] for mail in case_of(request)["mails"]) for request in self.requests]


def case_of(request: dict[str, Any]) -> dict[str, Any]:
    return json.loads(request["messages"][1]["content"])


class _Handler(BaseHTTPRequestHandler):
    server: QuestionModel

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        reply = self.server.reply(case_of(request))
        status = reply if isinstance(reply, int) else 200
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
        usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
        body: dict[str, Any] = {"id": "x", "object": "chat.completion", "created": 0, "model": "m"}
        body |= {"choices": [choice], "usage": usage} if status == 200 else {"error": {"message": f"status {status}"}}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Keeps the test output quiet."""


@contextmanager
def serving() -> Iterator[QuestionModel]:
    server = QuestionModel()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def room_mails(count: int) -> list[Email]:
    """Mail `n` gives the room of one review; no two have the same thing and number."""
    return [
        Email(
            message_id=f"<{number}@example.com>",
            subject=f"{THINGS[number % 10]} review {number}",
            from_address="bob.ray@example.com",
            to_addresses=(OWNER,),
            date=datetime(2001, 1, 1, 9) + timedelta(hours=7 * number),
            body=f"The {THINGS[number % 10]} review number {number} is in room {room(number)}, please be on time.",
        )
        for number in range(1, count + 1)
    ]


def room(number: int) -> str:
    return f"B{100 + number}"


def written(mail: dict[str, Any], **fields: object) -> dict[str, Any]:
    """A good question about one of `room_mails` as it was shown, unless `fields` say otherwise."""
    number = int(mail["text"].partition("review number ")[2].split()[0])
    return {
        "question": f"In which room do I find the {THINGS[number % 10]} review number {number}?",
        "answer": room(number),
        "mail_ids": [mail["id"]],
        "how_realistic": 0.8,
    } | fields


def good_reply(case: dict[str, Any]) -> str:
    return json.dumps({"questions": [written(mail) for mail in case["mails"]]})
