"""Read mails from a zip archive without unpacking it: Google Takeout, or a folder of mails that somebody zipped."""

from __future__ import annotations

import stat
import zipfile
import zlib
from collections.abc import Iterator
from io import BufferedReader
from lzma import LZMAError
from pathlib import PureWindowsPath
from typing import IO, cast

from environment.errors import BadMail
from environment.mail_text import one_line, storable
from environment.models import DroppedMail, Email
from environment.sources.mbox import MailFile, mails_in
from environment.sources.walk import is_index, marked_by_name

ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip archive; the second of one that is empty."""
_ENCRYPTED = 1


class ZipArchive(MailFile):
    """The mails of a zip archive, in its order.

    Nothing is unpacked, and no archive within the archive is opened. Members whose name leads out of the archive are reported as
    `unsafe_name`. Raises BadMail during iteration if the file is damaged, truncated or encrypted.
    """

    def _mails(self, file: BufferedReader) -> Iterator[Email | DroppedMail]:
        with file:
            yield from mails_of_zip(file, str(self._path))


def mails_of_zip(file: IO[bytes], path: str, where: str = "") -> Iterator[Email | DroppedMail]:
    """Yield the mails of an open archive. `where` comes before the names of its members in reports."""
    try:
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                if not member.is_dir() and not is_index(member.filename):
                    yield from _member(archive, member, path, where)
    except (zipfile.BadZipFile, OSError, EOFError, zlib.error, LZMAError, NotImplementedError, ValueError) as error:
        why = one_line(storable(str(error)))
        raise BadMail(f"{path} cannot be read to its end, is it cut short or damaged? ({why})") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str, where: str) -> Iterator[Email | DroppedMail]:
    named = where + one_line(storable(member.filename))
    name = PureWindowsPath(member.filename)  # handles the separators of all systems
    if name.drive or name.root or ".." in name.parts:
        yield DroppedMail(reason="unsafe_name", where=named)
    elif stat.S_ISLNK(member.external_attr >> 16):
        yield DroppedMail(reason="no_file", where=named, detail="a link or a device")
    elif marked := marked_by_name(member.filename, named):
        yield marked
    elif name.suffix.lower() == ".zip":
        yield DroppedMail(reason="nested_archive", where=named, detail="unpack the outer archive, and give the folder")
    elif member.flag_bits & _ENCRYPTED:
        raise BadMail(f"{path} is encrypted: unpack it with its password, and give the folder that comes out")
    else:
        with archive.open(member) as content:
            yield from mails_in(cast(BufferedReader, content), named)
