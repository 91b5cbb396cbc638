"""WorkBench for `run.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.workbench.episode import Limits
from tasks.workbench.exercises import invented
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office, published_calls
from tasks.workbench.tables import Tables
from tasks.workbench.task import WorkbenchTask
from training.plugin import Check, Say, TaskPlugin


class WorkbenchPlugin(TaskPlugin):
    """The benchmark's tasks; `workbench.folder` names them."""

    name = "workbench"
    title = "Office agent (WorkBench)"
    unit = "tasks"
    settings = WorkbenchSettings
    decisions = (WorkbenchTask.decisions, WorkbenchTask.usual_decisions)
    code = ("tasks/workbench",)

    def model_name(self, settings: WorkbenchSettings) -> str:
        return "office-agent"

    def scenarios(self, settings: WorkbenchSettings) -> list[WorkbenchScenario]:
        tables, scenarios = load_office(settings)
        return [*scenarios, *invented(tables, settings.exercises)]

    def identity(self, settings: WorkbenchSettings, scenarios: Sequence[WorkbenchScenario]) -> list[Any]:
        image = Tables(_folder(settings)).image
        trained_on = [scenario.model_dump(mode="json", exclude={"second_opinion"}) for scenario in scenarios]
        return [trained_on, hashlib.sha256(image).hexdigest()]

    def evaluation_identity(self, settings: WorkbenchSettings, scenarios: Sequence[WorkbenchScenario]) -> list[Any]:
        published = [file.read_bytes() for file in sorted(_folder(settings).glob("published/*.csv"))]
        opinions = [scenario.second_opinion for scenario in scenarios]
        return [
            self.identity(settings, scenarios),
            opinions,
            [hashlib.sha256(content).hexdigest() for content in published],
        ]

    def checks(
        self,
        settings: WorkbenchSettings,
        training: Any,
        scenarios: Sequence[WorkbenchScenario],
        elsewhere: Sequence[str],
    ) -> Iterator[Check]:
        yield "templates", lambda: _templates(scenarios)
        yield "published", lambda: f"runs of {len(published_calls(_folder(settings)))} models to compare with"

    def described(self, settings: WorkbenchSettings) -> dict[str, str]:
        return {"workbench": f"{settings.folder}, template_seed {settings.template_seed}"}

    @contextmanager
    def opened(self, settings: WorkbenchSettings, trained_with: Mapping[str, Any], say: Say) -> Iterator[WorkbenchTask]:
        limits = Limits.model_validate(trained_with)
        tables, scenarios = load_office(settings)
        yield WorkbenchTask(tables, [*scenarios, *invented(tables, settings.exercises)], limits, trained_with["seed"])


def _templates(scenarios: Sequence[WorkbenchScenario]) -> str:
    """Say how the templates are split, and how many tasks have none."""
    train, held_out = (
        {s.template for s in scenarios if s.split == split and s.template} for split in ("train", "test")
    )
    exercises = sum(not scenario.template for scenario in scenarios)
    return f"{len(train)} to train on, with {exercises} invented tasks; {len(held_out)} held out"


def _folder(settings: WorkbenchSettings) -> Path:
    return Path(str(settings.folder)).expanduser()


PLUGIN = WorkbenchPlugin()
