"""`--pipeline data` with the mail of an IMAP account."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pytest

from environment.email_db import MailDatabase
from environment.sources import imap
from steps.data import create_database, sources
from tests.environment.raw_mails import raw_mail
from tests.fakes.imap_server import PASSWORD, USER, ImapServer
from tests.front_door import FrontDoor

pytestmark = pytest.mark.service


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[ImapServer]:
    server = ImapServer(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
    monkeypatch.setenv(imap.PASSWORD, PASSWORD)
    monkeypatch.delenv(imap.TOKEN, raising=False)
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    monkeypatch.setattr(sources, "IMAP_COPIES", tmp_path / "data" / "imap")
    yield server
    server.close()


def test_an_account_is_a_mail_source(server: ImapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = FrontDoor(tmp_path / "checkout", monkeypatch)
    data = ["--pipeline", "data", "--set", f"emails={server.url('INBOX')}"]
    server.folders["INBOX"].add(raw_mail(1, to=USER), raw_mail(2, to="list@lists.example"))

    monkeypatch.setenv(imap.PASSWORD, "wrong")
    assert "me@example.org at localhost: the server does not accept IMAP_PASSWORD" in door.refuses(*data)
    assert not (tmp_path / "data").exists()
    secret = ["--pipeline", "data", "--set", "emails=imaps://me:swordfish@imap.example.org"]
    assert "swordfish" not in door.refuses(*secret)
    monkeypatch.setenv(imap.PASSWORD, PASSWORD)

    done = door.run(*data)
    assert done.returncode == 0 and "data: 2 mails in 3 inboxes (of 2 read), 0 questions" in done.stdout, done
    mailbox = MailDatabase(tmp_path / "data" / "mail_database.sqlite").mailbox(USER, datetime(2030, 1, 1))
    assert len(mailbox.search(["note"])) == 2, "mail by a list is in the inbox of the account's user"

    server.asked.clear()
    assert "reused" in door.run(*data).stdout
    assert not [command for command in server.asked if "FETCH" in command]
    server.folders["INBOX"].add(raw_mail(3))
    assert "data: 3 mails" in door.run(*data).stdout
    server.close()
    assert "this run uses the data that were prepared before" in (done := door.run(*data)).stdout, done

    train = ["--pipeline", "train", "--set", f"emails={server.url('INBOX')}"]
    assert "train_questions: needed" in door.refuses(*train)
