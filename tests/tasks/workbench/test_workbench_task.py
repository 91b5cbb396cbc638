"""Tasks, demonstrations, episodes and single replies, with a scripted policy."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.workbench.demonstrations import demonstrate
from tasks.workbench.episode import Limits
from tasks.workbench.judge import Call
from tasks.workbench.plugin import PLUGIN
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office
from tasks.workbench.task import WorkbenchTask
from tests.fakes.policy import ScriptedPolicy, Turn
from tests.fakes.server import Answer, Request
from tests.tasks.workbench.office import write_office
from training.task import CALL_SEQUENCE, DECISION, HasDecisions, TellsKinds

LIMITS = Limits(max_turns=7, max_tokens=64, max_context=2000)
LOOK: Turn = ("email.search_emails", {"query": "ann"})
RIGHT: Turn = ("email.delete_email", {"email_id": "00000003"})
WRONG: Turn = ("email.delete_email", {"email_id": "00000001"})
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


def test_demonstrations_look_up_what_the_question_does_not_say(task: WorkbenchTask) -> None:
    shown = {
        trajectory.metadata["question"]: [name for name, _ in json.loads(trajectory.metadata[CALL_SEQUENCE])]
        for trajectory in task.demonstrations(task.scenarios, 100)
    }
    assert shown["Delete my last email from ann"] == ["email.search_emails", "email.delete_email"]
    assert shown["Forward my last email from bob to ann"] == [
        "email.search_emails",
        "company_directory.find_email_address",
        "email.forward_email",
    ]
    several = shown["Make Kim Day a won customer and move all of bob's tasks in review to completed"]
    assert several[-2:] == ["customer_relationship_manager.update_customer", "project_management.update_task"]
    assert "project_management.search_tasks" in several
    assert "Cancel the meetings on Sunday" not in shown  # it would show that nothing need be looked up


@pytest.mark.parametrize(
    ("question", "toolkit", "reference", "looked_up"),
    [
        (
            "Cancel my meetings on Monday",
            "calendar",
            Call("calendar.delete_event", {"event_id": "00000003"}),
            [("calendar.search_events", {"time_min": "2023-12-04 00:00:00", "time_max": "2023-12-04 23:59:59"})],
        ),
        (
            "Give all of bob's tasks in review to ann",
            "project_management",
            Call(
                "project_management.update_task",
                {"task_id": "00000002", "field": "assigned_to_email", "new_value": "ann.lee@atlas.com"},
            ),
            [
                ("company_directory.find_email_address", {"name": "bob"}),
                (
                    "project_management.search_tasks",
                    {"assigned_to_email": "bob.ray@atlas.com", "list_name": "In Review"},
                ),
                ("company_directory.find_email_address", {"name": "ann"}),
            ],
        ),
    ],
)
def test_a_demonstration_looks_up_nothing_else(
    task: WorkbenchTask, question: str, toolkit: str, reference: Call, looked_up: list[Call]
) -> None:
    asked = {"question": question, "toolkits": (toolkit,), "reference": (reference,)}
    shown = demonstrate(task.tables, first(task).model_copy(update=asked), LIMITS)
    assert shown.calls == [*looked_up, reference]


def test_a_demonstration_takes_names_and_months_as_they_are_written(office: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(office, tmp_path / "office")
    with (folder / "email_addresses.csv").open("a") as file:
        file.write("(c.d@atlas.com\n")
    tables, scenarios = load_office(WorkbenchSettings(folder=str(folder)))
    scenario = next(scenario for scenario in scenarios if scenario.id == "email-0")
    asked = {"question": "Cancel my first event on January 3", "toolkits": ("calendar",), "reference": ()}
    assert demonstrate(tables, scenario.model_copy(update=asked), LIMITS).calls == []


@pytest.mark.parametrize("seed", range(5))
def test_few_demonstrations_show_every_template_once(office: Path, seed: int) -> None:
    task = WorkbenchTask(*load_office(WorkbenchSettings(folder=str(office))), LIMITS, seed)
    template = {scenario.question: scenario.template for scenario in task.scenarios}
    templates = {template[trajectory.metadata["question"]] for trajectory in task.demonstrations(task.scenarios, 100)}
    few = [trajectory.metadata["question"] for trajectory in task.demonstrations(task.scenarios, len(templates))]
    assert sorted(template[question] for question in few) == sorted(templates)


@pytest.mark.parametrize("seed", range(5))
def test_few_demonstrations_show_as_many_tasks_of_several_calls_as_of_one(office: Path, seed: int) -> None:
    task = WorkbenchTask(*load_office(WorkbenchSettings(folder=str(office))), LIMITS, seed)
    same_template = [scenario.model_copy(update={"template": "the same"}) for scenario in task.scenarios]
    calls = {scenario.question: len(scenario.reference) for scenario in same_template}
    few = task.demonstrations(same_template, 2)
    assert sorted(calls[trajectory.metadata["question"]] for trajectory in few) == [1, 2]


def test_a_demonstration_that_cannot_know_an_id_is_left_out(task: WorkbenchTask) -> None:
    secret = first(task).model_copy(update={"question": "Delete that email"})
    assert task.demonstrations([secret], 5) == []


@pytest.mark.parametrize(
    ("replies", "reward", "outcome", "side_effects"),
    [
        ([LOOK, RIGHT, DONE], 1.0, "finished", False),
        ([[LOOK, RIGHT], DONE], 1.0, "finished", False),
        ([DONE], 0.0, "finished", False),
        ([WRONG, DONE], -0.5, "finished", True),
        ([RIGHT, WRONG, DONE], -0.5, "finished", True),
        (["<tool_call> {"], -0.2, "malformed_call", False),
        ([RIGHT, *[LOOK] * 6], 0.0, "max_turns", False),
        ([("email.erase", {}), ("email.delete_email", {"id": "1"}), RIGHT, DONE], 1.0, "finished", False),
    ],
)
def test_the_outcome_is_the_reward(
    task: WorkbenchTask, server: ScriptedPolicy, replies: list[Turn], reward: float, outcome: str, side_effects: bool
) -> None:
    server.replies = list(replies)
    trajectory = asyncio.run(task.rollout(server.policy, first(task)))
    assert (trajectory.reward, trajectory.metadata["outcome"]) == (reward, outcome)
    assert bool(trajectory.metrics["side_effects"]) == side_effects
    assert trajectory.metrics["turns"] == len(replies) and not server.replies
    sampled = [turn for turn in trajectory.messages_and_choices if not isinstance(turn, dict)]
    assert len(sampled) == len(replies)


def test_an_unknown_tool_is_named_to_the_policy(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email.erase", {}), DONE]
    asyncio.run(task.rollout(server.policy, first(task)))
    assert server.requests[-1]["messages"][-1]["content"] == "Invalid call: there is no tool email.erase."


def test_half_of_a_character_is_no_argument(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email.send_email", {"recipient": "a@b.c", "subject": "a", "body": "\ud83d"}), DONE]
    trajectory = asyncio.run(task.rollout(server.policy, first(task)))
    assert trajectory.metadata["outcome"] == "finished" and not trajectory.metrics["side_effects"]
    assert server.requests[-1]["messages"][-1]["content"] == "The arguments are no JSON object."


def test_an_observation_that_does_not_fit_ends_the_episode(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    small = WorkbenchTask(task.tables, task.scenarios, LIMITS.model_copy(update={"max_context": 150}))
    server.replies = [LOOK]
    trajectory = asyncio.run(small.rollout(server.policy, first(task)))
    assert trajectory.metadata["outcome"] == "context" and trajectory.reward == 0.0


class GreedyByRule(ScriptedPolicy):
    """Samples the next of `replies`. Greedily it deletes the right email once it has seen it, and then it is done."""

    def respond(self, request: Request) -> Answer:
        asked = request.json() if request.method == "POST" else {}
        if asked.get("temperature") != 0:
            return super().respond(request)
        one = ScriptedPolicy()
        seen = asked["messages"][-1]["content"]
        one.replies = [RIGHT if "00000003 | " in seen else DONE]
        return one.respond(request)


@pytest.mark.parametrize(
    ("replies", "rewards"),
    [
        ([LOOK, WRONG, RIGHT, DONE, DONE, WRONG], [[1.0, -0.5], [1.0, 0.0], [1.0, -0.5]]),
        ([LOOK, LOOK, RIGHT, RIGHT, DONE, DONE], [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
        ([DONE, WRONG], [[0.0, -0.5]]),  # no reply leads to the right outcome
    ],
)
def test_replies_are_compared_by_where_they_lead(
    task: WorkbenchTask, replies: list[Turn], rewards: list[list[float]]
) -> None:
    with GreedyByRule() as server:
        server.replies = list(replies)
        groups = asyncio.run(task.decide(server.policy, first(task), ["call"], 2, 2, continued=True))
        assert not server.replies
    assert [[t.reward for t in group.trajectories] for group in groups] == rewards
    for trajectory in (trajectory for group in groups for trajectory in group.trajectories):
        *before, last = trajectory.messages_and_choices
        assert not isinstance(last, dict) and all(isinstance(turn, dict) for turn in before)
        assert trajectory.metadata[DECISION] == "call"


def test_a_hosted_model_gets_names_without_dots(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email__delete_email", {"email_id": "00000003"}), DONE]
    episode = asyncio.run(task.run(server.policy, first(task), hosted=True))
    assert task.verdict(episode).correct and episode.calls[0].name == "email.delete_email"
    assert all("." not in tool["function"]["name"] for tool in server.requests[0]["tools"])
    assert server.requests[1]["messages"][-2]["tool_calls"][0]["function"]["name"] == "email__delete_email"


def test_it_has_kinds_and_decisions(task: WorkbenchTask) -> None:
    assert isinstance(task, TellsKinds) and isinstance(task, HasDecisions)
    assert [task.is_open(scenario, ["call"]) for scenario in task.scenarios].count(True) == 1
