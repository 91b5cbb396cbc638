"""The profiles of backend=local from data to evaluation, in their shape and a small size: vLLM, Unsloth, TRL and the GPU are stand-ins."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environment.sources.synthetic import synthetic_company
from tests.checkout import Checkout, settings
from tests.fakes.judge import by_id, JudgeModel
from tests.fakes.language_model import Reply
from tests.gpu_checkout import gpu_checkout, tiny_qwen

pytestmark = pytest.mark.service

SMALL = settings(max_steps=2, max_tokens=16, max_turns=3)
TORCH_ANSWERS = "the torch engine answers"


class Judges(JudgeModel):
    """RULER, and the judge of answers."""

    def answer(self, request: dict[str, Any]) -> Reply:
        ranks = "<trajectory id=" in request["messages"][-1]["content"]
        return super().answer(request) if ranks else '{"reasoning": "as the reference", "accept": true}'


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture
def checkout(runtime: Path, tmp_path: Path) -> Checkout:
    checkout = gpu_checkout(tmp_path / "project", runtime)
    checkout.environment["OPENAI_API_KEY"] = "of-a-test"
    return checkout


@pytest.fixture
def judges() -> Iterator[Judges]:
    with Judges() as server:
        yield server


def write_enron(folder: Path) -> list[str]:
    """A small company in the columns of the two Enron datasets, and the settings that name its folders."""
    company = synthetic_company(train_inboxes=2, test_inboxes=1, mails_per_inbox=70, questions_per_inbox=8)
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
        for mail in company.emails()
    ]
    questions = [
        question.model_dump(include={"id", "question", "answer", "message_ids", "how_realistic", "inbox_address"})
        | {"query_date": question.query_date.date().isoformat(), "split": question.split}
        for question in company.scenarios()
    ]
    for name, rows in (("emails", mails), ("questions", questions)):
        (folder / name).mkdir(parents=True)
        for split in ("train", "test"):
            chosen = [row for row in rows if row.get("split", "train") == split]
            if chosen:
                pq.write_table(pa.Table.from_pylist(chosen), folder / name / f"{split}-00000-of-00001.parquet")
    return settings(emails=folder / "emails", train_questions=folder / "questions")


def test_mail_from_parquet_files_to_an_evaluation(checkout: Checkout, judges: Judges, tmp_path: Path) -> None:
    base = tiny_qwen(tmp_path / "qwen2.5", "qwen2", "qwen2_5")
    words = ["--config", "configs/training_local.yaml", *write_enron(tmp_path / "enron"), *SMALL]
    words += settings(base_model=base, ruler_api_base=judges.url, judge_api_base=judges.url)
    words += settings(validate_every=1, validation_questions=2, eval_limit=2)
    planned = checkout.run("--pipeline", "train", *words, "--dry-run")
    print(planned.stdout, planned.stderr)
    assert planned.returncode == 0, planned.stdout + planned.stderr
    done = checkout.run("--pipeline", "all", *words, "--summary", "summary.json")
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    print(*checkout.history(), sep="\n")
    print((checkout.folder / "summary.json").read_text())
