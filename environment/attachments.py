"""Show what is attached to a mail at the end of its text, where a search finds it."""

from __future__ import annotations

from collections.abc import Sequence

from environment.mail_text import storable
from environment.models import Attachment

_MAX_NAMES = 50
_CUT = " …(cut)"
_AROUND = f"\n\nAttachment :\n{_CUT}"
_LEAST_CHARS = 80
"""Less of a file is not worth its heading."""


def with_attachments(body: str, attached: Sequence[Attachment], max_chars: int) -> str:
    """Return the text of a mail with the names of its files, and as much of their text as makes it `max_chars` long."""
    names = list(dict.fromkeys(file.name for file in attached))
    if not names:
        return body
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    shown = f"{body}\n\nAttachments: {', '.join(names[:_MAX_NAMES])}{more}".strip()
    for file in attached:
        text = storable(file.text).strip()
        left = max_chars - len(shown) - len(file.name) - len(_AROUND)
        if text and left >= _LEAST_CHARS:
            shown += f"\n\nAttachment {file.name}:\n{text if len(text) <= left else f'{text[:left]}{_CUT}'}"
    return shown
