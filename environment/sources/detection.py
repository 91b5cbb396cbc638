"""Detect the kind of a mail source from its content, not from its name."""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from lzma import LZMAError
from pathlib import Path

from environment.errors import BadMail
from environment.models import DroppedMail, Email
from environment.sources.maildir import END_OF_ARCHIVE, MailArchive, MailFolder, decompressed
from environment.sources.mbox import MboxFile, begins_mbox
from environment.sources.outlook import OUTLOOK_MAGIC, OutlookFile
from environment.sources.parquet import parquet_emails
from environment.sources.walk import mail_files
from environment.sources.zip_archive import ZIP_MAGIC, ZipArchive

_PARQUET_MAGIC = b"PAR1"
_FILE_ENDINGS = frozenset({".bz2", ".gz", ".mbox", ".ost", ".parquet", ".pst", ".tar", ".tgz", ".xz", ".zip"})


def mail_source(source: str) -> Iterable[Email | DroppedMail]:
    """Return the mails of a Hub dataset id, a folder of parquet files or of mails, a tar or zip archive, or a file: an
    mbox, parquet or Outlook's.

    It can be iterated again; `operator.length_hint` knows or estimates their number. Raises BadMail if the source is
    missing, unreadable, empty or of an unknown format: for local sources at once, for the Hub when iteration starts.
    """
    path = Path(os.path.expanduser(source))
    try:
        if not source.strip() or not path.exists():
            if path.suffix.lower() in _FILE_ENDINGS:
                raise BadMail(f"there is no file {source}")
            return parquet_emails(source)
        return _folder(path) if path.is_dir() else _file(path)
    except OSError as error:
        raise BadMail(f"{source[:200]} cannot be read: {error.strerror or error}") from error


def files_of(source: str) -> Iterator[str]:
    """Return the paths of the files of a local source, in order; an empty list if it is not local."""
    path = Path(os.path.expanduser(source))
    if os.path.isfile(path):
        yield str(path)
    elif parquet := _parquet_files(path):
        yield from parquet
    else:
        for folder, names in mail_files(path, []):
            yield from (os.path.join(folder, name) for name in names)


def _parquet_files(folder: Path) -> list[str]:
    walk = os.walk(folder)
    return sorted(os.path.join(place, name) for place, _, names in walk for name in names if name.endswith(".parquet"))


def _folder(path: Path) -> Iterable[Email | DroppedMail]:
    if _parquet_files(path):
        return parquet_emails(path)
    if not any(names for _, names in mail_files(path, [])):
        raise BadMail(f"there is nothing to read in {path}: expected parquet files, or mails in files of their own")
    return MailFolder(path)


def _file(path: Path) -> Iterable[Email | DroppedMail]:
    with path.open("rb") as file:
        begin = file.read(tarfile.BLOCKSIZE)
        file.seek(0)
        stream = decompressed(file)
        try:
            block = stream.read(tarfile.BLOCKSIZE)
        except (OSError, EOFError, zlib.error, LZMAError) as error:
            raise BadMail(f"{path} is damaged or cut short: {error}") from error
    if begin.startswith(_PARQUET_MAGIC) or path.suffix.lower() == ".parquet":
        return parquet_emails(path)
    if begin.startswith(ZIP_MAGIC):
        return ZipArchive(path)
    if begin.startswith(OUTLOOK_MAGIC):
        return OutlookFile(path)
    if begins_mbox(begin):
        return MboxFile(path)
    if _begins_tar(block):
        return MailArchive(path)
    if stream is not file:
        raise BadMail(f"{path} is compressed, but not a tar archive: unpack it first")
    raise BadMail(
        f"{path} is not a parquet file, tar or zip archive, mbox or Outlook file; for mails in single files, give the folder"
    )


def _begins_tar(block: bytes) -> bool:
    try:
        tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError as error:
        return isinstance(error, END_OF_ARCHIVE)  # an empty archive
    return True
