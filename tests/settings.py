"""Configurations of tests, from keys without their sections."""

from __future__ import annotations

import json
from typing import Any

from configs.config import Config
from configs.loading import explicit_values, load_config


def words_of(**values: Any) -> list[str]:
    """Return `--set` words of these keys."""
    return [f"{key}={json.dumps(value)}" for key, value in values.items()]


def config_of(**values: Any) -> Config:
    """Return the configuration with these keys, which the loader places."""
    return load_config(None, words_of(**values))


def in_sections(**values: Any) -> dict[str, Any]:
    """Return these keys in their sections, as in a YAML file."""
    return explicit_values(None, words_of(**values))
