"""What the service is asked and what it says."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel, ConfigDict, field_validator

from environment.email_db import parse_query_date

MAX_QUESTION_CHARS = 4_000


class Question(BaseModel):
    """The parameters of one invocation; `query_date` is ISO 8601, a bare date means the end of that day."""

    model_config = ConfigDict(extra="forbid", strict=True)

    question: str
    inbox_address: str
    query_date: str

    @field_validator("question")
    @classmethod
    def _bounded(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is empty: ask something about the inbox")
        if len(text) > MAX_QUESTION_CHARS:
            raise ValueError(f"has {len(text):,} characters: at most {MAX_QUESTION_CHARS:,} are allowed")
        return text

    @field_validator("query_date")
    @classmethod
    def _date(cls, text: str) -> str:
        parse_query_date(text)
        return text

    @field_validator("question", "inbox_address")
    @classmethod
    def _encodable(cls, text: str) -> str:
        if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text):
            raise ValueError("holds characters that are not text")
        return text


class ServedModel(BaseModel):
    """Which model answers, and since when. `load_id` is new whenever a model is loaded."""

    checkpoint: str
    step: int
    base_model: str
    mails: int
    loaded_at: datetime
    load_id: str
    process_id: int


class Answer(BaseModel):
    """One answered question. `answer` is `None` when the agent gave up; `outcome` says how the episode ended."""

    question: str
    answer: str | None
    source_ids: list[str]
    success: bool
    outcome: str
    turns: int
    seconds: float
