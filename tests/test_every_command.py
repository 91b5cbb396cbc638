"""Every command with every class of bad value: one line that names it, exit code 2, no traceback, and nothing written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from commands import arguments
from configs.config import SECTIONS, sections_of
from configs.schema import (
    DataConfig,
    DeploymentConfig,
    EvaluationConfig,
    LearnLoopConfig,
    QuestionConfig,
    StackConfig,
    TrainerConfig,
    TrainingConfig,
)
from tasks.coding.settings import CodingSettings
from tasks.workbench.scenarios import WorkbenchSettings
from tests.front_door import FrontDoor

CODING = ["--task", "coding"]
OFFICE = ["--task", "workbench"]
COMMANDS: dict[str, tuple[list[str], tuple[type[BaseModel], ...]]] = {
    "data": (["--pipeline", "data"], (DataConfig,)),
    "train": (["--pipeline", "train"], (TrainingConfig,)),
    "train, planned": (["--pipeline", "train", "--dry-run"], (TrainingConfig,)),
    "train, scheduled": (["--pipeline", "train", "--schedule", "0 2 * * *"], ()),
    "train, continued": (["--pipeline", "train", "--from", "first"], ()),
    "train, coding": (["--pipeline", "train", *CODING], (CodingSettings,)),
    "train, coding, planned": (["--pipeline", "train", "--dry-run", *CODING], (CodingSettings,)),
    "train, workbench": (["--pipeline", "train", *OFFICE], (WorkbenchSettings,)),
    "eval": (["--pipeline", "eval"], (EvaluationConfig,)),
    "all": (["--pipeline", "all"], (EvaluationConfig,)),
    "deploy": (["--pipeline", "deploy"], (DeploymentConfig,)),
    "ask": (["--pipeline", "ask", "Where?"], ()),
    "export": (["--pipeline", "export", "--to", "new"], ()),
    "scenarios": (["--pipeline", "scenarios", "--set", "emails=mail"], (QuestionConfig,)),
    "stack": (["--pipeline", "stack"], (StackConfig,)),
    "stack, planned": (["--pipeline", "stack", "--dry-run"], (StackConfig,)),
    "learn-loop": (["--pipeline", "learn-loop"], (LearnLoopConfig,)),
    "learn-loop, planned": (["--pipeline", "learn-loop", "--dry-run"], (LearnLoopConfig,)),
    "learn-loop, served": (["--pipeline", "learn-loop", "--serve"], (LearnLoopConfig,)),
}
"""Words of each command that reads settings, and the sections whose limits are tried with it."""

BAD_SETTINGS = {
    "an unknown key": (["--set", "learning_rat=1"], "did you mean 'trainer.learning_rate'"),
    "a key in a wrong section": (["--set", "agent.learning_rate=1"], "it belongs in section"),
    "an unknown part": (["--set", "torch.devic=cpu"], "torch.devic: unknown key; `python run.py"),
    "a part of what has none": (["--set", "max_steps=1", "--set", "max_steps.most=1"], "max_steps is 1 here"),
    "no value": (["--set", "max_steps"], "expected key=value"),
    "no YAML": (["--set", "max_steps=[1"], "is not a YAML value"),
    "a word for a number": (["--set", "max_steps=many"], "max_steps='many'"),
    "a fraction for a whole number": (["--set", "max_steps=1.5"], "max_steps=1.5"),
    "not a number": (["--set", "temperature=.nan"], "temperature=nan"),
    "an infinite number": (["--set", "learning_rate=.inf"], "learning_rate=inf"),
    "a list for a number": (["--set", "max_steps=[1, 2]"], "max_steps=[1, 2]"),
    "a mapping for a text": (["--set", "base_model={a: 1}"], "base_model"),
    "nothing for what must be": (["--set", "max_steps=null"], "max_steps has no value"),
    "a date": (["--set", "base_model=2024-06-28"], "base_model"),
    "a number for a text": (["--set", "emails=12"], "emails=12"),
    "an unknown choice": (["--set", "backend=abacus"], "backend='abacus'"),
    "no such file": (["--config", "absent.yaml"], "does not exist"),
    "a folder for a file": (["--config", "configs"], "is not a file"),
    "a file that is no YAML": (["--config", "torn.yaml"], "is not YAML"),
    "a file of no mapping": (["--config", "list.yaml"], "must hold `key: value` lines"),
    "a file of no text": (["--config", "bytes.yaml"], "bytes.yaml"),
    "a section that is no mapping": (["--config", "section.yaml"], "section 'trainer' must hold"),
}
"""Class of bad value -> its words, and what the line says."""


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FrontDoor:
    (tmp_path / "torn.yaml").write_text("trainer: {max_steps: 3\n")
    (tmp_path / "list.yaml").write_text("- max_steps\n")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00max_steps")
    (tmp_path / "section.yaml").write_text("trainer: 3\n")
    return FrontDoor(tmp_path, monkeypatch)


def test_every_pipeline_is_among_the_commands() -> None:
    named = {words[words.index("--pipeline") + 1] for words, _ in COMMANDS.values()}
    assert named == set(arguments.PIPELINES) - {"compare", "mcp"}  # they read no settings


@pytest.mark.parametrize("command", COMMANDS)
def test_bad_settings(command: str, door: FrontDoor) -> None:
    words, _ = COMMANDS[command]
    for kind, (wrong, named) in BAD_SETTINGS.items():
        assert named in door.refuses(*words, *wrong), kind


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_beyond_their_limits(command: str, door: FrontDoor) -> None:
    """A setting that commands limit differently, such as `max_turns`, has the limits of each."""
    words, models = COMMANDS[command]
    for model in models:
        own = [name for name, kind in SECTIONS.items() if kind is model]
        for key, value in beyond_limits(model):
            full = f"{(own or sections_of(key))[0]}.{key}"
            assert f"{full}={value!r}" in door.refuses(*words, "--set", f"{full}={value}")


def beyond_limits(section: type[BaseModel]) -> list[tuple[str, Any]]:
    """Return a value just beyond every limit of a number, and an unknown choice for every choice."""
    found: list[tuple[str, Any]] = []
    for key, field in section.model_fields.items():
        whole = int in (field.annotation, *get_args(field.annotation))
        for rule in field.metadata:
            for name, away in (("ge", -1), ("gt", 0), ("le", 1), ("lt", 0)):
                if isinstance(limit := getattr(rule, name, None), int | float):
                    found.append((key, int(limit + away) if whole else float(limit + away)))
        if get_origin(field.annotation) is Literal:
            found.append((key, "nonsense"))
    return found


def test_limits_are_found() -> None:
    assert ("max_turns", 1) in beyond_limits(LearnLoopConfig) and ("backend", "nonsense") in beyond_limits(
        TrainerConfig
    )


WORDS_THAT_ARE_REFUSED = {
    "--checkpoint": (["eval", "deploy", "ask", "export"], ["--checkpoint", "absent"], "absent"),
    "--resume": (["train"], ["--resume", "absent"], "absent"),
    "--from": (["train", "all", "learn-loop"], ["--from", "absent"], "absent"),
    "--schedule": (["train", "all"], ["--schedule", "often"], "five fields"),
    "--summary": (["eval", "all"], ["--summary", "configs"], "is a folder"),
}


@pytest.mark.parametrize("option", WORDS_THAT_ARE_REFUSED)
def test_bad_values_of_options(option: str, door: FrontDoor) -> None:
    pipelines, words, named = WORDS_THAT_ARE_REFUSED[option]
    for pipeline in pipelines:
        needed = {"export": ["--to", "new"], "ask": ["Where?"]}.get(pipeline, [])
        assert named in door.refuses("--pipeline", pipeline, *needed, *words)


@pytest.mark.parametrize("pipeline", arguments.PIPELINES)
def test_options_of_other_pipelines(pipeline: str, door: FrontDoor) -> None:
    takes_a_value = {"checkpoint", "config", "date", "format", "from", "inbox", "mail", "name"}
    takes_a_value |= {"resume", "schedule", "set", "summary", "task", "to"}
    for option, owners in arguments._ONLY_FOR.items():
        if pipeline not in owners:
            value = [{"format": "gguf", "mail": "latest"}.get(option, "x")] if option in takes_a_value else []
            assert f"--{option} is for --pipeline" in door.refuses("--pipeline", pipeline, f"--{option}", *value)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pipeline", "compare"], "name a run; no run has been recorded yet: --pipeline train records one"),
        (["--pipeline", "compare", "absent"], "there is no run 'absent'"),
        (["--pipeline", "mcp", "--name", "absent"], "there is no service 'absent'"),
        (["--help", "learning_rat"], "did you mean 'trainer.learning_rate'"),
        (["--help", "torch.devic"], "unknown part of torch"),
        (["--schedule-pause", "absent"], "there is no schedule absent"),
        (["--schedule-resume", "absent"], "there is no schedule absent"),
        (["--schedule-delete", "absent"], "there is no schedule absent"),
        (["--schedule-pause", ""], "--schedule-pause '': is empty; --schedule-list shows the names"),
        (["--schedule-resume", " "], "--schedule-resume ' ': is empty"),
        (["--schedule-delete", ""], "--schedule-delete '': is empty"),
        (["--schedule-list", "--set", "max_steps=1"], "--set is for --pipeline data, train,"),
        (["--pipeline", "compare", "--set", "max_steps=1"], "--set is for --pipeline data, train,"),
        (["--pipeline", "mcp", "--config", "torn.yaml"], "--config is for --pipeline data, train,"),
        (["--pipeline", "compare", "--task", "coding"], "--task is for --pipeline data, train,"),
        (["--pipeline", "export", "--to", "new", "--no-cache"], "--no-cache is for --pipeline data, train,"),
        (["--schedule-list", "--no-cache"], "--no-cache is for --pipeline data, train,"),
    ],
)
def test_commands_without_settings(words: list[str], named: str, door: FrontDoor) -> None:
    assert named in door.refuses(*words)
