"""The same against Dovecot, where it is installed: what our own server could misunderstand in the same way as our client."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import pytest

from environment.email_db import build_database
from environment.errors import BadMail
from environment.models import DroppedMail
from environment.sources import imap
from environment.sources.imap import ImapMails
from tests.environment.raw_mails import raw_mail
from tests.fakes.dovecot import PASSWORD, Dovecot, dovecot, installed

pytestmark = [pytest.mark.service, pytest.mark.skipif(not installed(), reason="Dovecot is not installed")]


@pytest.fixture(scope="module")
def running() -> Iterable[Dovecot]:
    with dovecot() as server:
        yield server


@pytest.fixture
def server(running: Dovecot, monkeypatch: pytest.MonkeyPatch) -> Dovecot:
    monkeypatch.setenv("SSL_CERT_FILE", str(running.authority))
    monkeypatch.setenv(imap.PASSWORD, PASSWORD)
    monkeypatch.delenv(imap.TOKEN, raising=False)
    monkeypatch.setattr(imap, "_PAUSE_SECONDS", 0)
    return running


def fetched(server: Dovecot, folders: str, copies: Path, port: int | None = None) -> ImapMails:
    mails = ImapMails(server.url(folders, port=port), copies)
    mails.fetch(lambda done, wanted: None)
    return mails


def ids(mails: ImapMails) -> set[str]:
    return {mail.message_id for mail in mails if not isinstance(mail, DroppedMail)}


def notes(*numbers: int) -> set[str]:
    return {f"<{number}.JavaMail@thyme>" for number in numbers}


class CuttingProxy:
    """Passes connections on to a server, and cuts each after `limit` bytes from it."""

    def __init__(self, port: int, limit: int) -> None:
        self._target, self._limit = port, limit
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client = self._listening.accept()[0]
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pass_on, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pass_on, args=(server, client, self._limit), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        try:
            while (data := source.recv(4_096)) and (left is None or left > 0):
                target.sendall(data)
                left = None if left is None else left - len(data)
        except OSError:
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()


def test_a_life_of_a_mailbox(server: Dovecot, tmp_path: Path) -> None:
    for number in range(1, 301):
        server.add("INBOX", number, raw_mail(number))
    server.add("Archive/Grüße".encode("utf-7").decode().replace("+", "&"), 500, raw_mail(500))
    server.add("Trash", 501, raw_mail(501))
    mails = fetched(server, "", tmp_path)
    assert ids(mails) == notes(*range(1, 301), 500)
    versions = [mails.version()]

    server.add("INBOX", 301, raw_mail(301))
    next((server.root / "mail" / "cur").glob("1700000007.*")).unlink()
    versions.append(mails.version())
    times = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("cur/*")}
    assert ids(fetched(server, "", tmp_path)) == notes(*range(1, 7), *range(8, 302), 500)
    left = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("cur/*")}
    assert len(left) == 301 and len(left.items() & times.items()) == 300, "mails that were here were fetched again"

    server.renumber()
    assert ids(fetched(server, "INBOX", tmp_path)) == notes(*range(1, 7), *range(8, 302))
    versions.append(mails.version())
    assert len(set(versions)) == 3
    assert len(list(tmp_path.rglob("INBOX/*/cur/*"))) == 300

    server.add("INBOX", 302, raw_mail(302, body="x" * (50 << 20)))
    assert build_database(fetched(server, "INBOX", tmp_path), tmp_path / "mails.sqlite").dropped == {"oversized": 1}
    shutil.rmtree(server.folder("Trash"))
    with pytest.raises(BadMail, match="has no folder Trash; it has "):
        fetched(server, "Trash", tmp_path)


def test_connections_that_are_cut_again_and_again(
    server: Dovecot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imap, "_MAILS_PER_FETCH", 10)
    numbers = range(2_000, 2_200)
    for number in numbers:
        server.add("Cut", number, raw_mail(number, body="y" * 3_000))
    proxy = CuttingProxy(server.port, 150_000)
    assert ids(fetched(server, "Cut", tmp_path, proxy.port)) == notes(*numbers)
    assert proxy.connections > 4
    proxy.close()


def test_mails_are_not_marked_as_seen(server: Dovecot, tmp_path: Path) -> None:
    folder: Callable[[], list[str]] = lambda: sorted(file.name for file in server.folder("Unseen").glob("*/*"))  # noqa: E731
    (server.folder("Unseen") / "cur" / "1700003000.M1.test:2,").write_bytes(raw_mail(3_000))
    before = folder()
    assert ids(fetched(server, "Unseen", tmp_path)) == notes(3_000)
    assert folder() == before


def test_an_empty_folder_and_a_wrong_password(server: Dovecot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.folder("Empty")
    assert ids(fetched(server, "Empty", tmp_path)) == set()
    monkeypatch.setenv(imap.PASSWORD, "wrong")
    with pytest.raises(BadMail, match="does not accept IMAP_PASSWORD .*Authentication failed"):
        fetched(server, "Empty", tmp_path)
