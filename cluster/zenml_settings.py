"""Check ZenML's own settings with ZenML's own models before anything starts: ZenML ignores keys that it does not know."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from zenml.client import Client
from zenml.config.step_configurations import StepConfigurationUpdate
from zenml.enums import StackComponentType
from zenml.utils.settings_utils import get_general_settings

from training.errors import BadInput

_FIXED = ("parameters", "outputs", "model", "substitutions")
"""Configuration of a step that this project sets itself."""


def require_zenml_settings(settings: Mapping[str, Any], step_settings: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise BadInput for a key that ZenML does not know, or a value that it refuses."""
    _require_settings(settings, "settings")
    for step, configured in step_settings.items():
        where = f"step_settings.{step}"
        known = [name for name in StepConfigurationUpdate.model_fields if name not in _FIXED]
        _require_known(configured, known, where)
        parsed(StepConfigurationUpdate, {k: v for k, v in configured.items() if k != "settings"}, where)
        _require_settings(configured.get("settings") or {}, f"{where}.settings")


def component_settings(settings: Mapping[str, Any], kind: StackComponentType) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of a component of the active stack, and the keys that they stand under.

    Raises:
        BadInput: they stand under several keys, or under that of another component.
    """
    keys = [key for key in settings if _kind_of(key) == kind]
    for key in keys:
        if not _is_active(key):
            component = _active(kind)
            has = f"the {kind.value} {component.name} ({component.flavor})" if component else f"no {kind.value}"
            raise BadInput(f"settings.{key}: the active stack has {has}")
    if len(keys) > 1:
        raise BadInput(f"settings: {' and '.join(keys)} mean the same {kind.value}: keep one of them")
    return dict(settings[keys[0]] or {}) if keys else {}, keys


def parsed(kind: type[BaseModel], values: Any, where: str) -> Any:
    """Return the values as ZenML reads them. Raises BadInput for an unknown key, at any depth, or an invalid value."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{where}: expected `key: value` lines, not {values!r}")
    _require_known(values, kind.model_fields, where)
    for name, value in values.items():
        for inner in _models_in(kind.model_fields[name].annotation):
            if isinstance(value, Mapping):
                parsed(inner, value, f"{where}.{name}")
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"{'.'.join(map(str, (where, *first['loc'])))}: {first['msg']}") from None


def _require_settings(settings: Any, where: str) -> None:
    if not isinstance(settings, Mapping):
        raise BadInput(f"{where}: expected `key: value` lines, not {settings!r}")
    general = get_general_settings()
    for key, values in settings.items():
        kind = _kind_of(key)
        if kind is None and key not in general:
            _require_known([str(key)], [*general, *StackComponentType.values()], where)
        if values is None:
            continue
        model: type[BaseModel] | None = general.get(key)
        component = _active(kind) if kind is not None and _is_active(key) else None
        if kind is not None:
            model = component.settings_class if component else None
        if model is not None:
            try:
                parsed(model, values, f"{where}.{key}")
            except BadInput as error:
                if component is None:
                    raise
                # Settings for another stack look like misspelt ones.
                active = f"the active stack's {component.type.value} is {component.name} ({component.flavor})"
                raise BadInput(f"{error}; {active}") from None
        elif not isinstance(values, Mapping):
            raise BadInput(f"{where}.{key}: expected `key: value` lines, not {values!r}")


def _require_known(given: Iterable[Any], known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]!r}?" if near else f"it knows {', '.join(sorted(known))}"
            raise BadInput(f"{where}: ZenML knows no {key!r} there; {hint}")


def _kind_of(key: Any) -> StackComponentType | None:
    """Return the kind of component of a key such as `deployer`, `deployer.local` or `deployer:name`."""
    kind = str(key).partition(":")[0].partition(".")[0]
    return StackComponentType(kind) if kind in StackComponentType.values() else None


def _is_active(key: str) -> bool:
    """Return whether a component of the active stack has these settings."""
    kind = _kind_of(key)
    component = _active(kind) if kind else None
    return component is not None and key in (kind, f"{kind}.{component.flavor}", f"{kind}:{component.name}")


def _active(kind: StackComponentType) -> Any:
    return next((c for c in Client().active_stack.components.values() if c.type == kind), None)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models among the alternatives of an annotation, if there is no mapping among them."""
    alternatives = typing.get_args(annotation) or (annotation,)
    if any(typing.get_origin(kind) is dict for kind in alternatives):
        return []
    return [kind for kind in alternatives if isinstance(kind, type) and issubclass(kind, BaseModel)]
