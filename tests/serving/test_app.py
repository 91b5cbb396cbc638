"""The service's HTTP interface with a scripted policy: who is answered, what, and what everybody else is told."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import resource
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_service import ANN, BO, GOOD, HOSTILE, ScriptedPolicy, scripted_app, served

from environment.feedback import rating_files
from serving import errors, middleware
from serving.access import Origins
from serving.answer import Answer, Feedback, Invocation, Question
from serving.app import ServiceApp
from serving.feedback import FeedbackQueue, TokenRefused
from serving.log import JsonLines
from serving.recording import Record
from serving.settings import ServingSettings

URL = "http://127.0.0.1"
OWNER_KEY = "the owner's key of this service"
ANNS_KEY = "ann's key, which sees her mail"
KEYS = [{"name": "ann", "sha256": hashlib.sha256(ANNS_KEY.encode()).hexdigest(), "inboxes": [ANN.upper()]}]


@pytest.fixture(scope="module")
def policy() -> Iterator[ScriptedPolicy]:
    server = ScriptedPolicy()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return []


@pytest.fixture(scope="module")
def app(policy: ScriptedPolicy, records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> ServiceApp:
    return scripted_app(policy, tmp_path_factory.mktemp("service"), records=records, max_waiting=1, max_wait=20)


@pytest.fixture(scope="module")
def client(app: ServiceApp) -> Iterator[TestClient]:
    with TestClient(app.asgi, base_url=URL, raise_server_exceptions=False) as http:
        yield http


@pytest.fixture(scope="module")
def closed(policy: ScriptedPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service with keys."""
    app = scripted_app(policy, tmp_path_factory.mktemp("closed"), key=OWNER_KEY, keys=KEYS)
    with TestClient(app.asgi, base_url=URL) as http:
        yield http


@pytest.fixture(autouse=True)
def _calm(policy: ScriptedPolicy) -> Iterator[None]:
    policy.calm()
    yield
    policy.calm()
    policy.up = True


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def asked(client: TestClient, **changes: Any) -> Any:
    return client.post("/invoke", json={"parameters": GOOD} | changes)


def events(client: TestClient, **headers: str) -> list[tuple[str, Any]]:
    """Event and data, in order."""
    text = client.post("/stream", json={"parameters": GOOD}, headers=headers).text
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


def test_answer_with_its_proof(client: TestClient, policy: ScriptedPolicy) -> None:
    response = asked(client)
    assert response.status_code == 200
    reply = response.json()
    assert {key: reply[key] for key in ("question", "answer", "source_ids", "success", "proven")} == {
        "question": GOOD["question"],
        "answer": "room 4B",
        "source_ids": ["<review@kestrel.example>"],
        "success": True,
        "proven": True,
    }
    (source,) = reply["sources"]
    (mark,) = source["marks"]
    assert source["body"][mark["start"] : mark["end"]] == "room 4B" and HOSTILE in source["body"]
    assert reply["metadata"]["request_id"] == response.headers["x-request-id"]
    assert reply["metadata"]["episode"]["outcome"] == "answered"
    assert {request["temperature"] for request in policy.requests} == {0}


