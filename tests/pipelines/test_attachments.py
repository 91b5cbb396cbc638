"""`--pipeline data` with the text of attached files."""

from __future__ import annotations

import base64
import importlib.util
from datetime import datetime
from pathlib import Path

import pytest

from environment.email_db import MailDatabase
from steps.data import create_database
from tests.environment.sources.office_files import docx, pdf
from tests.front_door import FrontDoor

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(importlib.util.find_spec("kreuzberg") is None, reason="kreuzberg is not installed"),
]


def mail(number: int, name: str, content: bytes) -> bytes:
    attached = base64.encodebytes(content).decode()
    return (
        f"Message-ID: <{number}@x.example>\nDate: Mon, 4 Mar 2024 10:00:00 +0000\nFrom: bob@x.example\nTo: ann@x.example\n"
        'Subject: s\nContent-Type: multipart/mixed; boundary="b"\n\n--b\n\nSee the file.\n'
        f"--b\nContent-Disposition: attachment; filename={name}\nContent-Transfer-Encoding: base64\n\n{attached}\n--b--\n"
    ).encode()


def test_attached_files_are_read_and_what_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_database, "DATA", tmp_path / "data")
    door = FrontDoor(tmp_path / "checkout", monkeypatch)
    folder = tmp_path / "mails"
    folder.mkdir()
    (folder / "1.eml").write_bytes(mail(1, "offer.pdf", pdf("Invoice total 480 EUR")))
    (folder / "2.eml").write_bytes(mail(2, "bomb.docx", docx("x", padding=150 << 20)))
    done = door.run("--pipeline", "data", "--set", f"emails={folder}", "--set", "attachment_text=true")
    assert done.returncode == 0, done
    assert "data: 2 mails" in done.stdout
    assert "attachments not read: 1 expands too far (bomb.docx in 2.eml)" in done.stdout
    mailbox = MailDatabase(tmp_path / "data" / "mail_database.sqlite").mailbox("ann@x.example", datetime(2030, 1, 1))
    assert [hit.message_id for hit in mailbox.search(["invoice"])] == ["<1@x.example>"]
