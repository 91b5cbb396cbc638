"""All sections together."""

from __future__ import annotations

import re
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from agent.judges.settings import JudgeSettings
from configs.explanation import explain
from configs.schema import (
    AgentConfig,
    ConfigError,
    DataConfig,
    DeploymentConfig,
    EvaluationConfig,
    LearnLoopConfig,
    OutreachConfig,
    QuestionConfig,
    StackConfig,
    TrainerConfig,
    TrainingConfig,
)
from tasks.coding.settings import CodingSettings
from tasks.workbench.scenarios import WorkbenchSettings

Settings = TypeVar("Settings", bound=BaseModel)


class Config(BaseModel):
    """All settings: the keys of a YAML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field(
        default="email-search",
        pattern=r"^(email-search|coding|workbench|outreach|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$",
        description="task to train: email-search, coding, workbench, outreach, or package.module:NAME of a training.plugin.TaskPlugin",
    )
    task_settings: dict[str, Any] = Field(
        default_factory=dict, description="settings of a task at package.module:NAME; the others have a section each"
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="ZenML settings of every pipeline")
    step_settings: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="ZenML configuration of the steps of training and evaluation, by step name"
    )

    data: DataConfig = Field(default_factory=DataConfig, description="mails and questions")
    agent: AgentConfig = Field(default_factory=AgentConfig, description="the agent, its demonstrations and its reward")
    trainer: TrainerConfig = Field(default_factory=TrainerConfig, description="the base model and its training")
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="the evaluation, the gate, and the judge, which training asks too"
    )
    deployment: DeploymentConfig = Field(default_factory=DeploymentConfig, description="the HTTP service")
    questions: QuestionConfig = Field(
        default_factory=QuestionConfig, description="the LLM that writes questions about mail without any"
    )
    stack: StackConfig = Field(default_factory=StackConfig, description="the ZenML stack on Kubernetes")
    outreach: OutreachConfig = Field(default_factory=OutreachConfig, description="the learn loop of the outreach agent")
    coding: CodingSettings = Field(default_factory=CodingSettings, description="the coding agent")
    workbench: WorkbenchSettings = Field(default_factory=WorkbenchSettings, description="the office agent")

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        try:
            self.for_training()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def for_training(self) -> TrainingConfig:
        """Return the settings of training_pipeline."""
        judge = {name: getattr(self.evaluation, name) for name in JudgeSettings.model_fields}
        if judge["judge"] == "both":  # its second verdict is for evaluations only
            judge["judge"] = "exact"
        return _validated(TrainingConfig, dict(self.trainer) | dict(self.agent) | judge)

    def for_learn_loop(self) -> LearnLoopConfig:
        """Return the settings of learn_loop_pipeline. Raises ConfigError for a limit that suits only other tasks."""
        limits = {"max_turns": self.agent.max_turns, "max_tokens": self.agent.max_tokens}
        return _validated(LearnLoopConfig, dict(self.trainer) | dict(self.outreach) | limits)

    def for_task(self, kind: type[Settings]) -> Settings:
        """Return the settings of the task: its section, or `task_settings` if it is not one of ours.

        Raises ConfigError if they are invalid, or a task with a section has `task_settings`.
        """
        if ":" in self.task:
            return _validated(kind, self.task_settings, prefix="task_settings.")
        if self.task_settings:
            raise ConfigError(f"task_settings: no effect on task={self.task}, which has a section of its own")
        return next(value for _, value in self if isinstance(value, kind))


def _validated(kind: type[Settings], values: dict[str, Any], prefix: str = "") -> Settings:
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        line = explain(error, kind)
        raise ConfigError(f"{prefix}{line}" if prefix else with_section(line)) from None


SECTIONS: dict[str, type[BaseModel]] = {
    name: field.annotation
    for name, field in Config.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
"""Section -> its model. The other fields of `Config` stand at the top of a YAML file."""


def sections_of(key: str) -> list[str]:
    """Return the sections that have this key."""
    return [name for name, kind in SECTIONS.items() if key in kind.model_fields]


def is_setting(key: str) -> bool:
    """Return whether a flat record may have this key: one of a section, or one at the top."""
    return bool(sections_of(key)) or (key in Config.model_fields and key not in SECTIONS)


def with_section(line: str) -> str:
    """Return an error that begins with a key of one section with the section before the key."""
    key = re.match(r"\w+(?=[=:.])", line)
    owners = sections_of(key[0]) if key else []
    return f"{owners[0]}.{line}" if len(owners) == 1 else line
