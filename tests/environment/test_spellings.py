"""Words of any script and spelling: a mail is found by them and shown with them."""

from __future__ import annotations

import pytest

from tests.environment.sample_mails import OWNER, mail
from tests.environment.test_search import LATE, Build


@pytest.mark.parametrize(
    ("body", "keywords", "snippet"),
    [
        ("Nguyễn Văn An đến lúc 14:30", "Nguyen", "Nguyễn"),
        ("今日は。" * 60 + "会議室は三階です", "三階", "三階"),
        ("회의실은 3층입니다", "회의실", "회의실은"),
        ("word " * 200 + "the oﬃce is closed", "office", "oﬃce"),
        ("word " * 200 + "con\u00adfer\u00adence at noon", "conference", "con\u00adfer\u00adence"),
    ],
)
def test_a_word_is_found_and_shown_however_it_is_spelled(
    database_of: Build, body: str, keywords: str, snippet: str
) -> None:
    mailbox = database_of([mail(1, body=body), mail(2)]).mailbox(OWNER, LATE)
    hits = mailbox.search([keywords])
    assert [hit.id for hit in hits] == [1] and snippet in hits[0].snippet and len(hits[0].snippet) < 170
