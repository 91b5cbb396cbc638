"""Functions of the user that a setting names: import them, identify their code, and call them."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import traceback
from collections.abc import Callable
from numbers import Complex, Real
from typing import Any

from training.errors import BadInput

_MOST_SHOWN = 100
"""Characters of a value in a message."""


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


async def reward_by(setting: str, function: Callable[[Any], Any], rollout: Any) -> float:
    """Return the reward of a rollout, from a function that may be a coroutine.

    Raises:
        BadInput: it raised, or returned anything but a finite number. The message begins with `setting`.
    """
    try:
        result = function(rollout)
        reward = await result if inspect.isawaitable(result) else result
    except Exception as error:  # the user's function may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise BadInput(
            f"{setting}: {function.__name__} raised {type(error).__name__}: {error} ({place.filename}, line {place.lineno})"
        ) from error
    number = _real(reward)
    if number is not None:
        return number
    raise BadInput(f"{setting}: {function.__name__} returned {_shown(reward)}, which is not a finite number")


def _real(value: Any) -> float | None:
    """Return any finite real number, for example of NumPy, `decimal` or a tensor without dimensions; else None."""
    if not hasattr(type(value), "__float__") and not hasattr(type(value), "__index__"):
        return None
    if getattr(value, "ndim", 0) or (isinstance(value, Complex) and not isinstance(value, Real)):
        return None
    try:
        number = float(value)
    except (
        TypeError,
        ValueError,
        ArithmeticError,
        RuntimeError,
    ):  # what libraries raise for no number, or one too large
        return None
    return number if math.isfinite(number) else None


def _shown(value: Any) -> str:
    try:
        shown = " ".join(repr(value).split())
    except ValueError:  # thousands of digits
        return f"an {type(value).__name__} of too many digits"
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}..."
