"""Logins that the command LOGIN cannot express."""

from __future__ import annotations

from pathlib import Path

import pytest

from environment.errors import BadMail
from environment.sources import imap
from environment.sources.imap import ImapMails
from tests.environment.raw_mails import raw_mail
from tests.environment.sources.test_imap import ids, note, use
from tests.fakes.imap_server import USER, ImapServer


@pytest.mark.parametrize(("user", "password"), [(USER, "schöner Tag"), ("jörg@example.org", "correct horse")])
def test_user_and_password_may_have_any_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, password: str
) -> None:
    server = ImapServer(tmp_path)
    use(server, monkeypatch)
    monkeypatch.setenv(imap.PASSWORD, password)
    server.folders["INBOX"].add(raw_mail(1))
    mails = ImapMails(server.url(user=user), tmp_path / "imap")
    with pytest.raises(
        BadMail, match=r"IMAP_PASSWORD \(.* not ASCII, and the server lacks AUTHENTICATE PLAIN\)"
    ) as caught:
        mails.fetch(lambda done, wanted: None)
    assert "AUTHENTICATE" not in server.asked and password not in str(caught.value)
    server.plain = f"\0{user}\0{password}"
    mails.fetch(lambda done, wanted: None)
    assert ids(mails) == [note(1)] and "LOGIN" not in server.asked
    server.plain = f"\0{user}\0another"
    with pytest.raises(BadMail, match="does not accept IMAP_PASSWORD .*AUTHENTICATIONFAILED"):
        mails.fetch(lambda done, wanted: None)
    server.close()