def test_the_run_is_recorded_behind_the_answer(client: TestClient, app: ServiceApp, records: list[Record]) -> None:
    reply = asked(client).json()
    deadline = time.monotonic() + 20
    while not records or records[-1].run_name != reply["metadata"]["run_name"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert app.answering.service.take_recorded(records[-1].request_id).answer == "room 4B"


def test_an_answer_that_the_mail_does_not_have_is_not_proven(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.answer = "room 12"
    reply = asked(client).json()
    assert (reply["success"], reply["proven"], reply["sources"][0]["found"]) == (True, False, False)


@pytest.mark.parametrize("change", [{"reads": False}, {"cites": False}])
def test_success_needs_a_cited_mail_that_was_read(
    client: TestClient, policy: ScriptedPolicy, change: dict[str, bool]
) -> None:
    policy.__dict__.update(change)
    reply = asked(client).json()
    assert (reply["answer"], reply["success"]) == ("room 4B", False)
    assert reply["metadata"]["episode"]["outcome"] == "unproven"


def test_giving_up_is_an_honest_answer(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.silent = True
    reply = asked(client).json()
    assert (reply["answer"], reply["source_ids"], reply["success"]) == (None, [], False)
    assert reply["metadata"]["episode"]["outcome"] == "no_tool_call"


def test_mail_after_the_query_date_is_not_there(client: TestClient) -> None:
    assert "<review@kestrel.example>" not in asked(client, parameters=GOOD | {"query_date": "2024-02-01"}).text


def test_warm_up_samples_one_token(client: TestClient, app: ServiceApp, policy: ScriptedPolicy) -> None:
    policy.silent = True
    app.answering.service.warm_up()
    assert [request["max_completion_tokens"] for request in policy.requests] == [1]


# --- events -----------------------------------------------------------------------------------------------------------------


def test_events_tell_what_happens(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.answer = 'room 4B – "näher" 😀'
    told = events(client)
    kinds = [kind for kind, _ in told if kind != "token"]
    assert kinds == ["step", "step", "source", "step", "answer"]
    assert told[0][1] == {"number": 1, "action": "search", "keywords": ["budget", "review"], "found": 1}
    assert "".join(data["text"] for kind, data in told if kind == "token") == policy.answer
    source = next(data for kind, data in told if kind == "source")
    assert source["subject"] == "Budget review"
    assert told[-1][1]["answer"] == policy.answer and told[-1][1]["sources"][0]["read"]


def test_a_failure_ends_the_stream_with_an_error(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.status = 400
    kind, data = events(client)[-1]
    assert kind == "error" and data["status"] == 500 and "secret" not in data["error"]


# --- errors -----------------------------------------------------------------------------------------------------------------


def test_a_failure_has_its_cause_in_the_log(
    client: TestClient, policy: ScriptedPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    policy.status = 400
    logging.getLogger("serving").addHandler(caplog.handler)
    try:
        response = asked(client)
    finally:
        logging.getLogger("serving").removeHandler(caplog.handler)
    assert response.status_code == 500
    assert "Traceback" not in response.text and "secret" not in response.text
    request_id = response.headers["x-request-id"]
    assert request_id in response.json()["error"]
    lines = [json.loads(JsonLines().format(record)) for record in caplog.records]
    failed = next(line for line in lines if line["event"] == "question failed")
    assert failed["request_id"] == request_id and failed["level"] == "ERROR"
    assert any("BadRequestError 400" in cause for cause in failed["cause"]) and any(
        "agent/" in place for place in failed["raised_at"]
    )
    logged = json.dumps(lines)
    for private in (GOOD["question"], "secret", "4B", ANN):
        assert private not in logged


def test_a_question_beyond_the_context_is_told_so_in_tokens(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.status = 400
    policy.error = "The prompt has 12208 tokens and max_tokens is 96: together 12304, but this model can hold 8192. Shorten the prompt."
    response = asked(client)
    assert response.status_code == 422
    assert "12,208 tokens" in response.json()["error"] and "8,192" in response.json()["error"]


def test_the_time_limit_is_the_requests(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.seconds = 30
    response = asked(client, timeout=1)
    assert response.status_code == 504 and "1 seconds" in response.json()["error"]


def test_a_failing_model_server_is_unavailable(client: TestClient, policy: ScriptedPolicy) -> None:
    policy.up = False
    response = asked(client)
    assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
    assert client.get("/health").status_code == 503
    policy.up = True
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"question": None}, 422, "parameters.question"),
        ({"question": ""}, 422, "is empty"),
        ({"question": " \n"}, 422, "is empty"),
        ({"question": "x" * 4_001}, 422, "4,001 characters"),
        ({"question": 7}, 422, "parameters.question"),
        ({"question": "a\0b"}, 422, "not text"),
        ({"inbox_address": "nobody@kestrel.example"}, 404, "unknown inbox"),
        ({"inbox_address": "' OR 1=1 --"}, 404, "unknown inbox"),
        ({"inbox_address": "x" * 400}, 422, "at most 320"),
        ({"query_date": "next week"}, 422, "YYYY-MM-DD"),
        ({"query_date": "2001-13-45"}, 422, "YYYY-MM-DD"),
        ({"query_dat": "2001-01-01"}, 422, "parameters.query_dat"),
    ],
)
@pytest.mark.parametrize("path", ["/invoke", "/submit", "/stream"])
def test_bad_parameters(client: TestClient, path: str, change: dict[str, Any], status: int, said: str) -> None:
    response = client.post(path, json={"parameters": GOOD | change})
    assert response.status_code == status
    assert response.json()["success"] is False
    assert said in response.json()["error"] and "\n" not in response.json()["error"]


@pytest.mark.parametrize(
    "more",
    [
        *({"timeout": seconds} for seconds in (0, 301, "NaN", -1)),
        *({"run_name": name} for name in ("a", "{date}", "x" * 300)),
        {"skip_artifact_materialization": True},
        {"parameters": None},
    ],
)
def test_what_is_not_accepted_beside_the_parameters(client: TestClient, more: dict[str, Any]) -> None:
    response = asked(client, **more)
    assert response.status_code == 422 and next(iter(more)) in response.json()["error"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 50_000,
        b'{"parameters": "x"}',
        b"{}",
        b'{"parameters": {"\\ud800": 1}}',
    ],
)
@pytest.mark.parametrize("path", ["/invoke", "/submit", "/stream", "/feedback"])
def test_bad_bodies(client: TestClient, path: str, body: bytes) -> None:
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert len(response.json()["error"]) < 400


@pytest.mark.parametrize("size", [middleware.MAX_BODY_BYTES + 1, 5_000_000])
def test_large_bodies_are_not_parsed(client: TestClient, size: int) -> None:
    response = client.post("/invoke", content=b"[" * size, headers={"Content-Type": "application/json"})
    assert response.status_code == 413


@settings(max_examples=100)
@given(st.text(), st.text(), st.text() | st.datetimes().map(str))
def test_any_text_is_accepted_or_rejected_in_one_line(question: str, inbox: str, date: str) -> None:
    try:
        Invocation.model_validate({"parameters": {"question": question, "inbox_address": inbox, "query_date": date}})
    except ValueError as error:
        assert errors.one_line(error).encode() and "\n" not in errors.one_line(error)


# --- who may ask ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"])
def test_only_json_is_accepted(client: TestClient, kind: str) -> None:
    response = client.post("/invoke", content=json.dumps({"parameters": GOOD}), headers={"Content-Type": kind})
    assert response.status_code == 415


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "file://", "http://[", "http://127.0.0.1.evil.example"]
)
@pytest.mark.parametrize("path", ["/invoke", "/inboxes"])
def test_pages_of_other_origins_get_nothing(client: TestClient, path: str, origin: str) -> None:
    body = {"json": {"parameters": GOOD}} if path == "/invoke" else {}
    response = client.request("POST" if body else "GET", path, headers={"Origin": origin}, **body)
    assert response.status_code == 403
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.get("/inboxes", headers={"Origin": URL}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "10.0.0.1:8080", "[::1"])
def test_other_names_of_the_service_are_not_known(client: TestClient, host: str) -> None:
    assert client.get("/inboxes", headers={"Host": host}).status_code == 421
    assert client.get("/health", headers={"Host": host}).status_code == 200, "probes use the pod's address"
    assert client.get("/inboxes", headers={"Host": "localhost:8080"}).status_code == 200


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("agent.example:8443", True),
        ("AGENT.example.:8443", True),
        ("agent.example", False),
        ("agent.example:80", False),
        ("mail.example", True),
        ("mail.example:9", True),
        ("[2001:db8::1]:5", True),
        ("localhost:7", True),
        ("evil.example:8443", False),
        ("agent.example:8443@evil.example", False),
        ("agent.example:port", False),
    ],
)
def test_an_allowed_host_with_a_port_is_known_at_that_port(host: str, known: bool) -> None:
    origins = Origins("10.0.0.1", ["Agent.example:8443", "mail.example", "2001:db8::1"], open_to_any=True)
    assert origins.known(host) is known


