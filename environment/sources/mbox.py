"""Read the mails of an mbox file, where each mail follows a line that begins with `From `.

The standard library's `mailbox.mbox` indexes the whole file before it returns the first mail and keeps the index in
memory. It also treats every line that begins with `From ` as a separator and leaves `>From ` escaped. This module reads
a file of any size once, with one mail in memory.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from environment.errors import BadMail
from environment.models import DroppedMail, Email
from environment.sources.charsets import decode_text
from environment.sources.mail_dates import parse_mail_date
from environment.sources.rfc822 import MAX_MAIL_BYTES, parse_mail

SEPARATORS = (b"From ", b"From\n", b"From\r")

_LINE_BYTES = 1 << 16
_PEEKED_BYTES = 512
_ESCAPED = re.compile(rb">+From ")
_OLD_MAC = re.compile(rb"[^\r\n]*\r(?![\r\n])")
_CARRIAGE_RETURN = re.compile(rb"\r(?!\n)")
_NOTHING_YET = re.compile(rb"(?:\xef\xbb\xbf)?\s*")
_HEADER = re.compile(rb"([!-9;-~]+)[ \t]*:|>From ")
_ORIGINS = frozenset({b"date", b"delivered-to", b"from", b"message-id", b"received", b"return-path", b"sender"})
"""A header without any of these is a quotation from a mail, not the begin of one."""
_GIT_PATCH = re.compile(rb"From [0-9a-f]{6,64} Mon Sep 17 00:00:00 2001\s*")
"""Separator of `git format-patch`: the date is always the same."""
_TIME_AND_YEAR = re.compile(r"\d:\d\d.*\b\d{4}\b|\d{4}-\d\d-\d\dT\d\d:\d\d")
_SENTENCE = re.compile(r"\d:\d\d.* [a-z]{2}")
_LINES_AHEAD = 40


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


def begins_mbox(data: bytes) -> bool:
    """Return whether `data`, the begin of a file, is the begin of an mbox. Empty lines and a byte order mark may precede."""
    begin = _NOTHING_YET.match(data)
    return data.startswith(SEPARATORS, begin.end() if begin else 0)


def mails_in(file: BufferedReader, name: str) -> Iterator[Email | DroppedMail]:
    """Return all mails of an open mbox, or any other file as a single mail. `name` identifies the file in reports."""
    if not begins_mbox(file.peek(_PEEKED_BYTES)[:_PEEKED_BYTES]):
        yield parse_mail(file.read(MAX_MAIL_BYTES + 1), name)
        return
    for position, raw in split_mbox(file):
        yield parse_mail(raw, f"{name} at byte {position}")


def split_mbox(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the byte offset and content of each mail, without its separator and unescaped (`>From ` becomes `From `).

    At most forty lines beyond `MAX_MAIL_BYTES` are read into memory, so that oversized mails can be recognised.
    """
    lines = _Lines(file)
    kept: list[bytes] = []
    kept_bytes = position = begin = 0
    previous = b"\n"
    begun = of_patches = False
    while line := lines.next():
        begins_line = previous.endswith(b"\n")
        if not begun and begins_mbox(line):
            begun, begin, of_patches = True, position, bool(_GIT_PATCH.fullmatch(line))
        elif not begun and not line.strip():
            begin = position + len(line)
        elif begins_line and line.startswith(SEPARATORS) and _separates(previous, line, lines, of_patches):
            yield begin, b"".join(kept)
            begin = position
            kept.clear()
            kept_bytes = 0
        elif kept_bytes <= MAX_MAIL_BYTES:
            kept.append(line[1:] if begins_line and _ESCAPED.match(line) else line)
            kept_bytes += len(line)
        position += len(line)
        previous = line
    if begun:
        yield begin, b"".join(kept)


class _Lines:
    """The lines of a file, the next of which can be looked at. Long ones come in pieces.

    Where the first line ends in a bare carriage return, as on old Macs, each of them ends a line.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._ahead: deque[bytes] = deque()
        self._rest = b""
        first = file.readline(_LINE_BYTES)
        self._old_mac = bool(_OLD_MAC.match(first))
        self._take(first)

    def next(self) -> bytes:
        """Return the next line, empty at the end of the file."""
        if not self._ahead:
            self._take(self._file.readline(_LINE_BYTES))
        return self._ahead.popleft()

    def ahead(self) -> Iterator[bytes]:
        """Yield up to forty of the next lines without taking them."""
        for number in range(_LINES_AHEAD):
            if number == len(self._ahead):
                self._take(self._file.readline(_LINE_BYTES))
            yield self._ahead[number]

    def _take(self, read: bytes) -> None:
        lines = [read]
        if self._old_mac:
            lines = _CARRIAGE_RETURN.sub(b"\n", self._rest + read).splitlines(keepends=True)
            # A line that goes on in the next piece waits for it.
            self._rest = lines.pop() if read and len(lines) > 1 and not lines[-1].endswith(b"\n") else b""
        self._ahead.extend(lines or [b""])


def _separates(previous: bytes, line: bytes, lines: _Lines, of_patches: bool) -> bool:
    """Return whether a line that begins with `From ` begins a mail.

    It does if it looks like a separator (nothing, or a sender and a date) and has an empty line before it or a header after
    it, which some writers omit. A header after it must be that of a whole mail: text quotes others.
    """
    if _GIT_PATCH.fullmatch(line) and not of_patches:
        return False
    after_blank = not previous.strip()
    header = _header_after(lines)
    written = decode_text(line[len("From ") :]).strip(" \r\n-")
    if not written or " " not in written:
        # Programs that know neither sender nor date, or only the sender. A text has such lines too.
        return header is True and (after_blank or not written)
    return _is_dated(written) and (header is True or (after_blank and header is None))


def _header_after(lines: _Lines) -> bool | None:
    """Return whether the next lines are the header of a mail, None if they are no header at all."""
    found: bool | None = None
    for line in lines.ahead():
        field = _HEADER.match(line)
        if field and (field[1] or b"from").lower() in _ORIGINS:
            return True
        if not line.strip() or (found is None and not field):
            break
        found = False
    return found


def _is_dated(written: str) -> bool:
    """Return whether the text after `From ` is a sender and a date in one of many forms."""
    sender, _, rest = written.partition(" ")
    if not _TIME_AND_YEAR.search(rest) or _SENTENCE.search(rest.partition(" remote from ")[0]):
        return False
    for date in (rest.partition(" remote from ")[0], rest.partition(" ")[2]):
        with suppress(BadMail):
            parse_mail_date(date.strip())
            return True
    return "@" in sender
