"""Threads of mails: mails whose headers refer to each other, over any number of steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import TypeVar

Key = TypeVar("Key", int, str)


def threads(connection: sqlite3.Connection, joined: dict[str, str]) -> Iterator[tuple[int, int]]:
    """Yield (mail, smallest id in its thread) for threads of several mails. Copies of a mail join their threads.

    `joined` maps each Message-ID to another one of its thread, or to itself (see `root`).
    """
    mails_of: dict[str, set[int]] = {}
    for message_id in joined:
        found = connection.execute(
            "SELECT email_id FROM alias JOIN copy ON copy.id = copy_id WHERE alias.message_id = ?", (message_id,)
        ).fetchall()
        if found:
            mails_of.setdefault(root(joined, message_id), set()).update(row[0] for row in found)
    of_mail: dict[int, int] = {}
    for email_ids in mails_of.values():
        first, *others = sorted(email_ids)
        for other in others:
            one, another = sorted((root(of_mail, first), root(of_mail, other)))
            of_mail[another] = one
    yield from ((email_id, root(of_mail, email_id)) for email_id in sorted(of_mail))


def root(joined: dict[Key, Key], key: Key) -> Key:
    """Return the representative of the set of `key` (union-find with path halving)."""
    while (other := joined.setdefault(key, key)) != key:
        joined[key] = joined[other]
        key = other
    return key
