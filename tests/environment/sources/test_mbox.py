from __future__ import annotations

import io
import mailbox
import operator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environment.models import DroppedMail, Email
from environment.sources import mbox, rfc822
from environment.sources.detection import mail_source
from environment.sources.mbox import MboxFile, split_mbox
from tests.environment.raw_mails import raw_mail

SEPARATOR = b"From bob@example.com Mon May 14 16:39:00 2001\n"


def bodies(content: bytes) -> list[str]:
    return [mail.body for mail in mbox.mails_in(io.BufferedReader(io.BytesIO(content)), "export.mbox")]


LINES = st.sampled_from(["From here on", "From: nobody", "Subject: no header", "", "> From quoted", "the end", " From"])


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(LINES).map("\n".join), min_size=1, max_size=6))
def test_mails_written_by_the_standard_library_are_read_back(tmp_path: Path, texts: list[str]) -> None:
    path = tmp_path / "export.mbox"
    path.unlink(missing_ok=True)
    written = mailbox.mbox(path)
    for number, text in enumerate(texts):
        written.add(raw_mail(number, body=text))
    written.close()
    mails = list(MboxFile(path))
    assert [mail.message_id for mail in mails] == [f"<{number}.JavaMail@thyme>" for number in range(len(texts))]
    assert [mail.body.strip() for mail in mails] == [text.strip() for text in texts]
    content = path.read_bytes()
    for mail in mails:
        position = int(mail.file_name.removeprefix("export.mbox at byte "))
        assert content[position:].startswith(b"From MAILER-DAEMON")
    assert mails == list(MboxFile(path)), "the source can be read again"


@pytest.mark.parametrize(
    ("separator", "between"),
    [
        (b"From 1234567890@xxx Thu Feb 20 10:00:00 +0000 2014\r\n", b"\r\n"),
        (b"From - Mon May 14 16:39:00 2001\n", b"\n"),
        (b"From \n", b"\n"),
        (b"From - Sun Oct 24 23:57:07 1999\n", b"\n"),
        (b"From bob Sun Oct 24 23:57:07 1999\n", b"\n"),
        (SEPARATOR, b""),
        (SEPARATOR + b">From bob Mon May 14 16:39:00 2001 remote from host\n", b"\n"),
    ],
)
def test_separators_of_many_writers(separator: bytes, between: bytes) -> None:
    text = "One.\n\nFrom the desk of Ann\nFrom 10:30 on, as in 2001\n\n>From what\n>>From twice"
    content = b"".join(separator + raw_mail(number, body=text) + between for number in range(3))
    assert [body.strip() for body in bodies(content)] == [text.replace(">From", "From")] * 3


@pytest.mark.parametrize("kept", [1 << 16, 100])
def test_lines_may_end_in_bare_carriage_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(mbox, "_LINE_BYTES", kept)
    old = b"\n".join(SEPARATOR + raw_mail(number, body="One.\n\n>From what\n\nFrom now on") for number in range(50))
    path = tmp_path / "export"
    path.write_bytes(old.replace(b"\n", b"\r"))
    mails = list(mail_source(str(path)))
    assert [mail.body.strip() for mail in mails if isinstance(mail, Email)] == ["One.\n\nFrom what\n\nFrom now on"] * 50
    begins = [int(str(getattr(mail, "file_name", "")).rpartition(" ")[2]) for mail in mails]
    assert all(old[begin:].startswith(SEPARATOR) for begin in begins)


