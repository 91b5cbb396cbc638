"""Thumbs up and down: who asked may rate the answer once, and a person decides what becomes of it.

Each rating is a YAML file of its own in one folder. A person looks at it, puts the right answer and its mails into it and
sets `review` to `train`, `test` or `rejected`; `--pipeline data` takes the first two as questions (`environment/feedback.py`).
The right to rate is a signed token that comes with the answer, so nothing has to be remembered, and any replica can check it.
"""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path

import yaml
from itsdangerous import BadData, SignatureExpired, URLSafeTimedSerializer

from serving.answer import Answer, Feedback, Question

TOKEN_SECONDS = 24 * 3600
MAX_WAITING = 10_000
"""Files in the folder; a service that many people use must not fill the disk of one that nobody reviews."""
_HEAD = """\
# A rating of an answer. To make a question of it, correct `answer` and `message_ids` where they are wrong and set `review`
# to train or test; set it to rejected to leave it out. Questions that are still pending are left out too.
"""


class TokenRefused(Exception):
    """The token is forged, too old, or was used; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class FeedbackQueue:
    """The folder of ratings, and the tokens that let people add to it."""

    def __init__(self, folder: Path, secret: bytes | None) -> None:
        """`secret` signs the tokens; without one they are good for as long as this process lives."""
        self.folder = folder
        self._serializer = URLSafeTimedSerializer(secret or secrets.token_bytes(32), salt="feedback")

    def token(self, request_id: str, caller: str, question: Question, answer: Answer) -> str:
        """Lets `caller` rate this answer."""
        told = {"id": request_id, "caller": caller, "answer": answer.answer, "source_ids": answer.source_ids}
        return self._serializer.dumps(told | {"asked": question.model_dump()})

    def add(self, feedback: Feedback, caller: str) -> Path:
        """Store a rating. Raises `TokenRefused`, and OSError when the folder cannot be written."""
        try:
            told = self._serializer.loads(feedback.token, max_age=TOKEN_SECONDS)
        except SignatureExpired:
            raise TokenRefused(410, "token: older than 24 hours; ask again to rate the new answer") from None
        except BadData:
            raise TokenRefused(403, "token: not one of this service; send the feedback_token of an answer") from None
        if told["caller"] != caller:
            raise TokenRefused(403, "token: belongs to an answer that was given to another key")
        self.folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in self.folder.iterdir()) >= MAX_WAITING:
            raise OSError("the feedback folder is full")
        up = feedback.verdict == "up"
        content = {
            **told["asked"],
            "verdict": feedback.verdict,
            "comment": feedback.comment,
            "answered": told["answer"],
            "asked_by": caller,
            "rated_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "review": "pending",
            "answer": feedback.correct_answer or (told["answer"] or "" if up else ""),
            "message_ids": told["source_ids"],
        }
        file = self.folder / f"{told['id']}.yaml"
        text = _HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise TokenRefused(409, "token: this answer has been rated already") from None
        try:
            with open(descriptor, "w", encoding="utf-8") as out:
                out.write(text)
        except OSError:
            file.unlink()  # otherwise the token would be used up, and the file no rating
            raise
        return file
