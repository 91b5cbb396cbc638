"""Databases that last for one test."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from environment.email_db import MailDatabase, build_database
from environment.models import Email


@pytest.fixture
def database_of(tmp_path: Path) -> Iterable[Callable[[Iterable[Email]], MailDatabase]]:
    """Builds a database from mails; closed at the end of the test."""
    opened: list[MailDatabase] = []

    def build(emails: Iterable[Email]) -> MailDatabase:
        path = tmp_path / f"mails{len(opened)}.sqlite"
        build_database(emails, path)
        opened.append(MailDatabase(path))
        return opened[-1]

    yield build
    for database in opened:
        database.close()
