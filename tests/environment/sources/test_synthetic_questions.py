"""The questions of the synthetic company: answerable, but not by search alone."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from environment.email_db import MailDatabase, build_database
from environment.sources.synthetic_names import text
from environment.words import content_words
from tests.environment.generated_company import Company, check_answerable, entity_of, spec_of, states, text_of


def test_every_question_is_answerable(company: Company) -> None:
    for scenario in company.scenarios:
        check_answerable(company, scenario)


def test_test_questions_are_worded_as_no_train_question_is() -> None:
    train = {wording for spec in text()["question"].values() for wording in spec["train"]}
    test = {wording for spec in text()["question"].values() for wording in spec["test"]}
    assert not train & test
    assert all(spec["test"] for spec in text()["question"].values())
    assert all(wording.count("{e}") == 1 for wording in train | test)


def test_kinds(company: Company) -> None:
    kinds = {split: Counter(s.kind for s in company.scenarios if s.split == split) for split in ("train", "test")}
    assert 10 <= len(kinds["train"]) <= 12
    assert min(kinds["train"].values()) >= 0.06 * kinds["train"].total()
    unseen = kinds["test"].keys() - kinds["train"].keys()
    assert Counter(len(text()["question"][kind]["mails"]) for kind in unseen) == {1: 2, 2: 1}
    assert sum(kinds["test"][kind] for kind in unseen) >= 0.08 * kinds["test"].total()
    assert kinds["train"].keys() < kinds["test"].keys()


@pytest.mark.parametrize(("split", "two_mails"), [("train", 0.34), ("test", 0.28)])
def test_shares_of_two_mail_and_corrected_questions(company: Company, split: str, two_mails: float) -> None:
    scenarios = [s for s in company.scenarios if s.split == split]
    assert sum(len(s.message_ids) == 2 for s in scenarios) / len(scenarios) == pytest.approx(two_mails, abs=0.01)

    trapped = before_correction = 0
    for scenario in scenarios:
        topic, kind = entity_of(scenario), spec_of(scenario)["mails"][0]
        stating = [e for e in company.inboxes[scenario.inbox_address] if topic in e.body and states(e, kind)]
        gold = company.gold(scenario)[0]
        trapped += any(e.date < gold.date for e in stating)
        before_correction += any(e.date > scenario.query_date for e in stating)
    assert 0.2 <= trapped / len(scenarios) <= 0.45  # corrections of a second mail are not counted
    assert 0.01 <= before_correction / len(scenarios) <= 0.15


def test_questions_share_few_words_with_gold_mails(company: Company) -> None:
    shared = []
    for scenario in company.scenarios:
        rest = set(content_words(scenario.question)) - set(content_words(entity_of(scenario)))
        shared.append(len(rest & set(content_words(text_of(company.gold(scenario)[-1])))))
    assert sum(shared) / len(shared) < 0.3


def test_no_question_names_its_owner(company: Company) -> None:
    for scenario in company.scenarios:
        first, last = scenario.inbox_address.partition("@")[0].split(".")
        assert f"{first} {last}" not in scenario.question.lower()
        assert "@" not in scenario.question


def test_namesakes_differ_by_department(company: Company) -> None:
    for address in {s.inbox_address for s in company.scenarios}:
        asked = [entity_of(s) for s in company.scenarios if s.inbox_address == address and s.kind == "phone"]
        pair = [entity.partition(" in ") for entity in asked if " in " in entity]
        assert len(pair) == 2
        assert pair[0][0] == pair[1][0]
        assert pair[0][2] != pair[1][2]


def test_quoting_the_sentence_with_the_answer_is_too_long(company: Company) -> None:
    """A quoted sentence is longer than a judge allows: twice the words of the reference and five more."""
    quotable = 0
    for scenario in company.scenarios:
        body = company.gold(scenario)[-1].body
        (sentence, *_) = [s for s in re.split(r"(?<=[.!?])\s+|\n+", body) if scenario.answer in s]
        quotable += len(sentence.split()) <= 2 * len(scenario.answer.split()) + 5
    assert quotable <= 0.05 * len(company.scenarios)


def test_choosing_among_the_hits_is_the_work(company: Company, tmp_path: Path) -> None:
    build_database(company.emails, tmp_path / "mails.sqlite")
    database = MailDatabase(tmp_path / "mails.sqlite")
    for split in ("train", "test"):
        places = []
        for scenario in (s for s in company.scenarios if s.split == split):
            mailbox = database.mailbox(scenario.inbox_address, scenario.query_date)
            hits = [hit.message_id for hit in mailbox.search(content_words(scenario.question), max_results=5)]
            places.append(hits.index(scenario.message_ids[0]) if scenario.message_ids[0] in hits else 5)
        assert 0.72 <= sum(place == 0 for place in places) / len(places) <= 0.85
        assert sum(place < 5 for place in places) / len(places) >= 0.95
