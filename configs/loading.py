"""Read a configuration from a YAML file and `key=value` overrides."""

from __future__ import annotations

import difflib
import math
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from configs.explanation import explain
from configs.schema import SECTIONS, SYNTHETIC, Config, ConfigError
from training.user_paths import path_problem
from training.yaml_text import load_yaml

_WITH_PARTS = {
    name
    for name, field in Config.model_fields.items()
    if isinstance(field.get_default(call_default_factory=True), BaseModel)
}
_PATHS = (
    *("access_keys", "base_model", "bugs", "continue_from", "emails", "feedback_folder", "graph", "prospects"),
    *("folder", "reviewed_feedback", "ruler_rubric", "test_questions", "train_questions"),
)
"""Settings that may name a file or folder of the user."""
_MOST = 2**63 - 1
_LISTED = f"`python run.py --help SECTION` lists the keys of a section ({', '.join(SECTIONS)})"


def load_config(path: Path | None, overrides: list[str], base: dict[str, Any] | None = None) -> Config:
    """Load the configuration: defaults, then `base`, the YAML file, and `key=value` overrides with YAML values.

    Raises:
        ConfigError: the file is missing or no mapping, a key is unknown, or a value has a wrong type or is out of range.
    """
    values = dict(base or {})
    for key, value in explicit_values(path, overrides).items():
        merged = key in _WITH_PARTS and isinstance(value, dict)
        values[key] = {**values.get(key, {}), **value} if merged else value
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(error, Config)) from None
    for key in _PATHS:
        named = getattr(config, key)
        if named is not None and (problem := path_problem(named)):
            raise ConfigError(f"{key}={named[:80]!r}: {problem}")
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


def explicit_values(path: Path | None, overrides: list[str]) -> dict[str, Any]:
    """Return the keys that the user set, without their sections: those of the file and of `key=value` overrides.

    Raises ConfigError for an unknown key or section, and for a key in a wrong section.
    """
    values: dict[str, Any] = {}
    if path is not None:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(f"config file {path} {problem}; the project's own are in configs/")
        try:
            values = load_yaml(path.read_text(encoding="utf-8")) or {}
        except OSError as error:
            raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from None
        except (yaml.YAMLError, ValueError) as error:  # ValueError: a date that does not exist, for example
            raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"config file {path} must hold `key: value` lines, not a {type(values).__name__}")
    values = _without_sections(values, str(path))
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word}: expected key=value")
        name, _, part = key.partition(".")
        if name in SECTIONS and part:
            section, (name, _, part) = name, part.partition(".")
            require_known(name, "--set", section=section)
        try:
            value = load_yaml(text)
        except (yaml.YAMLError, ValueError):
            raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
        if name in SECTIONS:
            values |= _without_sections({name: value}, "--set")
            continue
        require_known(name, "--set", mapping=isinstance(value, dict))
        if part and not isinstance(values.setdefault(name, {}), dict):
            raise ConfigError(f"--set {key}: {name} is {values[name]!r} here, which has no parts")
        values[name] = {**values[name], part: value} if part else value
    return values


def _without_sections(values: dict[Any, Any], where: str) -> dict[str, Any]:
    """Return the keys of all sections and those at the top in one mapping."""
    flat: dict[str, Any] = {}
    set_in: dict[str, str] = {}

    def add(key: str, value: Any, place: str) -> None:
        if key in set_in:
            raise ConfigError(f"{where}: '{key}' is set {set_in[key]} and {place}: keep one of them")
        flat[key], set_in[key] = value, place

    for name, value in values.items():
        if name not in SECTIONS:
            require_known(str(name), where, mapping=isinstance(value, dict))
            add(name, value, "at the top")
            continue
        if not isinstance(value, dict | None):
            raise ConfigError(f"{where}: section '{name}' must hold `key: value` lines, not {value!r}")
        for key, inner in (value or {}).items():
            require_known(str(key), where, section=name)
            add(key, inner, f"in section '{name}'")
    return flat


def require_known(key: str, where: str, *, section: str | None = None, mapping: bool = False) -> None:
    """Raise ConfigError, which begins with `where`, unless `key` is a setting (in `section`, if that is given).

    `mapping` says that the value has parts, so that a section may have been meant.
    """
    if section is not None:
        _require_in_section(key, section, where)
    elif key not in Config.model_fields:
        sections = SECTIONS if mapping else {}
        kind = "section or key" if sections else "key"
        near = difflib.get_close_matches(key, [*sections, *Config.model_fields], n=1, cutoff=0.6)
        hint = f"did you mean '{near[0]}'?" if near else _LISTED
        raise ConfigError(f"{where}: unknown {kind} '{key}'; {hint}")


def _require_in_section(key: str, section: str, where: str) -> None:
    if key in SECTIONS[section]:
        return
    owners = [f"'{name}'" for name, keys in SECTIONS.items() if key in keys]
    if key in Config.model_fields:
        place = f"in section {' or '.join(owners)}" if owners else "at the top"
        raise ConfigError(f"{where}: '{key}' is no key of section '{section}'; it belongs {place}")
    near = difflib.get_close_matches(key, SECTIONS[section], n=1, cutoff=0.6)
    hint = f"did you mean '{near[0]}'?" if near else f"`python run.py --help {section}` lists them"
    raise ConfigError(f"{where}: unknown key '{key}' in section '{section}'; {hint}")


def require_source(config: Config, *, questions: bool | None) -> None:
    """Raise ConfigError if a pipeline needs questions and the source has none, or (False) writes them and it has some."""
    if questions and config.emails != SYNTHETIC and not config.train_questions:
        raise ConfigError(
            "train_questions: needed when emails is not 'synthetic'; without questions, `--pipeline scenarios` writes some"
        )
    if questions is False and config.emails == SYNTHETIC:
        raise ConfigError("emails: the synthetic company brings its own questions; set emails to mail that has none")
