"""Ratings of answers: the caller who asked may rate an answer once, and a person decides what becomes of the rating.

Each rating is a YAML file in one folder. A reviewer corrects the answer and its mails in it and sets `review` to
`train`, `test` or `rejected`. `--pipeline data` takes the first two as questions (`environment/feedback.py`).

The right to rate is a signed token that comes with the answer, so the service remembers nothing. The key that signs is
random and lies in the same folder: it survives a restart, and replicas that share the folder accept each other's
tokens.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml
from itsdangerous import BadData, SignatureExpired, URLSafeTimedSerializer

from serving.bodies import Answer, Feedback, Question
from serving.log import cause

TOKEN_SECONDS = 24 * 3600
MAX_WAITING = 10_000
"""Most files in the folder: ratings that nobody reviews must not fill the disk."""
SECRET = ".token-key"
SECRET_BYTES = 32
_HEAD = """\
# A rating of an answer. To make a question of it, correct `answer` and `message_ids` where they are wrong and set `review`
# to train or test; set it to rejected to leave it out. Questions that are still pending are left out too.
"""

logger = logging.getLogger(__name__)


class TokenRefused(Exception):
    """A token is forged, too old, or used; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FeedbackQueue:
    """The folder of ratings, and the tokens that let callers add to it."""

    def __init__(self, folder: Path) -> None:
        """Read or make the signing key of `folder`. If that fails, the key lives as long as the process."""
        self.folder = folder
        try:
            secret = _signing_key(folder)
        except OSError as error:
            logger.error("feedback folder not usable", extra={"fields": cause(error)})
            secret = secrets.token_bytes(SECRET_BYTES)
        self._serializer = URLSafeTimedSerializer(secret, salt="feedback")

    def token(self, request_id: str, caller: str, question: Question, answer: Answer) -> str:
        """Return a token with which `caller` may rate this answer."""
        payload = {"id": request_id, "caller": caller, "answer": answer.answer, "source_ids": answer.source_ids}
        return self._serializer.dumps(payload | {"asked": question.model_dump()})

    def add(self, feedback: Feedback, caller: str) -> Path:
        """Store a rating. Raises `TokenRefused`, and OSError when the folder cannot be written."""
        try:
            payload = self._serializer.loads(feedback.token, max_age=TOKEN_SECONDS)
        except SignatureExpired:
            raise TokenRefused(410, "token: older than 24 hours; ask again to rate the new answer") from None
        except BadData:
            raise TokenRefused(403, "token: not one of this service; send the feedback_token of an answer") from None
        if payload["caller"] != caller:
            raise TokenRefused(403, "token: belongs to an answer that was given to another key")
        self.folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in self.folder.iterdir()) >= MAX_WAITING:
            raise OSError("the feedback folder is full")
        up = feedback.verdict == "up"
        content = {
            **payload["asked"],
            "verdict": feedback.verdict,
            "comment": feedback.comment,
            "answered": payload["answer"],
            "asked_by": caller,
            "rated_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "review": "pending",
            "answer": feedback.correct_answer or (payload["answer"] or "" if up else ""),
            "message_ids": payload["source_ids"],
        }
        file = self.folder / f"{payload['id']}.yaml"
        text = _HEAD + _as_yaml(content)
        try:
            _write_once(file, text.encode())
        except FileExistsError:
            raise TokenRefused(409, "token: this answer has been rated already") from None
        return file


class _OneLineTexts(yaml.SafeDumper):
    """Writes each text on one line. Characters that look like a line break or change what a reviewer sees are escaped."""


def _one_line(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_OneLineTexts.add_representer(str, _one_line)


def _as_yaml(content: dict[str, Any]) -> str:
    def readable(value: object) -> bool:
        return all(map(readable, value)) if isinstance(value, list) else str(value).replace("\n", "").isprintable()

    plain = readable(list(content.values()))
    return yaml.dump(content, Dumper=_OneLineTexts, sort_keys=False, allow_unicode=plain, width=math.inf)


def _signing_key(folder: Path) -> bytes:
    """Return the key in `folder`, made by whichever process came first. Raises OSError."""
    file = folder / SECRET
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another process was quicker
            _write_once(file, secrets.token_bytes(SECRET_BYTES))
    secret = file.read_bytes()
    if len(secret) != SECRET_BYTES:
        raise OSError(f"{file} does not hold {SECRET_BYTES} bytes; delete it, and a new key is made")
    return secret


def _write_once(file: Path, content: bytes) -> None:
    """Write a new file that only its owner can read, whole or not at all. Raises FileExistsError and OSError."""
    draft = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "wb") as out:
            out.write(content)
        os.link(draft, file)
    finally:
        draft.unlink()
