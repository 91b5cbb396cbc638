"""The check of an e-mail without a fault."""

from __future__ import annotations

from tasks.outreach.email import EmailCheck


def good(*facts: str) -> EmailCheck:
    """It states `facts`."""
    return EmailCheck(
        stated=facts,
        citations=len(facts),
        unread_citations=0,
        unstated_citations=0,
        uncited_claims=0,
        invented_numbers=0,
        wrong_recipient=False,
        greets=True,
        asks=True,
        words=20,
        addresses_judge=False,
        quotes_rubric=False,
    )
