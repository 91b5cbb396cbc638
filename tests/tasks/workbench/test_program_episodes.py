"""Episodes of one program, the programs that are demonstrated, and invented tasks."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletionMessage, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs

from tasks.workbench.episode import Limits
from tasks.workbench.exercises import exercise, invented
from tasks.workbench.program_episode import ProgramEpisode, played
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office
from tasks.workbench.tables import Tables
from tasks.workbench.task import WorkbenchTask
from tasks.workbench.tools import published, tool_schemas
from tests.fakes.policy import ScriptedPolicy
from tests.tasks.workbench.office import write_office
from training.task import DECISION

LIMITS = Limits(max_turns=7, max_tokens=200)
RIGHT = 'emails = email.search_emails(query="ann")\nemail.delete_email(email_id=emails[0]["email_id"])'
WRONG = 'email.delete_email(email_id="00000001")'


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> WorkbenchTask:
    office = write_office(tmp_path_factory.mktemp("workbench") / "office")
    tables, scenarios = load_office(WorkbenchSettings(folder=str(office)))
    return WorkbenchTask(tables, [*scenarios, *invented(tables, 20)], LIMITS)


@pytest.fixture
def server() -> Iterator[ScriptedPolicy]:
    with ScriptedPolicy() as started:
        yield started


def scenario(task: WorkbenchTask, id: str = "email-0") -> WorkbenchScenario:
    return next(scenario for scenario in task.scenarios if scenario.id == id)


@pytest.mark.parametrize(
    ("reply", "reward", "outcome"),
    [
        (RIGHT, 1.0, "finished"),
        (f"```python\n{RIGHT}\n```", 1.0, "finished"),
        ("x = 1", 0.0, "finished"),
        (WRONG, 0.0, "finished"),
        (f"{RIGHT}\n{WRONG}", 0.0, "finished"),
        (f"{WRONG}\nnothing()", 0.0, "malformed_call"),
        ('email.delete_email("00000003", "x")', 0.0, "malformed_call"),
        ('email.delete_email("00000003", email_id="00000003")', 0.0, "malformed_call"),
        ("Done.", 0.0, "malformed_call"),
        ("while True:\n    pass", 0.0, "malformed_call"),
        ('email.delete_email(email_id="9")', 0.0, "malformed_call"),
        ("email.erase()", 0.0, "malformed_call"),
        ('email.delete_email(id="00000003")', 0.0, "malformed_call"),
        ('import os\nos.remove("x")', 0.0, "malformed_call"),
        (f'{RIGHT}\nemail.delete_email(email_id="00000003")', 0.0, "malformed_call"),
    ],
)
def test_the_outcome_of_a_program_is_its_reward(
    task: WorkbenchTask, server: ScriptedPolicy, reply: str, reward: float, outcome: str
) -> None:
    server.replies = [reply]
    trajectory = asyncio.run(task.rollout(server.policy, scenario(task)))
    assert (trajectory.reward, trajectory.metadata["outcome"]) == (reward, outcome)
    assert trajectory.metrics["turns"] == 1 and not server.replies
    [request] = server.requests
    assert "tools" not in request and "email.forward_email(email_id, recipient)" in request["messages"][0]["content"]
    assert "calendar." not in request["messages"][0]["content"]


def test_a_program_that_fails_changes_nothing(task: WorkbenchTask) -> None:
    failed = played(task.tables, scenario(task), LIMITS, f"{WRONG}\nnothing()")
    assert failed.calls and failed.workspace.state() == task.tables.untouched
    assert not task.verdict(failed).side_effects


def test_a_tool_call_is_no_program(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [("email__delete_email", {"email_id": "00000003"})]
    trajectory = asyncio.run(task.rollout(server.policy, scenario(task)))
    assert trajectory.metadata["outcome"] == "malformed_call" and not trajectory.metrics["side_effects"]


def test_a_program_that_is_cut_off_does_nothing(task: WorkbenchTask) -> None:
    cut = Choice(finish_reason="length", index=0, message=ChatCompletionMessage(role="assistant", content=WRONG))
    episode = ProgramEpisode(task.tables, scenario(task), LIMITS).taking(cut)
    assert episode.outcome == "truncated" and not episode.calls
    assert not task.verdict(episode).correct and not task.verdict(episode).side_effects


def test_demonstrations_that_follow_each_other_share_their_prompt(task: WorkbenchTask) -> None:
    prompts = [shown.messages_and_choices[0]["content"] for shown in task.demonstrations(task.scenarios, 100)]
    pairs = list(zip(prompts[::2], prompts[1::2], strict=True))
    alone = [left != right for left, right in pairs]
    assert len(set(prompts)) > 2 and alone == sorted(alone), "tasks without a partner come last"


@pytest.mark.parametrize("end", ["<|im_end|>", "</s>", "<|eot_id|>", "<|endoftext|>"])
def test_the_token_at_which_a_model_stops_is_no_part_of_the_program(task: WorkbenchTask, end: str) -> None:
    tokens = [
        ChatCompletionTokenLogprob(token=text, bytes=list(text.encode()), logprob=0.0, top_logprobs=[])
        for text in ("x = ", "1", end)
    ]
    choice = Choice(
        finish_reason="stop",
        index=0,
        message=ChatCompletionMessage(role="assistant", content="x = 1"),
        logprobs=ChoiceLogprobs(content=tokens),
    )
    assert ProgramEpisode(task.tables, scenario(task), LIMITS).taking(choice).outcome == "finished"


def test_programs_are_compared_as_decisions(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [RIGHT, WRONG, "x = 1", RIGHT]
    [group] = asyncio.run(task.decide(server.policy, scenario(task), ["program"], 4, 2, continued=True))
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 0.0, 0.0, 1.0]
    assert {trajectory.metadata[DECISION] for trajectory in group.trajectories} == {"program"}


def test_no_more_programs_are_asked_for_when_all_are_right(task: WorkbenchTask, server: ScriptedPolicy) -> None:
    server.replies = [RIGHT, RIGHT]
    [group] = asyncio.run(task.decide(server.policy, scenario(task), ["program"], 4, 2, continued=True))
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 1.0]


ALSO_RIGHT = 'email.delete_email(email_id="00000003")'
FAILS = f"{RIGHT}\nnothing()"


@pytest.mark.parametrize(
    ("replies", "correct", "outcome"),
    [
        ([RIGHT], True, "finished"),
        ([WRONG], False, "side_effects"),
        ([FAILS, FAILS, RIGHT, WRONG], True, "finished"),
        ([FAILS, WRONG, RIGHT, RIGHT], False, "side_effects"),
        ([FAILS, FAILS, FAILS, "Done."], False, "malformed_call"),
    ],
)
def test_others_are_tried_where_a_program_fails(
    task: WorkbenchTask, server: ScriptedPolicy, replies: list[str], correct: bool, outcome: str
) -> None:
    server.replies = [*replies]
    attempt = asyncio.run(task.attempt(server.policy, scenario(task), hosted=False))
    assert (attempt.turns, attempt.correct, attempt.outcome) == (len(replies), correct, outcome) and not server.replies
    temperatures = [request.get("temperature") for request in server.requests]
    assert temperatures == [server.policy.temperature, 0.5][: len(temperatures)]


@pytest.mark.parametrize(
    ("opinion", "replies", "correct", "outcome"),
    [
        (RIGHT, [ALSO_RIGHT], True, "finished"),
        (RIGHT, [WRONG], False, "no_agreement"),
        (WRONG, [RIGHT], False, "no_agreement"),
        (WRONG, [WRONG], False, "side_effects"),
        (RIGHT, [FAILS, FAILS, WRONG, ALSO_RIGHT], False, "no_agreement"),
        (RIGHT, [FAILS, FAILS, ALSO_RIGHT, WRONG], True, "finished"),
        (FAILS, [RIGHT], False, "no_agreement"),
        ("", [RIGHT], False, "no_agreement"),
        (RIGHT, [FAILS] * 4, False, "malformed_call"),
    ],
)
def test_an_outcome_is_kept_if_a_second_opinion_agrees(
    task: WorkbenchTask, server: ScriptedPolicy, opinion: str, replies: list[str], correct: bool, outcome: str
) -> None:
    asked = scenario(task).model_copy(update={"second_opinion": opinion})
    server.replies = [*replies]
    attempt = asyncio.run(task.attempt(server.policy, asked, hosted=False))
    assert (attempt.correct, attempt.outcome) == (correct, outcome) and not server.replies
    assert bool(attempt.answer) == (outcome in ("finished", "side_effects"))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("days(0)", "2023-11-30"),
        ("days(n=1)", "2023-12-01"),
        ("days(-30)", "2023-10-31"),
        ('coming("Friday")', "2023-12-01"),
        ('coming("thursday")', "2023-12-07"),
        ('coming(weekday="sunday")', "2023-12-03"),
        ('past(weekday="sunday")', "2023-11-26"),
        ('coming("tomorrow")', "2023-12-01"),
        ('coming("December 13")', "2023-12-13"),
        ('coming("november 30")', "2024-11-30"),
        ('coming("february 29")', "2024-02-29"),
        ('past("november 30")', "2022-11-30"),
        ('past("yesterday")', "2023-11-29"),
        ('past("thursday")', "2023-11-23"),
        ('past("wednesday")', "2023-11-29"),
        ('later("2023-11-30 09:00:00", "90")', "2023-11-30 10:30:00"),
        ('later("2023-11-30 09:00:00", -30)', "2023-11-30 08:30:00"),
        ('calendar.search_events(query="ann")[0]["duration"]', "30"),
        ('calendar.get_event_information_by_id("00000002", "duration")["duration"]', "60"),
        ('analytics.total_visits_count(time_min="2023-11-28")["2023-11-28"] * 2', "4"),
        ('company_directory.find_email_address(name="bob")', "bob.ray@atlas.com"),
        ('customer_relationship_manager.search_customers(customer_name="Kim")[0]["customer_phone"] + "-"', "-"),
        ('len(email.search_emails(query="nothing like it"))', "0"),
    ],
)
def test_what_functions_return(task: WorkbenchTask, code: str, value: str) -> None:
    episode = ProgramEpisode(task.tables, scenario(task), LIMITS)
    said = {"role": "assistant", "content": f'email.send_email("a@b.c", "value", str({code}))'}
    episode.act(said, said, [])
    assert episode.outcome == "finished"
    assert episode.workspace.records("emails")[-1]["body"] == value


@pytest.mark.parametrize(
    "code",
    [
        'coming("someday")',
        'coming("some\\nday")',
        'coming("november 31")',
        "coming(5)",
        'later("soon", 3)',
        "days(10 ** 9)",
        "days(99999999)",
        'later("2023-11-30", "x")',
    ],
)
def test_a_date_that_is_none_ends_the_program(task: WorkbenchTask, code: str) -> None:
    episode = ProgramEpisode(task.tables, scenario(task), LIMITS)
    said = {"role": "assistant", "content": code}
    episode.act(said, said, [])
    assert episode.outcome == "malformed_call" and episode.reason and "\n" not in episode.reason


@pytest.mark.parametrize(("limit", "shown"), [(4, 4), (100, 20)])
def test_invented_tasks_are_demonstrated(task: WorkbenchTask, limit: int, shown: int) -> None:
    trajectories = task.demonstrations(task.scenarios, limit)
    assert [trajectory.metadata["kind"] for trajectory in trajectories] == ["exercise"] * shown
    assert all(trajectory.reward == 1.0 and not trajectory.tools for trajectory in trajectories)
    assert trajectories[0].messages_and_choices[-1]["role"] == "assistant"


def test_few_invented_demonstrations_have_one_action_or_several(task: WorkbenchTask) -> None:
    actions = {scenario.question: len(scenario.reference) for scenario in task.scenarios}
    shown = [actions[trajectory.metadata["question"]] for trajectory in task.demonstrations(task.scenarios, 10)]
    assert min(shown) == 1 < max(shown)


def test_invented_tasks_change_something_and_are_done_by_their_programs(task: WorkbenchTask) -> None:
    made_up = [scenario for scenario in task.scenarios if scenario.program]
    assert len(made_up) == 20 and made_up == list(invented(task.tables, 20))
    for scenario in made_up:
        assert not re.search(r"<|\|", scenario.question) and scenario.split == "train"
        done = played(task.tables, scenario, LIMITS, str(scenario.program))
        assert task.verdict(done).correct and scenario.reference


def test_nothing_is_invented_about_an_empty_table(tmp_path: Path) -> None:
    office = write_office(tmp_path / "office")
    header, *_ = (office / "emails.csv").read_text().splitlines(keepends=True)
    (office / "emails.csv").write_text(header)
    assert invented(Tables(office), 5) == ()


def test_tasks_are_invented_once_for_the_same_tables(tmp_path: Path) -> None:
    office = write_office(tmp_path / "office")
    before = invented(Tables(office), 5)
    assert invented(Tables(office), 5) is before
    table = office / "emails.csv"
    table.write_text(table.read_text().replace("Lunch", "Supper"))
    assert invented(Tables(office), 5) is not before


def test_an_empty_cell_names_nothing(tmp_path: Path) -> None:
    office = write_office(tmp_path / "office")
    for file, name in (("calendar_events", "Roadmap"), ("customer_relationship_manager_data", "Kim Day")):
        table = office / f"{file}.csv"
        table.write_text(table.read_text().replace(name, ""))
    assert len(invented(Tables(office), 10)) == 10


@pytest.mark.parametrize("seed", range(60))
def test_an_invented_task_has_no_gap_and_its_program_can_be_read(task: WorkbenchTask, seed: int) -> None:
    made_up = exercise(task.tables, f"seed-{seed}")
    assert made_up == exercise(task.tables, f"seed-{seed}")
    assert not re.search(r"<\w[\w ]*>|\|", made_up.question + made_up.program)
    ast.parse(made_up.program)
    offered = {schema["function"]["name"] for schema in tool_schemas(made_up.toolkits)}
    assert {name for name in published() if name in made_up.program} <= offered


def test_a_pronoun_stands_for_the_person_that_was_named_before_it(task: WorkbenchTask) -> None:
    made_up = [exercise(task.tables, str(seed)) for seed in range(400)]
    pronouns = [made for made in made_up if re.search(r"\b(them|for us)\b", made.question)]
    assert len(pronouns) > 40
    for made in pronouns:
        before, *_ = re.split(r"\b(?:whoever is assigned to them|them|for us)\b", made.question)
        named = re.findall(r'find_email_address\(name="(\w+)"\)|customer_name="(\w+)', made.program)
        assert "the person with the" in before or any(
            (person or customer).lower() in before.lower() for person, customer in named
        )
        assert all((person or customer).lower() in made.question.lower() for person, customer in named)
        assert not {"them", "us"} & {person for person, _ in named}


def test_invented_tasks_use_every_tool_that_changes_something(task: WorkbenchTask) -> None:
    programs_of = [exercise(task.tables, str(seed)).program for seed in range(400)]
    for tool in ("calendar.update_event", "calendar.delete_event", "calendar.create_event", "email.reply_email"):
        assert any(tool in program for program in programs_of)
    for tool in ("email.forward_email", "email.send_email", "email.delete_email", "analytics.create_plot"):
        assert any(tool in program for program in programs_of)
    for tool in ("create_task", "update_task", "delete_task", "update_customer", "add_customer", "delete_customer"):
        assert any(tool in program for program in programs_of)
