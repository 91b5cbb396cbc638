"""Questions at the same time: the queue, callers that hang up, and submitted questions."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient

from serving.app import ServiceApp
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import ANN, GOOD, scripted_app, served
from tests.serving.service_client import ANNS_KEY, OWNER_KEY, URL, asked, bearer, waited

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("calm")]


def test_the_queue_is_bounded(client: TestClient, app: ServiceApp, policy: MailPolicy) -> None:
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
def test_who_hangs_up_is_not_computed_to_the_end(policy: MailPolicy, tmp_path: Path, path: str, ahead: bytes) -> None:
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
def test_who_hangs_up_gives_the_place_in_the_queue_back(policy: MailPolicy, tmp_path: Path, path: str) -> None:
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


def test_submitted_answers_expire_and_are_bounded(policy: MailPolicy, tmp_path: Path) -> None:
    app = scripted_app(policy, tmp_path, result_seconds=1, max_results=4)
    policy.go_on.clear()  # what is not answered does not expire
    with TestClient(app.asgi, base_url=URL) as http:
        url = http.post("/submit", json={"parameters": GOOD}).json()["urls"][0]
        refused = http.post("/submit", json={"batch": [GOOD, GOOD]})
        policy.go_on.set()
        assert refused.status_code == 429 and refused.headers["retry-after"]
        waited(lambda: http.get(url).status_code == 404)


def test_an_unexpected_error_ends_a_submitted_question(
    client: TestClient, app: ServiceApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.answering._feedback, "token", lambda *_: 1 / 0)
    url = client.post("/submit", json={"parameters": GOOD}).json()["urls"][0]
    waited(lambda: client.get(url).json()["status"] == "failed")
    assert "log has the cause" in client.get(url).json()["error"]


def test_listing_inboxes_does_not_hold_up_others(
    client: TestClient, app: ServiceApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> list[str]:
        begun.set()
        assert go_on.wait(300)
        return [ANN]

    monkeypatch.setattr(app.answering.service, "inboxes", slow)
    with ThreadPoolExecutor(1) as pool:
        listed = pool.submit(client.get, "/inboxes")
        assert begun.wait(300)
        assert client.get("/health").status_code == 200
        go_on.set()
        assert listed.result().json()["total"] == 1
