"""The model's replies in an append-only JSON Lines file, so that paid replies are never lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout
from pydantic import ValidationError

from agent.question_writing.author import Reply
from training.errors import BadInput


class _Line(Reply):
    request: str


class Journal:
    """Replies by the digest of their request. A context manager, because only one process may write the file.

    Raise BadInput on entry when another process has the file or it is damaged, and when it cannot be written. An
    incomplete last line, left by a killed run, is removed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FileLock(path.with_suffix(".lock"))
        self._replies: dict[str, Reply] = {}

    def __enter__(self) -> Journal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=0)
            self._read()
        except Timeout:
            raise BadInput(f"another run is writing questions with the same model ({self.path}); wait for it") from None
        except OSError as error:
            raise self._unwritable(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def reply_to(self, request: str) -> Reply | None:
        """Return the last reply to this request, usable or not, with the cost of all attempts; None if there is none."""
        return self._replies.get(request)

    def add(self, request: str, reply: Reply) -> Reply:
        """Store a reply, usable or not. Return it with the cost of earlier attempts at the same request added."""
        line = {"request": request, **reply.model_dump()}
        try:
            with self.path.open("a", encoding="ascii") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise self._unwritable(error) from error
        return self._remember(request, reply)

    def _remember(self, request: str, reply: Reply) -> Reply:
        if earlier := self._replies.get(request):
            reply = reply.model_copy(update={"spent": earlier.spent + reply.spent})
        self._replies[request] = reply
        return reply

    def _read(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = _Line.model_validate(json.loads(text))
            except (ValueError, ValidationError):
                raise BadInput(
                    f"{self.path}: line {number} is damaged; remove that line, or the whole file to start over"
                ) from None
            self._remember(line.request, Reply(questions=line.questions, problem=line.problem, spent=line.spent))

    def _unwritable(self, error: OSError) -> BadInput:
        return BadInput(f"cannot write {self.path}: {error.strerror or error}")
