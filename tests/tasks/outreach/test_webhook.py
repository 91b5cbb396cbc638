"""Notices: signed, delivered at least once and in order, and never to where they must not go."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.outreach.webhook import SECRET, Outbox, _PublicConnection, require_webhook
from tests.fakes.webhook import SECRET_VALUE, Receiver
from training.errors import BadInput


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv(SECRET, SECRET_VALUE)
    with Receiver() as server:
        yield server


def test_refused_notices_are_retried_in_order_and_delivered_signed(receiver: Receiver, tmp_path: Path) -> None:
    receiver.refusals = 3
    with Outbox(tmp_path, receiver.url, private=True, first_pause=0.01) as outbox:
        for number in range(3):
            outbox.put(f"{number}", {"iteration": number})
        assert outbox.flush(300) == []
        outbox.put("1", {"iteration": 1})  # told already
        assert outbox.flush(0) == []
    assert [(notice["id"], genuine) for notice, genuine in receiver.received] == [("0", True), ("1", True), ("2", True)]


def test_what_a_dead_receiver_missed_is_listed_and_delivered_when_the_run_goes_on(
    receiver: Receiver, tmp_path: Path
) -> None:
    with Outbox(tmp_path, "http://127.0.0.1:1/", private=True, first_pause=0.01) as outbox:
        outbox.put("0", {})
        assert outbox.flush(0.2) == ["0"]
    with Outbox(tmp_path, receiver.url, private=True, first_pause=0.01) as outbox:
        assert outbox.flush(300) == []
    assert [notice["id"] for notice, _ in receiver.received] == ["0"]


def test_a_notice_that_is_withdrawn_while_it_is_sent_gives_way_to_another_one(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox(tmp_path, receiver.url, private=True, first_pause=0.01)
    send, withdrawn = outbox._send, list[dict[str, object]]()

    def send_late(body: bytes) -> bool:
        withdrawn.extend(outbox.withdraw("0") if not withdrawn else ())
        return send(body)

    monkeypatch.setattr(outbox, "_send", send_late)
    with outbox:
        outbox.put("0", {"emails": 1})
        while not receiver.received:
            assert outbox._thread.is_alive()
            time.sleep(0.01)
        outbox.put("0", {"emails": 2})
        assert outbox.flush(300) == []
        outbox.put("0", {"emails": 2})
        assert outbox.undelivered() == []
    assert withdrawn == [{"id": "0", "emails": 1}]
    assert [notice for notice, _ in receiver.received] == [{"id": "0", "emails": 1}, {"id": "0-2", "emails": 2}]


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://user:pw@example.com/", "webhook_url has a user name or password"),
        ("http://token@example.com/", "webhook_url has a user name or password"),
        ("http://example.com/a path", "only visible ASCII characters"),
        ("http://example.com/?q=a b", "only visible ASCII characters"),
        ("http://example.com/\nx", "only visible ASCII characters"),
        ("http://example.com/ü", "only visible ASCII characters"),
        ("http://example.com/?q=ü", "only visible ASCII characters"),
        ("http://exämple.com/", "only visible ASCII characters"),
    ],
)
def test_urls_that_no_request_can_reach_are_refused(monkeypatch: pytest.MonkeyPatch, url: str, problem: str) -> None:
    monkeypatch.setenv(SECRET, "secret")
    with pytest.raises(BadInput, match=problem) as refused:
        require_webhook(url, private=True)
    assert "\n" not in str(refused.value) and "pw" not in str(refused.value)
    require_webhook("https://example.com:8443/a%20path/%C3%BC?q=a+b", private=True)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "example.com", "http://", "file:///etc/passwd"),
        *("http://[::1/", "http://example..com/", f"http://{'a' * 64}.com/", "http://example.com:99999/"),
    ],
)
@pytest.mark.parametrize("private", [True, False])
def test_other_urls_are_refused(monkeypatch: pytest.MonkeyPatch, url: str, private: bool) -> None:
    monkeypatch.setenv(SECRET, "secret")
    with pytest.raises(BadInput, match="expected http"):
        require_webhook(url, private=private)


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "localhost:80", "10.1.2.3", "[::1]", "169.254.169.254", "224.0.0.1", "0.0.0.0", "[ff0e::1]"),
        *("[::ffff:127.0.0.1]", "[::127.0.0.1]", "[2002:7f00:1::]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]"),
        *("[2001:0:7f00:1::1]", "[2606:4700::5efe:7f00:1]", "[fec0::1]", "[2001:db8::1]", "[64:ff9b::e000:1]"),
    ],
)
def test_private_addresses_need_to_be_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str) -> None:
    monkeypatch.setenv(SECRET, "secret")
    url = f"http://{host}/"
    with pytest.raises(BadInput, match="private address"):
        require_webhook(url, private=False)
    require_webhook(url, private=True)


@pytest.mark.parametrize("host", ["93.184.216.34", "[2606:4700::1111]", "[::ffff:8.8.8.8]", "[64:ff9b::808:808]"])
def test_public_addresses_are_allowed(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv(SECRET, "secret")
    require_webhook(f"http://{host}/", private=False)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_name_that_turns_private_after_the_check_receives_nothing(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    port, resolve, asked = receiver.server_address[1], socket.getaddrinfo, list[str]()

    def rebinding(host: str, at: object, *rest: object, **named: object) -> object:
        asked.append(host)
        public = at is None  # as the check asks
        return resolve("93.184.216.34" if public else "127.0.0.1", at, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    outbox = Outbox(tmp_path, f"{scheme}://hook.example:{port}/")
    assert outbox._send(b"{}") is False
    assert asked.count("hook.example") == 2 and receiver.received == []
    with pytest.raises(ConnectionRefusedError, match=r"private address 127\.0\.0\.1"):
        _PublicConnection("hook.example", port).connect()


def test_a_webhook_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET, raising=False)
    with pytest.raises(BadInput, match=f"{SECRET} is not"):
        require_webhook("https://example.com", private=True)


def test_an_answer_that_is_not_http_is_a_refusal(receiver: Receiver, tmp_path: Path) -> None:
    receiver.garbage = 1
    with Outbox(tmp_path, receiver.url, private=True, first_pause=0.01) as outbox:
        outbox.put("0", {})
        assert outbox.flush(300) == []
    assert [notice["id"] for notice, _ in receiver.received] == ["0"]
