"""Turn reviewed ratings of the service's answers into scenarios.

The service writes one YAML file per rating (`serving/feedback.py`). A reviewer corrects `answer` and `message_ids` and sets
`review` to `train`, `test` or `rejected`. Ratings that are `pending` or `rejected` are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from environment.email_db import MailDatabase
from environment.errors import BadMail
from environment.scenarios import ScenarioReport, about_tested_mails, scenario_of
from environment.sources.parquet import Question

KIND = "feedback"
_AsText = yaml.BaseLoader
"""Reads every value as text: a reviewer who writes 13:00 does not mean 780. It constructs no objects."""


class _Rating(BaseModel):
    """The fields of a rating's file that make a question."""

    model_config = ConfigDict(extra="ignore")

    review: Literal["pending", "train", "test", "rejected"]
    question: str
    answer: str = ""
    message_ids: tuple[str, ...] = ()
    inbox_address: str
    query_date: str


def rating_files(folder: str | Path) -> list[Path]:
    """Return the rating files of a folder, sorted by name. Raise BadMail when there is no such folder."""
    place = Path(folder).expanduser()
    if not place.is_dir():
        raise BadMail(f"reviewed_feedback: {folder} is not a folder; the service writes to its feedback_folder")
    return sorted(place.glob("*.yaml"))


def with_reviewed(report: ScenarioReport, folder: str | Path, database: MailDatabase) -> ScenarioReport:
    """Return `report` extended by the reviewed questions of `folder`, with the same checks as other questions.

    A training question about a mail that a test question asks about is dropped. Raise BadMail when a file is not a
    rating.
    """
    scenarios, dropped = list(report.scenarios), {reason: list(ids) for reason, ids in report.dropped_ids.items()}
    read = 0
    for file in rating_files(folder):
        rating = _rating(file)
        if rating.review == "pending" or rating.review == "rejected":  # spelled out for the type checker
            continue
        read += 1
        question = Question(id=f"{KIND}-{file.stem}", **rating.model_dump(exclude={"review"}))
        scenario, reason = scenario_of(question, rating.review, database)
        if scenario is None:
            dropped.setdefault(reason or "malformed", []).append(question.id)
        else:
            scenarios.append(scenario.model_copy(update={"kind": KIND}))
    of = {split: [scenario for scenario in scenarios if scenario.split == split] for split in ("train", "test")}
    tested = about_tested_mails(of["train"], of["test"], database)
    if tested:
        dropped.setdefault("mail_of_a_test_question", []).extend(tested)
    kept = [scenario for scenario in scenarios if scenario.split == "test" or scenario.id not in tested]
    return ScenarioReport(read=report.read + read, scenarios=kept, dropped_ids=dict(sorted(dropped.items())))


def _rating(file: Path) -> _Rating:
    try:
        return _Rating.model_validate(yaml.load(file.read_text(encoding="utf-8"), _AsText))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadMail(f"{file}: {'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise BadMail(f"{file} cannot be read as YAML ({type(error).__name__})") from None
