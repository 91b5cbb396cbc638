"""Answers of submitted questions, kept for a bounded time for the key that asked."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from serving.admission import TurnedAway
from serving.bodies import Reply, StoredAnswer


@dataclass
class Result:
    """The state of a submitted question, and in the end its answer."""

    caller: str
    expires: float
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    status: str = "waiting"
    reply: Reply | None = None
    error: str | None = None

    def stored(self) -> StoredAnswer:
        expires = datetime.now(UTC) + timedelta(seconds=self.expires - time.monotonic())
        return StoredAnswer.model_validate(
            {"id": self.id, "status": self.status, "reply": self.reply, "error": self.error, "expires_at": expires}
        )


class Results:
    """At most `limit` results, kept for `seconds` after they finish; half of them for one key. For one event loop."""

    def __init__(self, limit: int, seconds: float) -> None:
        self._limit = limit
        self._seconds = seconds
        self._results: dict[str, Result] = {}

    def add(self, caller: str, count: int) -> list[Result]:
        """Add `count` results. Raises `TurnedAway` when there is no room, for this key or at all."""
        self._forget()
        mine = sum(result.caller == caller for result in self._results.values())
        share = max(1, self._limit // 2)
        if mine + count > share:
            message = f"this key has {mine} submitted questions; {share} may be kept, finished ones for {self._seconds:g} seconds"
            raise TurnedAway(429, message, 60, "results_of_caller")
        if len(self._results) + count > self._limit:
            raise TurnedAway(
                503, f"{len(self._results)} submitted questions are kept: submit again later", 60, "results_full"
            )
        added = [Result(caller, time.monotonic() + self._seconds) for _ in range(count)]
        self._results |= {result.id: result for result in added}
        return added

    def get(self, caller: str, result_id: str) -> Result | None:
        """Return the result with this id if it belongs to the caller and is still kept."""
        self._forget()
        result = self._results.get(result_id)
        return result if result and result.caller == caller else None

    def finished(self, result: Result) -> None:
        """Keep a finished result for the full time."""
        result.expires = time.monotonic() + self._seconds

    def _forget(self) -> None:
        now = time.monotonic()
        for result in [r for r in self._results.values() if r.expires < now and r.status in ("done", "failed")]:
            del self._results[result.id]
