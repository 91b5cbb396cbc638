"""The benchmark's tasks, split by template."""

from __future__ import annotations

import ast
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.workbench.judge import NO_LITERAL, Call, parse
from tasks.workbench.tables import Tables, read_csv
from tasks.workbench.tools import call, fault, published
from training.errors import BadInput

_COLUMNS = ("query", "answer", "base_template", "domains")
_DONE = ("successfully.", ".png")


class WorkbenchSettings(BaseModel):
    """Where the benchmark is, and which of its templates are held out."""

    model_config = ConfigDict(frozen=True)

    folder: str | None = Field(default=None, min_length=1, description="folder with the benchmark's CSV files")
    held_out_templates: float = Field(
        default=1 / 3, ge=0, le=1, description="share of the templates of each domain that are held out"
    )
    exercises: int = Field(
        default=400,
        ge=0,
        le=10_000,
        description="invented tasks to train on besides the benchmark's",
    )
    second_opinion: str | None = Field(
        default=None,
        min_length=1,
        description="evaluation of another policy, as JSON Lines; the outcome of a held-out task is kept only if that policy's program "
        "has the same",
    )
    template_seed: int = Field(default=0, ge=0, lt=2**32, description="seed of the choice of held-out templates")


class WorkbenchScenario(BaseModel):
    """A task with the calls that have the right outcome."""

    model_config = ConfigDict(frozen=True)

    id: str
    question: str
    kind: str
    """The domain; `multi_domain` if it takes several toolkits."""
    template: str
    """Empty for an invented task."""
    toolkits: tuple[str, ...]
    reference: tuple[Call, ...]
    program: str | None = None
    """Does an invented task."""
    second_opinion: str | None = None
    """Another policy's program for a held-out task."""
    split: Literal["train", "test"]


def load_office(settings: WorkbenchSettings) -> tuple[Tables, list[WorkbenchScenario]]:
    """Return the tables and tasks of the configured folder.

    Raises:
        BadInput: there is no such folder, or a file of it is not the benchmark's.
    """
    if settings.folder is None:
        raise BadInput(
            "workbench.folder is not set: name the folder with the benchmark's CSV files (docs/workbench.md)"
        )
    folder = Path(settings.folder).expanduser()
    if not folder.is_dir():
        raise BadInput(
            f"workbench.folder={settings.folder}: no such folder; it must hold the benchmark's CSV files (docs/workbench.md)"
        )
    tables = Tables(folder)
    files = sorted((folder / "queries_and_answers").glob("*_queries_and_answers.csv"))
    if not files:
        raise BadInput(f"{folder / 'queries_and_answers'}: holds no file *_queries_and_answers.csv with the tasks")
    scenarios = [scenario for file in files for scenario in _read(file, tables, settings)]
    if settings.second_opinion is None:
        return tables, scenarios
    programs = _programs(Path(settings.second_opinion).expanduser())
    for scenario in scenarios:
        if scenario.split == "test" and scenario.question not in programs:
            raise BadInput(
                f"workbench.second_opinion={settings.second_opinion}: no program of a trained policy for {scenario.id}, "
                f"{scenario.question[:80]!r}; evaluate the other policy on the same tasks, all of them"
            )
    return tables, [
        scenario.model_copy(update={"second_opinion": programs[scenario.question]})
        if scenario.split == "test"
        else scenario
        for scenario in scenarios
    ]


class _Turn(BaseModel):
    role: str
    content: str


class _Answered(BaseModel):
    """A line of an evaluation."""

    policy: str = ""
    question: str = ""
    transcript: list[_Turn] = []


def _programs(file: Path) -> dict[str, str]:
    """Return the programs of the policy `trained` in an evaluation, by question. Raises BadInput if it is none."""
    programs = {}
    place = f"workbench.second_opinion={file}"
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines, which also splits at U+2028
        for number, line in enumerate(lines, start=1):
            place = f"{file}, line {number}"
            row = _Answered.model_validate_json(line or "{}")
            replies = [turn.content for turn in row.transcript if turn.role == "assistant"]
            if row.policy == "trained" and replies:
                programs[row.question] = replies[-1]
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{place}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    except ValidationError:
        raise BadInput(f"{place}: no answer of an evaluation; name the values.jsonl of its predictions") from None
    return programs


def _read(file: Path, tables: Tables, settings: WorkbenchSettings) -> list[WorkbenchScenario]:
    domain = file.name.removesuffix("_queries_and_answers.csv")
    records = read_csv(file, _COLUMNS)
    templates = sorted({record["base_template"] for _, record in records})
    held_out = set(
        random.Random(settings.template_seed).sample(templates, round(settings.held_out_templates * len(templates)))
    )
    return [
        WorkbenchScenario(
            id=f"{domain}-{number}",
            question=record["query"],
            kind=domain,
            template=record["base_template"],
            toolkits=_toolkits(record["domains"], f"{file}, line {line}"),
            reference=_reference(record["answer"], tables, f"{file}, line {line}"),
            split="test" if record["base_template"] in held_out else "train",
        )
        for number, (line, record) in enumerate(records)
    ]


def _toolkits(domains: str, place: str) -> tuple[str, ...]:
    """Return the toolkits of a task. Raises BadInput if there is no such one."""
    known = {name.partition(".")[0] for name in published()}
    toolkits = [
        "customer_relationship_manager" if domain == "crm" else domain
        for domain in _texts(domains, f"{place}: domains")
    ]
    if not toolkits:
        raise BadInput(f"{place}: domains is empty: a task needs at least one of {', '.join(sorted(known))}")
    for toolkit in toolkits:
        if toolkit not in known:
            raise BadInput(f"{place}: there is no domain {toolkit[:80]!r}: {', '.join(sorted(known))}")
    return tuple(toolkits)


def _texts(written: str, place: str) -> list[str]:
    """Return a list of texts in Python's notation."""
    try:
        texts = ast.literal_eval(written)
    except NO_LITERAL:
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise BadInput(f"{place}: expected a list of texts, found {written[:80]!r}")
    return texts


def _reference(answer: str, tables: Tables, place: str) -> tuple[Call, ...]:
    """Return the calls. Raises BadInput if one of them fails."""
    calls = []
    with tables.workspace() as workspace:
        for text in _texts(answer, f"{place}: answer"):
            if (found := parse(text)) is None:
                raise BadInput(f"{place}: a reference call is no call: {text[:80]!r}")
            said = fault(*found) or call(workspace, *found)
            # Those that create a record return its id.
            if not said.endswith(_DONE) and not said.isdigit():
                raise BadInput(f"{place}: a reference call fails: {text[:80]!r} ({said.splitlines()[0][:200]})")
            calls.append(found)
    return tuple(calls)


def published_calls(folder: Path) -> dict[str, list[tuple[dict[str, str], Sequence[Call | None]]]]:
    """Return the published runs of each model: the record with its verdict, and its calls."""
    files = sorted((folder / "published").glob("*.csv"))
    columns = ("domain", "query", "function_calls", "error", "correct", "side_effects")
    return {
        file.stem: [
            (record, [parse(text) for text in _texts(record["function_calls"], f"{file}, line {line}")])
            for line, record in read_csv(file, columns)
        ]
        for file in files
    }
