"""Describe a setting for `run.py --help KEY`: what it does, allowed values, default, and where it is set."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from configs.config import SECTIONS, Config
from configs.explanation import bounds, model_of
from configs.gone import gone
from configs.loading import place_of
from configs.schema import ConfigError

_WIDTH = 100
_LABEL = 12


def describe(key: str) -> str:
    """Describe a setting (`max_steps`), a part of one (`torch.threads`), or all settings of a section (`trainer`).

    Raises ConfigError for an unknown or ambiguous name.
    """
    names = place_of(key, f"--help {key}")
    if names[0] in SECTIONS and len(names) == 1:
        return _section(names[0])
    path, field = ".".join(names), Config.model_fields[names[0]]
    for above, name in pairwise(names):
        model = model_of(field)
        if said := gone(path):
            raise ConfigError(f"--help {key}: {said}")
        if model is None or name not in model.model_fields:
            parts = f"its parts are {', '.join(model.model_fields)}" if model else "it has no parts"
            raise ConfigError(f"--help {key}: unknown part of {above}; {parts}")
        field = model.model_fields[name]
    lines = [path, *_wrapped("", field.description or "")]
    if model := model_of(field):
        lines += _wrapped("parts", f"{', '.join(model.model_fields)} (`--help {path}.PART` describes one)")
    else:
        lines += _wrapped("type", allowed(field))
        lines += _wrapped("default", default_of(field))
    place = f"in section {names[0]}" if names[0] in SECTIONS else "at the top"
    lines += _wrapped("set it", f"--set {path}{'.PART' if model else ''}=VALUE, or {place} of a YAML file")
    return "\n".join(lines)


def settings_of(section: str) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the settings of a section, and the parts of those that have some, in the order of their definition."""
    for key, field in SECTIONS[section].model_fields.items():
        if model := model_of(field):
            yield from ((f"{section}.{key}.{part}", inner) for part, inner in model.model_fields.items())
        else:
            yield f"{section}.{key}", field


def _section(name: str) -> str:
    rows = [f"Section {name}: {Config.model_fields[name].description}"]
    for key, field in settings_of(name):
        rows += [f"{key} = {default_of(field)}", *_wrapped("", f"{field.description} ({allowed(field)})")]
    return "\n".join(rows)


def allowed(field: FieldInfo) -> str:
    """Return type and bounds of a setting."""
    limits = bounds(field)
    return f"{_type_name(field.annotation)}{limits and ', '}{limits}"


def default_of(field: FieldInfo) -> str:
    """Return the default of a setting as it stands in a YAML file."""
    return _yaml(field.get_default(call_default_factory=True))


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
