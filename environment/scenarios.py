"""Turn question datasets into scenarios that the mail database can answer, and report why others were dropped."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ValidationError

from environment.email_db import Mailbox, MailDatabase
from environment.errors import BadMail
from environment.mail_text import normalise_address, one_line, parse_query_date, storable
from environment.models import Scenario
from environment.sources.parquet import Question, count_questions, has_split, is_local, parquet_questions

Split = Literal["train", "test"]
WITHOUT_ANSWER = frozenset(("49", "101", "129", "171", "208", "266", "327"))
"""Ids of corbt/enron_emails_sample_questions that cannot be answered. Other questions about Enron's mail do
not have numbers as ids."""


class ScenarioReport(BaseModel):
    """The kept scenarios and the dropped questions; `read` counts both."""

    read: int
    scenarios: list[Scenario]
    dropped_ids: dict[str, list[str]]
    """Reason to ids of the questions."""

    @property
    def dropped(self) -> dict[str, int]:
        """Reason to number of questions."""
        return {reason: len(ids) for reason, ids in self.dropped_ids.items()}


def load_scenarios(
    train_questions: str | Path,
    test_questions: str | Path | None,
    database: MailDatabase,
    *,
    max_messages: int,
    held_out_fraction: float,
    seed: int,
    min_realism: float = 0.0,
    train_limit: int | None = None,
    test_limit: int | None = None,
    unlabelled: bool = False,
) -> ScenarioReport:
    """Turn the questions of one or two sources (see `sources.parquet`) into scenarios, train ones first.

    A question is kept if every gold mail is in the database, in the question's inbox and no later than its date, if it
    has at most `max_messages` gold mails (copies of one mail count once) and is at least `min_realism` realistic. With
    `unlabelled`, questions without reference answer or gold mails are kept too if their inbox is in the database.
    Scenarios name gold mails by the Message-IDs of their inbox.

    Test questions are those of `test_questions`; without it, the `test` split of `train_questions`; without that, a
    `held_out_fraction` of the train questions. The fraction is chosen by a hash of their ids, so that order, limits and
    seed do not move a question to the other side. Train questions about a mail of a test question are dropped. `seed`
    decides which questions the limits keep, and their order. A limit of None keeps all.

    Raise BadMail when a source cannot be read or no question is left.
    """
    rows = _read_questions(train_questions, test_questions, held_out_fraction, labelled=not unlabelled)
    dropped: dict[str, list[str]] = defaultdict(list)
    usable: dict[str, dict[str, Scenario]] = {"train": {}, "test": {}}
    for question, split in rows:
        if question.id in WITHOUT_ANSWER and question.inbox_address.lower().endswith("@enron.com"):
            found: Scenario | str = "excluded_id"
        elif question.id in usable[split]:
            found = "repeated_id"
        elif question.how_realistic < min_realism:
            found = "unrealistic"
        else:
            found = _usable(question, split, database, max_messages=max_messages, unlabelled=unlabelled)
        if isinstance(found, str):
            dropped[found].append(question.id)
        else:
            usable[split][question.id] = found
    for scenario_id in about_tested_mails(usable["train"].values(), usable["test"].values(), database):
        dropped["mail_of_a_test_question"].append(scenario_id)
        del usable["train"][scenario_id]
    scenarios: list[Scenario] = []
    for split, limit in (("train", train_limit), ("test", test_limit)):
        drawn = sorted(usable[split].values(), key=lambda scenario: (_fraction(str(seed), scenario.id), scenario.id))
        kept = drawn if limit is None else drawn[:limit]
        dropped[f"over_{split}_limit"] += [scenario.id for scenario in drawn[len(kept) :]]
        scenarios.extend(kept)
    return _report(len(rows), scenarios, {reason: ids for reason, ids in dropped.items() if ids})


def _read_questions(
    train_questions: str | Path, test_questions: str | Path | None, held_out_fraction: float, labelled: bool
) -> list[tuple[Question, Split]]:
    tested = _test_source(train_questions, test_questions)
    rows: list[tuple[Question, Split]] = []
    for question in parquet_questions(train_questions, "train", labelled=labelled):
        held_out = tested is None and _fraction("held out", question.id) < held_out_fraction
        rows.append((question, "test" if held_out else "train"))
    if tested is not None:
        rows.extend((question, "test") for question in parquet_questions(*tested, labelled=labelled))
    return rows


def count_train_questions(
    train_questions: str | Path, test_questions: str | Path | None, *, unlabelled: bool = False
) -> int | None:
    """Return how many train questions `load_scenarios` reads, without reading a row; `None` if they are on the Hub.

    A part of them is held out if there are no test questions.

    Raise BadMail when the files of either source cannot be read or lack a column. The Hub is not asked.
    """
    if is_local(train_questions if test_questions is None else test_questions):
        tested = _test_source(train_questions, test_questions)
        if tested is not None:
            count_questions(*tested, labelled=not unlabelled)
    return count_questions(train_questions, "train", labelled=not unlabelled)


def _test_source(train_questions: str | Path, test_questions: str | Path | None) -> tuple[str | Path, str] | None:
    """Return the source of the test questions and its split; `None` if a part of the train questions is held out."""
    if test_questions is None:
        return (train_questions, "test") if has_split(train_questions, "test") else None
    return test_questions, "test" if has_split(test_questions, "test") else "train"


def about_tested_mails(train: Iterable[Scenario], test: Iterable[Scenario], database: MailDatabase) -> list[str]:
    """Return the ids of the `train` scenarios about a mail that a `test` scenario is about."""
    # The same mail has another Message-ID in another inbox, hence the ids of the database.
    tested = {database.resolve(message_id) for scenario in test for message_id in scenario.message_ids}
    return [s.id for s in train if tested.intersection(map(database.resolve, s.message_ids))]


class OpenScenario(NamedTuple):
    """A scenario's inbox as of its date, and the ids of its gold mails there, in its order."""

    mailbox: Mailbox
    gold_ids: list[int]


