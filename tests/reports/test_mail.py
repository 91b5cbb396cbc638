"""The page about mails that are not used."""

from __future__ import annotations

from reports.mail import mail_html


def test_counts_and_lists_are_shown_and_names_are_data() -> None:
    listed = [{"reason": "bad_date", "where": "<script>alert(1)</script>", "detail": "soon"}]
    dropped = {"bad_date": 1_234, "something_new": 1}
    page = mail_html(
        {"read": 2_000, "kept": 700, "duplicates": 65, "inboxes": 3, "dropped": dropped, "listed": listed}, "a<b>.mbox"
    )
    assert "1,235" in page and "2,000" in page
    assert "1,234 bad_date" in page and "the first 1 of them" in page and "1 something_new" in page
    assert "<script" not in page and "&lt;script&gt;" in page and "a&lt;b&gt;.mbox" in page
