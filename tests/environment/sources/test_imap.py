"""Mail of an IMAP account: what is copied, what a fault leaves behind, and the line that says what is wrong."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from environment.email_db import build_database
from environment.errors import BadMail, Unreachable
from environment.models import DroppedMail
from environment.sources import imap
from environment.sources.imap import ImapMails
from environment.sources.imap_url import ImapUrl
from tests.environment.raw_mails import raw_mail
from tests.fakes import imap_server
from tests.fakes.imap_server import PASSWORD, TOKEN, Folder, ImapServer


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterable[ImapServer]:
    started = ImapServer(tmp_path)
    use(started, monkeypatch)
    yield started
    started.close()


def use(server: ImapServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(server.authority))
    monkeypatch.setenv(imap.PASSWORD, PASSWORD)
    monkeypatch.delenv(imap.TOKEN, raising=False)
    monkeypatch.setattr(imap, "_PAUSE_SECONDS", 0)


@pytest.fixture
def fetched(tmp_path: Path) -> Callable[..., ImapMails]:
    def fetch(server: ImapServer, folders: str = "") -> ImapMails:
        mails = ImapMails(server.url(folders), tmp_path / "imap")
        mails.fetch(lambda done, wanted: None)
        return mails

    return fetch


def ids(mails: ImapMails) -> list[str]:
    return [mail.message_id for mail in mails if not isinstance(mail, DroppedMail)]


def note(number: int) -> str:
    return f"<{number}.JavaMail@thyme>"


def texts_asked(server: ImapServer) -> list[str]:
    return [command for command in server.asked if "BODY.PEEK[]" in command]


def test_mails_are_copied_once_and_the_server_is_only_read(server: ImapServer, fetched, tmp_path: Path) -> None:
    server.folders["INBOX"].add(*(raw_mail(number) for number in range(1, 8)))
    assert ids(fetched(server)) == [note(number) for number in range(1, 8)]
    server.asked.clear()
    server.folders["INBOX"].add(raw_mail(8))
    again = fetched(server)
    assert ids(again) == [note(number) for number in range(1, 9)]
    assert texts_asked(server) == ["UID FETCH 8 (BODY.PEEK[])"]
    changing = ("SELECT", "STORE", "EXPUNGE", "COPY", "MOVE", "APPEND", "CREATE", "DELETE", "UID STORE", "UID EXPUNGE")
    assert not [command for command in server.asked if command.startswith(changing)]
    report = build_database(again, tmp_path / "mails.sqlite")
    assert report.kept == 8 and not report.dropped


def test_what_the_server_no_longer_has_goes(server: ImapServer, fetched) -> None:
    inbox = server.folders["INBOX"]
    inbox.add(*(raw_mail(number) for number in range(1, 5)))
    fetched(server)
    del inbox.mails[2]
    inbox.deleted.add(3)
    assert ids(fetched(server)) == [note(1), note(4)]


def test_a_folder_that_was_renumbered_is_fetched_anew(server: ImapServer, fetched, tmp_path: Path) -> None:
    server.folders["INBOX"].add(raw_mail(1), raw_mail(2))
    fetched(server)
    server.folders["INBOX"] = Folder(validity=2, mails={1: raw_mail(5), 2: raw_mail(6)})
    assert ids(fetched(server)) == [note(5), note(6)]
    assert len(list(tmp_path.rglob("cur/*"))) == 2


@pytest.mark.parametrize("every", [1, 7, 40])
def test_a_dropped_connection_costs_only_the_batch_under_way(
    server: ImapServer, fetched, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    monkeypatch.setattr(imap, "_MAILS_PER_FETCH", 5)
    monkeypatch.setattr(imap, "_UIDS_PER_BLOCK", 20)
    server.folders["INBOX"].add(*(raw_mail(number) for number in range(1, 101)))
    count = itertools.count(1)

    def hang_up(command: str) -> None:
        if "BODY" in command and next(count) % (every + 1) == every:
            raise ConnectionResetError

    server.before = hang_up
    assert ids(fetched(server)) == [note(number) for number in range(1, 101)]
    served = texts_asked(server)
    assert len(served) - len(set(served)) <= 20 // every + 1


def test_a_connection_that_is_always_lost_is_one_line_and_the_next_run_goes_on(
    server: ImapServer, fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imap, "_MAILS_PER_FETCH", 5)
    server.folders["INBOX"].add(*(raw_mail(number) for number in range(1, 21)))

    def hang_up(command: str) -> None:
        if "BODY" in command and "UID FETCH 1,2,3,4,5 " not in command:
            raise ConnectionResetError

    server.before = hang_up
    with pytest.raises(
        Unreachable, match="the mails cannot be fetched .* 5 were, and the next run fetches only the others"
    ):
        fetched(server)
    server.before = lambda command: None
    server.asked.clear()
    assert len(ids(fetched(server))) == 20
    assert not {"UID FETCH 1,2,3,4,5 (BODY.PEEK[])"} & set(server.asked)


def test_a_copy_that_a_power_failure_cut_short_is_fetched_again(server: ImapServer, fetched, tmp_path: Path) -> None:
    server.folders["INBOX"].add(raw_mail(1), raw_mail(2))
    fetched(server)
    [first, _] = sorted(tmp_path.rglob("cur/*"))
    first.write_bytes(b"")
    (first.parents[1] / "tmp" / "half").write_bytes(b"hal")
    assert ids(fetched(server)) == [note(1), note(2)]
    assert not list(tmp_path.rglob("tmp/*"))


def test_which_folders_are_fetched(server: ImapServer, fetched) -> None:
    names = {"INBOX": "", "Sent": "\\Sent", "Archive/2023": "", "Archive/2024": "", "Bin": "\\TRASH", "Spam": "\\Junk"}
    names |= {"Archive": "\\Noselect", "a, b": "", "Gr&APwA3w-e": ""}
    for number, (name, flags) in enumerate(names.items(), start=1):
        server.folders[name] = Folder(flags=flags, mails={1: raw_mail(number)})
    assert set(ids(fetched(server))) == {note(number) for number in (1, 2, 3, 4, 8, 9)}
    assert ids(fetched(server, "Archive/*")) == [note(3), note(4)]
    assert ids(fetched(server, "Sent,Bin,Grüße")) == [note(2), note(5), note(9)]
    assert ids(fetched(server, "a%2C%20b")) == [note(8)]
    server.folders["[Gmail]/All Mail"] = Folder(flags="\\All", mails={1: raw_mail(10)})
    assert ids(fetched(server)) == [note(10)]


def test_a_folder_that_vanishes_is_reported_and_the_others_are_fetched(server: ImapServer, fetched) -> None:
    server.folders |= {"Gone": Folder(), "Last": Folder()}
    for number, folder in enumerate(server.folders.values(), start=1):
        folder.add(raw_mail(number))
    server.before = lambda command: "NO [NONEXISTENT] gone" if command.startswith('EXAMINE "Gone"') else None
    mails = fetched(server)
    assert ids(mails) == [note(1), note(3)]
    assert [(mail.reason, mail.where) for mail in mails if isinstance(mail, DroppedMail)] == [("unreadable", "Gone")]


def test_mails_that_are_too_large_are_not_fetched_and_others_that_fail_are_reported(
    server: ImapServer, fetched
) -> None:
    inbox = server.folders["INBOX"]
    inbox.add(*(raw_mail(number) for number in range(1, 5)))
    inbox.sizes = {2: 2 << 30, 3: 50 << 20}
    server.before = lambda command: (
        "NO [SERVERBUG] broken"
        if command.startswith("UID FETCH 1,4 (B") or command.startswith("UID FETCH 4 (B")
        else None
    )
    mails = fetched(server)
    assert ids(mails) == [note(1)]
    dropped = [(mail.reason, mail.where, mail.detail) for mail in mails if isinstance(mail, DroppedMail)]
    assert sorted(dropped) == [
        ("oversized", "INBOX, UID 2", "2,147,483,648 bytes, over 25 MiB: not fetched"),
        ("oversized", "INBOX, UID 3", "52,428,800 bytes, over 25 MiB: not fetched"),
        ("unreadable", "INBOX, UID 4", "fetch failed: [SERVERBUG] broken"),
    ]


def test_a_mail_whose_text_the_server_does_not_send_is_reported(
    server: ImapServer, fetched, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = imap_server._Session._fetch

    def send_no_text(session: imap_server._Session, place: int, uid: int, *, text: bool) -> None:
        if text and uid == 2:
            session._say(f"* {place} FETCH (UID 2 BODY[] NIL)")
        else:
            send(session, place, uid, text=text)

    monkeypatch.setattr(imap_server._Session, "_fetch", send_no_text)
    server.folders["INBOX"].add(raw_mail(1), raw_mail(2), raw_mail(3))
    *kept, dropped = fetched(server)
    assert ids(kept) == [note(1), note(3)]
    assert (dropped.reason, dropped.where) == ("unreadable", "INBOX, UID 2") and "no text" in dropped.detail


@pytest.mark.parametrize("refused", ["BODY.PEEK", "RFC822.SIZE", "SEARCH"])
def test_an_account_over_its_limits_is_one_line_and_is_left_alone(server: ImapServer, fetched, refused: str) -> None:
    server.folders["INBOX"].add(*(raw_mail(number) for number in range(1, 500)))
    server.before = lambda command: "NO [OVERQUOTA] Account exceeded bandwidth limits." if refused in command else None
    with pytest.raises(Unreachable, match="me@example.org at localhost: .*Account exceeded bandwidth limits") as caught:
        fetched(server)
    assert "\n" not in str(caught.value) and len(server.asked) < 120


def test_a_literal_of_50_megabytes_whose_size_was_not_said_is_only_left_out(
    server: ImapServer, fetched, tmp_path
) -> None:
    inbox = server.folders["INBOX"]
    inbox.add(raw_mail(1), raw_mail(2, body="x" * (50 << 20)), raw_mail(3))
    inbox.sizes = {2: 1_000}
    assert build_database(fetched(server), tmp_path / "mails.sqlite").dropped == {"oversized": 1}


def test_an_empty_mailbox(server: ImapServer, fetched) -> None:
    assert ids(fetched(server)) == []


def test_oauth_and_starttls(tmp_path: Path, fetched, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ImapServer(tmp_path, tls=False)
    use(server, monkeypatch)
    monkeypatch.delenv(imap.PASSWORD)
    monkeypatch.setenv(imap.TOKEN, TOKEN)
    server.folders["INBOX"].add(raw_mail(1))
    assert ids(fetched(server)) == [note(1)]
    assert server.asked.index("STARTTLS") < server.asked.index("AUTHENTICATE")
    server.asked.clear()
    server.before = lambda command: "NO no TLS here" if command == "STARTTLS" else None
    with pytest.raises(Unreachable, match="no STARTTLS connection"):
        fetched(server)
    assert "AUTHENTICATE" not in server.asked, "a secret must not be sent in clear"
    server.close()


def refused(server: ImapServer, folders: str, copies: Path) -> str:
    with pytest.raises(BadMail) as caught:
        ImapMails(server.url(folders), copies).fetch(lambda done, wanted: None)
    with pytest.raises(BadMail) as asked:
        ImapMails(server.url(folders), copies).version()
    assert str(caught.value) == str(asked.value) and "\n" not in str(caught.value)
    assert not list(copies.rglob("cur"))
    return str(caught.value)


def test_what_the_user_can_mend_is_one_line(
    server: ImapServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = tmp_path / "imap"
    assert "has no folder Sent; it has INBOX" in refused(server, "Sent", copies)
    monkeypatch.setenv(imap.PASSWORD, "wrong")
    line = refused(server, "", copies)
    assert "does not accept IMAP_PASSWORD" in line and "AUTHENTICATIONFAILED" in line and "wrong" not in line
    monkeypatch.setenv(imap.TOKEN, "ya29.expired")
    assert "does not accept IMAP_TOKEN; it may have expired" in refused(server, "", copies)
    monkeypatch.delenv(imap.TOKEN)
    monkeypatch.delenv(imap.PASSWORD)
    assert "neither IMAP_PASSWORD nor IMAP_TOKEN" in refused(server, "", copies)


def test_a_certificate_that_does_not_match_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for host, known, words in (("other.example", True, "Hostname mismatch"), ("localhost", False, "certificate")):
        server = ImapServer(tmp_path, host=host)
        use(server, monkeypatch)
        if not known:
            monkeypatch.delenv("SSL_CERT_FILE")
        line = refused(server, "", tmp_path / "imap")
        assert "the certificate of the server is not valid" in line and words in line and "SSL_CERT_FILE" in line
        assert not server.asked
        server.close()


def test_a_server_that_is_not_there_or_says_nothing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imap, "_SECONDS", 0.2)
    monkeypatch.setenv(imap.PASSWORD, PASSWORD)
    for scheme, listening in (("imaps", True), ("imap", True), ("imaps", False)):
        silent = socket.create_server(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        if not listening:
            silent.close()
        mails = ImapMails(f"{scheme}://me@localhost:{port}", tmp_path / "imap")
        with pytest.raises(Unreachable, match=f"me at localhost: no .* connection to port {port}"):
            mails.fetch(lambda done, wanted: None)
        silent.close()


def test_the_version_changes_with_the_mails(server: ImapServer, tmp_path: Path) -> None:
    mails = ImapMails(server.url(), tmp_path / "imap")
    seen = [mails.version()]
    assert mails.version() == seen[0] and not (tmp_path / "imap").exists()
    server.folders["INBOX"].add(raw_mail(1))
    seen.append(mails.version())
    server.folders["INBOX"].add(raw_mail(2))
    del server.folders["INBOX"].mails[1]
    seen.append(mails.version())
    server.folders["INBOX"].validity = 2
    seen.append(mails.version())
    server.folders["INBOX"].deleted.add(2)
    seen.append(mails.version())
    assert len(set(seen)) == 5


def test_a_folder_that_is_refused_does_not_hide_changes_of_the_others(server: ImapServer, tmp_path: Path) -> None:
    server.folders |= {"Gone": Folder(), "Last": Folder()}
    server.before = lambda command: "NO [NONEXISTENT] gone" if "Gone" in command else None
    mails = ImapMails(server.url(), tmp_path / "imap")
    before = mails.version()
    server.folders["Last"].add(raw_mail(1))
    assert mails.version() != before


def test_urls() -> None:
    found = ImapUrl.parse("imaps://me@example.org@imap.example.org/INBOX,Archive/*")
    assert found == ImapUrl(True, "me@example.org", "imap.example.org", 993, ("INBOX", "Archive/*"))
    assert ImapUrl.parse("imap://me@[::1]:1143") == ImapUrl(False, "me", "::1", 1143, ())
    for wrong in (
        "imaps://imap.example.org",
        "imaps://me@",
        "imaps://me@host:0",
        "imaps://me@host:99999",
        "imaps:me@host",
    ):
        with pytest.raises(BadMail, match="has the form imaps://USER@HOST/FOLDER"):
            ImapUrl.parse(wrong)
    with pytest.raises(BadMail) as caught:
        ImapUrl.parse("imaps://me:secret@imap.example.org")
    assert "secret" not in str(caught.value) and "IMAP_PASSWORD" in str(caught.value)


def test_copies_of_all_accounts_and_folders_have_places_of_their_own() -> None:
    names = ["a/b", "a%2Fb", "..", ".", "%2E", "a", "A" * 300, "A" * 301]
    files = [imap._file_name(name) for name in names]
    assert len(set(files)) == len(names) and not {".", ".."} & set(files)
    assert all("/" not in name and len(name.encode()) <= 255 for name in files)
