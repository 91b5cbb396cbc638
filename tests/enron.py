"""A small company in the columns of the two Enron datasets."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from environment.sources.synthetic import SyntheticCompany, synthetic_company
from tests.checkout import settings


def company() -> SyntheticCompany:
    return synthetic_company(train_inboxes=2, test_inboxes=1, mails_per_inbox=70, questions_per_inbox=8)


def write_enron(folder: Path) -> list[str]:
    """Write the folders `emails` and `questions`, and return the settings that name them."""
    mails = [
        {
            "message_id": mail.message_id,
            "subject": mail.subject,
            "from": mail.from_address,
            "to": list(mail.to_addresses),
            "cc": list(mail.cc_addresses),
            "bcc": list(mail.bcc_addresses),
            "date": mail.date,
            "body": mail.body,
        }
        for mail in company().emails()
    ]
    questions = [
        question.model_dump(include={"id", "question", "answer", "message_ids", "how_realistic", "inbox_address"})
        | {"query_date": question.query_date.date().isoformat(), "split": question.split}
        for question in company().scenarios()
    ]
    for name, rows in (("emails", mails), ("questions", questions)):
        (folder / name).mkdir(parents=True)
        for split in ("train", "test"):
            chosen = [row for row in rows if row.get("split", "train") == split]
            if chosen:
                pq.write_table(pa.Table.from_pylist(chosen), folder / name / f"{split}-00000-of-00001.parquet")
    return settings(emails=folder / "emails", train_questions=folder / "questions")
