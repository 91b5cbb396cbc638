"""Exports and profiles as mail programs leave them: Google Takeout, zips, Thunderbird, Apple Mail, Outlook."""

from __future__ import annotations

import io
import os
import stat
import zipfile
from pathlib import Path

import pytest

from environment.errors import BadMail
from environment.models import DroppedMail, Email
from environment.sources.detection import files_of, mail_source
from tests.environment.raw_mails import raw_mail


def mbox(*numbers: int, **headers: str) -> bytes:
    return b"".join(
        f"From {number}@xxx Mon May 14 16:39:00 +0000 2001\n".encode() + raw_mail(number, **headers) + b"\n"
        for number in numbers
    )


def zipped(path: Path, files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def laid_out(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def subjects(source: Path) -> list[str]:
    found = list(mail_source(str(source)))
    assert not [mail for mail in found if isinstance(mail, DroppedMail)], found
    return [mail.subject for mail in found if isinstance(mail, Email)]


TAKEOUT = {
    "Takeout/archive_browser.html": b"<html>",
    "Takeout/Mail/All mail Including Spam and Trash.mbox": mbox(1, 2),
}


def test_takeout_is_read_as_it_comes(tmp_path: Path) -> None:
    assert subjects(zipped(tmp_path / "takeout-001.zip", TAKEOUT)) == ["Note 1", "Note 2"]
    second = {"Takeout/Mail/Sent.mbox": mbox(3), "Takeout/Mail/user/4.eml": raw_mail(4)}
    zipped(tmp_path / "takeout-002.zip", second)
    assert subjects(tmp_path) == ["Note 1", "Note 2", "Note 3", "Note 4"], "several parts in a folder"
    [mail, *_] = mail_source(str(tmp_path))
    assert isinstance(mail, Email) and mail.file_name.startswith("takeout-001.zip/Takeout/Mail/All mail")


def test_what_gmail_had_thrown_away_is_left_out(tmp_path: Path) -> None:
    labels = {"Inbox,Important": None, "Archived,Spam": "spam", "Trash,Unread": "deleted", "Spam recipes": None}
    for number, label in enumerate(labels):
        (tmp_path / f"{number}.eml").write_bytes(raw_mail(number, x_gmail_labels=label))
    found = [mail.reason if isinstance(mail, DroppedMail) else None for mail in mail_source(str(tmp_path))]
    assert found == list(labels.values())


def test_a_hostile_or_damaged_zip_is_one_line_or_a_reason(tmp_path: Path) -> None:
    names = ["../outside", "/etc/outside", "a/../../outside", "C:\\outside"]
    path = zipped(tmp_path / "evil.zip", {name: raw_mail() for name in names} | {"fine.eml": raw_mail(7)})
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    reasons = [mail.reason for mail in mail_source(str(path)) if isinstance(mail, DroppedMail)]
    assert reasons == ["unsafe_name"] * 4 + ["no_file"] and os.listdir(tmp_path) == ["evil.zip"]

    bomb = zipped(tmp_path / "bomb.zip", {"big.eml": raw_mail(body="x" * (60 << 20)), "fine.eml": raw_mail(7)})
    assert [getattr(mail, "reason", "") for mail in mail_source(str(bomb))] == ["oversized", ""]

    misnamed = zipped(tmp_path / "misnamed.zip", {"ä.eml": raw_mail(7)})
    misnamed.write_bytes(misnamed.read_bytes().replace("ä".encode(), b"\xff\xfe"))
    with pytest.raises(BadMail, match=r"misnamed\.zip cannot be read"):
        list(mail_source(str(misnamed)))

    whole = zipped(tmp_path / "whole.zip", {str(n): raw_mail(n, body=os.urandom(300).hex()) for n in range(20)})
    content = whole.read_bytes()
    for name, damaged in {"cut": content[:-30], "begin": content[:2_000], "bit": _flipped(content, 400)}.items():
        whole.write_bytes(damaged)
        with pytest.raises(BadMail, match=r"whole.zip cannot be read to its end, is it cut short or damaged\?"):
            list(mail_source(str(whole)))
        assert name
    encrypted = bytearray(zipped(tmp_path / "secret.zip", {"a": raw_mail()}).read_bytes())
    encrypted[encrypted.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "secret.zip").write_bytes(encrypted)
    with pytest.raises(BadMail, match="secret.zip is encrypted: unpack it with its password"):
        list(mail_source(str(tmp_path / "secret.zip")))
    assert subjects(zipped(tmp_path / "empty.zip", {})) == []


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def test_an_archive_in_an_archive_is_not_opened(tmp_path: Path) -> None:
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr("a.eml", raw_mail())
    path = zipped(tmp_path / "outer.zip", {"inner.zip": inner.getvalue()})
    assert [getattr(mail, "reason", "") for mail in mail_source(str(path))] == ["nested_archive"]


def test_a_thunderbird_profile(tmp_path: Path) -> None:
    profile = {
        "prefs.js": b"user_pref();",
        "cookies.sqlite": b"SQLite format 3\0",
        "storage/default/x.sqlite": b"no mail",
        "Mail/Local Folders/Archive": mbox(1),
        "Mail/Local Folders/Archive.msf": b"// <!-- <mdb:mork",
        "Mail/Local Folders/Archive.sbd/2023": mbox(2),
        "Mail/Local Folders/msgFilterRules.dat": b"version",
        "ImapMail/imap.example.org/INBOX": mbox(3),
        "ImapMail/imap.example.org/INBOX.msf": b"// <!-- <mdb:mork",
        "ImapMail/imap.example.org/Sent-1/cur/1": raw_mail(4),
    }
    laid_out(tmp_path / "thunderbird" / "abc.default", profile)
    (tmp_path / "thunderbird" / "abc.default" / "ImapMail" / "imap.example.org" / "Sent-1" / "tmp").mkdir()
    laid_out(tmp_path / "thunderbird", {"profiles.ini": b"[Profile0]", "Crash Reports/1.txt": b"no mail"})
    for root in (tmp_path / "thunderbird", tmp_path / "thunderbird" / "abc.default"):
        found = list(mail_source(str(root)))
        assert sorted(mail.subject for mail in found if isinstance(mail, Email)) == [f"Note {n}" for n in (1, 2, 3, 4)]
        assert not [mail for mail in found if isinstance(mail, DroppedMail)], found
    assert not [path for path in files_of(str(tmp_path / "thunderbird")) if path.endswith((".msf", ".sqlite", ".ini"))]


def test_apple_mail(tmp_path: Path) -> None:
    def emlx(number: int) -> bytes:
        raw = raw_mail(number)
        return f"{len(raw)}\n".encode() + raw + b'<?xml version="1.0"?><plist></plist>\n'

    inbox = "V10/1B2C/INBOX.mbox/9F3A/Data/"
    library = {
        "V10/MailData/Envelope Index": b"SQLite format 3\0",
        f"{inbox}Messages/1.emlx": emlx(1),
        f"{inbox}1/2/Messages/2.partial.emlx": emlx(2),
        f"{inbox}1/2/Attachments/2/2/report.pdf": b"%PDF",
        f"{inbox}1/2/Attachments/2/3/picture.png": b"\x89PNG",
        "V10/1B2C/INBOX.mbox/Info.plist": b"<plist>",
        "V10/1B2C/.mboxCache.plist": b"<plist>",
        "V10/1B2C/Old.mbox/mbox": mbox(3),
        "V10/1B2C/Old.mbox/table_of_contents": b"\0\0",
    }
    assert sorted(subjects(laid_out(tmp_path / "Mail", library))) == ["Note 1", "Note 2", "Note 3"]


FAKE_READPST = """#!/bin/sh
for last; do :; done
while [ "$1" != -o ]; do shift; done
if grep -q damaged "$last"; then echo "Error opening File"; exit 1; fi
mkdir -p "$2/Personal folders/Inbox"
cp "{mbox}" "$2/Personal folders/Inbox/mbox"
"""


def test_a_date_that_stands_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(
        raw_mail(date="Tue, 6 Feb 2001 21:09:00 -0800 (PST) Tue, 6 Feb 2001 21:09:00 -0800 (PST)")
    )
    (tmp_path / "2").write_bytes(raw_mail(date="Thu, 23 Aug 2001 15:49:51 -0700 (PDT),Thu, 23 Aug 2001 15:49:51 -0600"))
    dates = [str(mail.date) for mail in mail_source(str(tmp_path)) if isinstance(mail, Email)]
    assert dates == ["2001-02-07 05:09:00", "2001-08-23 22:49:51"]


def test_outlook_files_are_read_by_readpst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "archive.pst"
    path.write_bytes(b"!BDN and more")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(
        BadMail, match=r"archive.pst is an Outlook data file: to read it, install readpst \(.*pst-utils"
    ):
        mail_source(str(path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "mbox").write_bytes(mbox(1, 2))
    program = tmp_path / "bin" / "readpst"
    program.write_text(FAKE_READPST.replace("{mbox}", str(tmp_path / "mbox")))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert subjects(path) == ["Note 1", "Note 2"]
    path.write_bytes(b"!BDN damaged")
    with pytest.raises(BadMail, match="archive.pst cannot be read by readpst: Error opening File"):
        list(mail_source(str(path)))
    assert not list(tmp_path.glob("outlook-*"))
