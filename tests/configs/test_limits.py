"""The limits of all settings, written down: one that is lost or moved by mistake is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from configs.loading import load_config
from configs.schema import (
    ConfigError,
    DataConfig,
    DeploymentConfig,
    EvaluationConfig,
    LearnLoopConfig,
    QuestionConfig,
    StackConfig,
    TrainingConfig,
)
from tasks.coding.settings import CodingSettings
from tasks.workbench.scenarios import WorkbenchSettings

MODELS: tuple[type[BaseModel], ...] = (
    CodingSettings,
    DataConfig,
    DeploymentConfig,
    EvaluationConfig,
    LearnLoopConfig,
    QuestionConfig,
    StackConfig,
    TrainingConfig,
    WorkbenchSettings,
)
FILE = Path(__file__).with_name("limits.json")
LIMITS = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "pattern"}


def limits(schema: Any, path: str = "") -> dict[str, Any]:
    """Every limit in a JSON schema, by its place."""
    if isinstance(schema, list):
        schema = {str(number): part for number, part in enumerate(schema)}
    if not isinstance(schema, dict):
        return {}
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key in LIMITS and not isinstance(value, dict):
            found[f"{path}/{key}"] = value
        elif key != "default":
            found |= limits(value, f"{path}/{key}")
    return found


def test_limits_are_those_written_down() -> None:
    """If a change is meant, write it to the file, too."""
    now = {model.__name__: limits(model.model_json_schema()) for model in MODELS}
    assert now == json.loads(FILE.read_text())


@pytest.mark.parametrize("word", ["max_steps=", "max_steps=null"])
def test_a_number_without_a_value(word: str) -> None:
    with pytest.raises(ConfigError, match="^trainer.max_steps has no value: .*integer"):
        load_config(None, [word])
