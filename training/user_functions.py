"""Functions of the user that a setting names: import them, and identify their code."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from training.errors import BadInput


def load_function(setting: str, path: str) -> Callable[..., Any]:
    """Import the function at `path`, `package.module:name`. Raises `BadInput`, which begins with `setting`, if it is missing."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise BadInput(f"{setting}={path}: expected package.module:name")
    try:
        function = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # the user's module may raise anything on import
        raise BadInput(f"{setting}={path}: {module} cannot be imported ({type(error).__name__}: {error})") from error
    if not inspect.isfunction(function):
        raise BadInput(f"{setting}={path}: {module} has no function {name}")
    return function


def source_digest(function: Callable[..., Any]) -> str:
    """Return the sha256 of the function's module, because what it calls there counts too."""
    return hashlib.sha256(inspect.getsource(inspect.getmodule(function) or function).encode()).hexdigest()
