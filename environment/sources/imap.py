"""Copy the mail of an IMAP account into local Maildirs, and read it from there.

The server is only read: folders are opened with EXAMINE, and texts are fetched with PEEK. Each file is named after its mail's
UID, in a folder named after the UIDVALIDITY, so the copy itself says what it holds: a killed run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import imaplib
import os
import re
import shutil
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from imapclient.exceptions import LoginError
from imapclient.imapclient import ALL, DRAFTS, JUNK, TRASH, IMAPClient

from environment.errors import BadMail, Unreachable
from environment.mail_text import one_line, storable
from environment.models import DroppedMail, Email
from environment.sources.imap_client import Client
from environment.sources.imap_url import ImapUrl
from environment.sources.maildir import MailFolder
from environment.sources.rfc822 import MAX_MAIL_BYTES

PASSWORD, TOKEN = "IMAP_PASSWORD", "IMAP_TOKEN"
"""Environment variables."""

_SECONDS = 60.0
_TRIES = 5
_MAX_REFUSALS = 10
_PAUSE_SECONDS = 0.5
"""Doubled before each further try."""
_UIDS_PER_SEARCH = 50_000
"""A longer answer would exceed the million characters that imaplib reads of a line."""
_UIDS_PER_BLOCK = 500
_MAILS_PER_FETCH = 100
_BYTES_PER_FETCH = 4 << 20
_FILE = re.compile(r"(\d{10}),S=(\d+):2,")
_LEFT_OUT = frozenset(flag.lower() for flag in (TRASH, JUNK, DRAFTS))
_SHOWN_CHARS = 160

Progress = Callable[[int, int], None]


class ImapMails(Iterable[Email | DroppedMail]):
    """The mails of an IMAP account. Only `fetch` and `version` talk to the server.

    Raises BadMail for a malformed URL and for what the user can mend (password, certificate, folder), and Unreachable if there is
    no connection.
    """

    def __init__(self, url: str, copies: Path) -> None:
        self._url = ImapUrl.parse(url)
        self._copy = copies / _file_name(self._url.host) / _file_name(self._url.user)
        self._folders: list[Path] = []
        self._dropped: list[DroppedMail] = []
        self._done = 0
        self._wanted = 0
        self._refusals = 0

    def __iter__(self) -> Iterator[Email | DroppedMail]:
        for folder in self._folders:
            yield from MailFolder(folder, named_from=self._copy)
        yield from self._dropped

    def __length_hint__(self) -> int:
        return sum(len(os.listdir(folder / "cur")) for folder in self._folders) + len(self._dropped)

    def version(self) -> str:
        """Return a text that changes when mails come, go or are marked as deleted: an EXAMINE and a SEARCH per folder."""
        found = []
        try:
            with self._connected() as client:
                for name in self._chosen(client):
                    try:
                        opened = _answered(client.select_folder, name, readonly=True)
                        uids = repr(sorted(_answered(_uids, client, opened[b"EXISTS"])))
                    except _Refused:
                        continue  # it went meanwhile; fetching says more
                    found.append((name, opened.get(b"UIDVALIDITY", 0), hashlib.sha256(uids.encode()).hexdigest()))
        except (imaplib.IMAP4.error, OSError) as error:
            raise self._lost(error) from error
        return repr(found)

    def fetch(self, progress: Progress) -> None:
        """Copy the mails that are not here yet, and remove those that the server no longer has.

        `progress(fetched, to fetch)` is called for each mail. A lost connection is made again. Memory: some megabytes, 50 bytes per
        mail, and the largest mail, of at most 25 MiB.
        """
        self._copy.mkdir(parents=True, exist_ok=True)
        with FileLock(self._copy / ".lock"):
            tries, connected = 0, False
            while True:
                done = self._done
                try:
                    with self._connected() as client:
                        connected = True
                        self._fetch_folders(client, progress)
                    return
                except (imaplib.IMAP4.error, _Refused, Unreachable, OSError) as error:
                    if isinstance(error, OSError) and error.filename:
                        raise  # a file here, not the connection
                    tries = 1 if self._done > done else tries + 1
                    if tries == _TRIES or not connected:
                        raise self._lost(error) from error
                    time.sleep(_PAUSE_SECONDS * 2**tries)

    def _fetch_folders(self, client: IMAPClient, progress: Progress) -> None:
        self._folders, self._dropped, self._wanted, self._refusals = [], [], self._done, 0
        for name in self._chosen(client):
            try:
                found = _answered(client.select_folder, name, readonly=True)
            except _Refused as error:
                self._dropped.append(DroppedMail(reason="unreadable", where=_shown(name), detail=_shown(error)))
                continue
            self._fetch_folder(client, name, found.get(b"UIDVALIDITY", 0), found[b"EXISTS"], progress)

    def _fetch_folder(self, client: IMAPClient, name: str, validity: int, count: int, progress: Progress) -> None:
        """Make the local copy of the open folder complete."""
        folder = self._copy / _file_name(name) / str(validity)
        shutil.rmtree(folder / "tmp", ignore_errors=True)  # of a killed run
        for place in ("cur", "tmp"):
            (folder / place).mkdir(parents=True, exist_ok=True)
        there = _uids(client, count)
        here = set()
        with os.scandir(folder / "cur") as files:
            for file in files:
                named = _FILE.fullmatch(file.name)
                # After a power failure a file may be shorter than its name says.
                if named and int(named[1]) in there and file.stat().st_size == int(named[2]):
                    here.add(int(named[1]))
                else:
                    os.unlink(file.path)
        missing = sorted(there - here)
        self._wanted += len(missing)
        for begin in range(0, len(missing), _UIDS_PER_BLOCK):
            block = missing[begin : begin + _UIDS_PER_BLOCK]
            # The server may also tell flags that somebody changes meanwhile.
            told = client.fetch(block, ["RFC822.SIZE"]).items()
            sizes = {uid: facts[b"RFC822.SIZE"] for uid, facts in told if uid in there and b"RFC822.SIZE" in facts}
            for batch in _batches(sizes):
                for uid, raw in self._texts(client, name, batch):
                    _write(folder, uid, raw)
                self._done += len(batch)
                progress(self._done, self._wanted)
            for uid, size in sizes.items():
                if size > MAX_MAIL_BYTES:
                    self._drop(name, uid, "oversized", f"{size:,} bytes, over {MAX_MAIL_BYTES >> 20} MiB: not fetched")
            self._wanted -= len(block) - sum(size <= MAX_MAIL_BYTES for size in sizes.values())
        self._folders.append(folder)
        for other in folder.parent.iterdir():
            if other != folder:  # the server has renumbered the folder, and its new copy is complete
                shutil.rmtree(other)

    def _texts(self, client: IMAPClient, name: str, batch: list[int]) -> Iterator[tuple[int, bytes]]:
        """Yield the mails of `batch`. One that the server cannot show is reported and does not stop the others."""
        try:
            found = _answered(client.fetch, batch, ["BODY.PEEK[]"])
        except _Refused as error:
            if len(batch) > 1:
                for uid in batch:
                    yield from self._texts(client, name, [uid])
            else:
                self._refusals += 1
                if self._refusals == _MAX_REFUSALS:  # an account that is over its limits, not a damaged mail
                    raise Unreachable(
                        f"{self._url}: the server refuses one mail after the other ({_shown(error)})"
                    ) from error
                self._drop(name, batch[0], "unreadable", _shown(error))
            return
        self._refusals = 0
        for uid, parts in found.items():
            if uid not in batch:
                continue
            if isinstance(raw := parts.get(b"BODY[]"), bytes):
                yield uid, raw
            else:
                self._drop(name, uid, "unreadable", "the server lists it but sends no text")

    def _drop(self, name: str, uid: int, reason: str, detail: str) -> None:
        self._dropped.append(DroppedMail(reason=reason, where=f"{_shown(name)}, UID {uid}", detail=detail))

    @contextmanager
    def _connected(self) -> Iterator[IMAPClient]:
        """Connect over TLS and log in."""
        url = self._url
        token, password = os.environ.get(TOKEN), os.environ.get(PASSWORD)
        if not token and not password:
            raise BadMail(
                f"{url}: neither {PASSWORD} nor {TOKEN} (for OAuth) is set; put one of them into .env or the environment"
            )
        context = ssl.create_default_context()
        try:
            client = Client(url.host, url.port, ssl=url.tls, ssl_context=context if url.tls else None, timeout=_SECONDS)
            if not url.tls:
                client.starttls(context)
        except ssl.SSLCertVerificationError as error:
            raise BadMail(
                f"{url}: the certificate of the server is not valid ({error.verify_message}); if your organisation has its own "
                "authority, name the file of its certificate in SSL_CERT_FILE"
            ) from error
        except (OSError, imaplib.IMAP4.error, ValueError) as error:
            kind = "TLS" if url.tls else "STARTTLS"
            raise Unreachable(f"{url}: no {kind} connection to port {url.port} ({_shown(error)})") from error
        with client:
            try:
                if token:
                    client.oauth2_login(url.user, token)
                else:
                    client.login(url.user, password or "")
            except LoginError as error:
                if isinstance(error.__context__, imaplib.IMAP4.abort):
                    raise error.__context__ from None
                given = f"{TOKEN}; it may have expired" if token else PASSWORD
                raise BadMail(f"{url}: the server does not accept {given} ({_shown(error)})") from error
            yield client

    def _chosen(self, client: IMAPClient) -> list[str]:
        """Return the folders of the URL, by default all but trash, junk and drafts; of Gmail, the one that has all mail."""
        try:
            every = _selectable(_answered(client.list_folders))
            if not self._url.folders:
                if whole := [name for flags, name in every if ALL.lower() in flags]:
                    return whole
                foreign = _foreign_prefixes(client)
                return [name for flags, name in every if not _LEFT_OUT & flags and not name.startswith(foreign)]
            chosen: dict[str, None] = {}
            for pattern in self._url.folders:
                found = [name for _, name in _selectable(_answered(client.list_folders, "", pattern))]
                if not found:
                    known = ", ".join(_shown(name) for _, name in every[:20])
                    raise BadMail(f"{self._url} has no folder {_shown(pattern)}; it has {known or 'none'}")
                chosen.update(dict.fromkeys(found))
            return list(chosen)
        except _Refused as error:
            raise BadMail(f"{self._url}: the server does not list its folders ({_shown(error)})") from error

    def _lost(self, error: Exception) -> Unreachable:
        if isinstance(error, Unreachable) and not self._done:
            return error
        return Unreachable(
            f"{self._url}: the mails cannot be fetched ({_shown(error)}); {self._done:,} were, and the next run fetches "
            "only the others"
        )


class _Refused(Exception):
    """The server says that it cannot do what it was asked. The connection goes on."""


def _answered(ask: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return the answer to a command. Raises _Refused instead of imaplib's error, of which a lost connection is a kind."""
    try:
        return ask(*arguments, **options)
    except imaplib.IMAP4.abort:
        raise
    except imaplib.IMAP4.error as error:
        raise _Refused(str(error)) from error


