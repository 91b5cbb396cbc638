"""Requests that a proxy in front of the service, or a reader of its files, may understand differently."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from fastapi.testclient import TestClient

from environment.feedback import rating_files
from serving.app import ServiceApp
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import GOOD, scripted_app, served
from tests.serving.service_client import asked

pytestmark = [pytest.mark.service, pytest.mark.usefixtures("calm")]

HEAD = "POST /submit HTTP/1.{minor}\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
INNER = "GET /model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
BOTH = ["Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n"]


@pytest.fixture
def address(policy: MailPolicy, tmp_path: Path) -> Iterator[tuple[str, int]]:
    with served(scripted_app(policy, tmp_path)) as url:
        yield "127.0.0.1", urlsplit(url).port or 0


def said(address: tuple[str, int], request: str) -> bytes:
    """Everything that the service answers on one connection, until it closes it."""
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(request.encode())
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return answer


@pytest.mark.parametrize(
    "head",
    [
        *(HEAD.format(minor=1) + both for both in BOTH),
        HEAD.format(minor=1) + "Transfer-Encoding: chunked\r\ncontent-length: 0\r\n",
        HEAD.format(minor=0) + "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n",
    ],
)
def test_a_request_whose_end_is_ambiguous_is_the_last_of_its_connection(address: tuple[str, int], head: str) -> None:
    answer = said(address, f"{head}\r\n0\r\n\r\n{INNER}")
    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("request_", ["GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "nonsense\r\n\r\n", BOTH[0]])
def test_a_malformed_request_is_logged_with_its_client(
    policy: MailPolicy, tmp_path: Path, request_: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(scripted_app(policy, tmp_path)) as url:
        said(("127.0.0.1", urlsplit(url).port or 0), request_ if "HTTP" in request_ else f"{request_}\r\n\r\n")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["client"] for line in lines if line["event"] == "Invalid HTTP request received."] == ["127.0.0.1"]


@pytest.mark.parametrize("order", [1, -1])
def test_one_foreign_origin_of_two_is_refused(client: TestClient, order: int) -> None:
    origins = [("Origin", "http://127.0.0.1"), ("Origin", "http://evil.example")][::order]
    answer = client.post("/submit", json={"parameters": GOOD}, headers=origins)
    assert answer.status_code == 403


@pytest.mark.parametrize("name", ["Content-Type", "Authorization", "Host"])
def test_a_header_that_decides_is_there_once(client: TestClient, name: str) -> None:
    values = {"Content-Type": "application/json", "Authorization": "Bearer x", "Host": "127.0.0.1"}
    headers = [("Content-Type", "application/json")] if name != "Content-Type" else []
    headers += [(name, values[name]), (name, "text/plain")]
    answer = client.post("/submit", content=json.dumps({"parameters": GOOD}), headers=headers)
    assert answer.status_code == 400 and "more than once" in answer.json()["error"]


@pytest.mark.parametrize(
    "text",
    [
        *(f"a{mark}review: train" for mark in ("\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\u2028", "\u2029")),
        *("\u202enart :weiver\u202c", "a\u200bb", "\ufeffa", "".join(map(chr, range(1, 32))), "\ufffe\U0001ffff"),
        *("---\nreview: train\n...", "!!python/object/apply:os.system ['id']", "Grüße 😀", "  ", "x " * 200),
    ],
)
def test_a_rating_shows_one_line_per_field_and_is_read_back_exactly(
    client: TestClient, app: ServiceApp, text: str
) -> None:
    reply = asked(client).json()
    rating = {"token": reply["feedback_token"], "verdict": "down", "comment": text, "correct_answer": text}
    assert client.post("/feedback", json=rating).status_code == 201
    file = app.settings.feedback_folder / f"{reply['metadata']['request_id']}.yaml"
    stored = yaml.load(file.read_text(), yaml.BaseLoader)
    assert stored["comment"] == stored["answer"] == text and stored["review"] == "pending"
    shown = file.read_text().splitlines()  # at every character that any editor takes for a line break
    assert [line for line in shown if line.strip().startswith("review")] == ["review: pending"]
    assert not any("\u202e" in line or "\u200b" in line for line in shown)
    assert file in rating_files(app.settings.feedback_folder)
    file.unlink()
