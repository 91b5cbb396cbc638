"""Access control: keys and their inboxes, and the host names and web pages from which the service may be used."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from environment.mail_text import normalise_address
from serving.settings import AccessKey, host_and_port

ANONYMOUS = "anonymous"
OWNER = "owner"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Caller:
    """The holder of a key. `inboxes` are the normalised addresses that the caller may ask about; `None` means all."""

    name: str
    inboxes: frozenset[str] | None

    def may_ask(self, address: str) -> bool:
        """Return whether this key may ask about an address, written in any way."""
        return self.inboxes is None or normalise_address(address) in self.inboxes

    def allowed(self, inboxes: Sequence[str]) -> Sequence[str]:
        """Return those of many normalised addresses that this key may ask about, in their order."""
        return inboxes if self.inboxes is None else [inbox for inbox in inboxes if inbox in self.inboxes]


class Keys:
    """The keys of a service. A service without keys answers everybody who reaches it, about every inbox."""

    def __init__(self, owner_key: str | None, keys: Sequence[AccessKey]) -> None:
        self._keys: list[tuple[bytes, Caller]] = []
        if owner_key:
            self._keys.append((_digest(owner_key), Caller(OWNER, None)))
        for key in keys:
            inboxes = None if key.inboxes is None else frozenset(normalise_address(inbox) for inbox in key.inboxes)
            self._keys.append((bytes.fromhex(key.sha256), Caller(key.name, inboxes)))

    def __len__(self) -> int:
        return len(self._keys)

    def caller(self, key: str | None) -> Caller | None:
        """Return the caller with this key, `None` when there is none. Takes the same time for every wrong key."""
        if not self._keys:
            return Caller(ANONYMOUS, None)
        presented = _digest(key or "")
        found: Caller | None = None
        for digest, caller in self._keys:
            if hmac.compare_digest(digest, presented):
                found = caller
        return found


class Origins:
    """The names under which this service is reached. Web pages of other origins get nothing.

    A service without keys answers only to known names in `Host`. Otherwise a page whose name was made to point here
    (DNS rebinding) could ask on behalf of the person who looks at it. Such a page has no key, so a service with keys
    answers to any name, unless `allowed_hosts` are configured.
    """

    def __init__(self, bound_to: str, allowed_hosts: Iterable[str], *, open_to_any: bool) -> None:
        allowed = [host_and_port(host) for host in allowed_hosts]
        own = [(name, None) for name in (*_LOOPBACK, bound_to.lower())]
        self._known = None if open_to_any and not allowed else frozenset([*own, *allowed])

    def known(self, host: str) -> bool:
        """Return whether the value of the header `Host` names this service. Without a port: at any port."""
        try:
            name, port = host_and_port(host)
        except ValueError:
            return False
        return self._known is None or (name, None) in self._known or (name, port) in self._known

    @staticmethod
    def same(origin: str, host: str) -> bool:
        """Return whether the headers `Origin` and `Host` name the same place."""
        scheme, _, netloc = origin.lower().partition("://")
        return scheme in ("http", "https") and netloc == host.lower()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
