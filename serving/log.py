"""The service's log: one line of JSON per event, on standard error. It never holds text of questions, answers or mails.

An error's message may quote any of these, so only its type and the lines of code that raised it are logged.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from openai import APIStatusError

ROOT = Path(__file__).parents[1]
LOGGED_FRAMES = 12


class JsonLines(logging.Formatter):
    """A record as JSON: time, level, event, and the fields given as `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
            **(cause(record.exc_info[1]) if record.exc_info and record.exc_info[1] else {}),
        }
        return json.dumps(line, default=str)


def configure() -> None:
    """Send the logs of the package `serving` and of uvicorn to standard error, independently of ZenML's verbosity."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("serving", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


def cause(error: BaseException) -> dict[str, Any]:
    """Return what may be logged about an error: its type, the types of its causes, and where it was raised."""
    chain: list[str] = []
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        status = f" {following.status_code}" if isinstance(following, APIStatusError) else ""
        chain.append(f"{type(following).__module__}.{type(following).__qualname__}{status}")
        following = following.__cause__ or following.__context__
    frames = traceback.extract_tb(error.__traceback__)
    shown = [frame for frame in frames[:-1] if "site-packages" not in frame.filename] + frames[-1:]
    places = [f"{_shown(frame.filename)}:{frame.lineno} {frame.name}" for frame in shown[-LOGGED_FRAMES:]]
    return {"cause": chain, "raised_at": places}


def _shown(file: str) -> str:
    path = Path(file)
    ours = path.is_relative_to(ROOT) and "site-packages" not in path.parts
    return str(path.relative_to(ROOT)) if ours else "/".join(path.parts[-2:])
