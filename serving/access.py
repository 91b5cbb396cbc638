"""Who may ask, about which inboxes, and from which web pages."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from environment.mail_text import normalise_address
from serving.settings import AccessKey

ANONYMOUS = "anonymous"
OWNER = "owner"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Caller:
    """Who asks. `inboxes` are those that the caller may ask about, normalised; `None` means all."""

    name: str
    inboxes: frozenset[str] | None

    def may_ask(self, address: str) -> bool:
        return self.inboxes is None or normalise_address(address) in self.inboxes


class Keys:
    """The keys of a service. Without any, everybody who reaches it may ask about everything."""

    def __init__(self, owner_key: str | None, keys: Sequence[AccessKey]) -> None:
        self._keys: list[tuple[bytes, Caller]] = []
        if owner_key:
            self._keys.append((_digest(owner_key), Caller(OWNER, None)))
        for key in keys:
            inboxes = None if key.inboxes is None else frozenset(normalise_address(inbox) for inbox in key.inboxes)
            self._keys.append((bytes.fromhex(key.sha256), Caller(key.name, inboxes)))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def secret(self) -> bytes | None:
        """Something that only these keys give, the same in every replica; `None` without keys."""
        return hashlib.sha256(b"".join(digest for digest, _ in self._keys)).digest() if self._keys else None

    def caller(self, key: str | None) -> Caller | None:
        """Whose key this is, `None` when it is nobody's. Takes the same time for every wrong key."""
        if not self._keys:
            return Caller(ANONYMOUS, None)
        presented = _digest(key or "")
        found: Caller | None = None
        for digest, caller in self._keys:
            if hmac.compare_digest(digest, presented):
                found = caller
        return found


class Origins:
    """Which names this service is reached by. A web page of another name gets nothing.

    Without a key the name in `Host` must be known: otherwise a page whose name is made to point here (DNS rebinding) could ask
    in the name of whoever looks at it. With keys such a page lacks one, and any name will do unless some are configured.
    """

    def __init__(self, bound_to: str, allowed_hosts: Iterable[str], *, open_to_any: bool) -> None:
        allowed = frozenset(host.lower() for host in allowed_hosts)
        self._known = None if open_to_any and not allowed else LOOPBACK | {bound_to.lower()} | allowed

    def known(self, host: str) -> bool:
        """Whether the value of the header `Host` names this service."""
        name = _name_of(f"//{host}")
        return bool(name) and (self._known is None or name in self._known)

    @staticmethod
    def same(origin: str, host: str) -> bool:
        """Whether the headers `Origin` and `Host` name the same place."""
        scheme, _, netloc = origin.lower().partition("://")
        return scheme in ("http", "https") and netloc == host.lower()


def is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address.lower() in LOOPBACK


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _name_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""
