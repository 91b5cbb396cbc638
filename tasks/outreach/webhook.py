"""Notify a receiver of every finished iteration: signed, in order, at least once, without ever stopping the loop.

Each notice is a file in the outbox before its iteration is announced, and stays there until the receiver has answered
with 2xx. The header `X-Learn-Loop-Signature` holds `sha256=` and the HMAC-SHA256 of the body with the secret. A notice
may arrive twice, with the same `id`. An iteration that runs again is announced again, with another `id`.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import re
import socket
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from training.errors import BadInput
from training.files import write_text

SECRET = "LEARN_LOOP_WEBHOOK_SECRET"
SIGNATURE = "X-Learn-Loop-Signature"
_VISIBLE_ASCII = re.compile("[!-~]+")
_TIMEOUT = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0


def require_webhook(url: str, *, private: bool) -> None:
    """Raise `BadInput` if no notice may be sent to this URL. Addresses that are not public need `private`."""
    if (host := _host_of(url)) is None:
        raise BadInput(f"webhook_url={url!r}: expected http://... or https://...")
    if "@" in urlsplit(url).netloc:
        raise BadInput(f"webhook_url has a user name or password: remove it, notices are signed with {SECRET} instead")
    if not _VISIBLE_ASCII.fullmatch(url):
        raise BadInput(
            f"webhook_url={url!r}: only visible ASCII characters can be sent; write others as %.. and a host as xn--..."
        )
    if not os.environ.get(SECRET):
        raise BadInput(
            f"webhook_url is set and {SECRET} is not: set it in the environment or in .env, notices are signed with it"
        )
    if not private and (address := _private_address(host)):
        raise BadInput(
            f"webhook_url={url} leads to the private address {address}: set webhook_private=true if that is intended"
        )


def _host_of(url: str) -> str | None:
    """Return the host of an HTTP URL; None for any other text."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        host.encode("idna")  # raises where a label is empty or too long, as the look-up would
        valid = parts.scheme in ("http", "https") and host and parts.port != 0
    except ValueError:  # of the brackets, the port or a label
        return None
    return host if valid else None


def _private_address(host: str) -> str | None:
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    except OSError:
        return None  # the receiver may come up later
    return next((str(address) for address in sorted(found) if not _is_public(str(address))), None)


_GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = 0x5EFE


def _is_public(address: str) -> bool:
    """Return whether an address is a unicast one of the internet. An IPv4 address within an IPv6 one has to be so too."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv4Address):
        return ip.is_global and not ip.is_multicast
    last = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if ip.ipv4_mapped or ip in _NAT64:
        return _is_public(str(last))
    within = [ip.sixtofour, *(ip.teredo or ()), last if int(ip) >> 32 & 0xFDFFFFFF == _ISATAP else None]
    return ip in _GLOBAL_UNICAST and ip.is_global and all(_is_public(str(inner)) for inner in within if inner)


def signature(body: bytes, secret: str) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


class Outbox:
    """Notices that wait in a folder, and a thread that delivers them in order."""

    def __init__(
        self, folder: Path, url: str | None, *, private: bool = False, first_pause: float = _FIRST_PAUSE
    ) -> None:
        """Without `url` nothing is kept and nothing is sent."""
        self._folder = folder
        self._url = url
        self._private = private
        self._pause = first_pause
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="webhook", daemon=True)

    def __enter__(self) -> Self:
        if self._url:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_TIMEOUT + 1)

    def put(self, name: str, notice: dict[str, Any]) -> None:
        """Queue a notice. One that is known by this name, delivered or not, is not queued again."""
        if not self._url or (self._folder / f"{name}.sent").exists() or (self._folder / f"{name}.json").exists():
            return
        earlier = len(self._withdrawn(name))
        notice_id = f"{name}-{earlier + 1}" if earlier else name  # a receiver may ignore an id that it knows
        write_text(self._folder / f"{name}.json", json.dumps({"id": notice_id, **notice}))
        self._wake.set()

    def withdraw(self, name: str) -> list[dict[str, Any]]:
        """Allow another notice of this name. Return the earlier ones, each of which may have been delivered."""
        for state in ("json", "sent"):  # in this order, because a delivery renames the one to the other
            with suppress(FileNotFoundError):
                number = len(self._withdrawn(name)) + 1
                os.replace(self._folder / f"{name}.{state}", self._folder / f"{name}-{number}.withdrawn")
        return [json.loads(file.read_bytes()) for file in self._withdrawn(name)]

    def _withdrawn(self, name: str) -> list[Path]:
        return list(self._folder.glob(f"{name}-*.withdrawn"))

    def undelivered(self) -> list[str]:
        return sorted(file.stem for file in self._folder.glob("*.json"))

    def flush(self, seconds: float) -> list[str]:
        """Wait up to this number of seconds for all notices to be delivered. Return the undelivered ones."""
        deadline = time.monotonic() + seconds
        while self._url and self.undelivered() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.undelivered()

    def _deliver(self) -> None:
        pause = self._pause
        while not self._stop.is_set():
            waiting = sorted(self._folder.glob("*.json"))
            with suppress(FileNotFoundError):  # withdrawn meanwhile
                if not waiting:
                    self._wake.wait(timeout=_LONGEST_PAUSE)
                    self._wake.clear()
                elif self._send(waiting[0].read_bytes()):
                    os.replace(waiting[0], waiting[0].with_suffix(".sent"))
                    pause = self._pause
                else:
                    self._stop.wait(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    def _send(self, body: bytes) -> bool:
        assert self._url is not None
        headers = {"Content-Type": "application/json", SIGNATURE: signature(body, os.environ[SECRET])}
        try:
            # Checked again for every notice, because the name may resolve to another address now.
            require_webhook(self._url, private=self._private)
            handlers = () if self._private else (_PublicHttp, _PublicHttps)
            opener = urllib.request.build_opener(_NoRedirects, *handlers)
            with opener.open(urllib.request.Request(self._url, body, headers), timeout=_TIMEOUT) as response:
                return 200 <= response.status < 300
        except (OSError, ValueError, http.client.HTTPException):
            return False  # refused, timed out, 4xx or 5xx, not HTTP: the receiver is asked again


class _PublicConnection(http.client.HTTPConnection):
    """Refuses to send anything to an address that is not public, whatever the name resolved to when it was checked."""

    def connect(self) -> None:
        super().connect()
        address = self.sock.getpeername()[0]
        if not _is_public(address):
            self.close()
            raise ConnectionRefusedError(f"{self.host} leads to the private address {address}")


class _PublicTlsConnection(http.client.HTTPSConnection, _PublicConnection):
    """The same before the TLS handshake."""


class _PublicHttp(urllib.request.HTTPHandler):
    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        """Connect, to a proxy without the check, because the proxy resolves the name."""
        return self.do_open(http.client.HTTPConnection if request.has_proxy() else _PublicConnection, request)


class _PublicHttps(urllib.request.HTTPSHandler):
    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(http.client.HTTPSConnection if request.has_proxy() else _PublicTlsConnection, request)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect could lead to an address that is not allowed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None
