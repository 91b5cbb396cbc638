"""Describe a setting for `run.py --help KEY`: what it does, allowed values, default, and where it is set."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from configs.explanation import bounds
from configs.loading import require_known
from configs.schema import SECTIONS, Config, ConfigError

_WIDTH = 100
_LABEL = 12


def describe(key: str) -> str:
    """Describe the setting `key`, a part of a setting (`torch.threads`), or all settings of a section (`trainer`).

    Raises ConfigError for an unknown name, with the nearest one.
    """
    name, _, part = key.partition(".")
    if name in SECTIONS and not part:
        return _section(name)
    if name in SECTIONS:
        name, _, part = part.partition(".")
        require_known(name, f"--help {key}", section=key.partition(".")[0])
    else:
        require_known(name, f"--help {key}")
    field = Config.model_fields[name]
    if not part:
        return _setting(name, name, field)
    model = _model_of(field)
    if model is None or part not in model.model_fields:
        parts = f"its parts are {', '.join(model.model_fields)}" if model else "it has no parts"
        raise ConfigError(f"--help {key}: unknown part of {name}; {parts}")
    return _setting(f"{name}.{part}", name, model.model_fields[part])


def _setting(key: str, name: str, field: FieldInfo) -> str:
    lines = [key, *_wrapped("", field.description or "")]
    if model := _model_of(field):
        lines += _wrapped("parts", f"{', '.join(model.model_fields)} (`--help {key}.PART` describes one)")
    else:
        limits = bounds(field)
        lines += _wrapped("type", f"{_type_name(field.annotation)}{limits and ', '}{limits}")
        default = field.get_default(call_default_factory=True)
        lines += _wrapped("default", _yaml(default))
    sections = [section for section, keys in SECTIONS.items() if name in keys]
    place = f"in section {' or '.join(sections)}" if sections else "at the top"
    lines += _wrapped("set it", f"--set {key}{'.PART' if model else ''}=VALUE, or {place} of a YAML file")
    return "\n".join(lines)


def _section(name: str) -> str:
    """Return one line for each setting of a section, in the order of their definition."""
    fields = {key: field for key, field in Config.model_fields.items() if key in SECTIONS[name]}
    rows = [f"Settings of section {name}, with their defaults; `--help KEY` describes one:"]
    for key, field in fields.items():
        model = _model_of(field)
        rows.append(f"  {key}: {'...' if model else _yaml(field.get_default(call_default_factory=True))}")
    return "\n".join(rows)


def _model_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a setting with parts."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _wrapped(label: str, text: str) -> list[str]:
    indent = " " * (_LABEL + 2)
    first = f"  {label:<{_LABEL}}" if label else "  "
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=indent if label else "  ", break_on_hyphens=False
    )


def _yaml(value: Any) -> str:
    """Return a value as it stands in a configuration file, on one line."""
    plain: Any = dict(value) if isinstance(value, Mapping) else list(value) if isinstance(value, tuple) else value
    text: str = yaml.safe_dump(plain, default_flow_style=True, width=10_000, sort_keys=False)
    return text.removesuffix("...\n").strip()


def _type_name(kind: Any) -> str:
    """Return a type in the words of a configuration file."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, inner))
    if origin is Annotated:
        return _type_name(inner[0])
    if origin in (Union, UnionType):
        return " or ".join(_type_name(one) for one in inner)
    if origin is tuple:
        return f"list of {_type_name(inner[0])}"
    if origin is dict or kind is dict:
        return f"mapping of {_type_name(inner[0])} to {_type_name(inner[1])}" if inner else "mapping"
    if kind is Any:
        return "any value"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", NoneType: "null"}
    return names.get(kind, getattr(kind, "__name__", str(kind)))
