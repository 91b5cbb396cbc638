"""The synthetic company is reproducible, split cleanly and of any size."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environment.errors import BadMail
from environment.sources.synthetic import mails_needed, synthetic_company
from tests.environment.generated_company import NAME_FORM, Company, check_answerable, entity_of, text_of

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.service
def test_same_company_in_processes_that_hash_differently() -> None:
    script = (
        "import hashlib\n"
        "from environment.sources.synthetic import synthetic_company\n"
        "company = synthetic_company(3, train_inboxes=2, test_inboxes=2)\n"
        "text = ''.join(m.model_dump_json() for m in (*company.emails(), *company.scenarios()))\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "4242")
    }
    assert len(digests) == 1


def test_seed_changes_everything_and_size_keeps_inboxes() -> None:
    one, other = synthetic_company(1, 1, 1), synthetic_company(2, 1, 1)
    assert not {s.question for s in one.scenarios()} & {s.question for s in other.scenarios()}
    larger = synthetic_company(1, 3, 1)
    assert [s for s in larger.scenarios() if s.id.startswith("train-0000")] == one.scenarios()[:64]


def test_sizes(company: Company) -> None:
    assert Counter(s.split for s in company.scenarios) == {"train": 8 * 64, "test": 4 * 64}
    for address in {s.inbox_address for s in company.scenarios}:
        assert len(company.inboxes[address]) == 180
        assert Counter(s.inbox_address for s in company.scenarios)[address] == 64


def test_message_ids_and_mails_are_unique(company: Company) -> None:
    assert len(company.by_id) == len(company.emails)
    copies = Counter((e.subject, e.body, e.from_address) for e in company.emails)
    assert max(copies.values()) == 1
    assert len({s.id for s in company.scenarios}) == len(company.scenarios)
    questions = Counter((s.inbox_address, s.question) for s in company.scenarios)
    assert max(questions.values()) == 1


def test_everything_is_fictional_and_addressed(company: Company) -> None:
    for email in company.emails:
        addresses = (email.from_address, *email.to_addresses, *email.cc_addresses)
        assert email.to_addresses
        assert len(addresses) == len(set(addresses)) <= 30
        assert all(re.fullmatch(r"[a-z.]+@kestrel-loam\.example", address) for address in addresses)
        assert email.message_id.endswith("@kestrel-loam.example>")
        assert not re.search(r"[{}]", text_of(email))


def test_train_and_test_share_no_mail_and_no_name(company: Company) -> None:
    owners = {s.inbox_address: s.split for s in company.scenarios}
    written = {"train": "", "test": ""}
    for email in company.emails:
        splits = {owners[a] for a in (email.from_address, *email.to_addresses, *email.cc_addresses) if a in owners}
        assert len(splits) == 1
        written[splits.pop()] += text_of(email)
    names: dict[str, set[str]] = {"train": set(), "test": set()}
    for scenario in company.scenarios:
        names[scenario.split] |= set(re.findall(NAME_FORM, f"{entity_of(scenario)} {scenario.answer}"))
    for split, other in (("train", "test"), ("test", "train")):
        assert len(names[split]) > 100
        assert not [name for name in names[split] if name in written[other]]


def test_mails_are_short(company: Company) -> None:
    words = sorted(len(email.body.split()) for email in company.emails)
    assert 25 <= median(words) <= 45
    assert words[int(0.9 * len(words))] <= 70
    assert words[-1] <= 250


def test_dates_are_working_days_within_half_a_year_and_some_of_the_year_before(company: Company) -> None:
    dates = [email.date for email in company.emails]
    assert all(date.weekday() < 5 and date.tzinfo is None for date in dates)
    for year in {date.year for date in dates}:
        of_year = [date for date in dates if date.year == year]
        assert (max(of_year) - min(of_year)).days <= 190
    assert 0.05 < sum(date.year == min(dates).year for date in dates) / len(dates) < 0.15


def test_size_costs_time_in_proportion() -> None:
    def seconds(train: int, test: int) -> float:
        gc.disable()  # else it collects what other tests have left
        started = time.thread_time()
        company = synthetic_company(train_inboxes=train, test_inboxes=test)
        assert sum(1 for _ in company.emails()) >= 178 * (train + test)
        assert len(company.scenarios()) == 64 * (train + test)
        took = time.thread_time() - started
        gc.enable()
        return took

    assert seconds(24, 8) < 3 * 4 * seconds(6, 2)


def test_huge_mailboxes_do_not_run_out_of_words() -> None:
    small_talk = Company(synthetic_company(0, 1, 1, mails_per_inbox=3000, questions_per_inbox=2))
    for address in {s.inbox_address for s in small_talk.scenarios}:
        assert len(small_talk.inboxes[address]) == 3000
    busy = synthetic_company(0, 0, 1, mails_per_inbox=mails_needed(400), questions_per_inbox=400)
    assert len(busy.scenarios()) == 400


@settings(max_examples=25)
@example(
    seed=4347, train=0, test=4, questions=2, spare=0
)  # a colleague in one inbox was called like the owner of another
@given(
    seed=st.integers(-(2**40), 2**40),
    train=st.integers(0, 2),
    test=st.integers(0, 9),
    questions=st.integers(1, 40),
    spare=st.integers(0, 30),
)
def test_any_seed_and_size(seed: int, train: int, test: int, questions: int, spare: int) -> None:
    if train + test == 0:
        train = 1
    mails = mails_needed(questions) + spare
    made = Company(synthetic_company(seed, train, test, mails, questions))
    assert len(made.scenarios) == (train + test) * questions
    assert len(made.by_id) == len(made.emails)
    for address in {s.inbox_address for s in made.scenarios}:
        assert len(made.inboxes[address]) == mails
    for scenario in made.scenarios:
        check_answerable(made, scenario)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [
        ({"train_inboxes": -1}, "train_inboxes"),
        ({"test_inboxes": 10**6}, "test_inboxes"),
        ({"train_inboxes": 0, "test_inboxes": 0}, "at least one inbox"),
        ({"questions_per_inbox": 0}, "questions_per_inbox"),
        ({"questions_per_inbox": 401, "mails_per_inbox": 10_000}, "questions_per_inbox"),
        ({"mails_per_inbox": mails_needed(64) - 1}, f"at least {mails_needed(64)}"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, int], named: str) -> None:
    with pytest.raises(BadMail, match=named):
        synthetic_company(**sizes)


def test_owners_differ_up_to_the_limit() -> None:
    company = synthetic_company(7, train_inboxes=1000, test_inboxes=1000)
    owners = [company.owner(split, n) for split in ("train", "test") for n in range(1000)]
    assert len(set(owners)) == 2000
