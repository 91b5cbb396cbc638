"""Read a configuration from a YAML file and `key=value` overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from configs.config import SECTIONS, Config, is_setting, sections_of
from configs.explanation import explain
from configs.gone import without_gone
from configs.profiles import merged, read_profile, require_in_section, require_placed, unknown
from configs.schema import SYNTHETIC, ConfigError
from training.user_paths import path_problem
from training.yaml_text import load_yaml

_PATHS = (
    *("coding.bugs", "data.emails", "data.reviewed_feedback", "data.test_questions", "data.train_questions"),
    *("deployment.access_keys", "deployment.feedback_folder", "outreach.graph", "outreach.prospects"),
    *("trainer.base_model", "trainer.continue_from", "trainer.ruler_rubric"),
    *("workbench.folder", "workbench.second_opinion"),
)
"""Settings that may name a file or folder of the user."""
_MOST = 2**63 - 1


def load_config(path: Path | None, overrides: list[str], base: Mapping[str, Any] | None = None) -> Config:
    """Load the configuration: defaults, then `base`, the YAML file, and `key=value` overrides with YAML values.

    `base` has the flat settings of a recorded run.

    Raises:
        ConfigError: the file is missing or no mapping, a key is unknown or misplaced, or a value has a wrong type or is
            out of range.
    """
    values = merged(_recorded(base or {}), explicit_values(path, overrides))
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None
    for place in _PATHS:
        section, _, key = place.partition(".")
        named = getattr(getattr(config, section), key)
        if named is not None and (problem := path_problem(named)):
            raise ConfigError(f"{place}={named[:80]!r}: {problem}")
    for key, value in config.model_dump().items():
        _require_usable(key, value)
    return config


def _require_usable(key: str, value: Any) -> None:
    """Raise ConfigError for a value that a file or a library cannot hold: NaN, infinity, a huge number, NUL, half a character."""
    if isinstance(value, dict):
        for name, part in value.items():
            _require_usable(f"{key}.{name}", part)
    elif isinstance(value, list | tuple):
        for part in value:
            _require_usable(key, part)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{key}={value}: expected a finite number")
    elif isinstance(value, int) and not -_MOST <= value <= _MOST:
        raise ConfigError(f"{key}={value}: expected a number of at most {_MOST}")
    elif isinstance(value, str) and ("\0" in value or any("\ud800" <= character <= "\udfff" for character in value)):
        raise ConfigError(f"{key}: has a NUL or half of a character")


def _recorded(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return recorded settings in their sections. Only trainings are recorded, so a key of several sections is the trainer's."""
    values: dict[str, Any] = {}
    for key, value in without_gone(flat).items():
        if owners := sections_of(key):
            values.setdefault(owners[0], {})[key] = value
        elif is_setting(key):
            values[key] = value
        else:
            raise unknown(key, "recorded settings")
    return values


def explicit_values(path: Path | None, overrides: list[str]) -> dict[str, Any]:
    """Return the keys that the user set, in their sections: those of the file and of `key=value` overrides.

    Raises ConfigError for an unknown, misplaced or ambiguous key.
    """
    values = read_profile(path) if path is not None else {}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word}: expected key=value")
        *above, name = place_of(key, "--set")
        try:
            value = load_yaml(text)
        except (yaml.YAMLError, ValueError):
            raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
        if ".".join((*above, name)) in _PATHS:
            value = _path_in(text.strip(), value)
        if name in SECTIONS and not above:
            whole = {name: value}
            require_placed(whole, "--set")
            values = {**values, name: {**values.get(name, {}), **whole.get(name, {})}}
            continue
        inner = values
        for outer in above:
            if not isinstance(inner.setdefault(outer, {}), dict):
                raise ConfigError(f"--set {key}: {outer} is {inner[outer]!r} here, which has no parts")
            inner[outer] = dict(inner[outer])  # two names of a YAML anchor share one mapping
            inner = inner[outer]
        inner[name] = value
    return values


def _path_in(text: str, value: Any) -> Any:
    """Return the path in a text whose YAML value is `value`: in YAML, a number sign after a space begins a comment."""
    is_path = isinstance(value, str) or text.startswith("#")
    return text if is_path and not text.startswith(('"', "'")) else value


def place_of(key: str, where: str) -> tuple[str, ...]:
    """Return the names that lead to a setting: its section, its key and a part, such as ("trainer", "torch", "threads").

    The section may be left out of a key that only one section has. Raises ConfigError, which begins with `where`, for a
    key that is unknown, ambiguous or in another section.
    """
    name, _, rest = key.partition(".")
    if name in SECTIONS and rest:
        inner, _, part = rest.partition(".")
        require_in_section(inner, name, where)
        return (name, inner, part) if part else (name, inner)
    if name in Config.model_fields:
        return (name, rest) if rest else (name,)
    owners = sections_of(name)
    if len(owners) > 1:
        spellings = " or ".join(f"{owner}.{key}" for owner in owners)
        raise ConfigError(f"{where}: several sections have a key '{name}'; write {spellings}")
    if not owners:
        raise unknown(name, where)
    return (owners[0], name, rest) if rest else (owners[0], name)


def require_source(config: Config, *, questions: bool | None) -> None:
    """Raise ConfigError if a pipeline needs questions and the source has none, or (False) writes them and it has some."""
    data = config.data
    if questions and data.emails != SYNTHETIC and not data.train_questions:
        raise ConfigError(
            "data.train_questions: needed when data.emails is not 'synthetic'; without questions, `--pipeline scenarios` writes "
            "some"
        )
    if questions is False and data.emails == SYNTHETIC:
        raise ConfigError(
            "data.emails: the synthetic company brings its own questions; set data.emails to mail that has none"
        )
