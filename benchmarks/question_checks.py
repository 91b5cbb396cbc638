"""Measure the checks of written questions: the share of good and of spoilt questions that they keep.

  python -m benchmarks.question_checks MAILS QUESTIONS

MAILS and QUESTIONS are folders of parquet. Questions with one source mail count as good. A spoilt question cites the mail of
another question, or has a changed digit in its answer. The last line is JSON.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

from agent.question_writing.batches import Batch
from agent.question_writing.checks import QuestionChecks, is_said
from agent.settings import AgentSettings
from environment.email_db import MailDatabase, build_database
from environment.mail_text import LAST_DATE
from environment.sources.parquet import Question, parquet_emails, parquet_questions
from environment.tools import READ, MailTools


def one_digit_changed(answer: str, chance: random.Random) -> str:
    place = chance.choice([match.start() for match in re.finditer(r"\d", answer)])
    return answer[:place] + chance.choice([d for d in "0123456789" if d != answer[place]]) + answer[place + 1 :]


def measure(mails: str, questions: str, read_chars: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mails.sqlite"
        build_database(parquet_emails(mails), path)
        database = MailDatabase(path)
        checks = QuestionChecks(database, min_realism=0.0, max_messages=1)
        outcomes: Counter[str] = Counter()
        answers: list[tuple[str, str]] = []
        for row in parquet_questions(questions):
            ids = [database.resolve(message_id) for message_id in row.message_ids]
            if len(ids) != 1 or ids[0] is None:
                continue
            tools = MailTools(database.mailbox(row.inbox_address, LAST_DATE), AgentSettings(read_chars=read_chars))
            texts = {ids[0]: tools.call(READ, {"email_id": tools.number_of(ids[0])}).observation}
            outcome = checks.check({**row.model_dump(), "mail_ids": ids}, Batch(row.inbox_address, (ids[0],)), texts)
            outcomes["kept" if isinstance(outcome, Question) else outcome] += 1
            answers.append((row.answer, texts[ids[0]]))
        database.close()
    chance = random.Random(0)
    own = [(answer, text) for answer, text in answers if is_said(answer, text)]
    digits = [(answer, text) for answer, text in own if re.search(r"\d", answer)]
    elsewhere = sum(is_said(answer, chance.choice(answers)[1]) for answer, _ in own)
    changed = sum(is_said(one_digit_changed(answer, chance), text) for answer, text in digits)
    print(f"read_chars={read_chars}: {len(answers)} questions: {dict(outcomes.most_common())}")
    print(f"  answer said by its own mail: {len(own)} of {len(answers)} ({len(own) / len(answers):.1%})")
    print(f"  ... by a random other mail: {elsewhere} of {len(own)} ({elsewhere / len(own):.1%})")
    print(f"  ... with one digit changed: {changed} of {len(digits)} ({changed / len(digits):.1%})")
    return {
        "read_chars": read_chars,
        "outcomes": dict(outcomes.most_common()),
        "said_by_own_mail": len(own) / len(answers),
        "said_by_another_mail": elsewhere / len(own),
        "said_with_one_digit_changed": changed / len(digits),
    }


def main() -> int:
    if len(sys.argv) != 3:
        print("error: python -m benchmarks.question_checks MAILS QUESTIONS", file=sys.stderr)
        return 2
    print(json.dumps([measure(sys.argv[1], sys.argv[2], chars) for chars in (700, 5000)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
