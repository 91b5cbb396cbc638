"""Tasks, and episodes of a hosted model that is scripted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.workbench.episode import Limits
from tasks.workbench.plugin import PLUGIN
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office
from tasks.workbench.task import WorkbenchTask
from tests.fakes.policy import ScriptedPolicy, Turn
from tests.tasks.workbench.office import write_office
from training.task import HasDecisions, TellsKinds

LIMITS = Limits(max_turns=7, max_tokens=64)
LOOK: Turn = ("email__search_emails", {"query": "ann"})
RIGHT: Turn = ("email__delete_email", {"email_id": "00000003"})
WRONG: Turn = ("email__delete_email", {"email_id": "00000001"})
DONE: Turn = "Done."


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_office(tmp_path_factory.mktemp("workbench") / "office")


@pytest.fixture(scope="module")
def task(office: Path) -> WorkbenchTask:
    return WorkbenchTask(*load_office(WorkbenchSettings(folder=str(office))), LIMITS)


@pytest.fixture
def server() -> Iterator[ScriptedPolicy]:
    with ScriptedPolicy() as started:
        yield started


def first(task: WorkbenchTask) -> WorkbenchScenario:
    return next(scenario for scenario in task.scenarios if scenario.id == "email-0")


@pytest.mark.parametrize("seed", range(5))
def test_train_and_held_out_tasks_share_no_template(office: Path, seed: int) -> None:
    _, scenarios = load_office(WorkbenchSettings(folder=str(office), template_seed=seed))
    sides = {split: {s.template for s in scenarios if s.split == split} for split in ("train", "test")}
    assert sides["train"] and sides["test"] and not sides["train"] & sides["test"]
    assert {scenario.kind for scenario in scenarios} == {"email", "calendar", "multi_domain"}


@pytest.mark.parametrize(("share", "held_out"), [(0, 0), (1, 8)])
def test_all_or_no_templates_can_be_held_out(office: Path, share: float, held_out: int) -> None:
    _, scenarios = load_office(WorkbenchSettings(folder=str(office), held_out_templates=share))
    assert sum(scenario.split == "test" for scenario in scenarios) == held_out


def test_the_folder_may_be_named_from_the_users_home(office: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(office.parent))
    here, from_home = (WorkbenchSettings(folder=folder) for folder in (str(office), "~/office"))
    scenarios = load_office(from_home)[1]
    assert scenarios == load_office(here)[1]
    assert PLUGIN.identity(from_home, scenarios) == PLUGIN.identity(here, scenarios)


@pytest.mark.parametrize(
    ("replies", "correct", "outcome"),
    [
        ([LOOK, RIGHT, DONE], True, "finished"),
        ([[LOOK, RIGHT], DONE], True, "finished"),
        ([DONE], False, "finished"),
        ([WRONG, DONE], False, "side_effects"),
        ([RIGHT, WRONG, DONE], False, "side_effects"),
        (["<tool_call> {"], False, "malformed_call"),
        ([RIGHT, *[LOOK] * 6], False, "max_turns"),
        ([("email__erase", {}), ("email__delete_email", {"id": "1"}), RIGHT, DONE], True, "finished"),
    ],
)
def test_the_outcome_is_judged(
    task: WorkbenchTask, server: ScriptedPolicy, replies: list[Turn], correct: bool, outcome: str
) -> None:
    server.replies = list(replies)
    attempt = asyncio.run(task.attempt(server.policy, first(task), hosted=True))
    assert (attempt.correct, attempt.outcome) == (correct, outcome)
    assert attempt.turns == len(replies) and not server.replies


def test_an_unknown_tool_is_named_to_the_model(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email__erase", {}), DONE]
    asyncio.run(task.run(server.policy, first(task), hosted=True))
    assert server.requests[-1]["messages"][-1]["content"] == "Invalid call: there is no tool email.erase."


def test_half_of_a_character_is_no_argument(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email__send_email", {"recipient": "a@b.c", "subject": "a", "body": "\ud83d"}), DONE]
    episode = asyncio.run(task.run(server.policy, first(task), hosted=True))
    assert episode.outcome == "finished" and not task.verdict(episode).side_effects
    assert server.requests[-1]["messages"][-1]["content"] == "The arguments are no JSON object."


def test_another_policys_programs_and_published_runs_do_not_change_what_is_trained(
    office: Path, tmp_path: Path
) -> None:
    folder = write_office(tmp_path / "office")
    settings = WorkbenchSettings(folder=str(folder), exercises=2)
    before = PLUGIN.scenarios(settings)
    trained_on, evaluated = PLUGIN.identity(settings, before), PLUGIN.evaluation_identity(settings, before)
    after = [scenario.model_copy(update={"second_opinion": "x = 1"}) for scenario in before]
    assert PLUGIN.identity(settings, after) == trained_on
    assert PLUGIN.evaluation_identity(settings, after) != evaluated
    (published,) = folder.glob("published/*.csv")
    published.write_text(published.read_text() + "\n")
    assert PLUGIN.identity(settings, before) == trained_on
    assert PLUGIN.evaluation_identity(settings, before) != evaluated


def test_a_hosted_model_gets_names_without_dots(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email__delete_email", {"email_id": "00000003"}), DONE]
    episode = asyncio.run(task.run(server.policy, first(task), hosted=True))
    assert task.verdict(episode).correct and episode.calls[0].name == "email.delete_email"
    assert all("." not in tool["function"]["name"] for tool in server.requests[0]["tools"])
    assert server.requests[1]["messages"][-2]["tool_calls"][0]["function"]["name"] == "email__delete_email"


def test_it_has_kinds_and_decisions(task: WorkbenchTask) -> None:
    assert isinstance(task, TellsKinds) and isinstance(task, HasDecisions)
    assert [task.is_open(scenario, ["program"]) for scenario in task.scenarios].count(True) == 1
