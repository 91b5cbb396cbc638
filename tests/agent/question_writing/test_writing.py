"""Batches, resuming, budgets: the way from a mailbox to questions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from agent.question_writing import writing
from agent.question_writing.batches import batches_of, chosen_inboxes
from agent.question_writing.writing import WritingReport, _without_thread
from environment.email_db import MailDatabase, build_database
from environment.errors import BadMail
from tests.agent.question_writing.conftest import prompts
from tests.fakes.question_model import OWNER, QuestionModel, good_reply, room_mails, written
from training.errors import BadInput

Write = Callable[..., WritingReport]
PRICES = {"input_cost_per_token": 1e-4, "output_cost_per_token": 0.0}
"""With these a request costs ten cents."""


def journal(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "replies").glob("*.jsonl")
    return file


def test_every_mail_is_in_one_batch_and_batches_are_stretches_of_time(mails: MailDatabase) -> None:
    batches = batches_of(mails, OWNER, 3, seed=1)
    assert [len(batch.mail_ids) for batch in batches].count(3) == 6
    assert sorted(id for batch in batches for id in batch.mail_ids) == list(range(1, 21))
    assert all(list(batch.mail_ids) == sorted(batch.mail_ids) for batch in batches)
    assert batches == batches_of(mails, OWNER, 3, seed=1) != batches_of(mails, OWNER, 3, seed=2)


def test_inboxes_are_the_named_or_the_largest_ones(mails: MailDatabase) -> None:
    assert chosen_inboxes(mails, ()) == [OWNER]
    assert chosen_inboxes(mails, ("Bob <BOB.RAY@example.com>", "bob.ray@example.com")) == ["bob.ray@example.com"]
    with pytest.raises(BadMail, match="unknown inbox 'nobody@example.com'"):
        chosen_inboxes(mails, ("nobody@example.com",))


def test_it_stops_when_there_are_enough(write: Write, model: QuestionModel) -> None:
    report = write()
    assert (len(report.questions), report.batches, report.stopped, report.rejected) == (12, 6, "enough", {})
    assert len(model.requests) == 6
    assert report.spent.prompt_tokens == 6000
    assert len({question.id for question in report.questions}) == 12


def test_the_mails_run_out(write: Write) -> None:
    report = write(questions_per_inbox=100)
    assert (len(report.questions), report.batches, report.stopped) == (20, 10, "mails")


def test_the_limit_is_that_of_each_inbox(write: Write) -> None:
    report = write(questions_per_inbox=2, question_inboxes=(OWNER, "bob.ray@example.com"))
    assert sorted(question.inbox_address for question in report.questions) == [OWNER] * 2 + ["bob.ray@example.com"] * 2


def test_rejected_questions_are_counted(write: Write, model: QuestionModel) -> None:
    def reply(case: dict[str, Any]) -> str:
        first, second = case["mails"]
        questions = [written(first), written(first), written(second, answer="B999"), written(second, mail_ids=[999])]
        return json.dumps({"questions": questions})

    model.reply = reply
    report = write(questions_per_inbox=10)
    assert len(report.questions) == 10
    assert report.rejected["answer_not_in_mail"] == report.rejected["mail_not_in_batch"] == 9
    assert report.rejected["duplicate"] >= 9


def test_a_killed_run_resumes_without_paying_twice(write: Write, model: QuestionModel, tmp_path: Path) -> None:
    whole = write()
    asked = prompts(model)
    content = journal(tmp_path).read_bytes()
    journal(tmp_path).write_bytes(b"".join(content.splitlines(keepends=True)[:4]) + b'{"request": "ab')
    model.requests.clear()

    resumed = write()
    assert resumed == whole
    assert len(model.requests) == 2 and set(prompts(model)) < set(asked)
    model.requests.clear()
    assert write() == whole and model.requests == []


def test_an_unreachable_model_ends_the_run_and_keeps_the_questions(write: Write, model: QuestionModel) -> None:
    model.reply = lambda case: good_reply(case) if len(model.requests) <= 3 else 500
    with pytest.raises(BadInput, match="resumes after the last finished batch"):
        write()
    before = prompts(model)[:3]
    model.requests.clear()
    model.reply = good_reply
    assert len(write().questions) == 12
    assert len(model.requests) == 3 and not set(before) & set(prompts(model))


def test_other_checks_over_the_same_replies_cost_nothing(
    write: Write, model: QuestionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.reply = lambda case: json.dumps(
        {"questions": [written(mail, how_realistic=0.3 + 0.4 * (mail["id"] % 2)) for mail in case["mails"]]}
    )
    strict = write(questions_per_inbox=100)
    assert (len(strict.questions), strict.rejected) == (10, {"unrealistic": 10})
    model.requests.clear()
    monkeypatch.setattr(writing, "MIN_REALISM", 0.0)
    assert len(write(questions_per_inbox=100).questions) == 20
    assert model.requests == []


def test_a_batch_without_a_usable_reply_is_counted_and_asked_about_again(write: Write, model: QuestionModel) -> None:
    bad = {"left": 4}

    def reply(case: dict[str, Any]) -> str:
        if "review number 1 " in case["mails"][0]["text"] and bad["left"]:
            bad["left"] -= 1
            return "I would rather not."
        return good_reply(case)

    model.reply = reply
    report = write(questions_per_inbox=20)
    assert (len(report.questions), report.batches, report.unusable, report.stopped) == (18, 9, 1, "mails")
    assert report.spent.prompt_tokens == 11_000
    again = write(questions_per_inbox=20)
    assert again.unusable == 1 and again.spent.prompt_tokens == 13_000
    last = write(questions_per_inbox=20)
    assert len(last.questions) == 20 and last.spent.prompt_tokens == 14_000


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (lambda case: "no JSON at all", "8 batches without a JSON reply"),
        (lambda case: '{"questions": []}', "it wrote none"),
        (
            lambda case: json.dumps({"questions": [written(mail, mail_ids=[]) for mail in case["mails"]]}),
            "16 no_mail_cited",
        ),
    ],
)
def test_a_model_that_writes_nothing_usable_is_given_up(
    write: Write,
    model: QuestionModel,
    reply: Callable[[dict[str, Any]], str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writing, "CONCURRENT_BATCHES", 1)
    model.reply = reply
    with pytest.raises(BadInput, match="no usable question about 8 batches") as caught:
        write(questions_per_inbox=100)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_the_budget_is_not_passed(write: Write, model: QuestionModel) -> None:
    report = write(question_model="openai/priced", max_cost=0.45, extra_litellm_params=PRICES)
    assert (report.batches, report.stopped, len(model.requests)) == (4, "max_cost", 4)
    assert report.spent.cost == pytest.approx(0.4)
    more = write(question_model="openai/priced", max_cost=1.0, extra_litellm_params=PRICES)
    assert (more.batches, more.stopped, len(model.requests)) == (6, "enough", 6)


def test_retries_of_unusable_replies_do_not_pass_the_budget(
    write: Write, model: QuestionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.llm_client.ATTEMPTS", 6)
    priced = {"question_model": "openai/priced", "max_cost": 0.45, "extra_litellm_params": PRICES}
    model.reply = lambda case: good_reply(case) if len(model.requests) == 1 else "no JSON"
    report = write(**priced)
    assert (report.batches, report.unusable, report.stopped, len(model.requests)) == (1, 3, "max_cost", 4)
    assert report.spent.cost == pytest.approx(0.4)


def test_later_runs_do_not_pass_the_budget_with_the_same_batch(
    write: Write, model: QuestionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.llm_client.ATTEMPTS", 6)
    model.reply = lambda case: "no JSON"
    for requests in (2, 3, 3):
        with pytest.raises(BadInput, match="no usable question"):
            write(question_model="openai/priced", max_cost=0.25, extra_litellm_params=PRICES)
        assert len(model.requests) == requests


@pytest.mark.parametrize("reply", [good_reply, lambda case: "no JSON"])
def test_a_budget_without_a_price_is_refused_after_one_request(
    write: Write, model: QuestionModel, reply: Callable[[dict[str, Any]], str]
) -> None:
    model.reply = reply
    with pytest.raises(BadInput, match="knows no price of openai/own"):
        write(max_cost=1.0)
    assert len(model.requests) == 1


def test_two_runs_do_not_write_the_same_file(write: Write, tmp_path: Path) -> None:
    write()
    with FileLock(journal(tmp_path).with_suffix(".lock")), pytest.raises(BadInput, match="another run"):
        write()


def test_a_damaged_file_of_replies_is_named(write: Write, tmp_path: Path) -> None:
    write()
    lines = journal(tmp_path).read_bytes().splitlines(keepends=True)
    journal(tmp_path).write_bytes(lines[0] + b"{}\n" + lines[1])
    with pytest.raises(BadInput, match="line 2 is damaged"):
        write()


def test_new_mail_asks_about_new_mail_only(write: Write, model: QuestionModel, tmp_path: Path) -> None:
    write(questions_per_inbox=100)
    model.requests.clear()
    build_database(room_mails(22), tmp_path / "later.sqlite")
    report = write(MailDatabase(tmp_path / "later.sqlite"), questions_per_inbox=100)
    assert len(report.questions) == 22
    (asked,) = prompts(model)
    assert "number 21 " in asked and "number 22 " in asked


def test_new_mail_in_the_first_folder_leaves_the_other_requests_as_they_are(
    write: Write, model: QuestionModel, tmp_path: Path
) -> None:
    *mails, newest = room_mails(21)
    first, second = mails[::2], mails[1::2]
    build_database([*first, *second], tmp_path / "before.sqlite")
    before = write(MailDatabase(tmp_path / "before.sqlite"), questions_per_inbox=100)
    model.requests.clear()
    build_database([*first, newest, *second], tmp_path / "after.sqlite")
    after = write(MailDatabase(tmp_path / "after.sqlite"), questions_per_inbox=100)
    assert len(model.requests) == 1 and "number 21 " in prompts(model)[0]
    kept = {question.id: question for question in after.questions}
    assert len(kept) == 21 and all(kept[question.id] == question for question in before.questions)


def test_the_writer_sees_no_numbers_of_another_kind() -> None:
    head = "From: ann\nSubject: Thread: 7"
    assert _without_thread(f"{head}\nThread: 3, 4\n\nThread: 5 is the body") == f"{head}\n\nThread: 5 is the body"
