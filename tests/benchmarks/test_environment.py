"""The tokens of a rollout, counted for our tools and for the obvious design."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime
from pathlib import Path

from benchmarks import obvious_mailbox
from benchmarks.environment import CHARS_PER_TOKEN, measure_tokens
from benchmarks.obvious_mailbox import ObviousMailbox
from environment.email_db import MailDatabase, build_database
from environment.models import Email, Scenario

OWNER = "ann.lee@example.com"
TEXT = "The Heron review is on Tuesday. " + "It is about steel, glass and timber. " * 10


def test_both_designs_read_the_mail(tmp_path: Path) -> None:
    mails = [
        Email(
            message_id=f"<{number}@x>",
            subject=f"Note {number}",
            from_address="bob@example.com",
            to_addresses=(OWNER,),
            date=datetime(2001, 1, number),
            body=body,
        )
        for number, body in enumerate(["Lunch.", "Tea.", TEXT], start=1)
    ]
    question = Scenario(
        id="q1",
        split="test",
        question="When is the Heron review?",
        answer="Tuesday",
        message_ids=("<3@x>",),
        inbox_address=OWNER,
        query_date=datetime(2001, 2, 1),
    )
    build_database(mails, tmp_path / "ours.sqlite")
    obvious_mailbox.build(mails, tmp_path / "obvious.sqlite")
    ours, obvious = MailDatabase(tmp_path / "ours.sqlite"), ObviousMailbox(tmp_path / "obvious.sqlite")
    with closing(ours), closing(obvious):
        figures = measure_tokens(ours, obvious, [question], tmp_path / "no tokenizer.json")
    assert figures["hit_rate"] == {"ours": 1.0, "obvious": 1.0, "ratio": 1.0}
    assert min(figures["tokens_per_rollout"][of] for of in ("ours", "obvious")) > len(TEXT) / CHARS_PER_TOKEN
