"""HTML page about the mails of a source: how many are used, and which are dropped for which reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.page import escape, page

_REASONS = {
    "absurd_date": "the date is before 1980 or after 2039",
    "bad_date": "the date cannot be read",
    "body_too_long": "the text is longer than max_body_chars",
    "message_id_reused": "an earlier mail has the same Message-ID and another content",
    "no_address": "neither sender nor recipients",
    "no_body": "no text, or text in attachments only",
    "no_date": "no date",
    "no_file": "a link or a device instead of a file",
    "no_headers": "not a mail: none of the headers that mails have",
    "no_message_id": "no Message-ID, by which answers cite a mail",
    "oversized": "larger than 25 MiB",
    "too_many_recipients": "more recipients than max_recipients",
    "unparsable": "too malformed to parse",
    "unreadable": "the file or folder cannot be read",
    "unsafe_name": "a name in the archive that leads out of it",
}


def mail_html(report: Mapping[str, Any], statistics: Mapping[str, Any], source: str) -> str:
    """Return the page. `report` is a dumped `BuildReport`, `statistics` a dumped `DatabaseStatistics`."""
    by_reason: dict[str, list[Mapping[str, Any]]] = {reason: [] for reason in report["dropped"]}
    for mail in report["listed"]:
        by_reason[mail["reason"]].append(mail)
    facts = [
        ("mails read", report["read"]),
        ("used", report["kept"]),
        ("further copies", report["duplicates"]),
        ("left out", sum(report["dropped"].values())),
        ("inboxes", report["inboxes"]),
    ]
    body = "".join(f"<div><dt>{name}</dt><dd>{count:,}</dd></div>" for name, count in facts)
    parts = [f'<header><h1>Mails</h1><p>{escape(source)}</p></header><section><dl class="facts">{body}</dl></section>']
    parts.append(_statistics(statistics))
    parts += [_left_out(reason, count, by_reason[reason]) for reason, count in report["dropped"].items()]
    return page("Mails", "\n".join(parts))


def _statistics(statistics: Mapping[str, Any]) -> str:
    names = ("min", "median", "p90", "p99", "max")
    spread = "".join(
        f'<tr><th scope="row">{what}</th>' + "".join(f"<td>{statistics[key][name]:,}</td>" for name in names) + "</tr>"
        for what, key in (("mails of an inbox", "mails_per_inbox"), ("characters of a mail", "body_chars"))
        if statistics[key]
    )
    largest = "".join(
        f"<tr><td>{escape(address)}</td><td>{mails:,}</td></tr>"
        for address, mails in statistics["largest_inboxes"].items()
    )
    dates = " to ".join(str(statistics[key] or "-")[:10] for key in ("first_date", "last_date"))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", *names))
    return (
        f'<section><h2>The mails that are used</h2><p class="note">{escape(dates)}</p>'
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{spread}</tbody></table></div>'
        '<h3>Largest inboxes</h3><div class="scroll"><table><thead><tr><th scope="col">address</th><th scope="col">mails</th>'
        f"</tr></thead><tbody>{largest}</tbody></table></div></section>"
    )


def _left_out(reason: str, count: int, mails: Sequence[Mapping[str, Any]]) -> str:
    shown = f"; the first {len(mails):,} of them:" if len(mails) < count else ""
    rows = "".join(f"<tr><td>{escape(mail['where'])}</td><td>{escape(mail['detail'])}</td></tr>" for mail in mails)
    return (
        f"<section><details><summary>{count:,} {escape(reason)}</summary>"
        f'<p class="note">{escape(_REASONS.get(reason, reason))}{shown}</p>'
        f'<div class="scroll"><table class="lines"><tbody>{rows}</tbody></table></div></details></section>'
    )