@pytest.mark.parametrize("host", ["https://agent.example", "agent.example/path", "", "a b", "[::1", "agent.example:x"])
def test_an_allowed_host_is_a_host_name(host: str) -> None:
    with pytest.raises(ValueError, match=r"agent\.example:8443"):
        ServingSettings(allowed_hosts=(host,))


@pytest.mark.parametrize(
    "path", ["/invoke", "/stream", "/submit", "/feedback", "/answers/x", "/inboxes", "/model", "/metrics"]
)
@pytest.mark.parametrize("headers", [{}, bearer("wrong"), bearer("ä"), {"Authorization": f"Basic {OWNER_KEY}"}])
def test_without_a_key_nobody_is_told_anything(closed: TestClient, path: str, headers: dict[str, str]) -> None:
    encoded = {name: value.encode() for name, value in headers.items()}
    if path in ("/invoke", "/stream", "/submit", "/feedback"):
        body = {"parameters": GOOD} if path != "/feedback" else {"token": "x", "verdict": "up"}
        response = closed.post(path, json=body, headers=encoded)
    else:
        response = closed.get(path, headers=encoded)
    assert response.status_code == 401 and response.headers["www-authenticate"] == "Bearer"


def test_a_key_sees_its_inboxes_only(closed: TestClient) -> None:
    anns, owners = bearer(ANNS_KEY), bearer(OWNER_KEY)
    assert closed.post("/invoke", json={"parameters": GOOD}, headers=anns).json()["answer"] == "room 4B"
    bos = GOOD | {"inbox_address": BO}
    assert closed.post("/invoke", json={"parameters": bos}, headers=owners).status_code == 200
    for path in ("/invoke", "/stream", "/submit"):
        hidden = closed.post(path, json={"parameters": bos}, headers=anns)
        unknown = closed.post(path, json={"parameters": GOOD | {"inbox_address": "no@no.example"}}, headers=anns)
        assert hidden.status_code == unknown.status_code == 404
        assert hidden.json()["error"] == unknown.json()["error"], "whether an address exists is not told"
    assert closed.get("/inboxes", headers=anns).json() == {"inboxes": [ANN], "total": 1}
    assert set(closed.get("/inboxes", headers=owners).json()["inboxes"]) > {ANN, BO}
    assert closed.get(f"/examples?inbox={BO}", headers=anns).status_code == 404
    assert closed.get(f"/examples?inbox={ANN}", headers=anns).json()["examples"] == [GOOD]
    assert closed.get("/model", headers=anns | {"Host": "agent.example"}).status_code == 200, (
        "with a key any name will do"
    )


