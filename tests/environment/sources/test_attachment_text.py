"""The text of attached files, and the files that must not be read: too large, too slow, bombs, garbage."""

from __future__ import annotations

import base64
import importlib.util
import os
import tomllib
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from environment.attachments import with_attachments
from environment.email_db import MailDatabase, build_database
from environment.errors import BadMail
from environment.models import Attachment, DroppedMail, Email
from environment.sources import attachment_text
from environment.sources.attachment_text import KREUZBERG, AttachmentTexts
from tests.environment.sources.office_files import docx, pdf

pytestmark = pytest.mark.skipif(importlib.util.find_spec("kreuzberg") is None, reason="kreuzberg is not installed")
ROOT = Path(__file__).parents[3]


@pytest.fixture
def texts() -> Iterable[AttachmentTexts]:
    with AttachmentTexts() as started:
        yield started


def mail(**files: bytes) -> Email:
    attached = [Attachment(name.replace("_", "."), base64.b64encode(raw), "base64") for name, raw in files.items()]
    people = {"from_address": "bob@x.example", "to_addresses": ("ann@x.example",)}
    return Email(
        message_id="<1@x>",
        subject="s",
        body="See it.",
        date=datetime(2024, 3, 4),
        attachments=tuple(attached),
        **people,
    )


def read(texts: AttachmentTexts, **files: bytes) -> list[str]:
    found = texts.add_to(mail(**files))
    assert isinstance(found, Email)
    return [file.text.strip() for file in found.attachments]


def test_texts_pdfs_and_office_files_are_read_and_found(texts: AttachmentTexts, tmp_path: Path) -> None:
    files = {
        "offer_pdf": pdf("Invoice total 480 EUR"),
        "plan_docx": docx("The budget is 31,000."),
        "list_csv": b"room,floor\n4B,seventh\n",
        "note_txt": "Schlüssel in Fach sieben".encode("latin-1"),
        "photo_jpg": b"\xff\xd8\xff",
        "more_zip": docx("not opened"),
    }
    found = read(texts, **files)
    assert found[:2] == ["Invoice total 480 EUR", "The budget is 31,000."] and "seventh" in found[2]
    assert "Fach sieben" in found[3] and found[4:] == ["", ""] and texts.read == 4 and not texts.not_read
    build_database(texts.added_to([mail(**files)]), tmp_path / "mails.sqlite")
    mailbox = MailDatabase(tmp_path / "mails.sqlite").mailbox("ann@x.example", datetime(2030, 1, 1))
    [hit] = mailbox.search(["invoice", "EUR"])
    shown = mailbox.read(hit.id)
    assert shown is not None and "Attachment offer.pdf:\nInvoice total 480 EUR" in shown.body


def test_files_that_cannot_be_read_are_counted_and_the_others_are_read(
    texts: AttachmentTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment_text, "_MAX_BYTES", 1 << 20)
    found = read(
        texts,
        bomb_docx=docx("x", padding=150 << 20),
        large_pdf=os.urandom((1 << 20) + 1),
        garbage_pdf=b"\0garbage",
        cut_docx=docx("The budget is 31,000.")[:300],
        fine_docx=docx("The budget is 31,000."),
    )
    assert found == ["", "", "", "", "The budget is 31,000."]
    assert texts.not_read == {"expands too far": 1, "over 1 MiB": 1, "unreadable": 2}
    assert texts.first["expands too far"] == "bomb.docx in <1@x>"


def test_a_reader_that_hangs_or_dies_is_replaced(
    texts: AttachmentTexts, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text("import sys, time\nsys.stdin.buffer.readline()\ntime.sleep(600)\n")
    good = attachment_text._WORKER
    monkeypatch.setattr(attachment_text, "_SECONDS", 0.5)
    monkeypatch.setattr(attachment_text, "_WORKER", slow)
    # More than a pipe holds: a process that does not read must not stop us either.
    assert read(texts, a_txt=b"x" * (1 << 20)) == [""]
    slow.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(attachment_text, "_SECONDS", 60.0)
    assert read(texts, a_txt=b"words") == [""]
    assert list(texts.not_read) == ["takes over 0 s", "needs too much memory, or breaks the reader"]
    slow.write_text("raise ImportError\n")
    with pytest.raises(BadMail, match="the reader of attachments does not start"):
        read(texts, a_txt=b"words")
    monkeypatch.setattr(attachment_text, "_WORKER", good)
    monkeypatch.setattr(attachment_text, "_MAX_UNPACKED", 4 << 30)
    monkeypatch.setattr(attachment_text, "_MAX_MEMORY", 700 << 20)
    assert read(texts, bomb_docx=docx("x", padding=400 << 20), fine_docx=docx("y")) == ["", "y"]
    assert sum(texts.not_read.values()) == 3
    assert read(texts, a_txt=b"words") == ["words"]


def test_no_process_is_left_and_none_sees_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMAP_PASSWORD", "swordfish")
    before = set(psutil.Process().children())
    with AttachmentTexts() as texts:
        assert set(psutil.Process().children()) == before, "none is started before there is a file"
        read(texts, a_txt=b"words")
        [worker] = set(psutil.Process().children()) - before
        assert "IMAP_PASSWORD" not in worker.environ()
    assert not worker.is_running()


def test_texts_are_cut_to_the_length_of_a_mail() -> None:
    files = [Attachment("a.txt", b"", text="word " * 100), Attachment("b.txt", b"", text="last")]
    shown = with_attachments("See it.", files, 300)
    assert len(shown) <= 300 and shown.endswith("word …(cut)") and "a.txt, b.txt" in shown
    assert with_attachments("See it.", files, 60) == "See it.\n\nAttachments: a.txt, b.txt"


def test_hints_of_the_number_of_mails_are_kept(texts: AttachmentTexts) -> None:
    mails = [mail(), DroppedMail(reason="no_headers", where="x")]
    added = texts.added_to(mails)
    assert added.__length_hint__() == 2 and iter(added).__length_hint__() == 2 and list(added) == mails


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadMail, match="attachment_text=true needs a library: .* pip install kreuzberg=="):
        AttachmentTexts()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["attachments"] == [
        KREUZBERG
    ]
