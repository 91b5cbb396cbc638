"""The names of attached files: in the text of their mail, found by a search, and shown."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from environment.attachments import with_attachments
from environment.email_db import MailDatabase, build_database
from environment.models import Email
from environment.sources.rfc822 import parse_mail
from environment.tools import READ, SEARCH, MailTools

HEAD = "Message-ID: <{}@x.example>\nDate: Mon, 4 Mar 2024 10:00:00 +0000\nFrom: bob@x.example\nTo: ann@x.example\nSubject: s\n"
TEXT = "Content-Type: text/plain\n\nSee the file.\n"


def mail(*parts: str, number: int = 1, kind: str = "mixed") -> Email:
    content = "".join(f"--b\n{part}\n" for part in parts)
    raw = HEAD.format(number) + f'Content-Type: multipart/{kind}; boundary="b"\n\n{content}--b--\n'
    found = parse_mail(raw.encode("latin-1"), "mail")
    assert isinstance(found, Email), found
    return found


def shown(found: Email) -> str:
    return with_attachments(found.body.strip(), found.attachments, 5_000)


def file(disposition: str, kind: str = "application/pdf", more: str = "") -> str:
    return f"Content-Type: {kind}\n{more}Content-Disposition: {disposition}\n\nJVBERi0="


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (file("attachment; filename=report.pdf"), "report.pdf"),
        (file('attachment; filename="Q3 budget, final.xlsx"'), "Q3 budget, final.xlsx"),
        (file("inline", "application/pdf; name=report.pdf"), "report.pdf"),
        (file("attachment; filename*=UTF-8''Angebot%20f%C3%BCr%20Z%C3%BCrich.pdf"), "Angebot für Zürich.pdf"),
        (file("attachment; filename*0*=iso-8859-1'de'Gr%FC; filename*1=sse.pdf"), "Grüsse.pdf"),
        (file('attachment; filename="=?utf-8?Q?Gr=C3=BC=C3=9Fe.pdf?="'), "Grüße.pdf"),
        (file('attachment; filename="C:\\\\docs\\\\..\\\\plan.doc"'), "plan.doc"),
        (file("attachment; filename=../../etc/passwd"), "passwd"),
        (file("attachment; filename=photo.jpg", "image/jpeg", "Content-ID: <1>\n"), "photo.jpg"),
    ],
)
def test_the_text_ends_with_the_names_of_files(part: str, name: str) -> None:
    found = mail(TEXT, part)
    assert shown(found) == f"See the file.\n\nAttachments: {name}"
    assert [attached.name for attached in found.attachments] == [name]


@pytest.mark.parametrize(
    "part",
    [
        file("inline; filename=logo.png", "image/png", "Content-ID: <logo>\n"),
        file("attachment; filename=smime.p7s", "application/pkcs7-signature"),
        file("attachment"),
        file("attachment; filename="),
    ],
)
def test_what_is_no_file_of_its_own_has_no_name(part: str) -> None:
    assert shown(mail(TEXT, part)) == "See the file."


def test_files_of_attached_mails_and_of_mails_without_text_are_named_and_many_are_cut() -> None:
    attached = file("attachment; filename=in.pdf")
    inner = f"Content-Type: message/rfc822\n\nSubject: i\nContent-Type: multipart/mixed; boundary=c\n\n--c\n{attached}\n--c--"
    assert shown(mail(TEXT, inner)).endswith("Attachments: in.pdf")
    assert shown(mail(file("attachment; filename=only.pdf"))) == "Attachments: only.pdf"
    many = mail(TEXT, *(file(f"attachment; filename={n}.pdf") for n in range(60)))
    assert shown(many).endswith("48.pdf, 49.pdf and 10 more")
    assert len(shown(mail(TEXT, file(f"attachment; filename={'n' * 500}")))) < 200


def test_names_do_not_make_a_mail_too_long(tmp_path: Path) -> None:
    fits = mail(TEXT, file("attachment; filename=only.pdf"))
    only = mail(file("attachment; filename=only.pdf"), number=2)
    report = build_database([fits, only], tmp_path / "mails.sqlite", max_body_chars=len(fits.body.strip()))
    assert report.kept == 2 and not report.dropped


def test_a_name_is_found_and_shown(tmp_path: Path) -> None:
    mails = [mail(TEXT, file("attachment; filename=Okland_offer-2024.pdf"), number=1), mail(TEXT, number=2)]
    build_database(mails, tmp_path / "mails.sqlite")
    limits = SimpleNamespace(max_results=5, read_chars=500, passage_chars=0)
    with_tools = MailTools(
        MailDatabase(tmp_path / "mails.sqlite").mailbox("ann@x.example", datetime(2030, 1, 1)), limits
    )
    found = with_tools.call(SEARCH, {"keywords": ["Økland", "offer"]})
    assert found.email_ids == [1] and "Okland_offer-2024.pdf" in found.observation
    assert "Attachments: Okland_offer-2024.pdf" in with_tools.call(READ, {"email_id": 1}).observation
