"""Explain in one line what pydantic refuses in a configuration."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo


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


def explain(error: ValidationError, kind: type[BaseModel]) -> str:
    """Name the first key of `kind` that is wrong, the reason and the allowed values."""
    first = error.errors()[0]
    key = str(first["loc"][0]) if first["loc"] else ""
    if not key:
        return str(first["msg"]).removeprefix("Value error, ")
    reason = first["msg"][0].lower() + first["msg"][1:]
    limits = bounds(kind.model_fields[key]) if len(first["loc"]) == 1 and key in kind.model_fields else ""
    path = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"{path}: unknown key; `python run.py --help {key}` lists the parts of {key}"
    return f"{path}={first['input']!r}: {reason}" + (f" (allowed: {limits})" if limits else "")
