"""The messages between the service, the init and the REPL of a workspace."""

from __future__ import annotations

import json
import struct
import time
import typing

MESSAGE = 64 << 20
"""Maximum length of a message, in bytes."""
BUSY_FACTOR = 4
"""A cell that waits for a processor may take this many times its wall time."""
FILE_SECONDS = 10
"""CPU time of an operation on files. It too may take `BUSY_FACTOR` times as long."""
STARTED, FAILED = b"+", b"-"
"""First byte of a new workspace: a handle of its init comes with it, or a message that says why there is none."""


class Connection(typing.Protocol):
    """A stream of bytes to the other side and back."""

    def recv(self, most: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...

    def close(self) -> None: ...


class Timed(Connection, typing.Protocol):
    """A connection whose calls raise OSError when they exceed a timeout."""

    def settimeout(self, seconds: float | None, /) -> None: ...


class Assembly:
    """One message, assembled from the pieces in which it arrives."""

    def __init__(self, most: int = MESSAGE) -> None:
        self._most, self._data = most, bytearray()

    def add(self, piece: bytes) -> dict[str, typing.Any] | None:
        """Return the message once it is complete. Raises ValueError if it is too long, malformed or followed by more."""
        self._data += piece
        if len(self._data) < 4:
            return None
        (length,) = struct.unpack_from("!I", self._data)
        if length > self._most:
            raise ValueError("message too long")
        if len(self._data) < 4 + length:
            return None
        if len(self._data) > 4 + length:
            raise ValueError("more than one message")
        message = json.loads(self._data[4:])
        if not isinstance(message, dict):
            raise ValueError("message is not an object")
        return message


def packed(message: dict[str, typing.Any]) -> bytes:
    """Return the bytes of a message. Lone surrogates, which no response can carry, become question marks."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
    return struct.pack("!I", len(body)) + body


def send(connection: Connection, message: dict[str, typing.Any]) -> None:
    connection.sendall(packed(message))


def receive(connection: Connection) -> dict[str, typing.Any] | None:
    """Return the next message; `None` if the other side is gone. Raises ValueError if it is too long or malformed."""
    incoming, message = Assembly(), None
    while message is None:
        if not (piece := connection.recv(1 << 20)):
            return None
        message = incoming.add(piece)
    return message


def receive_within(connection: Timed, seconds: float) -> dict[str, typing.Any] | None:
    """Do the same, but raise TimeoutError if the message is not complete after `seconds`, however it arrives."""
    until, incoming, message = time.monotonic() + seconds, Assembly(), None
    while message is None:
        if (left := until - time.monotonic()) <= 0:
            raise TimeoutError("timed out")
        connection.settimeout(left)
        if not (piece := connection.recv(1 << 20)):
            return None
        message = incoming.add(piece)
    return message
