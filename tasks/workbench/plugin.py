"""WorkBench for `run.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.workbench.episode import Limits
from tasks.workbench.exercises import invented
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office
from tasks.workbench.tables import Tables
from tasks.workbench.task import WorkbenchTask
from training.plugin import Say, TaskPlugin


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
        tables = Tables(Path(str(settings.folder)).expanduser())
        files = [tables.image, *(file.read_bytes() for file in sorted(tables.folder.glob("published/*.csv")))]
        return [super().identity(settings, scenarios), [hashlib.sha256(content).hexdigest() for content in files]]

    def described(self, settings: WorkbenchSettings) -> dict[str, str]:
        return {"workbench": f"{settings.folder}, template_seed {settings.template_seed}"}

    @contextmanager
    def opened(self, settings: WorkbenchSettings, trained_with: Mapping[str, Any], say: Say) -> Iterator[WorkbenchTask]:
        limits = Limits.model_validate(trained_with)
        tables = Tables(Path(str(settings.folder)).expanduser())
        yield WorkbenchTask(tables, self.scenarios(settings), limits, trained_with["seed"])


PLUGIN = WorkbenchPlugin()