# --- under load -------------------------------------------------------------------------------------------------------------


def waited(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_queue_is_bounded(client: TestClient, app: ServiceApp, policy: ScriptedPolicy) -> None:
    policy.go_on.clear()
    with ThreadPoolExecutor(8) as pool:
        accepted = [pool.submit(asked, client) for _ in range(3)]  # two are answered at the same time, one waits
        waited(lambda: (app.answering.admission.running, app.answering.admission.waiting) == (2, 1))
        refused = asked(client)
        assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 120
        assert asked(client, parameters=GOOD | {"question": ""}).status_code == 422, "checked before the queue"
        assert client.get("/health").status_code == 200
        policy.go_on.set()
        assert [future.result().status_code for future in accepted] == [200, 200, 200]
    assert (app.answering.admission.running, app.answering.admission.waiting) == (0, 0)


@pytest.mark.parametrize("ahead", [b"", b"GET /health HT"])
@pytest.mark.parametrize("path", ["/invoke", "/stream"])
def test_who_hangs_up_is_not_computed_to_the_end(
    policy: ScriptedPolicy, tmp_path: Path, path: str, ahead: bytes
) -> None:
    app = scripted_app(policy, tmp_path)
    policy.go_on.clear()
    policy.aborted = 0
    body = json.dumps({"parameters": GOOD}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with served(app) as url:
        with socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)) as connection:
            connection.sendall(head.encode() + body)
            waited(lambda: policy.requests)
            connection.sendall(ahead)
        waited(lambda: policy.aborted == 1 and app.answering.admission.running == 0)


