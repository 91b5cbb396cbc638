"""`run.py` in this process, with folders of its own: for what refusals and dry runs say, without a new process."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from unittest import mock

import pytest

import run
from steps import project


@dataclass
class FrontDoor:
    """Runs `run.main` in `folder`, which takes the place of the checkout for what a run reads and writes.

    ZenML's configuration is that of the tests. The environment, the current directory and the filters of warnings are as
    before after each run.
    """

    folder: Path
    monkeypatch: pytest.MonkeyPatch

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / "configs").symlink_to(project.ROOT / "configs")
        (self.folder / "run.py").symlink_to(project.ROOT / "run.py")
        self.monkeypatch.chdir(self.folder)
        # `main` reads the .env next to run.py, and silences libraries whose messages other tests of this process look at.
        self.monkeypatch.setattr(run, "__file__", str(self.folder / "run.py"))
        self.monkeypatch.setattr(run, "quiet_third_parties", lambda: None)
        for module in _modules_that_write():
            for name, value in list(vars(module).items()):
                if isinstance(value, Path) and value.is_relative_to(project.OUTPUTS):
                    self.monkeypatch.setattr(module, name, self.folder / value.relative_to(project.ROOT))

    def run(self, *words: str) -> CompletedProcess[str]:
        """Return what run.py with these arguments says, and its exit code."""
        with (
            mock.patch.dict(os.environ),
            mock.patch.object(sys, "path", [*sys.path]),
            warnings.catch_warnings(),
            redirect_stdout(StringIO()) as output,
            redirect_stderr(StringIO()) as errors,
        ):
            try:
                code = run.main(list(words))
            except SystemExit as left:
                assert isinstance(left.code, int)
                code = left.code
        return CompletedProcess(list(words), code, output.getvalue(), errors.getvalue())

    def refuses(self, *words: str) -> str:
        """Return the one line with which run.py refuses these arguments. Nothing half-written or begun is left."""
        done = self.run(*words)
        assert done.returncode == 2, done.stdout + done.stderr
        lines = done.stderr.strip().splitlines()
        assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
        assert "Traceback" not in done.stdout
        assert not list(self.folder.rglob("*.partial")) and not (self.folder / "outputs" / "runs").exists()
        return lines[0]


@cache
def _modules_that_write() -> list[ModuleType]:
    """Return all modules of the rooms that know the folder of the outputs, `steps.project` as the last.

    They are imported before anything is replaced: a later import would keep the folder of one test.
    """
    for room in ("commands", "pipelines", "steps"):
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            importlib.import_module(module.name)
    known = [module for name, module in sys.modules.items() if name.partition(".")[0] in ("commands", "steps")]
    return [*(module for module in known if module is not project), project]
