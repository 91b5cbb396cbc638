"""Read a configuration from a YAML file and `key=value` overrides."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from configs.schema import Config, ConfigError

_WITH_PARTS = {
    name
    for name, field in Config.model_fields.items()
    if isinstance(field.get_default(call_default_factory=True), BaseModel)
}


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
        return Config.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error, path)) from None


def explicit_values(path: Path | None, overrides: list[str]) -> dict[str, Any]:
    """Return the keys that the user set: those of the file and of `key=value` overrides. Raises ConfigError for unknown keys."""
    values: dict[str, Any] = {}
    if path is not None:
        if not path.is_file():
            raise ConfigError(f"config file {path} does not exist; the project's own are in configs/")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"config file {path} is not YAML: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"config file {path} must hold `key: value` lines, not a {type(values).__name__}")
    for key in values:
        _require_known(str(key), str(path))
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals:
            raise ConfigError(f"--set {word}: expected key=value")
        name, _, part = key.partition(".")
        _require_known(name, "--set")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {key}: {text!r} is not a YAML value") from None
        if part and not isinstance(values.setdefault(name, {}), dict):
            raise ConfigError(f"--set {key}: {name} is {values[name]!r} here, which has no parts")
        values[name] = {**values[name], part: value} if part else value
    return values


def _require_known(key: str, where: str) -> None:
    if key not in Config.model_fields:
        near = difflib.get_close_matches(key, Config.model_fields, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else "configs/schema.py lists them all"
        raise ConfigError(f"{where}: unknown key '{key}'; {hint}")


def _bounds(key: str) -> str:
    field = Config.model_fields.get(key)
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [
        f"{sign} {getattr(rule, name)}"
        for rule in (field.metadata if field else [])
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " and ".join(limits)


def _explain(error: ValidationError, path: Path | None) -> str:
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if not key:
        return str(first["msg"]).removeprefix("Value error, ")
    reason = first["msg"][0].lower() + first["msg"][1:]
    bounds = _bounds(key) if len(first["loc"]) == 1 else ""
    if first["type"] == "extra_forbidden":
        return f"{'.'.join(map(str, first['loc']))}: unknown key; configs/schema.py lists them all"
    key = ".".join(map(str, first["loc"]))
    return f"{key}={first['input']!r}: {reason}" + (f" (allowed: {bounds})" if bounds else "")
