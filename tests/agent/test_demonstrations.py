"""The choice of demonstrations on the synthetic company."""

from __future__ import annotations

import json
from pathlib import Path

from agent.judges.exact import ExactJudge
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase, build_database
from environment.models import Scenario
from environment.sources.synthetic import synthetic_company


def test_questions_of_one_mail_and_of_two_take_turns_as_far_as_there_are_enough(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    scenarios = task.train_scenarios()

    def mails(scenarios: list[Scenario]) -> list[int]:
        of = {scenario.id: len(scenario.message_ids) for scenario in scenarios}
        return [of[str(example.metadata["scenario_id"])] for example in task.demonstrations(scenarios, 8)]

    assert mails(scenarios) == [1, 2, 1, 2, 1, 2, 1, 2]
    two = [scenario for scenario in scenarios if len(scenario.message_ids) == 2]
    one = [scenario for scenario in scenarios if len(scenario.message_ids) == 1]
    assert mails(one + two[:2]) == [1, 2, 1, 2, 1, 1, 1, 1]
    assert mails(one) == [1] * 8


def test_every_other_pair_begins_with_a_mail_read_in_vain_which_is_not_to_be_imitated(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    settings = AgentSettings()
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), settings)
    gold = {scenario.id: task.gold_ids(scenario) for scenario in task.train_scenarios()}
    examples = task.demonstrations(task.train_scenarios(), 40)
    in_vain = []
    for number, example in enumerate(examples):
        messages = [message for message in example.messages_and_choices if isinstance(message, dict)]
        calls = [json.loads(m["content"].split("\n")[1]) for m in messages if m["role"] == "assistant"]
        read = [call["arguments"]["email_id"] for call in calls if call["name"] == "read_email_tool"]
        assert read[-len(gold[example.metadata["scenario_id"]]) :] == gold[example.metadata["scenario_id"]]
        assert len(calls) <= settings.max_turns
        weights = [m.get("weight", 1) for m in messages if m["role"] == "assistant"]
        if 0 in weights:
            assert weights == [1, 0, *[1] * (len(weights) - 2)] and read[0] not in gold[example.metadata["scenario_id"]]
            in_vain.append(number)
    assert in_vain and {number % 4 for number in in_vain} == {2, 3}
    assert len(in_vain) > len(examples) / 8
