"""What IMAPClient 3.1.0 lacks: a limit of time for TLS connections, and logins with letters that are not ASCII."""

from __future__ import annotations

import imaplib
import socket
from typing import Any

from imapclient.exceptions import LoginError
from imapclient.imapclient import IMAPClient


class Client(IMAPClient):
    """A connection to a server."""

    def login(self, username: str, password: str) -> Any:
        """Log in. Raise LoginError if the server refuses, or does not take what is not ASCII."""
        if username.isascii() and password.isascii():
            return super().login(username, password)
        # The command LOGIN has ASCII only.
        if not self.has_capability("AUTH=PLAIN"):
            raise LoginError("user or password is not ASCII, and the server lacks AUTHENTICATE PLAIN")
        said = f"\0{username}\0{password}".encode("utf-8", "surrogateescape")  # the bytes of the environment
        return self.sasl_login("PLAIN", lambda challenge: said)

    def _create_IMAP4(self) -> imaplib.IMAP4:
        if not self.ssl:
            return super()._create_IMAP4()
        # IMAPClient's own class waits forever for a connection.
        return imaplib.IMAP4_SSL(self.host, self.port, ssl_context=self.ssl_context, timeout=self._timeout.connect)

    def socket(self) -> socket.socket:
        return self._imap.sock
