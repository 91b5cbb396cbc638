"""Add the text of attached files to mails. It is read in a process of its own, within limits of size, time and memory."""

from __future__ import annotations

import importlib.util
import json
import operator
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from threading import Timer
from types import TracebackType
from typing import Self

from environment.errors import BadMail
from environment.models import Attachment, DroppedMail, Email
from environment.sources.transfer import decoded_content

KREUZBERG = "kreuzberg==4.10.4"

_OFFICE = "application/vnd.openxmlformats-officedocument"
_OPEN = "application/vnd.oasis.opendocument"
_KINDS = {
    ".csv": "text/csv",
    ".docx": f"{_OFFICE}.wordprocessingml.document",
    ".htm": "text/html",
    ".html": "text/html",
    ".md": "text/markdown",
    ".ods": f"{_OPEN}.spreadsheet",
    ".odt": f"{_OPEN}.text",
    ".pdf": "application/pdf",
    ".pptx": f"{_OFFICE}.presentationml.presentation",
    ".rtf": "application/rtf",
    ".txt": "text/plain",
    ".xlsx": f"{_OFFICE}.spreadsheetml.sheet",
}
"""Ending of a name -> type. Others are not opened, archives among them."""

_MAX_BYTES = 20 << 20
_MAX_UNPACKED = 100 << 20
_MAX_MEMORY = 2 << 30
_MAX_CHARS = 200_000
_SECONDS = 20.0
_GRACE_SECONDS = 0.5
_WORKER = Path(__file__).with_name("attachment_worker.py")


class AttachmentTexts:
    """Reads attached files. After the `with` block no process is left.

    Raises BadMail if the library is not installed.
    """

    def __init__(self) -> None:
        if importlib.util.find_spec("kreuzberg") is None:
            raise BadMail(f"attachment_text=true needs a library: .venv/bin/python -m pip install {KREUZBERG}")
        self.read = 0
        self.not_read: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        """Problem -> the first file that has it, and its mail."""
        self._worker: subprocess.Popen[bytes] | None = None
        # kreuzberg unpacks a library there, which nobody else may write.
        self._folder = tempfile.TemporaryDirectory(prefix="attachments-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._folder.cleanup()

    def added_to(self, mails: Iterable[Email | DroppedMail]) -> Iterable[Email | DroppedMail]:
        """Return the mails with the texts of their files."""
        return _WithTexts(mails, self)

    def add_to(self, mail: Email | DroppedMail) -> Email | DroppedMail:
        """Return the mail with the texts of its files."""
        if isinstance(mail, DroppedMail) or not mail.attachments:
            return mail
        read = tuple(replace(file, text=self._text(file, mail)) for file in mail.attachments)
        return mail.model_copy(update={"attachments": read})

    def _text(self, file: Attachment, mail: Email) -> str:
        kind = _KINDS.get(PurePath(file.name).suffix.lower())
        if kind is None:
            return ""
        content = decoded_content(file.encoded, file.encoding)
        answer = (
            self._asked(kind, content) if len(content) <= _MAX_BYTES else {"problem": f"over {_MAX_BYTES >> 20} MiB"}
        )
        if "text" in answer:
            self.read += 1
            return answer["text"]
        self.not_read[answer["problem"]] += 1
        self.first.setdefault(answer["problem"], f"{file.name} in {mail.file_name or mail.message_id}")
        return ""

    def _asked(self, kind: str, content: bytes) -> dict[str, str]:
        """Return the answer of the process. One that takes too long or dies is replaced for the next file."""
        worker = self._worker = self._worker or self._started()
        assert worker.stdin is not None and worker.stdout is not None
        in_time = Timer(_SECONDS, worker.kill)
        in_time.start()
        try:
            worker.stdin.write(json.dumps({"kind": kind, "size": len(content)}).encode() + b"\n" + content)
            worker.stdin.flush()
            answer: dict[str, str] = json.loads(worker.stdout.readline())
            return answer
        except (OSError, ValueError):
            late = not in_time.is_alive()
            if self._stop() == 1:  # an exception outside of files
                raise BadMail(f"the reader of attachments does not start: install {KREUZBERG} again") from None
            return {
                "problem": f"takes over {_SECONDS:.0f} s" if late else "needs too much memory, or breaks the reader"
            }
        finally:
            in_time.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        # Without the environment, in which keys and passwords are, and isolated from the files of this project.
        limits = [str(limit) for limit in (_MAX_MEMORY, _MAX_UNPACKED, _MAX_CHARS)]
        return subprocess.Popen(
            [sys.executable, "-I", str(_WORKER), *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"TMPDIR": self._folder.name},
            cwd="/",
        )

    def _stop(self) -> int | None:
        """End the process. Return the exit code that it had already."""
        if self._worker is None:
            return None
        worker, self._worker = self._worker, None
        assert worker.stdin is not None
        with suppress(OSError):
            worker.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            worker.wait(_GRACE_SECONDS)
        code = worker.poll()
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()
        return code


class _WithTexts(Iterable[Email | DroppedMail]):
    """Mails with the texts of their files, with the same hints of their number."""

    def __init__(self, mails: Iterable[Email | DroppedMail], texts: AttachmentTexts) -> None:
        self._mails = mails
        self._texts = texts

    def __iter__(self) -> Iterator[Email | DroppedMail]:
        return _Adding(iter(self._mails), self._texts)

    def __length_hint__(self) -> int:
        return operator.length_hint(self._mails)


class _Adding(Iterator[Email | DroppedMail]):
    def __init__(self, mails: Iterator[Email | DroppedMail], texts: AttachmentTexts) -> None:
        self._mails = mails
        self._texts = texts

    def __next__(self) -> Email | DroppedMail:
        return self._texts.add_to(next(self._mails))

    def __length_hint__(self) -> int:
        return operator.length_hint(self._mails)
