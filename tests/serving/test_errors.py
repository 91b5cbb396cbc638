"""Requests that cannot be answered: the status, and one line that says why."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from serving import errors, middleware
from serving.bodies import Invocation
from serving.log import JsonLines
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import ANN, GOOD
from tests.serving.service_client import asked

pytestmark = pytest.mark.usefixtures("calm")


def test_a_failure_has_its_cause_in_the_log(
    client: TestClient, policy: MailPolicy, caplog: pytest.LogCaptureFixture
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


def test_a_question_beyond_the_context_is_refused_with_its_tokens(client: TestClient, policy: MailPolicy) -> None:
    policy.status = 400
    policy.error = "The prompt has 12208 tokens and max_tokens is 96: together 12304, but this model can hold 8192. Shorten the prompt."
    response = asked(client)
    assert response.status_code == 422
    assert "12,208 tokens" in response.json()["error"] and "8,192" in response.json()["error"]


def test_the_time_limit_is_the_requests(client: TestClient, policy: MailPolicy) -> None:
    policy.seconds = 30
    response = asked(client, timeout=1)
    assert response.status_code == 504 and "1 seconds" in response.json()["error"]


def test_a_failing_model_server_is_unavailable(client: TestClient, policy: MailPolicy) -> None:
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
        ({"inbox_address": "Anne@Kestrel.example"}, 404, "did you mean ann@kestrel.example?"),
        ({"inbox_address": "x" * 400}, 422, "at most 320"),
        ({"query_date": "next week"}, 422, "YYYY-MM-DD"),
        ({"query_date": "2001-13-45"}, 422, "YYYY-MM-DD"),
        ({"query_date": "2024-05-15" + " " * 60}, 422, "at most 64"),
        ({"query_date": "2024-05-15\ud80009:30"}, 422, "not text"),
        ({"query_dat": "2001-01-01"}, 422, "parameters.query_dat"),
    ],
)
@pytest.mark.parametrize("path", ["/invoke", "/submit", "/stream"])
def test_bad_parameters(client: TestClient, path: str, change: dict[str, Any], status: int, said: str) -> None:
    body = json.dumps({"parameters": GOOD | change})  # unlike httpx's encoder it escapes surrogates
    response = client.post(path, content=body, headers={"Content-Type": "application/json"})
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
def test_unknown_fields_next_to_the_parameters_are_refused(client: TestClient, more: dict[str, Any]) -> None:
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
        assert errors.error_line(error).encode() and "\n" not in errors.error_line(error)
