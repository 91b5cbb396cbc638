"""Which files of a folder or an archive may hold mails, also in the profiles of mail programs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from environment.models import DroppedMail

_TRASHED = re.compile(r":2,[A-Za-z]*T[A-Za-z]*\Z")
_INCOMPLETE = re.compile(r"(?:.*[/\\])?tmp[/\\]\d{9,}[._][^/\\]*", re.DOTALL)
"""A Maildir names a mail after the seconds since 1970. Other files in a folder called tmp may be whole."""
_INDEX = re.compile(
    r".*\.(?:msf|plist)|msgFilterRules\.dat|popstate\.dat|filterlog\.html|virtualFolders\.dat|table_of_contents"
    r"|archive_browser\.html|\.DS_Store|Thumbs\.db|desktop\.ini",
    re.IGNORECASE | re.DOTALL,
)
"""Files of Thunderbird, Apple Mail, Google Takeout and systems that lie next to mails and are none."""


def is_index(path: str) -> bool:
    """Return whether a file is known to hold no mail, by its name."""
    return bool(_INDEX.fullmatch(path.rpartition("/")[2]))


def marked_by_name(name: str, where: str) -> DroppedMail | None:
    """Return the report of a file that a Maildir marks, by its name, as deleted or as not written to its end."""
    if _TRASHED.search(name):
        return DroppedMail(reason="deleted", where=where, detail="marked as trashed")
    if _INCOMPLETE.fullmatch(name):
        return DroppedMail(reason="incomplete", where=where, detail="in the folder tmp of a Maildir")
    return None


def mail_files(root: str | os.PathLike[str], unreadable: list[OSError]) -> Iterator[tuple[str, list[str]]]:
    """Yield the folders that may hold mails and the names in them, in order. Add folders that cannot be listed to
    `unreadable`.

    Of a Thunderbird profile, only its mail folders are walked; of Apple Mail, neither its database nor unpacked attachments.
    Elsewhere every file counts, so that none is left out in silence.
    """
    profile: str | None = None
    for folder, subfolders, names in os.walk(root, onerror=unreadable.append):
        # os.walk lists links to folders among the folders, but does not follow them.
        names += [name for name in subfolders if os.path.islink(os.path.join(folder, name))]
        if {"prefs.js", "profiles.ini"}.intersection(names) or "MailData" in subfolders:
            profile = folder
        if len({"cur", "new", "tmp"}.intersection(subfolders)) > 1:
            names.clear()  # indices and settings of mail programs
            subfolders[:] = [name for name in subfolders if name != "tmp"]
        elif "prefs.js" in names:
            names.clear()
            subfolders[:] = [name for name in subfolders if name in ("Mail", "ImapMail")]
        elif "profiles.ini" in names:
            names.clear()
            subfolders[:] = [name for name in subfolders if os.path.exists(os.path.join(folder, name, "prefs.js"))]
        elif profile is not None and f"{folder}{os.sep}".startswith(f"{profile}{os.sep}"):
            names = [name for name in names if not is_index(name)]
            if {"MailData", "Messages"}.intersection(subfolders):
                subfolders[:] = [name for name in subfolders if name not in ("Attachments", "MailData")]
        subfolders.sort()
        yield folder, sorted(names)