@pytest.mark.parametrize("path", ["/invoke", "/stream"])
def test_who_hangs_up_gives_the_place_in_the_queue_back(policy: ScriptedPolicy, tmp_path: Path, path: str) -> None:
    app = scripted_app(policy, tmp_path)
    policy.go_on.clear()
    body = json.dumps({"parameters": GOOD}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with served(app) as url, contextlib.ExitStack() as opened:
        address = "127.0.0.1", urlsplit(url).port or 0
        connections = [opened.enter_context(socket.create_connection(address)) for _ in range(5)]
        for connection in connections:
            connection.sendall(head.encode() + body)
        admission = app.answering.admission
        waited(lambda: (admission.running, admission.waiting) == (2, 3))
        for connection in connections:
            connection.close()
        waited(lambda: (admission.running, admission.waiting) == (0, 0))


def test_submitted_questions_are_kept_for_their_key(closed: TestClient) -> None:
    anns = bearer(ANNS_KEY)
    later = GOOD | {"query_date": "2024-02-01"}
    submitted = closed.post("/submit", json={"batch": [GOOD, later]}, headers=anns)
    assert submitted.status_code == 202
    urls = submitted.json()["urls"]

    def stored() -> list[dict[str, Any]]:
        return [closed.get(url, headers=anns).json() for url in urls]

    waited(lambda: {answer["status"] for answer in stored()} == {"done"})
    first, second = stored()
    assert first["reply"]["answer"] == "room 4B" and first["reply"]["metadata"]["parameters_used"] == GOOD
    assert second["reply"]["metadata"]["parameters_used"] == later
    assert closed.get(urls[0], headers=bearer(OWNER_KEY)).status_code == 404, "another key"
    one = closed.post("/submit", json={"parameters": GOOD}, headers=anns)
    assert len(one.json()["ids"]) == 1


@pytest.mark.parametrize("body", [{}, {"batch": []}, {"batch": [GOOD] * 65}, {"batch": [GOOD], "parameters": GOOD}])
def test_a_submission_is_one_question_or_a_batch(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post("/submit", json=body).status_code == 422


def test_submitted_answers_expire_and_are_bounded(policy: ScriptedPolicy, tmp_path: Path) -> None:
    app = scripted_app(policy, tmp_path, result_seconds=1, max_results=4)
    with TestClient(app.asgi, base_url=URL) as http:
        url = http.post("/submit", json={"parameters": GOOD}).json()["urls"][0]
        refused = http.post("/submit", json={"batch": [GOOD, GOOD]})
        assert refused.status_code == 429 and refused.headers["retry-after"]
        waited(lambda: http.get(url).status_code == 404)


def test_an_unexpected_error_ends_a_submitted_question(
    client: TestClient, app: ServiceApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.feedback, "token", lambda *_: 1 / 0)
    url = client.post("/submit", json={"parameters": GOOD}).json()["urls"][0]
    waited(lambda: client.get(url).json()["status"] == "failed")
    assert "log has the cause" in client.get(url).json()["error"]


def test_listing_inboxes_does_not_hold_up_others(
    client: TestClient, app: ServiceApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> list[str]:
        begun.set()
        assert go_on.wait(20)
        return [ANN]

    monkeypatch.setattr(app.answering.service, "inboxes", slow)
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(client.get, "/inboxes")
        assert begun.wait(20)
        assert client.get("/health").status_code == 200
        go_on.set()
        assert listed.result().json()["total"] == 1


# --- feedback ---------------------------------------------------------------------------------------------------------------


def test_feedback_is_stored_once_for_a_person_to_review(client: TestClient, app: ServiceApp) -> None:
    reply = asked(client).json()
    rating = {"token": reply["feedback_token"], "verdict": "down", "comment": "no: {x}", "correct_answer": "room 5"}
    assert client.post("/feedback", json=rating).status_code == 201
    assert client.post("/feedback", json=rating).status_code == 409
    file = app.settings.feedback_folder / f"{reply['metadata']['request_id']}.yaml"
    stored = yaml.safe_load(file.read_text())
    assert stored["review"] == "pending" and stored["answer"] == "room 5" and stored["answered"] == "room 4B"
    assert {key: stored[key] for key in GOOD} == GOOD and stored["message_ids"] == ["<review@kestrel.example>"]


@pytest.mark.parametrize(
    "change", [lambda t: t[:-2] + "xx", lambda t: "", lambda t: "é" * 50, lambda t: t.split(".")[0]]
)
def test_forged_tokens_are_refused(client: TestClient, change: Any) -> None:
    token = asked(client).json()["feedback_token"]
    response = client.post("/feedback", json={"token": change(token), "verdict": "up"})
    assert response.status_code == 403


def test_a_token_is_good_for_the_key_that_asked(closed: TestClient) -> None:
    token = closed.post("/invoke", json={"parameters": GOOD}, headers=bearer(OWNER_KEY)).json()["feedback_token"]
    assert closed.post("/feedback", json={"token": token, "verdict": "up"}, headers=bearer(ANNS_KEY)).status_code == 403
    assert (
        closed.post("/feedback", json={"token": token, "verdict": "up"}, headers=bearer(OWNER_KEY)).status_code == 201
    )


def rating_of(queue: FeedbackQueue) -> Feedback:
    answer = Answer(
        question="?", answer="room 4B", source_ids=[], success=True, outcome="answered", turns=3, seconds=1.0
    )
    return Feedback(token=queue.token("id", "ann", Question.model_validate(GOOD), answer), verdict="up")


def test_tokens_survive_a_restart_and_are_signed_with_a_random_key(tmp_path: Path) -> None:
    folder = tmp_path / "feedback"
    rating = rating_of(FeedbackQueue(folder))
    (key,) = folder.iterdir()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    with pytest.raises(TokenRefused):
        FeedbackQueue(tmp_path / "of another service").add(rating, "ann")
    assert FeedbackQueue(folder).add(rating, "ann").is_file()
    assert [file.name for file in rating_files(folder)] == ["id.yaml"]


def test_a_service_whose_feedback_folder_cannot_be_made_still_answers(tmp_path: Path, policy: ScriptedPolicy) -> None:
    (tmp_path / "feedback").write_text("a file")
    with TestClient(scripted_app(policy, tmp_path).asgi, base_url=URL) as http:
        token = asked(http).json()["feedback_token"]
        assert http.post("/feedback", json={"token": token, "verdict": "up"}).status_code == 503


def test_a_rating_that_cannot_be_written_may_be_sent_again(tmp_path: Path) -> None:
    queue = FeedbackQueue(tmp_path)
    rating = rating_of(queue)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    try:
        with pytest.raises(OSError):
            queue.add(rating, "ann")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not rating_files(tmp_path)
    assert queue.add(rating, "ann").is_file()


# --- what else there is -----------------------------------------------------------------------------------------------------


def test_metrics_are_prometheus(client: TestClient) -> None:
    asked(client)
    text = client.get("/metrics").text
    assert 'email_agent_requests_total{method="POST",route="/invoke",status="200"}' in text
    assert 'email_agent_answers_total{outcome="answered"}' in text and "email_agent_questions_capacity 2.0" in text
    assert ANN not in text


def test_made_up_methods_do_not_fill_the_metrics(client: TestClient) -> None:
    for path in ("/invoke", "/health", "/page/page.js", "/answers/x"):
        assert client.request("MADEUP", path).status_code == 405
    text = client.get("/metrics").text
    assert "MADEUP" not in text and 'method="any"' in text


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/"])
def test_pages_load_nothing_from_elsewhere(client: TestClient, path: str) -> None:
    page = client.get(path)
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert "//" not in "".join(
        part.split(">")[0] for part in page.text.split("<script")[1:] + page.text.split("<link")[1:]
    )


def test_the_page_escapes_by_construction(client: TestClient) -> None:
    script = client.get("/page/page.js").text.replace("http://www.w3.org/2000/svg", "")
    assert "/stream" in script
    for hazard in ("innerHTML", "insertAdjacentHTML", "document.write", "outerHTML", "eval(", "https://", "http://"):
        assert hazard not in script


def test_every_response_has_a_request_id(client: TestClient) -> None:
    ids = [
        client.request(method, path).headers["x-request-id"]
        for method in ("GET", "PUT")
        for path in ("/", "/x", "/invoke")
    ]
    assert len(set(ids)) == len(ids)
