"""The page about dropped mails."""

from __future__ import annotations

from reports.mail import mail_html


def test_counts_and_lists_are_shown_and_names_are_data() -> None:
    listed = [{"reason": "bad_date", "where": "<script>alert(1)</script>", "detail": "soon"}]
    dropped = {"bad_date": 1_234, "something_new": 1}
    spread = {"min": 1, "median": 4_321, "p90": 5, "p99": 6, "max": 7}
    statistics = {
        "first_date": "2001-01-02T09:30:00",
        "last_date": None,
        "mails_per_inbox": spread,
        "body_chars": None,
        "largest_inboxes": {"<b>ann@example.com": 654_321},
    }
    page = mail_html(
        {
            "read": 2_000,
            "kept": 700,
            "duplicates": 65,
            "renamed": 2,
            "inboxes": 3,
            "dropped": dropped,
            "listed": listed,
        },
        statistics,
        "a<b>.mbox",
    )
    assert "2001-01-02 to -" in page and "4,321" in page and "654,321" in page and "<b>" not in page
    assert "1,235" in page and "2,000" in page
    assert "1,234 bad_date" in page and "the first 1 of them" in page and "1 something_new" in page
    assert "<script" not in page and "&lt;script&gt;" in page and "a&lt;b&gt;.mbox" in page
