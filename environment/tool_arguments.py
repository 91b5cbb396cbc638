"""Arguments of the tools as a model writes them: what is accepted, and what a malformed call is told.

Small models write numbers as text and single values instead of lists. Whatever has one meaning is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, time, timedelta
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, model_validator

from environment.mail_text import storable, utc_without_zone


def as_text(value: object) -> str | None:
    """Return `value` as text if it is text or a number."""
    if isinstance(value, str):
        return storable(value)
    try:
        return str(value) if isinstance(value, int | float) else None
    except ValueError:  # more digits than Python converts
        return None


def as_number(value: object) -> int | None:
    """Return `value` as an integer if it is a whole number, including `"7"` and `7.0`."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) <= 20:
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) else None


def _as_address(value: object) -> str | None:
    return value.strip() or None if isinstance(value, str) else None


def _as_moment(value: object) -> datetime | None:
    """Return an ISO 8601 time, or the first second of a date, in UTC."""
    try:
        return utc_without_zone(datetime.fromisoformat(value.strip())) if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _as_moment_before(value: object) -> datetime | None:
    """Return the second before `_as_moment`."""
    moment = _as_moment(value)
    return moment - timedelta(seconds=1) if moment is not None and moment > datetime.min else None


def _as_keywords(value: object) -> list[str] | None:
    words = [as_text(word) for word in value] if isinstance(value, list) else [as_text(value)]
    usable = [word for word in words if word is not None]
    listed = isinstance(value, list | str)
    return usable if listed and len(usable) == len(words) else None


def _as_answer(value: object) -> str | None:
    text = None if isinstance(value, bool) else as_text(value)
    return text.strip() or None if text is not None else None


def _as_numbers(value: object) -> list[int | None]:
    return [as_number(one) for one in value] if isinstance(value, list) else [as_number(value)]


def _parsed_by(read: Callable[[object], Any], expected: str = "") -> PlainValidator:
    """Accept what `read` returns, unless it is None. `expected` says in words what the argument has to be."""

    def parse(value: object) -> Any:
        parsed = read(value)
        if parsed is None:
            raise ValueError(expected)
        return parsed

    return PlainValidator(parse)


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_empty_options(cls, given: dict[str, Any]) -> dict[str, Any]:
        """An optional argument that is null or empty is absent."""
        fields = cls.model_fields
        return {
            name: given[name]
            for name in fields
            if name in given and (fields[name].is_required() or given[name] not in (None, ""))
        }


class SearchArguments(_Arguments):
    """Arguments of a search. Dates are UTC."""

    keywords: Annotated[list[str], _parsed_by(_as_keywords)]
    from_addr: Annotated[str, _parsed_by(_as_address, "an address")] = ""
    to_addr: Annotated[str, _parsed_by(_as_address, "an address")] = ""
    sent_after: Annotated[datetime | None, _parsed_by(_as_moment, "a date, YYYY-MM-DD")] = None
    sent_before: Annotated[datetime | None, _parsed_by(_as_moment_before, "a date, YYYY-MM-DD")] = None
    max_results: Annotated[int | None, _parsed_by(as_number, "a number")] = None

    @model_validator(mode="after")
    def _one_day(self) -> SearchArguments:
        """Both bounds on one day mean that day. Otherwise `sent_before` excludes its day, and nothing could match."""
        after, before = self.sent_after, self.sent_before
        if (
            after is not None
            and before is not None
            and before + timedelta(seconds=1) == after
            and after.time() == time()
        ):
            self.sent_before = before + timedelta(days=1)
        return self


class ReadArguments(_Arguments):
    """Arguments of a read: the number that the episode gave the mail, and the character to begin at."""

    email_id: Annotated[int, _parsed_by(as_number)]
    start: Annotated[int | None, _parsed_by(as_number)] = None


class AnswerArguments(_Arguments):
    """Arguments of the final answer. A source that is no number is None."""

    answer: Annotated[str, _parsed_by(_as_answer)]
    source_ids: Annotated[list[int | None], _parsed_by(_as_numbers)] = []


def faulty_option(error: ValidationError) -> tuple[str, str] | None:
    """Return the first faulty argument with what was expected; None if a required argument is faulty."""
    first = error.errors(include_url=False)[0]
    expected = str(first.get("ctx", {}).get("error", ""))
    return (str(first["loc"][0]), expected) if expected else None
