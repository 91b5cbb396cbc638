"""HTML page about the mails of a source: how many are used, and which are dropped for which reason."""

from __future__ import annotations

from reports.page import Row, page, render

_REASONS = {
    "absurd_date": "the date is before 1980 or after 2039",
    "bad_date": "the date cannot be read",
    "body_too_long": "the text is longer than max_body_chars",
    "deleted": "marked as deleted, but not removed yet",
    "incomplete": "not received to its end (Maildir)",
    "nested_archive": "a zip archive within another",
    "no_address": "neither sender nor recipients",
    "no_body": "no text, or text in attachments only",
    "no_date": "no date",
    "no_file": "a link or a device instead of a file",
    "no_headers": "not a mail: none of the headers that mails have",
    "no_message_id": "no Message-ID, by which answers cite a mail",
    "oversized": "larger than 25 MiB",
    "spam": "marked as spam in Gmail",
    "too_many_recipients": "more than 30 recipients",
    "unparsable": "too malformed to parse",
    "unreadable": "the file or folder cannot be read",
    "unsafe_name": "a name in the archive that leads out of it",
}


def mail_html(report: Row, statistics: Row, source: str) -> str:
    """Return the page. `report` is a dumped `BuildReport`, `statistics` a dumped `DatabaseStatistics`."""
    listed: dict[str, list[Row]] = {reason: [] for reason in report["dropped"]}
    for mail in report["listed"]:
        listed[mail["reason"]].append(mail)
    facts = [
        ("mails read", report["read"]),
        ("used", report["kept"]),
        ("further copies", report["duplicates"]),
        ("with the Message-ID of an earlier mail", report["renamed"]),
        ("left out", sum(report["dropped"].values())),
        ("inboxes", report["inboxes"]),
    ]
    spreads = [("mails of an inbox", statistics["mails_per_inbox"]), ("characters of a mail", statistics["body_chars"])]
    body = render(
        "mail.html.jinja",
        source=source,
        facts=facts,
        dates=" to ".join(str(statistics[key] or "-")[:10] for key in ("first_date", "last_date")),
        quantiles=("min", "median", "p90", "p99", "max"),
        spreads=[(what, spread) for what, spread in spreads if spread],
        largest=list(statistics["largest_inboxes"].items()),
        dropped=[
            {"name": reason, "count": count, "meaning": _REASONS.get(reason, reason), "mails": listed[reason]}
            for reason, count in report["dropped"].items()
        ],
    )
    return page("Mails", body)
