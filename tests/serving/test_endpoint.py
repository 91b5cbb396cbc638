"""The service's HTTP face with a scripted policy: real mails, real agent, real checks; only the language model is played."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from zenml.deployers.server.models import BaseDeploymentInvocationResponse, DeploymentInvocationResponseMetadata
from zenml.steps.step_context import RunContext, get_or_create_run_context

from agent.settings import AgentSettings
from environment.email_db import MailDatabase, build_database
from environment.models import Email
from serving import endpoint
from serving.answer import Question
from serving.service import AnswerService, describe_model
from training.task import Policy

ANN = "ann@kestrel.example"
GOOD = {"question": "Where do we review the budget?", "inbox_address": ANN, "query_date": "2024-05-15"}
REVIEW = Email(
    message_id="<review@kestrel.example>",
    subject="Budget review",
    from_address="bo@kestrel.example",
    to_addresses=(ANN,),
    date=datetime(2024, 3, 1, 9),
    body="The budget review takes place in room 4B.",
)


class ScriptedPolicy(ThreadingHTTPServer):
    """Plays an OpenAI-compatible server: searches, then answers with the first mail that was found. Counts conversations."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ScriptedHandler)
        self.broken = False
        self.silent = False
        self.requests: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def reply(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        if self.silent:
            return {"role": "assistant", "content": "I would rather not."}
        observations = [message["content"] for message in messages if message["role"] == "tool"]
        if not observations:
            return _call("search_inbox_tool", keywords=["budget", "review"])
        return _call("return_final_answer_tool", answer="room 4B", source_ids=[int(observations[0].split()[0])])


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


class _ScriptedHandler(BaseHTTPRequestHandler):
    server: ScriptedPolicy

    def do_GET(self) -> None:
        self._send(200, {})

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(request)
        if self.server.broken:
            self._send(400, {"error": {"message": "Traceback: secret"}})
            return
        message = self.server.reply(request["messages"])
        reason = "tool_calls" if "tool_calls" in message else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        self._send(200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class InProcessDeployment:
    """Stands where ZenML's deployment service is: runs the step's one call, without a store of runs."""

    def get_pipeline_invoke_models(self) -> tuple[type[BaseModel], type[BaseModel]]:
        return endpoint.Invocation, BaseModel

    def execute_pipeline(self, request: endpoint.Invocation) -> BaseDeploymentInvocationResponse:
        outputs, error = None, None
        try:
            outputs = {"answer": endpoint.loaded_service().answer(Question(**request.parameters.model_dump()))}
        except Exception as failure:
            error = f"Traceback (most recent call last): {failure}"
        metadata = DeploymentInvocationResponseMetadata(
            deployment_id=UUID(int=0),
            deployment_name="test",
            snapshot_id=UUID(int=0),
            pipeline_name="inference_pipeline",
            run_name="run-1",
            parameters_used=request.parameters.model_dump(),
        )
        return BaseDeploymentInvocationResponse(
            success=error is None, outputs=outputs, error=error, execution_time=0.1, metadata=metadata
        )


@pytest.fixture(scope="module")
def policy() -> Iterator[ScriptedPolicy]:
    server = ScriptedPolicy()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def client(policy: ScriptedPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    path: Path = tmp_path_factory.mktemp("mails") / "mails.sqlite"
    build_database([REVIEW], path)
    database = MailDatabase(path)
    service = AnswerService(
        Policy(base_url=policy.base_url, model="m", temperature=0),
        database,
        AgentSettings(max_turns=3, rollout_timeout=20),
        describe_model("checkpoint", 3, "base", database),
        stop=lambda: None,
    )
    RunContext._clear()
    get_or_create_run_context().initialize(service)
    app = FastAPI()
    app.add_middleware(endpoint.BodyLimit)
    runner: Any = SimpleNamespace(service=InProcessDeployment())
    app.post("/invoke")(endpoint.invoke_endpoint(app_runner=runner))
    app.get("/health")(endpoint.health)
    app.get("/model")(endpoint.model_info)
    app.get("/")(endpoint.page)
    with TestClient(app) as http:
        yield http
    service.close()
    RunContext._clear()


@pytest.fixture(autouse=True)
def _calm(policy: ScriptedPolicy) -> None:
    policy.broken = policy.silent = False
    policy.requests.clear()


def test_answer_has_the_four_keys_at_the_top(client: TestClient) -> None:
    response = client.post("/invoke", json={"parameters": GOOD})
    assert response.status_code == 200
    answered = response.json()
    assert {key: answered[key] for key in ("question", "answer", "source_ids", "success")} == {
        "question": GOOD["question"],
        "answer": "room 4B",
        "source_ids": ["<review@kestrel.example>"],
        "success": True,
    }
    assert answered["metadata"]["run_name"] == "run-1"
    assert answered["metadata"]["episode"]["outcome"] == "answered"


def test_decoding_is_greedy(client: TestClient, policy: ScriptedPolicy) -> None:
    client.post("/invoke", json={"parameters": GOOD})
    assert len(policy.requests) == 2
    assert {request["temperature"] for request in policy.requests} == {0}


def test_requests_share_one_loaded_model(client: TestClient) -> None:
    answers = [client.post("/invoke", json={"parameters": GOOD}).json() for _ in range(10)]
    loads = {answer["metadata"]["model"]["load_id"] for answer in answers}
    assert loads == {client.get("/model").json()["load_id"]}


def test_warm_up_samples_one_token(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.silent = True
    endpoint.loaded_service().warm_up()
    assert [request["max_completion_tokens"] for request in policy.requests] == [1]


def test_giving_up_is_an_honest_answer(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.silent = True
    response = client.post("/invoke", json={"parameters": GOOD})
    assert response.status_code == 200
    answered = response.json()
    assert (answered["answer"], answered["source_ids"], answered["success"]) == (None, [], False)
    assert answered["metadata"]["episode"]["outcome"] == "no_tool_call"


def test_mail_after_the_query_date_is_not_there(client: TestClient) -> None:
    response = client.post("/invoke", json={"parameters": GOOD | {"query_date": "2024-02-01"}})
    assert "<review@kestrel.example>" not in response.text


def test_failed_agent_is_a_500_without_details(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.broken = True
    response = client.post("/invoke", json={"parameters": GOOD})
    assert response.status_code == 500
    assert "Traceback" not in response.text and "secret" not in response.text
    assert "run-1" in response.json()["error"]


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"question": None}, 422, "parameters.question"),
        ({"question": ""}, 422, "is empty"),
        ({"question": " \n"}, 422, "is empty"),
        ({"question": "x" * 4_001}, 422, "4,001 characters"),
        ({"question": "x" * 100_000}, 422, "at most 4,000"),
        ({"question": 7}, 422, "parameters.question"),
        ({"question": "a\0b"}, 422, "not text"),
        ({"inbox_address": "nobody@kestrel.example"}, 404, "unknown inbox"),
        ({"inbox_address": "' OR 1=1 --"}, 404, "unknown inbox"),
        ({"query_date": "next week"}, 422, "YYYY-MM-DD"),
        ({"query_date": "2001-13-45"}, 422, "YYYY-MM-DD"),
        ({"query_dat": "2001-01-01"}, 422, "parameters.query_dat"),
    ],
)
def test_bad_parameters(client: TestClient, change: dict[str, Any], status: int, said: str) -> None:
    response = client.post("/invoke", json={"parameters": GOOD | change})
    assert response.status_code == status
    assert response.json()["success"] is False
    assert said in response.json()["error"]
    assert "\n" not in response.json()["error"]


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_missing_parameter_is_named(client: TestClient, missing: str) -> None:
    parameters = {name: value for name, value in GOOD.items() if name != missing}
    response = client.post("/invoke", json={"parameters": parameters})
    assert response.status_code == 422
    assert f"parameters.{missing}" in response.json()["error"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 50_000, b'{"parameters": "x"}', b"{}"])
def test_bad_bodies(client: TestClient, body: bytes) -> None:
    response = client.post("/invoke", content=body)
    assert response.status_code in (400, 422)
    assert len(response.json()["error"]) < 200


@pytest.mark.parametrize("size", [endpoint.MAX_BODY_BYTES + 1, 5_000_000])
def test_large_bodies_are_not_parsed(client: TestClient, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    def parsed(_: bytes) -> None:
        raise AssertionError("an oversized body was parsed")

    monkeypatch.setattr(endpoint, "parse_invocation", parsed)
    assert client.post("/invoke", content=b"x" * size).status_code == 413


@settings(max_examples=150)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_parsing_never_raises_anything_but_rejected(body: bytes | str) -> None:
    with pytest.raises(endpoint.Rejected):
        endpoint.parse_invocation(body if isinstance(body, bytes) else body.encode())


@settings(max_examples=150)
@given(st.text(), st.text(), st.text() | st.datetimes().map(str))
def test_any_text_is_accepted_or_rejected_in_one_line(question: str, inbox: str, date: str) -> None:
    parameters = {"question": question, "inbox_address": inbox, "query_date": date}
    try:
        parsed = endpoint.parse_invocation(json.dumps({"parameters": parameters}).encode())
    except endpoint.Rejected as rejected:
        assert 400 <= rejected.status < 500
        assert len(str(rejected).splitlines()) == 1
    else:
        assert parsed.parameters.question == question


def test_lone_surrogates_are_rejected(client: TestClient) -> None:
    body = json.dumps({"parameters": GOOD | {"question": "a\ud800"}})
    assert client.post("/invoke", content=body.encode()).status_code == 422


def test_health_follows_the_models_server(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/health").status_code == 200
    unreachable = Policy(base_url="http://127.0.0.1:9/v1", model="m")
    monkeypatch.setattr(endpoint.loaded_service(), "policy", unreachable)
    assert client.get("/health").status_code == 503


def test_page_escapes_by_construction(client: TestClient) -> None:
    page = client.get("/").text
    assert "/invoke" in page
    for hazard in ("innerHTML", "insertAdjacentHTML", "document.write", "outerHTML", "eval(", "https://", "http://"):
        assert hazard not in page
