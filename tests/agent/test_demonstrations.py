"""The choice of demonstrations on the synthetic company."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from agent.judges.exact import ExactJudge
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from environment.email_db import MailDatabase, build_database
from environment.models import Scenario
from environment.sources.synthetic import synthetic_company


def test_each_number_of_mails_is_shown_as_often_as_far_as_there_are_enough(tmp_path: Path) -> None:
    company = synthetic_company(train_inboxes=2, test_inboxes=1)
    build_database(company.emails(), tmp_path / "mails.sqlite")
    task = EmailSearchTask(MailDatabase(tmp_path / "mails.sqlite"), company.scenarios(), ExactJudge(), AgentSettings())
    scenarios = task.train_scenarios()

    def mails(limit: int, scenarios: list[Scenario]) -> Counter[int]:
        of = {scenario.id: len(scenario.message_ids) for scenario in scenarios}
        return Counter(of[example.metadata["scenario_id"]] for example in task.demonstrations(scenarios, limit))

    assert mails(8, scenarios) == {1: 4, 2: 4}
    two = [scenario for scenario in scenarios if len(scenario.message_ids) == 2]
    one = [scenario for scenario in scenarios if len(scenario.message_ids) == 1]
    assert mails(8, one + two[:2]) == {1: 6, 2: 2}
    assert mails(8, one) == {1: 8}
