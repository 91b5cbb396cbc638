"""Warnings of libraries are hidden, runtime warnings of the project are not."""

from __future__ import annotations

import os
import warnings
from unittest import mock

import run


def test_only_runtime_warnings_of_the_project_are_shown() -> None:
    with mock.patch.dict(os.environ), warnings.catch_warnings(record=True) as shown:
        run.quiet_third_parties()
        for module in ("training.loop.trainer", "training", "torch.nn", "trainings.other"):
            warnings.warn_explicit("invalid value", RuntimeWarning, f"{module}.py", 1, module=module)
        warnings.warn_explicit("old", DeprecationWarning, "training.py", 2, module="training.loop.trainer")
    assert [str(warning.filename) for warning in shown] == ["training.loop.trainer.py", "training.py"]
