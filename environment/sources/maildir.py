"""Read mails from a folder of any depth with one file per mail, or from a tar archive of such a folder without
unpacking it.

Supports the original Enron corpus (`maildir/person/folder/1.`) and the standard Maildir. In the latter, `cur` and `new`
hold mails, and `tmp` holds incomplete mails, which are left out. So are mails that are marked as deleted. A file that begins
like an mbox is read as an mbox, and a zip archive in a folder as such.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path, PureWindowsPath
from typing import Any, BinaryIO, Self, cast

from environment.errors import BadMail
from environment.mail_text import one_line, storable
from environment.models import DroppedMail, Email
from environment.sources.mbox import MailFile, mails_in
from environment.sources.walk import mail_files, marked_by_name
from environment.sources.zip_archive import ZIP_MAGIC, mails_of_zip

COMPRESSIONS: dict[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
"""First bytes of a file -> its decompressor."""

END_OF_ARCHIVE: type[tarfile.HeaderError] = tarfile.EOFHeaderError  # type: ignore[attr-defined]  # not in typeshed
"""Raised for a header of zeros: two blocks of them are the regular end of an archive."""

_DRAINED_BYTES = 1 << 20


class MailFolder(Iterable[Email | DroppedMail]):
    """The mails below a folder, in the order of their paths; `operator.length_hint` is the number of files.

    Links are not followed. A file that cannot be read is reported as `DroppedMail`. Reports name files from `named_from` on.
    """

    def __init__(self, folder: Path, *, named_from: Path | None = None) -> None:
        self._folder = folder
        self._named_from = named_from or folder

    def __iter__(self) -> Iterator[Email | DroppedMail]:
        unreadable: list[OSError] = []
        for folder, names in mail_files(self._folder, unreadable):
            for name in names:
                yield from self._mails(os.path.join(folder, name))
        for error in unreadable:
            yield DroppedMail(reason="unreadable", where=self._named(error.filename), detail=error.strerror or "")

    def __length_hint__(self) -> int:
        return sum(len(names) for _, names in mail_files(self._folder, []))

    def _mails(self, path: str) -> Iterator[Email | DroppedMail]:
        where = self._named(path)
        if marked := marked_by_name(os.path.relpath(path, self._folder), where):
            yield marked
            return
        try:
            if not stat.S_ISREG(os.lstat(path).st_mode):
                yield DroppedMail(reason="no_file", where=where, detail="a link or a device")
                return
            with open(path, "rb") as file:
                if path.lower().endswith(".zip") and file.peek(4).startswith(ZIP_MAGIC):
                    yield from mails_of_zip(file, path, f"{where}/")  # a part of an export
                else:
                    yield from mails_in(file, where)
        except OSError as error:
            yield DroppedMail(reason="unreadable", where=where, detail=error.strerror or "")

    def _named(self, path: str) -> str:
        return one_line(storable(os.path.relpath(path, self._named_from)))


class MailArchive(MailFile):
    """The mails of a tar archive, plain or compressed (gzip, bzip2, xz), in its order.

    The archive is read as a stream and nothing is unpacked; members whose name leads out of the archive are reported as
    `unsafe_name`. Raises BadMail during iteration if the file is not an archive, damaged or truncated.
    """

    def _mails(self, file: BufferedReader) -> Iterator[Email | DroppedMail]:
        with file:
            try:
                yield from self._members(decompressed(file))
            except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                why = one_line(storable(str(error)))
                raise BadMail(f"{self._path} cannot be read to its end, is it cut short or damaged? ({why})") from error

    def _members(self, stream: BinaryIO) -> Iterator[Email | DroppedMail]:
        with tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member) as archive:
            while (member := archive.next()) is not None:
                # Otherwise tarfile keeps a kilobyte per member. The attribute is not in typeshed.
                archive.members.clear()  # type: ignore[attr-defined]
                if member.isdir():
                    continue
                where = one_line(storable(member.name))
                name = PureWindowsPath(member.name)  # handles the separators of all systems
                if name.drive or name.root or ".." in name.parts:
                    yield DroppedMail(reason="unsafe_name", where=where)
                elif not member.isreg():
                    yield DroppedMail(reason="no_file", where=where, detail="a link or a device")
                elif marked := marked_by_name(member.name, where):
                    yield marked
                else:
                    yield from mails_in(cast(BufferedReader, archive.extractfile(member)), where)
        # The checksum of a compressed stream is at its end.
        while stream.read(_DRAINED_BYTES):
            pass


class _Member(tarfile.TarInfo):
    """A member that raises if it is damaged. By default tarfile treats a damaged member as the end of the archive."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.HeaderError as error:
            if isinstance(error, END_OF_ARCHIVE):
                raise
            raise tarfile.ReadError(str(error)) from error


def decompressed(file: BinaryIO) -> BinaryIO:
    """Return the decompressed content of an open file, or the file itself if its first bytes match no compression."""
    magic = file.read(max(map(len, COMPRESSIONS)))
    file.seek(0)
    return next((read(file) for begin, read in COMPRESSIONS.items() if magic.startswith(begin)), file)
