"""Metrics, pages and request ids of the service."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tests.serving.scripted_service import ANN
from tests.serving.service_client import asked

pytestmark = pytest.mark.usefixtures("calm")


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
