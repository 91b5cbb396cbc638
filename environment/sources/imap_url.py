"""The address of an IMAP account, as a user writes it: `imaps://me@example.org@imap.example.org/INBOX,Archive/*`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote

from environment.errors import BadMail

_URL = re.compile(r"(imaps?)://(?:([^/]*)@)?(\[[0-9A-Fa-f:.]+\]|[^/@:\[\]\s]+)(?::(\d{1,5}))?(?:/(.*))?")
_FORM = "imaps://USER@HOST/FOLDER,FOLDER (imap:// for STARTTLS), as in imaps://me@example.org@imap.example.org/INBOX"


@dataclass(frozen=True)
class ImapUrl:
    """An account and folders of it: names or patterns of the protocol (`*`), none for the default."""

    tls: bool
    """Whether the connection begins with TLS. Otherwise it changes to TLS (STARTTLS) before anything is said."""
    user: str
    host: str
    port: int
    folders: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.user} at {self.host}"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Return the parts of a URL. `%2C` is a comma within a name. Raises BadMail, which never shows a password."""
        found = _URL.fullmatch(url)
        user = found[2] if found else ""
        if found and ":" in (user or ""):
            raise BadMail("leave the password out of the URL of an IMAP account: put it into .env, as IMAP_PASSWORD")
        if not found or not user or not 0 < int(found[4] or 1) < 1 << 16:
            raise BadMail(f"the URL of an IMAP account has the form {_FORM}")
        tls = found[1] == "imaps"
        folders = tuple(unquote(name) for name in (found[5] or "").split(",") if name)
        return cls(tls, unquote(user), found[3].strip("[]"), int(found[4] or (993 if tls else 143)), folders)


def is_imap(source: str) -> bool:
    """Return whether a mail source is the URL of an IMAP account."""
    return source.lower().startswith(("imap://", "imaps://"))
