"""Explain in one line what pydantic refuses in a configuration."""

from __future__ import annotations

import re

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from configs.gone import gone

_PLAIN = {
    "tuple_type": "expected a list, such as [a, b]",
    "list_type": "expected a list, such as [a, b]",
    "dict_type": "expected a mapping, such as {key: value}",
    "model_type": "expected its parts, such as {key: value}",
}
"""Reasons in the words of YAML instead of Python's, by the type of pydantic's error."""


def bounds(field: FieldInfo) -> str:
    """Return the limits of a number, such as `>= 1 and <= 1024`."""
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    limits = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in signs.items()
        if getattr(rule, name, None) is not None
    ]
    return " and ".join(limits)


def model_of(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a field with parts."""
    kind = field.annotation if field else None
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """Name the first key of `kind` that is wrong, the reason and the allowed values."""
    first = error.errors()[0]
    place = first["loc"]
    field = _field(kind, place)
    path = ".".join(map(str, place))
    model = model_of(field) if place else kind
    if first["type"] == "value_error" and model:  # a rule about several keys
        line = str(first["msg"]).removeprefix("Value error, ")
        begins_with_key = re.split(r"\W", line, maxsplit=1)[0] in model.model_fields
        return line if not path else f"{path}.{line}" if begins_with_key else f"{path}: {line}"
    if first["type"] == "extra_forbidden":
        if said := gone(path):
            return said
        above = path.rpartition(".")[0]
        known = (
            f"`python run.py --help {above}` lists the parts of {above}"
            if above
            else f"there are {', '.join(kind.model_fields)}"
        )
        return f"{path}: unknown key; {known}"
    reason = _PLAIN.get(first["type"], first["msg"][0].lower() + first["msg"][1:])
    if first["type"] == "string_pattern_mismatch" and field and field.description:
        reason = f"not valid; it is the {field.description}"
    limits = bounds(field) if field else ""
    given = " has no value" if first["input"] is None else f"={first['input']!r}"
    return f"{path}{given}: {reason}" + (f" (allowed: {limits})" if limits else "")


def _field(kind: type[BaseModel] | None, place: tuple[int | str, ...]) -> FieldInfo | None:
    """Return the field at this place; None inside a list or a mapping."""
    field = None
    for name in place:
        field = kind.model_fields.get(str(name)) if kind else None
        kind = model_of(field)
    return field
