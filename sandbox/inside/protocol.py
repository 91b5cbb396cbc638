"""The messages between the service, the init and the REPL of a workspace."""

from __future__ import annotations

import json
import struct
import typing

MESSAGE = 64 << 20
"""Maximum length of a message, in bytes."""


class Connection(typing.Protocol):
    """A stream of bytes to the other side and back."""

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


def send(connection: Connection, message: dict[str, typing.Any]) -> None:
    body = json.dumps(message).encode()
    connection.sendall(struct.pack("!I", len(body)) + body)


def receive(connection: Connection, most: int = MESSAGE) -> dict[str, typing.Any] | None:
    """Return the next message; `None` if the other side is gone. Raises ValueError if it is too long or malformed."""
    head = _exactly(connection, 4)
    if head is None:
        return None
    (length,) = struct.unpack("!I", head)
    if length > most:
        raise ValueError("message too long")
    body = _exactly(connection, length)
    if body is None:
        return None
    message = json.loads(body)
    if not isinstance(message, dict):
        raise ValueError("message is not an object")
    return message


def _exactly(connection: Connection, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
