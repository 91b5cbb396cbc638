"""WorkBench for `run.py`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tasks.workbench.episode import Limits
from tasks.workbench.scenarios import WorkbenchScenario, WorkbenchSettings, load_office
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
        return load_office(settings)[1]

    def identity(self, settings: WorkbenchSettings) -> str:
        tables, scenarios = load_office(settings)
        parts = [scenario.model_dump_json().encode() for scenario in scenarios]
        parts += [file.read_bytes() for file in sorted(tables.folder.glob("published/*.csv"))]
        return hashlib.sha256(b"".join([tables.image, *parts])).hexdigest()

    def described(self, settings: WorkbenchSettings) -> dict[str, str]:
        return {"workbench": f"{settings.folder}, template_seed {settings.template_seed}"}

    @contextmanager
    def opened(self, settings: WorkbenchSettings, trained_with: Mapping[str, Any], say: Say) -> Iterator[WorkbenchTask]:
        yield WorkbenchTask(*load_office(settings), Limits.model_validate(trained_with), trained_with["seed"])


PLUGIN = WorkbenchPlugin()
