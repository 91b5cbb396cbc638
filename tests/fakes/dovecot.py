"""A real IMAP server, Dovecot from the packages of Debian, for one account in a folder of its own."""

from __future__ import annotations

import grp
import os
import pwd
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.ports import free_port

PASSWORD = "secret"
_NOBODY = 65534
"""Owner of the mailbox for root, whom Dovecot refuses."""
_OF_USER = """
default_internal_user = {user}
default_internal_group = {group}
default_login_user = {user}
"""
_CONFIGURATION = """
base_dir = {root}/run
state_dir = {root}/state
log_path = {root}/log
protocols = imap
listen = 127.0.0.1
ssl = required
ssl_cert = <{root}/server.pem
ssl_key = <{root}/server.pem
mail_location = maildir:{root}/mail
first_valid_uid = 0
first_valid_gid = 0
namespace inbox {{
  inbox = yes
  separator = /
  mailbox Trash {{
    special_use = \\Trash
  }}
}}
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid={uid} gid={gid} home={root}/home
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    port = 0
  }}
  inet_listener imaps {{
    port = {port}
    ssl = yes
  }}
}}
service anvil {{
  chroot =
}}
"""


def installed() -> bool:
    """Return whether Dovecot is installed."""
    return _program() is not None


def _program() -> str | None:
    return shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@dataclass
class Dovecot:
    root: Path
    port: int

    @property
    def authority(self) -> Path:
        return self.root / "authority.pem"

    def url(self, folders: str = "", *, port: int | None = None) -> str:
        return f"imaps://me@example.org@localhost:{port or self.port}/{folders}"

    def folder(self, name: str) -> Path:
        """Return the Maildir of a folder, which is made if it is missing."""
        place = self.root / "mail" if name == "INBOX" else self.root / "mail" / f".{name.replace('/', '.')}"
        for part in ("cur", "new", "tmp"):
            (place / part).mkdir(parents=True, exist_ok=True)
            (place / part).chmod(0o777)
        place.chmod(0o777)
        return place

    def add(self, name: str, number: int, raw: bytes) -> None:
        (self.folder(name) / "cur" / f"{1_700_000_000 + number}.M{number}.test:2,S").write_bytes(raw)

    def renumber(self) -> None:
        """Give the INBOX another UIDVALIDITY."""
        for file in (self.root / "mail").glob("dovecot.index*"):
            file.unlink()
        listed = self.root / "mail" / "dovecot-uidlist"
        # Its first line: version, V and the UIDVALIDITY, N and the next UID.
        listed.write_text(re.sub(r"V(\d+)", lambda found: f"V{int(found[1]) + 1}", listed.read_text(), count=1))


@contextmanager
def dovecot() -> Iterator[Dovecot]:
    root = Path(tempfile.mkdtemp(prefix="dovecot-"))  # the names of its sockets have to be short
    server = Dovecot(root, free_port())
    authority = trustme.CA()
    authority.cert_pem.write_to_path(server.authority)
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(root / "server.pem")
    for folder in ("run", "state", "home", "mail"):
        (root / folder).mkdir()
        (root / folder).chmod(0o777)
    root.chmod(0o755)
    own = (os.getuid(), os.getgid()) if os.getuid() else (_NOBODY, _NOBODY)
    settings = {"root": root, "port": server.port, "password": PASSWORD, "uid": own[0], "gid": own[1]}
    text = _CONFIGURATION.format(**settings)
    if os.getuid():  # it cannot change its user
        text += _OF_USER.format(user=pwd.getpwuid(own[0]).pw_name, group=grp.getgrgid(own[1]).gr_name)
    (root / "dovecot.conf").write_text(text)
    program = _program()
    assert program is not None
    running = subprocess.Popen([program, "-F", "-c", str(root / "dovecot.conf")])
    try:
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", server.port), 1).close()
                break
            except OSError:
                assert running.poll() is None, (root / "log").read_text()
                time.sleep(0.05)
        yield server
    finally:
        running.terminate()
        running.wait(10)
        shutil.rmtree(root, ignore_errors=True)
