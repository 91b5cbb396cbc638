"""A model on loopback, mail to ask about, and a quick way to have questions written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.question_writing import writing
from agent.question_writing.settings import QuestionSettings
from agent.question_writing.writing import WritingReport, write_questions
from environment.email_db import MailDatabase, build_database
from tests.fakes.question_model import QuestionModel, room_mails


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[QuestionModel]:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with QuestionModel() as server:
        yield server


@pytest.fixture
def mails(tmp_path: Path) -> Iterator[MailDatabase]:
    """Twenty mails to one inbox, each with one fact."""
    build_database(room_mails(20), tmp_path / "rooms.sqlite")
    database = MailDatabase(tmp_path / "rooms.sqlite")
    yield database
    database.close()


def settings_for(model: QuestionModel, **values: object) -> QuestionSettings:
    defaults: dict[str, object] = {
        "question_model": "openai/own",
        "question_api_base": model.url,
        "questions_per_inbox": 12,
    }
    return QuestionSettings(**(defaults | values))


def prompts(model: QuestionModel) -> list[str]:
    """The mails of every request, in the order of requests."""
    return [request["messages"][1]["content"] for request in model.requests]


@pytest.fixture
def write(
    model: QuestionModel, mails: MailDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., WritingReport]:
    """Write with small batches, so that few mails make many of them."""
    for name in ("MAILS_PER_BATCH", "QUESTIONS_PER_BATCH", "CONCURRENT_BATCHES"):
        monkeypatch.setattr(writing, name, 2)
    monkeypatch.setattr("training.llm_client.ATTEMPTS", 2)

    def write(database: MailDatabase = mails, **values: object) -> WritingReport:
        return write_questions(
            database,
            settings_for(model, **values),
            read_chars=700,
            max_messages=1,
            seed=1,
            journal_folder=tmp_path / "replies",
        )

    return write
