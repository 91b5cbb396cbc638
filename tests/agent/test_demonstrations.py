"""The choice of demonstrations on the synthetic company."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from agent.demonstrations import can_be_told, named_words, play_oracle
from agent.judges.exact import ExactJudge
from agent.settings import AgentSettings, DemonstrationSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase, build_database
from environment.models import Scenario
from environment.scenarios import open_scenario
from environment.sources.synthetic import synthetic_company
from environment.words import content_words


def test_questions_of_one_mail_and_of_two_take_turns_as_far_as_there_are_enough(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    scenarios = task.train_scenarios()

    def mails(scenarios: list[Scenario]) -> list[int]:
        of = {scenario.id: len(scenario.message_ids) for scenario in scenarios}
        return [of[str(example.metadata["scenario_id"])] for example in task.demonstrations(scenarios, 8)]

    assert mails(scenarios) == [1, 2, 1, 2, 1, 2, 1, 2]
    two = [scenario for scenario in scenarios if len(scenario.message_ids) == 2 and task.demonstrations([scenario], 1)]
    one = [scenario for scenario in scenarios if len(scenario.message_ids) == 1]
    assert mails(one + two[:2]) == [1, 2, 1, 2, 1, 1, 1, 1]
    assert mails(one) == [1] * 8


def test_the_kinds_of_training_are_numbers_of_mails(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=1, test_inboxes=0)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    assert {task.kind(scenario) for scenario in task.train_scenarios()} == {"1 mails", "2 mails"}


def test_demonstrated_queries_follow_from_what_the_agent_has_seen(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    show = DemonstrationSettings(name_queries=0.5, max_wrong_reads=1)
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    followed, by_name, in_vain = 0, 0, 0
    for scenario in task.train_scenarios():
        mailbox, gold_ids = open_scenario(scenario, task.database)
        run = play_oracle(scenario, mailbox, gold_ids, task.settings, hindsight=False, show=show)
        if run.answer is None:
            continue
        followed += 1
        query = run.calls[0].arguments["keywords"][0]
        named = query.lower().split() == named_words(scenario.question)
        assert named or query == scenario.question
        by_name += named
        seen = scenario.question
        for call in run.calls:
            if call.name == "search_inbox_tool":
                words = content_words(call.arguments["keywords"][0])
                assert all(word in content_words(seen) for word in words), (seen, words)
                hits = list(call.email_ids)
            elif call.name == "read_email_tool":
                assert call.email_ids == [hits.pop(0)]
                in_vain += call.email_ids[0] not in gold_ids
            seen += f"\n{call.observation}"
        assert run.answer.answer in run.calls[-2].observation
    assert 0.7 * len(task.train_scenarios()) < followed < len(task.train_scenarios())
    assert 0.25 < by_name / followed < 0.6
    assert 0.05 < in_vain / followed < 0.4


def test_an_answer_follows_from_question_and_mail_or_is_not_demonstrated() -> None:
    mail = "Hi all,\n\nthe review moves to Tuesday at 15:00, bring the Heron figures. Room 4B is taken."
    question = "When does the committee meet?"
    assert can_be_told("15:00", question, mail)
    assert can_be_told("The committee meets on Tuesday at 15:00.", question, mail)
    assert not can_be_told("The committee meets on Wednesday at 15:00.", question, mail)
    assert not can_be_told("15:00", question, "")


def test_the_warm_start_is_made_of_episodes_without_hindsight(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=1, test_inboxes=0)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    scenarios = [
        scenario.model_copy(update={"answer": "words that no mail says"}) for scenario in task.train_scenarios()
    ]
    assert task.demonstrations(scenarios, 8) == []
    assert task.oracle(scenarios[0]).answer is not None


def test_no_demonstrated_answer_is_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    company = synthetic_company(train_inboxes=1, test_inboxes=0)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())

    def longest() -> int:
        runs = [task.oracle(scenario, hindsight=False) for scenario in task.train_scenarios()]
        return max(len(run.answer.answer.split()) for run in runs if run.answer)

    assert longest() > 1
    monkeypatch.setattr("agent.demonstrations.MAX_ANSWER_WORDS", 1)
    assert longest() == 1


def test_the_share_of_demonstrations_that_search_for_names_is_a_setting(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=1, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")

    def queries(name_queries: float) -> list[tuple[str, str]]:
        database = MailDatabase(tmp_path / "mails.sqlite")
        task = EmailSearchTask(
            database,
            company.scenarios(),
            ExactJudge(),
            AgentSettings(),
            show=DemonstrationSettings(name_queries=name_queries),
        )
        runs = [(scenario.question, task.oracle(scenario, hindsight=False)) for scenario in task.train_scenarios()]
        return [(question, run.calls[0].arguments["keywords"][0]) for question, run in runs if run.calls]

    assert all(query == question for question, query in queries(0.0))
    assert all(
        query.lower().split() == named_words(question) for question, query in queries(1.0) if named_words(question)
    )


def test_how_many_mails_a_demonstration_opens_in_vain_is_a_setting(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=1, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")

    def in_vain(max_wrong_reads: int) -> set[int]:
        """Of the finished demonstrations of questions with one mail, the numbers of mails that they open before it."""
        database = MailDatabase(tmp_path / "mails.sqlite")
        show = DemonstrationSettings(name_queries=0, max_wrong_reads=max_wrong_reads)
        task = EmailSearchTask(database, company.scenarios(), ExactJudge(), AgentSettings(), show=show)
        single = [scenario for scenario in task.train_scenarios() if len(scenario.message_ids) == 1]
        runs = [task.oracle(scenario, hindsight=False) for scenario in single]
        return {sum(call.name == "read_email_tool" for call in run.calls) - 1 for run in runs if run.answer}

    assert [in_vain(reads) for reads in (0, 1)] == [{0}, {0, 1}]


def test_which_hit_a_demonstration_opens_is_a_setting(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=0)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    database = MailDatabase(tmp_path / "mails.sqlite")

    def demonstrated(hits: str) -> tuple[Counter[int], set[int]]:
        """Return the numbers of the mails that are opened after the first search, and how many are read per mail cited."""
        show = DemonstrationSettings(name_queries=0, demonstrated_hits=hits)
        settings = AgentSettings(passage_chars=350)
        task = EmailSearchTask(database, company.scenarios(), ExactJudge(), settings, show=show)
        opened: Counter[int] = Counter()
        in_vain = set()
        for example in task.demonstrations(task.train_scenarios(), 300):
            calls = [
                json.loads(turn["content"].split("\n")[1])
                for turn in example.messages_and_choices
                if turn["role"] == "assistant"
            ]
            opened[calls[1]["arguments"]["email_id"]] += 1
            reads = sum(call["name"] == "read_email_tool" for call in calls)
            in_vain.add(reads - len(calls[-1]["arguments"]["source_ids"]))
            shown = example.messages_and_choices[3]["content"].splitlines()
            assert [line.split(" | ")[0] for line in shown] == [str(place + 1) for place in range(len(shown))]
        return opened, in_vain

    first, gold, even = (demonstrated(hits) for hits in ("first", "gold", "even"))
    assert first[0].keys() == {1} and first[1] == gold[1] == even[1] == {0}
    assert gold[0].keys() == {1, 2, 3} and gold[0][1] == first[0][1] > gold[0][2] + gold[0][3]
    assert even[0].total() == gold[0].total() and min(even[0].values()) > 0.25 * even[0].total()


def test_the_oracle_of_the_evaluation_sees_what_the_agent_sees(
    database: MailDatabase, two_mail_question: Scenario
) -> None:
    one_mail = two_mail_question.model_copy(
        update={"question": "How can I reach Dana Voss?", "message_ids": two_mail_question.message_ids[1:]}
    )
    mailbox, gold_ids = open_scenario(one_mail, database)
    runs = [
        play_oracle(
            one_mail,
            mailbox,
            gold_ids,
            AgentSettings(),
            hindsight=hindsight,
            show=DemonstrationSettings(demonstrated_hits=hits),
        ).calls
        for hindsight, hits in ((True, "first"), (True, "even"), (False, "gold"))
    ]
    assert runs[0] == runs[1]
    assert runs[2][0].email_ids == [hit.id for hit in mailbox.search(runs[2][0].arguments["keywords"])]
