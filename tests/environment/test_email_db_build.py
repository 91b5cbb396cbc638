"""The build of the database: which mails are kept, and what happens to the file after errors."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environment import email_db_build
from environment.email_db import MailDatabase, build_database
from environment.errors import BadMail
from environment.models import Email
from environment.words import TOKENIZER
from tests.environment.sample_mails import OWNER, STRANGER, mail

LATE = datetime(2030, 1, 1)
Build = Callable[[Iterable[Email]], MailDatabase]


def test_every_reason_to_drop_a_mail_is_counted(tmp_path: Path) -> None:
    people = tuple(f"p{i}@example.com" for i in range(31))
    report = build_database(
        [
            mail(1),
            mail(2, body=" \n "),
            mail(3, body="x" * 5_001),
            mail(4, body="word " * 2_000_000),
            mail(5, date=None),
            mail(6, date=datetime(1979, 12, 31)),
            mail(7, date=datetime(2043, 1, 1)),
            mail(8, to_addresses=people),
            mail(10, from_address="", to_addresses=()),
            mail(11, message_id="<1@example.com>"),
            mail(12, body="This is note number 1.", subject="Note 1"),
        ],
        tmp_path / "mails.sqlite",
    )
    assert report.dropped == {
        "absurd_date": 2,
        "body_too_long": 2,
        "no_address": 1,
        "no_body": 1,
        "no_date": 1,
        "too_many_recipients": 1,
    }
    assert (report.read, report.kept, report.duplicates, report.renamed) == (11, 2, 1, 1)


def test_a_mail_with_the_message_id_of_somebody_elses_is_kept_and_cited_apart(database_of: Build) -> None:
    same = {"message_id": "<1@example.com>"}
    database = database_of(
        [
            mail(1, to_addresses=(STRANGER,)),
            mail(2, **same),
            mail(3, subject="Note 2", body="This is note number 2.", **same, to_addresses=("carl@example.com",)),
        ]
    )
    assert database.email_count() == 2

    def cited(who: str) -> list[str]:
        mailbox = database.mailbox(who, LATE)
        views = [view for number in (1, 2) if (view := mailbox.read(number))]
        assert [database.resolve(view.message_id) for view in views] == [view.id for view in views]
        return [view.message_id for view in views]

    assert database.resolve("<1@example.com>") == 1 and cited(STRANGER) == ["<1@example.com>"]
    [name] = cited(OWNER)
    assert name.startswith("<1@example.com>#") and cited("carl@example.com") == [name]


def test_limits_are_inclusive_and_repeated_recipients_count_once(database_of: Build) -> None:
    thirty = tuple(f"p{i}@example.com" for i in range(30))
    database = database_of([mail(1, body="x" * 5_000, to_addresses=thirty, cc_addresses=thirty, bcc_addresses=thirty)])
    assert database.email_count() == 1


def test_subjects_are_cut_and_long_message_ids_replaced(database_of: Build) -> None:
    long = f"<{'x' * 1_000}@example.com>"
    database = database_of([mail(1, subject="x" * 3_000, message_id=long), mail(2, replies_to=(long,))])
    view = database.mailbox(OWNER, LATE).read(1)
    assert view is not None and view.subject == "x" * 1_000
    assert view.message_id.endswith("@no-message-id.invalid>") and database.resolve(view.message_id) == 1
    assert database.resolve(long) is None and not database.rows("SELECT * FROM reply")


def test_copies_become_one_mail_that_each_recipient_sees_as_it_was_sent_to_them(database_of: Build) -> None:
    same = {"subject": "Plan", "body": "The plan."}
    database = database_of(
        [
            mail(10, **same),
            mail(20, **same, to_addresses=(STRANGER,)),
            mail(5, **same, to_addresses=(), cc_addresses=("Carl@example.com",)),
            mail(11, **same, from_address="other@example.com"),
        ]
    )
    assert database.email_count() == 2
    kept = database.resolve("<10@example.com>")
    assert kept is not None
    assert {database.resolve(f"<{n}@example.com>") for n in (5, 10, 20)} == {kept}
    assert all(database.delivered_to(kept, who) for who in (OWNER, STRANGER, "carl@EXAMPLE.com", "bob.ray@example.com"))
    assert not database.delivered_to(kept, "other@example.com")
    for who, number in ((OWNER, 10), (STRANGER, 20), ("carl@example.com", 5)):
        mailbox = database.mailbox(who, LATE)
        view = mailbox.read(kept)
        assert view is not None and view.message_id == f"<{number}@example.com>"
        assert view.date == datetime(2001, 1, number + 1, 9, 30)
        assert (*view.to_addresses, *view.cc_addresses) == (who,)
        hits = [hit for hit in mailbox.search(["plan"]) if hit.id == kept]
        assert [(hit.message_id, hit.date) for hit in hits] == [(view.message_id, view.date)]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_copies_in_later_batches_are_found(database_of: Build, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(email_db_build, "_MAILS_PER_BATCH", size)
    plan, lunch = {"subject": "Plan", "body": "The plan of i3."}, {"subject": "Lunch", "body": "At noon with a plan."}
    database = database_of(
        [
            mail(1, **plan),
            mail(2, **lunch),
            mail(3, **plan, to_addresses=(STRANGER,)),
            mail(4, **plan, to_addresses=(OWNER, STRANGER)),
            mail(5, subject="Else", body="Nothing."),
            mail(6, **lunch, cc_addresses=("carl@example.com",)),
        ]
    )

    def found(who: str, word: str) -> list[str]:
        return [hit.message_id for hit in database.mailbox(who, LATE).search([word])]

    assert found(STRANGER, "plan") == ["<3@example.com>"] and found(STRANGER, "noon") == []
    assert found(STRANGER, "i3") == ["<3@example.com>"], "a word, and how the index names the stranger"
    assert found(OWNER, "i3") == ["<1@example.com>"]
    assert found("carl@example.com", "noon") == ["<6@example.com>"]
    assert found(OWNER, "plan") == ["<1@example.com>", "<2@example.com>"] and found(OWNER, "nothing") == [
        "<5@example.com>"
    ]


def test_long_mails_are_written_before_they_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(email_db_build, "_CHARS_PER_BATCH", 10_000)
    held, flush = [], email_db_build._Builder._flush

    def noted(builder: email_db_build._Builder) -> None:
        held.append(sum(len(str(row[-1])) for row in builder._rows["email"]))
        flush(builder)

    monkeypatch.setattr(email_db_build._Builder, "_flush", noted)
    report = build_database([mail(n, body=f"{n}{'x' * 4_000}") for n in range(50)], tmp_path / "mails.sqlite")
    assert report.kept == 50 and max(held) < 15_000


def test_same_content_gives_the_same_checksum_and_other_content_another(tmp_path: Path) -> None:
    reports = [build_database([mail(1), mail(n)], tmp_path / f"{i}.sqlite") for i, n in enumerate((2, 2, 3))]
    checksums = [report.content_checksum for report in reports]
    assert checksums[0] == checksums[1] != checksums[2]
    assert MailDatabase(tmp_path / "0.sqlite").content_checksum == checksums[0]


def test_progress_is_reported_with_the_total_if_known(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    mails = [mail(n) for n in range(1_500)]
    build_database(mails, tmp_path / "a.sqlite", progress=lambda *step: seen.append(step))
    assert seen == [(1_000, 1_500), (1_500, 1_500)]
    seen.clear()
    build_database((m for m in mails[:3]), tmp_path / "b.sqlite", progress=lambda *step: seen.append(step))
    assert seen == [(3, None)]


def test_a_source_without_mails_gives_an_empty_database(database_of: Build) -> None:
    database = database_of([])
    assert database.email_count() == 0 and database.inboxes() == []


def test_a_failed_build_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "mails.sqlite"
    build_database([mail(1)], path)
    before = path.read_bytes()

    def broken() -> Iterator[Email]:
        yield mail(2)
        raise BadMail("the source ends here")

    with pytest.raises(BadMail, match="the source ends here"):
        build_database(broken(), path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == before


@pytest.mark.parametrize(
    ("where", "name", "error"),
    [
        (email_db_build._Builder, "_flush", sqlite3.OperationalError("database or disk is full")),
        (os, "fsync", OSError(errno.ENOSPC, "No space left on device")),
    ],
)
def test_a_full_disk_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: object, name: str, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(where, name, full)
    with pytest.raises(BadMail, match="disk is full"):
        build_database([mail(1)], tmp_path / "mails.sqlite")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [1, 100])
def test_an_error_in_the_indexer_ends_the_build_and_the_indexer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(email_db_build, "_MAILS_PER_BATCH", size)
    monkeypatch.setattr(email_db_build, "_INDEX", "INSERT INTO no_index VALUES (?)")
    threads = set(threading.enumerate())
    with pytest.raises(BadMail, match="no such table: no_index"):
        build_database([mail(1), mail(2), mail(3)], tmp_path / "mails.sqlite")
    assert set(threading.enumerate()) <= threads and list(tmp_path.iterdir()) == []


@pytest.mark.service
def test_a_write_that_the_system_refuses_is_one_clear_line(tmp_path: Path) -> None:
    """A real error of the file system in the middle of a build, provoked with a limit on the size of files."""
    script = """
        import resource, signal, sys
        from pathlib import Path
        from environment.email_db import build_database
        from environment.errors import BadMail
        from environment.models import Email
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        try:
            mails = (Email(message_id=f"<{n}>", from_address="a@b.example", date="2001-01-01", body=f"{n} " * 500)
                     for n in range(3_000))
            build_database(mails, Path(sys.argv[1]))
        except BadMail as error:
            print(error)
    """
    path = tmp_path / "mails.sqlite"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True, cwd=Path.cwd()
    )
    assert done.stdout.startswith(f"cannot write the mail database {path}"), done.stderr
    assert len(done.stdout.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadMail, match="cannot write the mail database"):
        build_database([mail(1)], tmp_path / "file" / "mails.sqlite")


@pytest.mark.service
def test_a_killed_build_leaves_no_file_that_looks_finished(tmp_path: Path) -> None:
    script = """
        import itertools, sys
        from pathlib import Path
        from environment.email_db import build_database
        from environment.models import Email
        mails = (Email(message_id=f"<{n}>", from_address="a@b.example", date="2001-01-01", body=f"{n}")
                 for n in itertools.count())
        build_database(mails, Path(sys.argv[1]), progress=lambda *_: print("on", flush=True))
    """
    path = tmp_path / "mails.sqlite"
    build = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert build.stdout is not None
    for _ in range(4):
        assert build.stdout.readline() == b"on\n"
    os.kill(build.pid, signal.SIGKILL)
    build.communicate()
    assert not path.exists()
    for leftover in tmp_path.iterdir():
        with pytest.raises(BadMail):
            MailDatabase(leftover)


@settings(max_examples=100)
@given(
    st.lists(
        st.builds(
            Email,
            message_id=st.text(),
            subject=st.text(),
            from_address=st.text(),
            to_addresses=st.lists(st.text(), max_size=3).map(tuple),
            date=st.none() | st.datetimes(),
            body=st.text(),
        ),
        max_size=10,
    )
)
def test_no_mail_breaks_a_build_and_every_kept_one_is_found(
    tmp_path_factory: pytest.TempPathFactory, emails: list[Email]
) -> None:
    path = tmp_path_factory.mktemp("any") / "mails.sqlite"
    report = build_database(emails, path)
    assert report.read == len(emails) == report.kept + report.duplicates + sum(report.dropped.values())
    database = MailDatabase(path)
    assert database.email_count() == report.kept and len(database.inboxes()) == report.inboxes
    for address in database.inboxes():
        mailbox = database.mailbox(address, LATE.replace(year=2040))
        assert all(
            database.delivered_to(i, address) == (mailbox.read(i) is not None) for i in range(1, report.kept + 1)
        )
    database.close()


def test_the_schema_and_the_queries_agree_on_the_tokenizer() -> None:
    schema = Path(email_db_build.__file__).with_name("schema.sql").read_text()
    assert f"tokenize='{TOKENIZER}'" in schema


def test_threads_are_joined_by_indexed_message_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the index every Message-ID of a thread costs a scan of all mails."""
    threads, plans = email_db_build.threads, []

    def explained(connection: sqlite3.Connection, joined: dict[str, str]) -> Iterator[tuple[int, int]]:
        query = "EXPLAIN QUERY PLAN SELECT copy_id FROM alias WHERE message_id = 'x'"
        plans.extend(row[3] for row in connection.execute(query))
        return threads(connection, joined)

    monkeypatch.setattr(email_db_build, "threads", explained)
    build_database([mail(1), mail(2, replies_to=("<1@example.com>",))], tmp_path / "mails.sqlite")
    assert plans and all("INDEX" in plan for plan in plans)


def test_a_mail_without_message_id_is_kept_under_one_that_follows_from_it(database_of: Build) -> None:
    mails = [mail(1, message_id=""), mail(2, message_id=" "), mail(2, message_id="")]
    first, second = (database_of(mails), database_of(list(reversed(mails))))
    names = [{row[0] for row in database.rows("SELECT message_id FROM alias")} for database in (first, second)]
    assert names[0] == names[1] and len(names[0]) == 2 and all("no-message-id.invalid" in name for name in names[0])
