"""A small IMAP server on loopback, with TLS and STARTTLS, whose answers and faults a test chooses."""

from __future__ import annotations

import base64
import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trustme

PASSWORD, TOKEN, USER = "correct horse", "ya29.valid", "me@example.org"


@dataclass
class Folder:
    validity: int = 1
    mails: dict[int, bytes] = field(default_factory=dict)
    flags: str = "\\HasNoChildren"
    deleted: set[int] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)
    """What RFC822.SIZE says instead of the truth."""

    def add(self, *mails: bytes) -> None:
        for raw in mails:
            self.mails[max(self.mails, default=0) + 1] = raw


class ImapServer:
    """Serves `folders` of one account. `before` is called with each command, and may raise ConnectionError to hang up or
    return an answer (`NO ...`) to give instead. `asked` holds every command, without secrets.
    """

    def __init__(self, scratch: Path, *, host: str = "localhost", tls: bool = True) -> None:
        self.folders: dict[str, Folder] = {"INBOX": Folder()}
        self.asked: list[str] = []
        self.before: Callable[[str], str | None] = lambda command: None
        self.tls = tls
        self.plain = ""
        """User and password of AUTHENTICATE PLAIN, after a NUL each; empty if the server lacks it."""
        authority = trustme.CA()
        self.authority = scratch / "authority.pem"
        authority.cert_pem.write_to_path(self.authority)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(host).configure_cert(self.context)
        server = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                _Session(server, self.request).run()

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def url(self, folders: str = "", *, user: str = USER) -> str:
        return f"imap{'s' * self.tls}://{user}@localhost:{self._server.server_address[1]}/{folders}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Session:
    def __init__(self, server: ImapServer, connection: socket.socket) -> None:
        self.server = server
        self.selected: Folder | None = None
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise every answer waits for 40 ms
        self.connection = server.context.wrap_socket(connection, server_side=True) if server.tls else connection

    def run(self) -> None:
        try:
            self._serve()
        except (ConnectionError, ssl.SSLError, OSError):
            self.connection.close()

    def _serve(self) -> None:
        self._say("* OK ready")
        lines = self.connection.makefile("rb")
        while line := lines.readline():
            tag, _, command = line.decode().strip().partition(" ")
            name = command.split(" ")[0].upper()
            self.server.asked.append(command if name not in ("LOGIN", "AUTHENTICATE") else name)
            if answer := self.server.before(command):
                self._say(f"{tag} {answer}")
                continue
            if name == "STARTTLS":
                self._say(f"{tag} OK begin")
                self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
                lines = self.connection.makefile("rb")
                continue
            if name == "AUTHENTICATE":
                self._say("+ ")
                given = base64.b64decode(lines.readline())
                if command.endswith(" PLAIN"):
                    accepted = bool(self.server.plain) and given.decode() == self.server.plain
                    self._say(f"{tag} {'OK done' if accepted else 'NO [AUTHENTICATIONFAILED] Authentication failed.'}")
                    continue
                if given != f"user={USER}\1auth=Bearer {TOKEN}\1\1".encode():
                    self._say("+ " + base64.b64encode(b'{"status":"401"}').decode())
                    lines.readline()
                    self._say(f"{tag} NO [AUTHENTICATIONFAILED] Invalid credentials")
                    continue
            self._say(f"{tag} {self._answer(name, command)}")
            if name == "LOGOUT":
                return

    def _say(self, line: str) -> None:
        self.connection.sendall(line.encode() + b"\r\n")

    def _answer(self, name: str, command: str) -> str:
        folders = self.server.folders
        if name == "LOGIN" and command.split(" ", 2)[2].strip('"') != PASSWORD:
            return "NO [AUTHENTICATIONFAILED] Authentication failed."
        if name == "CAPABILITY":
            plain = " AUTH=PLAIN" if self.server.plain else ""
            self._say(f"* CAPABILITY IMAP4rev1 AUTH=XOAUTH2{plain}{'' if self.server.tls else ' STARTTLS'}")
        if name == "LIST":
            pattern = re.escape(_quoted(command)[-1]).replace(r"\*", ".*")
            for listed in folders:
                if re.fullmatch(pattern, listed):
                    self._say(f'* LIST ({folders[listed].flags}) "/" "{listed}"')
        if name in ("EXAMINE", "STATUS"):
            folder = folders.get(_quoted(command)[0])
            if folder is None:
                return "NO [NONEXISTENT] Mailbox doesn't exist"
            state = f"UIDVALIDITY {folder.validity}", f"UIDNEXT {max(folder.mails, default=0) + 1}"
            if name == "STATUS":
                self._say(f'* STATUS "{_quoted(command)[0]}" ({" ".join(state)} MESSAGES {len(folder.mails)})')
                return "OK done"
            self.selected = folder
            self._say(f"* {len(folder.mails)} EXISTS")
            for fact in state:
                self._say(f"* OK [{fact}] fact")
            return "OK [READ-ONLY] examined"
        if command.startswith("UID SEARCH"):
            first, last = map(int, command.split()[2].split(":"))
            found = sorted(self.selected.mails)[first - 1 : last]
            self._say("* SEARCH " + " ".join(str(uid) for uid in found if uid not in self.selected.deleted))
        if command.startswith("UID FETCH"):
            wanted = [uid for part in command.split()[2].split(",") for uid in _range(part)]
            for place, uid in enumerate(sorted(self.selected.mails), start=1):
                if uid in wanted:
                    self._fetch(place, uid, text="BODY" in command)
        return "OK done"

    def _fetch(self, place: int, uid: int, *, text: bool) -> None:
        raw = self.selected.mails[uid]
        if not text:
            return self._say(f"* {place} FETCH (UID {uid} RFC822.SIZE {self.selected.sizes.get(uid, len(raw))})")
        head = f"* {place} FETCH (UID {uid} BODY[] {{{len(raw)}}}\r\n"
        self.connection.sendall(head.encode() + raw + b")\r\n")


def _quoted(command: str) -> list[str]:
    return re.findall(r'"([^"]*)"', command) or command.split()[1:]


def _range(part: str) -> range:
    first, _, last = part.partition(":")
    return range(int(first), int(last or first) + 1)
