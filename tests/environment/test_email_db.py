from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from environment.email_db import MailDatabase, build_database
from environment.errors import BadMail, QueryTimeout
from environment.models import Email
from tests.environment.sample_mails import OWNER, STRANGER, mail

LATE = datetime(2030, 1, 1)
Build = Callable[[Iterable[Email]], MailDatabase]


# Opening


@pytest.mark.parametrize("damage", ["missing", "folder", "text", "other_database", "old_schema", "cut", "unfinished"])
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mails.sqlite"
    build_database([mail(n) for n in range(200)], path)
    if damage == "missing":
        path.unlink()
    elif damage == "folder":
        path = tmp_path
    elif damage == "text":
        path.write_text("not a database " * 1_000)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-4_096])
    elif damage == "other_database":
        path.unlink()
        sqlite3.connect(path).execute("CREATE TABLE email (id)").connection.close()
    else:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99" if damage == "old_schema" else "DELETE FROM metadata")
        connection.commit()
        connection.close()
    with pytest.raises(BadMail) as caught:
        MailDatabase(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_any_thread_may_read_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "folder with spaces, % and ?"
    build_database([mail(1)], folder / "mails.sqlite")
    database = MailDatabase(folder / "mails.sqlite")
    found: list[int] = []

    def search() -> None:
        found.append(len(database.mailbox(OWNER, LATE).search(["note"])))

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    with pytest.raises(sqlite3.OperationalError):
        database.rows("DELETE FROM email")
    database.close()
    assert [file.name for file in folder.iterdir()] == ["mails.sqlite"]
    assert database.resolve("<1@example.com>") == 1, "a closed database opens again when it is needed"
    database.close()


def test_an_unknown_inbox_is_one_clear_line(database_of: Build) -> None:
    with pytest.raises(BadMail, match="unknown inbox 'nobody@example.com'"):
        database_of([mail(1)]).mailbox("nobody@example.com", LATE)


def test_a_message_id_names_a_mail_of_the_inbox_that_asks(database_of: Build) -> None:
    """A list sends one Message-ID with a personal footer to each."""
    footers = [mail(n, message_id="<m@x>", to_addresses=(who,)) for n, who in ((1, STRANGER), (2, OWNER))]
    database = database_of(footers)
    assert database.resolve("<m@x>") == database.resolve("<m@x>", STRANGER) == 1
    assert database.resolve("<m@x>", f"Ann <{OWNER.upper()}>") == 2
    assert database.resolve("<m@x>", "nobody@example.com") is database.resolve("<n@x>", OWNER) is None


def test_a_cited_message_id_names_the_mail_that_is_cited_so(database_of: Build) -> None:
    to_stranger = mail(1, message_id="<m@x>", to_addresses=(STRANGER,))
    to_owner = mail(2, message_id="<m@x>")
    again = mail(1, message_id="<m@x>", date=datetime(2001, 3, 1))
    database = database_of([to_stranger, to_owner, again])
    views = [database.mailbox(OWNER, LATE).read(number) for number in (1, 2)]
    assert [view and database.resolve(view.message_id, OWNER) for view in views] == [1, 2]
    renamed = database_of([to_stranger, to_owner, again.model_copy(update={"message_id": "<n@x>"})])
    assert renamed.resolve("<m@x>", OWNER) == 2 and renamed.resolve("<n@x>", OWNER) == 1
    assert renamed.resolve("<n@x>", STRANGER) == 1, "the name of another person's copy, but a mail of this inbox"


def test_a_query_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    build_database([mail(n) for n in range(3)], tmp_path / "mails.sqlite")
    database = MailDatabase(tmp_path / "mails.sqlite", query_seconds=0.2)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(QueryTimeout, match="longer than 0.2 s"):
        database.rows(endless)
    assert database.email_count() == 3 and len(database.mailbox(OWNER, LATE).search(["note"])) == 3
    database.close()


def test_many_copies_of_a_text_and_many_answers_to_a_mail_take_linear_time(database_of: Build) -> None:
    begin, minute = datetime(2001, 1, 1), timedelta(minutes=1)
    alarms = [mail(n, subject="Alarm", body="It rings.", date=begin + n * minute) for n in range(8_000)]
    answers = [mail(n, date=begin + n * minute, replies_to=("<0@example.com>",)) for n in range(10_000)]
    mailboxes = [database_of(mails).mailbox(OWNER, LATE) for mails in (alarms, answers)]
    started = time.thread_time()
    for keywords in (["alarm"], []):
        assert [hit.id for hit in mailboxes[0].search(keywords, from_addr="bob.ray", to_addr=OWNER)] == [1]
    searched = time.thread_time()
    view = mailboxes[1].read(1)
    assert view is not None and view.thread == tuple(range(2, 10_001))
    assert searched - started < 1 and time.thread_time() - searched < 0.8, "of processor time; before, 18 and 2 seconds"


def test_waiting_for_the_processor_stops_no_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_database([mail(n) for n in range(3)], tmp_path / "mails.sqlite")
    database = MailDatabase(tmp_path / "mails.sqlite", query_seconds=60)
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr("environment.email_db.time.monotonic", lambda: float(next(hours)))
    count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT count(*) FROM n"
    assert database.rows(count) == [(100_000,)]
    database.close()
