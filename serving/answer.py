"""What the service says: answers, and which model gave them."""

from __future__ import annotations

from datetime import datetime

from pydantic import BaseModel


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