def _selectable(listed: Iterable[tuple[tuple[bytes, ...], bytes, str]]) -> list[tuple[frozenset[bytes], str]]:
    """Return flags, in small letters, and names of folders that hold mails."""
    folders = [(frozenset(flag.lower() for flag in flags), name) for flags, _, name in listed]
    return [(flags, name) for flags, name in folders if not {b"\\noselect", b"\\nonexistent"} & flags]


def _foreign_prefixes(client: IMAPClient) -> tuple[str, ...]:
    """Return how the names of folders begin that other people share with the account."""
    if not client.has_capability("NAMESPACE"):
        return ()
    spaces = _answered(client.namespace)
    return tuple(prefix for kind in (spaces.other, spaces.shared) for prefix, _ in kind or () if prefix)


def _uids(client: IMAPClient, count: int) -> set[int]:
    """Return the UIDs of the open folder that are not marked as deleted.

    The last come first: a mail that goes meanwhile moves later ones down, into a part that is still to be searched.
    """
    found: set[int] = set()
    for last in range(count, 0, -_UIDS_PER_SEARCH):
        found.update(client.search(f"{max(1, last - _UIDS_PER_SEARCH + 1)}:{last} UNDELETED"))
    return found


def _batches(sizes: dict[int, int]) -> Iterator[list[int]]:
    """Divide mails, without the oversized ones, so that one answer of the server fits in memory."""
    batch: list[int] = []
    total = 0
    for uid, size in sorted(sizes.items()):
        if size > MAX_MAIL_BYTES:
            continue
        if batch and (total + size > _BYTES_PER_FETCH or len(batch) == _MAILS_PER_FETCH):
            yield batch
            batch, total = [], 0
        batch.append(uid)
        total += size
    if batch:
        yield batch


def _write(folder: Path, uid: int, raw: bytes) -> None:
    """Let the mail appear whole or not at all. Raises BadMail when the disk is full."""
    name = f"{uid:010d},S={len(raw)}:2,"
    try:
        (folder / "tmp" / name).write_bytes(raw)
        os.replace(folder / "tmp" / name, folder / "cur" / name)
    except OSError as error:
        raise BadMail(
            f"a mail cannot be written to {folder}: {error.strerror}; the next run goes on from here"
        ) from error


def _file_name(text: str) -> str:
    """Return a file name that no other text has."""
    name = text.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    name = f"%2E{name[1:]}" if name.startswith(".") else name
    return name if len(name.encode()) <= 200 else hashlib.sha256(text.encode()).hexdigest()


def _shown(what: object) -> str:
    text = f"{what}" if not isinstance(what, OSError) else what.strerror or str(what)
    return one_line(storable(text))[:_SHOWN_CHARS]
