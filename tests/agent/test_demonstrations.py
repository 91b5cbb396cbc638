"""The choice of demonstrations on the synthetic company."""

from __future__ import annotations

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
