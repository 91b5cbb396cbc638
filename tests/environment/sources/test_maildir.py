from __future__ import annotations

import gzip
import io
import operator
import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from environment.email_db import build_database
from environment.errors import BadMail
from environment.models import DroppedMail, Email
from environment.sources import rfc822
from environment.sources.detection import files_of, mail_source
from environment.sources.headers import Fields, first_of
from tests.environment.raw_mails import raw_mail

FILES = {
    "allen-p/_sent_mail/1.": raw_mail(1),
    "allen-p/_sent_mail/10.": raw_mail(10),
    "allen-p/inbox/2.": raw_mail(2),
    "belden-t/inbox/deals/3.": raw_mail(3),
}


def folder_of(root: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def archive_of(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def defects(mails: Iterable[Email | DroppedMail]) -> dict[str, str]:
    return {mail.where: mail.reason for mail in mails if isinstance(mail, DroppedMail)}


def test_a_folder_and_its_archives_hold_the_same_mails(tmp_path: Path) -> None:
    folder = mail_source(str(folder_of(tmp_path / "maildir", FILES)))
    mails = list(folder)
    assert [mail.file_name for mail in mails] == list(FILES) and operator.length_hint(folder) == 4
    assert mails == list(folder), "the source can be read again"
    for name, mode in (("a.tar", "w"), ("b.tar.gz", "w:gz"), ("c.tbz", "w:bz2"), ("d.xz", "w:xz")):
        archive = mail_source(str(archive_of(tmp_path / name, FILES, mode)))
        assert list(archive) == mails == list(archive), name


def test_of_a_standard_maildir_cur_and_new_are_read(tmp_path: Path) -> None:
    files = {
        "cur/1.host:2,S": raw_mail(1),
        "new/2.host": raw_mail(2),
        "tmp/3.host": b"half a ma",
        ".Sent/cur/4.host:2,S": raw_mail(4),
        "dovecot.index": b"\x00",
    }
    root = folder_of(tmp_path / "Maildir", files)
    (root / ".Sent" / "new").mkdir()
    (root / ".Sent" / "subscriptions").write_text("no mail")
    assert [mail.message_id for mail in mail_source(str(root))] == [f"<{n}.JavaMail@thyme>" for n in (4, 1, 2)]


def test_what_a_maildir_marks_in_its_names_is_left_out_of_archives_too(tmp_path: Path) -> None:
    files = {
        "cur/1700000001.a.host:2,S": raw_mail(1),
        "cur/1700000002.b.host:2,ST": raw_mail(2),
        "tmp/1700000003.c.host": raw_mail(3)[:-5],
    }
    folder = folder_of(tmp_path / "Maildir", files)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    deleted = {"cur/1700000002.b.host:2,ST": "deleted"}
    incomplete = {"tmp/1700000003.c.host": "incomplete"}
    archives = (archive_of(tmp_path / "a.tar", files, "w"), tmp_path / "a.zip")
    for source, reasons in ((folder, deleted), *((archive, deleted | incomplete) for archive in archives)):
        mails = list(mail_source(str(source)))
        assert defects(mails) == reasons
        assert [mail.message_id for mail in mails if isinstance(mail, Email)] == ["<1.JavaMail@thyme>"]
    others = archive_of(tmp_path / "b.tar", {"tmp/4.eml": raw_mail(4)}, "w")
    assert not defects(mail_source(str(others))), "any folder may be called tmp"


def test_mbox_files_in_a_folder_or_an_archive_are_read_as_such(tmp_path: Path) -> None:
    mbox = b"".join(b"From x Mon May 14 16:39:00 2001\n" + raw_mail(number) + b"\n" for number in range(3))
    files = {"Takeout/Mail/Sent.mbox": mbox, "Takeout/Mail/single.eml": raw_mail(7)}
    assert len(list(mail_source(str(folder_of(tmp_path / "takeout", files))))) == 4
    mails = list(mail_source(str(archive_of(tmp_path / "takeout.tgz", files))))
    assert [mail.file_name for mail in mails[:1]] == ["Takeout/Mail/Sent.mbox at byte 0"] and len(mails) == 4


def test_every_planted_defect_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rfc822, "MAX_MAIL_BYTES", 2_000)
    monkeypatch.setattr("environment.sources.mbox.MAX_MAIL_BYTES", 2_000)
    planted = {
        "no_headers": b"\x89PNG",
        "no_date": raw_mail(20, date=None),
        "bad_date": raw_mail(21, date="soon"),
        "absurd_date": raw_mail(22, date="Mon, 14 May 1973 16:39:00 -0700"),
        "no_body": raw_mail(23, body=" "),
        "oversized": raw_mail(24, body="x" * 2_000),
        "no_address": raw_mail(26, to=None, **{"from": None}),
        "too_many_recipients": raw_mail(27, to="a@b, c@d, e@f"),
        "body_too_long": raw_mail(28, body="y" * 1_000),
        "unparsable": raw_mail(29, subject="Break it"),
    }
    root = folder_of(tmp_path / "maildir", FILES | {f"z/{reason}": content for reason, content in planted.items()})
    (root / "z" / "no_file").symlink_to(root / "allen-p" / "inbox" / "2.")
    (root / "z" / "no_folder").symlink_to(root / "allen-p")
    os.mkfifo(root / "z" / "no_fifo")
    (root / "z" / "unreadable").write_bytes(raw_mail(30))
    (root / "zz").mkdir()

    def refuse_open(path: str, *rest: object) -> io.BufferedReader:
        if path.endswith("unreadable"):
            raise PermissionError(13, "Permission denied", path)
        return open(path, "rb")

    def refuse_listing(path: str) -> object:
        if path.endswith("zz"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    def failing_text(fields: Fields, content: bytes) -> str:
        if first_of(fields, "subject") == b"Break it":
            raise RuntimeError("a fault of the library")
        return text_of(fields, content)

    scandir, text_of = os.scandir, rfc822.text_of
    monkeypatch.setattr("environment.sources.maildir.open", refuse_open, raising=False)
    monkeypatch.setattr(os, "scandir", refuse_listing)
    monkeypatch.setattr(rfc822, "text_of", failing_text)
    monkeypatch.setattr("environment.email_db_build.MAX_RECIPIENTS", 2)
    report = build_database(mail_source(str(root)), tmp_path / "mails.sqlite", max_body_chars=500)
    counts = dict.fromkeys(planted, 1) | {"no_file": 3, "unreadable": 2}
    assert report.dropped == counts
    assert report.read == report.kept + report.duplicates + sum(counts.values()) and report.kept == 4
    assert Counter(mail.reason for mail in report.listed) == counts
    where = {mail.reason: mail.where for mail in report.listed}
    assert all(where[reason].startswith(f"z/{reason}") for reason in planted), where


def test_the_list_of_defects_is_bounded_and_the_counts_are_not(tmp_path: Path) -> None:
    files = {f"{number}.": b"nothing" for number in range(1_003)} | {"a.": raw_mail()}
    report = build_database(mail_source(str(archive_of(tmp_path / "a.tar", files, "w"))), tmp_path / "mails.sqlite")
    assert report.dropped == {"no_headers": 1_003} and len(report.listed) == 1_000


def test_members_with_unsafe_names_and_links_are_reported_and_nothing_is_unpacked(tmp_path: Path) -> None:
    names = ["../outside", "/etc/outside", "a/../../outside", "C:\\outside", "..\\outside", "\\\\host\\outside"]
    path = archive_of(tmp_path / "evil.tar", {name: raw_mail(n) for n, name in enumerate(names)} | FILES, "w")
    with tarfile.open(path, "a") as archive:
        for name, kind in (("link", tarfile.SYMTYPE), ("hard", tarfile.LNKTYPE), ("device", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    mails = list(mail_source(str(path)))
    assert defects(mails) == dict.fromkeys(names, "unsafe_name") | dict.fromkeys(("link", "hard", "device"), "no_file")
    assert len(mails) == len(names) + 3 + len(FILES)
    assert [entry.name for entry in tmp_path.iterdir()] == ["evil.tar"]


def one_line_of(source: Path) -> str:
    with pytest.raises(BadMail) as caught:
        build_database(mail_source(str(source)), source.parent / "built" / "mails.sqlite")
    assert "\n" not in str(caught.value) and str(source) in str(caught.value)
    assert not list(source.parent.glob("built/*"))
    return str(caught.value)


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_an_archive_cut_anywhere_is_one_line(tmp_path: Path, mode: str) -> None:
    whole = archive_of(tmp_path / "whole", {str(n): raw_mail(n, body=os.urandom(300).hex()) for n in range(30)}, mode)
    content = whole.read_bytes()
    end = 30 * 1_536 if mode == "w" else len(content)  # what follows in a plain archive are zeros
    for length in {600, 1_536, 3 * 1_536, end // 2, end // 2 + 700, end - 1}:
        cut = tmp_path / f"cut{length}"
        cut.write_bytes(content[:length])
        assert "cut short" in one_line_of(cut)


def test_an_archive_with_a_header_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "sparse.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("1.eml")
        member.pax_headers = {"GNU.sparse.map": "x,y"}
        archive.addfile(member)
    assert "cannot be read to its end" in one_line_of(path)


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    plain = archive_of(tmp_path / "plain.tar", FILES, "w")
    content = bytearray(plain.read_bytes())
    second_header = 512 + 512 * -(-len(FILES["allen-p/_sent_mail/1."]) // 512)
    content[second_header + 10] ^= 1
    plain.write_bytes(content)
    assert "damaged" in one_line_of(plain)
    packed = archive_of(tmp_path / "packed.tar.gz", FILES)
    content = bytearray(packed.read_bytes())
    content[-6] ^= 1  # the checksum at the end
    packed.write_bytes(content)
    assert "damaged" in one_line_of(packed)


def test_an_invalid_source_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "empty" / "cur").mkdir(parents=True)
    assert "nothing to read" in one_line_of(tmp_path / "empty")
    contents = {
        "mail.zip": (b"PK\x03\x04...", "cut short"),
        "single.eml": (raw_mail(), "give the folder"),
        "photo.jpg": (b"\xff\xd8\xff" * 300, "not a parquet file, tar or zip archive, mbox or Outlook file"),
        "export.mbox.gz": (gzip.compress(b"From x\n" + raw_mail()), "unpack it first"),
        "cut.gz": (b"\x1f\x8b\x08", "cut short"),
        "nothing": (b"", "not a parquet file"),
        "torn.parquet": (b"PAR1 and no more", "not a readable parquet file"),
    }
    for name, (content, words) in contents.items():
        (tmp_path / name).write_bytes(content)
        assert words in one_line_of(tmp_path / name), name
    assert "there is no file" in one_line_of(tmp_path / "absent.mbox")
    with pytest.raises(BadMail, match="cannot be read"):
        mail_source("x" * 5_000)


def test_files_of_a_source(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "maildir", FILES)
    assert [os.path.relpath(path, root) for path in files_of(str(root))] == list(FILES)
    assert list(files_of(str(root / "allen-p/inbox/2."))) == [str(root / "allen-p/inbox/2.")]
    (root / "train.parquet").touch()
    assert list(files_of(str(root))) == [str(root / "train.parquet")]
    assert list(files_of("someone/mails")) == list(files_of("x" * 5_000)) == []
