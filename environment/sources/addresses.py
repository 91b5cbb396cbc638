"""Read the people of a header field: who sent a mail and who received it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from environment.mail_text import one_line
from environment.sources.headers import decode_header

# A quotation or comment is short. Otherwise an unclosed one would be searched for to the end of the field each time.
_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.){0,500}"|\((?:[^()\\]|\\.){0,500}\)|<[^<>]*>|[^"(<,;]+|.',
    re.DOTALL,
)
_AROUND_AT = re.compile(r"(?<!\s)\s*@\s*")  # a run of blanks is looked at once: linear time
_PUNCTUATION = "\"'<>[](),; \t\n"


def addresses_of(field: str) -> tuple[str, ...]:
    """Return the addresses of a field such as To, in order.

    An address in angle brackets wins over anything next to it, and commas within a name need no quotes.
    """
    return tuple(address for _, addresses in _people(field) for address in addresses)


def sender_of(field: str) -> tuple[str, str]:
    """Return (name, address) of the first person of a field such as From. Both may be empty."""
    name, addresses = next(_people(field), ("", ("",)))
    return name, addresses[-1]


def _people(field: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and addresses of each person; several addresses if a comma between two people is missing."""
    if "@" not in field and "=?" in field:
        field = decode_header(field.encode())
    names: list[str] = []
    for text, comment, in_angles in _entries(field):
        if in_angles:
            yield _name(",".join([*names, text])), in_angles
            names.clear()
            continue
        bare = tuple(_bare(word) for word in _AROUND_AT.sub("@", text).split() if "@" in word)
        if bare:
            yield from _on_this_host(names)
            names.clear()
            yield _name(comment), bare
        elif text.strip():
            names.append(text)
    yield from _on_this_host(names)


def _on_this_host(texts: list[str]) -> Iterator[tuple[str, tuple[str]]]:
    """Yield the texts that can be addresses without a domain."""
    for text in texts:
        if len(text.split()) == 1 and (address := text.strip(_PUNCTUATION)) and not address.endswith(":"):
            yield "", (address,)


def _entries(field: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the text, the comments and the addresses in angle brackets of each part between commas."""
    texts: list[str] = []
    comments: list[str] = []
    in_angles: list[str] = []
    for token in (*_TOKEN.findall(field), ","):
        if token in (",", ";"):
            yield "".join(texts), " ".join(comments), tuple(in_angles)
            texts, comments, in_angles = [], [], []
        elif token[0] == "<" and len(token) > 1:
            in_angles += filter(None, [_bare(_AROUND_AT.sub("@", token))])
        elif token[0] == "(" and len(token) > 1:
            comments.append(token[1:-1])
        else:
            texts.append(token)


def _bare(address: str) -> str:
    """Return an address without brackets, `mailto:`, group or route before it."""
    local, at, domain = address.strip(_PUNCTUATION).rpartition("@")
    return f"{local.rpartition(':')[2]}{at}{domain}".strip(_PUNCTUATION)


def _name(text: str) -> str:
    return one_line(decode_header(text.encode())).strip("\"' ")
