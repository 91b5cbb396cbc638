"""Servers on this machine, which a proxy of the environment could not reach."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

DIRECT = build_opener(ProxyHandler({}))
"""Opens a URL without the proxies of the environment."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach `host`, a name or an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_here(url: str) -> bool:
    """Return whether `url` names this machine by a loopback name or address."""
    return is_loopback(urlsplit(url).hostname or "")
