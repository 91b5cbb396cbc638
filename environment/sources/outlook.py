"""Read an Outlook data file (.pst, .ost) with the program `readpst`, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from environment.errors import BadMail
from environment.mail_text import one_line, storable
from environment.models import DroppedMail, Email
from environment.sources.maildir import MailFolder

OUTLOOK_MAGIC = b"!BDN"
_READPST = "readpst"


class OutlookFile(Iterable[Email | DroppedMail]):
    """The mails of an Outlook data file, which are unpacked into a temporary folder (TMPDIR) while they are read.

    Raises BadMail if `readpst` is not installed, and during iteration if it cannot read the file.
    """

    def __init__(self, path: Path) -> None:
        if shutil.which(_READPST) is None:
            raise BadMail(
                f"{path} is an Outlook data file: to read it, install {_READPST} (the package pst-utils or libpst)"
            )
        self._path = path

    def __iter__(self) -> Iterator[Email | DroppedMail]:
        with tempfile.TemporaryDirectory(prefix="outlook-") as folder:
            # E-mails alone, as a mailbox for each folder, without the formatted copies of their texts.
            command = [_READPST, "-q", "-r", "-te", "-b", "-8", "-o", folder, str(self._path.resolve())]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                said = one_line(storable(done.stdout.decode(errors="replace")))[-200:]
                raise BadMail(f"{self._path} cannot be read by {_READPST}: {said or f'exit code {done.returncode}'}")
            yield from MailFolder(Path(folder))
