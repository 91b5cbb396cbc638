"""Read the mails of an mbox file, where each mail follows a line that begins with `From `.

The standard library's `mailbox.mbox` indexes the whole file before it returns the first mail and keeps the index in
memory. It also treats every line that begins with `From ` as a separator and leaves `>From ` escaped. This module reads
a file of any size once, with one mail in memory.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from environment.errors import BadMail
from environment.models import DroppedMail, Email
from environment.sources.rfc822 import MAX_MAIL_BYTES, parse_mail

SEPARATOR = b"From "

_LINE_BYTES = 1 << 16
_DATED = re.compile(rb"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.*\d:\d\d.*\d{4}")
_HEADER = re.compile(rb"[!-9;-~]+:\s|>From ")
_ESCAPED = re.compile(rb">+From ")


class Reading(Iterator[Email | DroppedMail]):
    """The mails of one open file. `operator.length_hint` estimates the number of remaining mails from the position in
    `file`.
    """

    def __init__(self, mails: Iterator[Email | DroppedMail], file: BinaryIO, size: int) -> None:
        self._mails = mails
        self._file = file
        self._size = size
        self._count = 0

    def __next__(self) -> Email | DroppedMail:
        mail = next(self._mails)
        self._count += 1
        return mail

    def __length_hint__(self) -> int:
        read = 0 if self._file.closed else self._file.tell()
        return self._count * max(0, self._size - read) // read if read else 0


class MailFile(ABC, Iterable[Email | DroppedMail]):
    """The mails of one file, in its order. Raises BadMail during iteration when the file cannot be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __iter__(self) -> Iterator[Email | DroppedMail]:
        try:
            file = self._path.open("rb")
            return Reading(self._mails(file), file, self._path.stat().st_size)
        except OSError as error:
            raise BadMail(f"{self._path} cannot be read: {error.strerror}") from error

    @abstractmethod
    def _mails(self, file: BufferedReader) -> Iterator[Email | DroppedMail]:
        """Yield the mails of the open file, and close it."""


class MboxFile(MailFile):
    """The mails of an mbox file."""

    def _mails(self, file: BufferedReader) -> Iterator[Email | DroppedMail]:
        with file:
            try:
                yield from mails_in(file, self._path.name)
            except OSError as error:
                raise BadMail(f"{self._path} cannot be read to its end: {error.strerror}") from error


def mails_in(file: BufferedReader, name: str) -> Iterator[Email | DroppedMail]:
    """Return all mails of an open mbox, or any other file as a single mail. `name` identifies the file in reports."""
    if not file.peek(len(SEPARATOR)).startswith(SEPARATOR):
        yield parse_mail(file.read(MAX_MAIL_BYTES + 1), name)
        return
    for position, raw in split_mbox(file):
        yield parse_mail(raw, f"{name} at byte {position}")


def split_mbox(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and content of each mail, without its separator and unescaped (`>From ` becomes `From `).

    At most one line beyond `MAX_MAIL_BYTES` is read into memory, so that oversized mails can be recognised.
    """
    kept: list[bytes] = []
    kept_bytes = position = begin = 0
    previous = b"\n"
    line = file.readline(_LINE_BYTES)
    while line:
        following = file.readline(_LINE_BYTES)
        begins_line = previous.endswith(b"\n")
        if begins_line and line.startswith(SEPARATOR) and (not position or _separates(previous, line, following)):
            if position:
                yield begin, b"".join(kept)
            begin = position
            kept.clear()
            kept_bytes = 0
        elif kept_bytes <= MAX_MAIL_BYTES:
            kept.append(line[1:] if begins_line and _ESCAPED.match(line) else line)
            kept_bytes += len(line)
        position += len(line)
        previous, line = line, following
    if position:
        yield begin, b"".join(kept)


def _separates(previous: bytes, line: bytes, following: bytes) -> bool:
    """Return whether a line that begins with `From ` begins a mail. Two of three signs are enough, because some writers
    omit one.

    The signs are an empty line before it, a date in it, and a header after it. An unescaped `From ` in a text has at
    most one.
    """
    return (not previous.strip()) + bool(_DATED.search(line)) + bool(_HEADER.match(following)) >= 2
