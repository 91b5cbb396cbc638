"""The service with a scripted policy: real mails, real agent, real HTTP; only the language model is played."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import uvicorn

from agent.settings import AgentSettings
from environment.email_db import MailDatabase, build_database
from environment.models import Email
from serving.access import Keys, Origins
from serving.answer import Question
from serving.app import ServiceApp
from serving.http_protocol import server_config
from serving.log import configure
from serving.recording import Record
from serving.service import AnswerService, describe_model
from serving.settings import ServingSettings
from training.task import Policy

ANN = "ann@kestrel.example"
BO = "bo@kestrel.example"
GOOD = {"question": "Where do we review the budget?", "inbox_address": ANN, "query_date": "2024-05-15"}
HOSTILE = "</pre><img src=x onerror=\"document.title='owned'\">"
MAILS = [
    Email(
        message_id="<review@kestrel.example>",
        subject="Budget review",
        from_address=BO,
        to_addresses=(ANN,),
        date=datetime(2024, 3, 1, 9),
        body=f"Hello Ann 😀,\n\nthe budget review takes place in room 4B, on 5 March at 15:00.\n\n{HOSTILE}\nBo",
    ),
    Email(
        message_id="<lunch@kestrel.example>",
        subject="Lunch",
        from_address="cy@kestrel.example",
        to_addresses=(BO,),
        date=datetime(2024, 3, 2, 9),
        body="Shall we have lunch in the old mill?",
    ),
]


class ScriptedPolicy(ThreadingHTTPServer):
    """Plays an OpenAI-compatible server: searches, reads the first mail that was found, then answers `self.answer`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ScriptedHandler)
        self.requests: list[dict[str, Any]] = []
        self.aborted = 0
        self.calm()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def calm(self) -> None:
        """Back to how it was at first."""
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
        return f"http://127.0.0.1:{self.server_port}/v1"

    # As `serving.service.PolicyServer`
    capacity = 2
    up = True

    def healthy(self) -> bool:
        return self.up

    def close(self) -> None:
        pass

    def reply(self, messages: list[dict[str, Any]]) -> tuple[str, dict[str, Any]] | None:
        if self.silent:
            return None
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


class _ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedPolicy

    def do_GET(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        policy = self.server
        policy.requests.append(request)
        deadline = time.monotonic() + policy.seconds
        while not policy.go_on.is_set() or time.monotonic() < deadline:
            self.connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    policy.aborted += 1
                    return
            self.connection.setblocking(True)
            time.sleep(0.01)
        if policy.status != 200:
            self._send(policy.status, {"error": {"message": policy.error}})
            return
        called = policy.reply(request["messages"])
        text = "I would rather not."
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if called:
            name, arguments = called
            text = f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"
            function = {"name": name, "arguments": json.dumps(arguments)}
            message = {"role": "assistant", "content": None}
            message["tool_calls"] = [{"id": "c", "type": "function", "index": 0, "function": function}]
        head = {"id": "1", "created": 0, "model": "m"}
        reason = "tool_calls" if called else "stop"
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            self._send(200, head | {"object": "chat.completion", "choices": [choice]})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        head["object"] = "chat.completion.chunk"
        pieces = [text.encode()[start : start + 3] for start in range(0, len(text.encode()), 3)]
        for piece in pieces:
            entry = {"token": "token_id:1", "bytes": list(piece), "logprob": 0.0, "top_logprobs": []}
            self._chunk(head, {}, {"content": [entry]})
            time.sleep(policy.piece_seconds)
        self._chunk(head, message, None)
        self._chunk(head, {}, None, reason)
        self.wfile.write(b"data: [DONE]\n\n")

    def _chunk(self, head: dict[str, Any], delta: dict[str, Any], logprobs: Any, reason: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        self.wfile.write(f"data: {json.dumps(head | {'choices': [choice]})}\n\n".encode())
        self.wfile.flush()

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def scripted_app(
    policy: ScriptedPolicy,
    folder: Path,
    *,
    key: str | None = None,
    records: list[Record] | None = None,
    **settings: Any,
) -> ServiceApp:
    """The application as it is deployed, with `policy` as its model and nothing that records runs."""
    configure()
    folder.mkdir(parents=True, exist_ok=True)
    build_database(MAILS, folder / "mails.sqlite")
    services: list[AnswerService] = []

    def load() -> AnswerService:
        database = MailDatabase(folder / "mails.sqlite")
        examples = {ANN: [Question.model_validate(GOOD)]}
        limits = AgentSettings(max_turns=4, max_tokens=64)

        def played(base_url: str) -> Policy:
            return Policy(base_url=base_url, model="m", temperature=0, max_tokens=64)

        model = describe_model("here", 3, "scripted model", database)
        services.append(AnswerService(policy, played, database, limits, model, examples))
        return services[-1]

    serving = ServingSettings.model_validate({"feedback_folder": folder / "feedback", "timeout": 60} | settings)
    keys = Keys(key, serving.keys)
    return ServiceApp(
        load,
        lambda: services[-1].close(),
        (records if records is not None else []).append,
        name="test",
        settings=serving,
        keys=keys,
        origins=Origins("127.0.0.1", serving.allowed_hosts, open_to_any=len(keys) > 0),
    )


@contextlib.contextmanager
def served(app: ServiceApp, port: int = 0) -> Iterator[str]:
    """The URL of the application, served by uvicorn as the deployed one is."""
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(server_config(app.asgi))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