def open_scenario(scenario: Scenario, database: MailDatabase) -> OpenScenario:
    """Look up the inbox and the gold mails of a scenario. Raise BadMail for an unknown inbox."""
    mailbox = database.mailbox(scenario.inbox_address, scenario.query_date)
    found = [database.resolve(message_id) for message_id in scenario.message_ids]
    return OpenScenario(mailbox, [email_id for email_id in found if email_id is not None])


def check_scenarios(scenarios: Iterable[Scenario], database: MailDatabase) -> ScenarioReport:
    """Return the scenarios whose gold mails can all be found, in order. Raise BadMail when none is left."""
    dropped: dict[str, list[str]] = defaultdict(list)
    scenarios, kept = list(scenarios), []
    for scenario in scenarios:
        grounded, reason = _grounded(scenario, database)
        if grounded is None:
            dropped[reason or "malformed"].append(scenario.id)
        else:
            kept.append(grounded)
    return _report(len(scenarios), kept, dropped)


def scenario_of(
    question: Question, split: Split, database: MailDatabase, *, unlabelled: bool = False
) -> tuple[Scenario | None, str | None]:
    """Return the question as a scenario that the database can answer, or the reason why it cannot."""
    scenario, reason = _scenario(question, split, unlabelled)
    return (None, reason) if scenario is None else _grounded(scenario, database)


def _usable(
    question: Question, split: Split, database: MailDatabase, *, max_messages: int, unlabelled: bool
) -> Scenario | str:
    """Return the question as a scenario, or the reason to drop it."""
    scenario, reason = scenario_of(question, split, database, unlabelled=unlabelled)
    if scenario is None:
        return reason or "malformed"
    return scenario if len(scenario.message_ids) <= max_messages else "too_many_messages"


def _report(read: int, scenarios: list[Scenario], dropped: dict[str, list[str]]) -> ScenarioReport:
    report = ScenarioReport(read=read, scenarios=scenarios, dropped_ids=dict(sorted(dropped.items())))
    if not scenarios:
        why = ", ".join(f"{name} {count}" for name, count in report.dropped.items()) or "there were none"
        raise BadMail(
            f"none of {read} questions can be used with these mails ({why}); do questions and mails belong together?"
        )
    return report


def _scenario(question: Question, split: Split, unlabelled: bool) -> tuple[Scenario | None, str | None]:
    if not question.question.strip() or not (unlabelled or question.answer.strip()):
        return None, "no_question_or_answer"
    if not (unlabelled or question.message_ids):
        return None, "no_gold_mail"
    labelled = bool(question.answer.strip() and question.message_ids)
    try:
        query_date = parse_query_date(question.query_date)
    except BadMail:
        return None, "malformed_query_date"
    try:
        scenario = Scenario(
            id=question.id,
            question=one_line(storable(question.question)),
            answer=storable(question.answer).strip() if labelled else "",
            message_ids=question.message_ids if labelled else (),
            inbox_address=normalise_address(question.inbox_address),
            query_date=query_date,
            split=split,
            how_realistic=question.how_realistic,
        )
    except ValidationError:
        return None, "malformed"
    return scenario, None


def _grounded(scenario: Scenario, database: MailDatabase) -> tuple[Scenario | None, str | None]:
    """Return the scenario with the Message-IDs of its inbox for the gold mails, or the reason why it cannot be answered."""
    if not scenario.labelled:
        return (scenario, None) if database.knows(scenario.inbox_address) else (None, "unknown_inbox")
    named: dict[int, str] = {}
    mailbox: Mailbox | None = None
    for message_id in scenario.message_ids:
        email_id = database.resolve(message_id, scenario.inbox_address)
        if email_id is None:
            known = database.resolve(message_id) is not None
            return None, "gold_mail_not_in_inbox" if known else "gold_mail_not_in_database"
        mailbox = mailbox or database.mailbox(scenario.inbox_address, scenario.query_date)
        mail = mailbox.read(email_id)
        if mail is None:
            return None, "gold_mail_after_query_date"
        named[email_id] = mail.message_id
    return scenario.model_copy(update={"message_ids": tuple(named.values())}), None


def _fraction(*parts: str) -> float:
    """Return a number in [0, 1) that is a hash of `parts`."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
