"""Question writing through the front door: a kill in the middle, what comes out of it, and what can go wrong."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environment.sources.parquet import parquet_questions
from tests.checkout import Checkout, settings
from tests.fakes.question_model import OWNER, QuestionModel, room_mails, written
from tests.front_door import FrontDoor
from tests.standstill import guarded

pytestmark = pytest.mark.service

BATCHES_BEFORE_THE_KILL = 5


@pytest.fixture(scope="module")
def mail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty mails, which are six batches."""
    rows = [
        {
            "message_id": mail.message_id,
            "subject": mail.subject,
            "from": mail.from_address,
            "to": list(mail.to_addresses),
            "cc": [],
            "bcc": [],
            "date": mail.date,
            "body": mail.body,
        }
        for mail in room_mails(60)
    ]
    addresses = pa.list_(pa.string())
    table = pa.Table.from_pylist(rows)
    for name in ("cc", "bcc"):
        table = table.set_column(table.schema.get_field_index(name), name, pa.array([[]] * len(rows), addresses))
    folder = tmp_path_factory.mktemp("questions") / "mail"
    folder.mkdir()
    pq.write_table(table, folder / "train.parquet")
    return folder


@pytest.fixture
def checkout(mail: Path, tmp_path: Path) -> Checkout:
    """A checkout with the mails in `mail/`, and no key."""
    made = Checkout.create(tmp_path / "project")
    shutil.copytree(mail, made.folder / "mail")
    made.environment.pop("OPENAI_API_KEY", None)
    return made


@pytest.fixture
def door(mail: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    shutil.copytree(mail, tmp_path / "mail")
    return FrontDoor(tmp_path, monkeypatch)


@pytest.fixture
def model() -> Iterator[QuestionModel]:
    with QuestionModel() as server:
        yield server


def words_for(model: QuestionModel) -> list[str]:
    return [
        *("--pipeline", "scenarios", "--config", "configs/scenarios.yaml"),
        *settings(emails="mail", question_model="openai/own", question_api_base=model.url, max_cost="null"),
        *settings(questions_per_inbox=30, owner=OWNER, max_messages=2, read_chars=900),
    ]


def of_two_mails(case: dict[str, Any]) -> str:
    """A question about every other mail, which cites the next one too."""
    questions = [written(mail, mail_ids=[mail["id"], mail["id"] + 1]) for mail in case["mails"][::2]]
    return json.dumps({"questions": questions})


def asked(model: QuestionModel) -> list[str]:
    return [request["messages"][1]["content"] for request in model.requests]


def test_questions_for_mail_that_has_none(checkout: Checkout, model: QuestionModel) -> None:
    go_on = threading.Event()

    def reply(case: dict[str, Any]) -> str:
        if len(model.requests) > BATCHES_BEFORE_THE_KILL:
            go_on.wait()
        return of_two_mails(case)

    model.reply = reply
    killed = checkout.start(*words_for(model))
    try:
        with guarded(killed):
            while len(replies(checkout)) < BATCHES_BEFORE_THE_KILL or len(model.requests) == BATCHES_BEFORE_THE_KILL:
                assert killed.poll() is None, killed.communicate()[0]
                time.sleep(0.05)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert not (checkout.folder / "outputs" / "questions").exists()
    paid = asked(model)[:BATCHES_BEFORE_THE_KILL]
    model.requests.clear()
    model.reply = of_two_mails
    go_on.set()

    done = checkout.run(*words_for(model))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert len(model.requests) == 6 - BATCHES_BEFORE_THE_KILL and not set(paid) & set(asked(model))
    assert "questions: 30 (inboxes: 1, batches of mails: 6, 6,600 tokens, price unknown)" in done.stdout
    folder = checkout.folder / re.search(r"written to (\S+)", done.stdout)[1]
    rows = list(parquet_questions(folder))
    assert len(rows) == 30 and {row.inbox_address for row in rows} == {OWNER}
    assert [path.name for path in folder.iterdir()] == ["train.parquet"]

    again = checkout.run(*words_for(model))
    assert (
        "questions: unchanged, reused" in again.stdout
        and f"written to {folder.relative_to(checkout.folder)}" in again.stdout
    )

    command = shlex.split(re.search(r"train with them: python run.py (.*)", again.stdout)[1])
    assert command[-6:] == [
        *("--set", f'data.owner="{OWNER}"', "--set", "data.max_messages=2", "--set", "agent.read_chars=900")
    ]
    command[command.index("all")] = "data"
    data = checkout.run(*command)
    assert data.returncode == 0, data.stdout + data.stderr
    counts = re.search(r"(\d+) questions to train on, (\d+) held out", data.stdout)
    assert int(counts[1]) + int(counts[2]) == 30 and int(counts[2]) > 0 and "left out" not in data.stdout


def replies(checkout: Checkout) -> list[str]:
    files = list((checkout.folder / "outputs" / "question_replies").glob("*.jsonl"))
    return files[0].read_text().splitlines() if files else []


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (settings(emails="mail"), "needs OPENAI_API_KEY"),
        (settings(emails="synthetic"), "brings its own questions"),
    ],
)
def test_obstacles_are_one_line_errors(door: FrontDoor, words: list[str], named: str) -> None:
    assert named in door.refuses("--pipeline", "scenarios", "--config", "configs/scenarios.yaml", *words)
    assert not (door.folder / "outputs" / "questions").exists()


def test_a_model_that_writes_nothing_usable_is_one_line(door: FrontDoor, model: QuestionModel) -> None:
    model.reply = lambda case: "I cannot do that."
    assert "no usable question" in door.refuses(*words_for(model))
    assert not list((door.folder / "outputs" / "questions").glob("*"))