@pytest.mark.parametrize(
    "text",
    [
        "Hello,\n\nFrom now on:\nNote: the lift is closed\nBye",
        "Hello,\n\nFrom now on:\nSubject: will be in capitals\nBye",
        "Hello,\n\nFrom Monday 10:30 to 12:00 in 2001 we meet\nTo: nobody\nBye",
        "Hello,\n\nFrom today Mon May 14 16:39:00 2001 the office is closed\nBye",
        "Patch:\n\nFrom 3f2a1b0c Mon Sep 17 00:00:00 2001\nFrom: Carl <carl@x.example>\nDate: Mon, 4 Mar 2024\n\ndiff",
        "Look:\n\nFrom bob@example.com Mon May 14 16:39:00 2001\nSubject: pasted\n\na quotation",
    ],
)
def test_lines_of_a_text_are_no_separators(text: str) -> None:
    content = b"\n".join(SEPARATOR + raw_mail(number, body=text) for number in range(2))
    assert [body.strip() for body in bodies(content)] == [text, text]


@pytest.mark.parametrize(
    "separator", [b"From \n", b"From\n", b"From -\n", b"From eva\n", b"From eva@x.example Mo. Mai 14 16:39:00 2001\n"]
)
@pytest.mark.parametrize("before", [b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n \n"])
def test_separators_without_dates_and_files_that_begin_late(separator: bytes, before: bytes, tmp_path: Path) -> None:
    between = b"" if separator in (b"From \n", b"From\n", b"From -\n") else b"\n"
    path = tmp_path / "export"
    path.write_bytes(before + between.join(separator + raw_mail(number, body="text") for number in range(3)))
    assert [mail.body for mail in mail_source(str(path)) if isinstance(mail, Email)] == [
        "text\n" + "\n" * bool(between)
    ] * 2 + ["text\n"]


def test_patches_in_a_file_of_patches_are_mails() -> None:
    patch = b"From 3f2a1b0c3f2a1b0c Mon Sep 17 00:00:00 2001\n" + raw_mail(body="diff")
    assert [body.strip() for body in bodies(patch + b"\n" + patch)] == ["diff", "diff"]


def test_a_mail_without_headers_is_reported_and_ends_none_of_the_others() -> None:
    content = SEPARATOR + raw_mail(1) + b"\n" + SEPARATOR + b"\n\x00garbage\n\n" + SEPARATOR + raw_mail(2)
    first, broken, second = mbox.mails_in(io.BufferedReader(io.BytesIO(content)), "x")
    assert isinstance(first, Email) and isinstance(second, Email)
    assert isinstance(broken, DroppedMail) and broken.reason == "no_headers"
    assert broken.where == f"x at byte {len(SEPARATOR) + len(raw_mail(1)) + 1}"


def test_an_oversized_mail_is_skipped_without_being_held(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (mbox, rfc822):
        monkeypatch.setattr(module, "MAX_MAIL_BYTES", 100_000)
    huge = raw_mail(2, body="x" * 1_000_000) + raw_mail(2, body="a line\n" * 100_000)
    content = SEPARATOR + raw_mail(1) + b"\n" + SEPARATOR + huge + b"\n" + SEPARATOR + raw_mail(3)
    first, skipped, third = split_mbox(io.BytesIO(content))
    assert len(skipped[1]) < 200_000
    kinds = [getattr(mail, "reason", "") for mail in mbox.mails_in(io.BufferedReader(io.BytesIO(content)), "x")]
    assert kinds == ["", "oversized", ""] and first[1].rstrip() == raw_mail(1).rstrip() and third[1] == raw_mail(3)


@given(st.binary().filter(lambda content: b"From " not in content))
def test_no_byte_is_lost(content: bytes) -> None:
    assert list(split_mbox(io.BytesIO(SEPARATOR + content))) == [(0, content)]


def test_the_number_of_mails_is_estimated_while_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "export.mbox"
    path.write_bytes(b"".join(SEPARATOR + raw_mail(number, body="x" * 500) + b"\n" for number in range(2_000)))
    mails = iter(MboxFile(path))
    assert operator.length_hint(mails) == 0
    for _ in range(500):
        next(mails)
    assert operator.length_hint(mails) == pytest.approx(1_500, rel=0.05)
    assert len(list(mails)) == 1_500 and operator.length_hint(mails) == 0
