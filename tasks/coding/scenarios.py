"""Scenarios of the coding task: a bug, the initial workspace, hidden tests, and the cells that repair it."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.coding.prompts import load


class CodingScenario(BaseModel, ABC):
    """One bug. Subclasses say where its code is and how it is tested."""

    model_config = ConfigDict(frozen=True)

    id: str
    split: Literal["train", "test"]
    kind: str
    """Family of the bug."""
    held_out_family: bool = False
    problem: str
    """What the agent is told is wrong."""

    def digest(self) -> str:
        """Return the digest of the bug, whichever split it is in."""
        return hashlib.sha256(self.model_dump_json(exclude={"split"}).encode()).hexdigest()

    @property
    @abstractmethod
    def workspace(self) -> dict[str, Any]:
        """What the sandbox has to put into a workspace: `files` or an `image`."""

    @property
    @abstractmethod
    def tests(self) -> dict[str, Any]:
        """The hidden tests: `checks` of files, or the `suite` of an image."""

    @property
    @abstractmethod
    def reference(self) -> str:
        """The repair, for people."""

    @abstractmethod
    def opening_messages(self, system_prompt: str | None) -> list[dict[str, Any]]:
        """What the agent is told: how to work, and what is wrong."""

    @abstractmethod
    def prelude(self) -> str:
        """Return the functions that the agent finds in its REPL."""

    @abstractmethod
    def oracle_cells(self) -> list[str]:
        """Return the repair as cells."""

    def reference_patch(self) -> dict[str, Any] | None:
        """Return the repair as a patch, where it is known without playing its cells."""
        return None

    @abstractmethod
    def expects_change(self, path: str) -> bool:
        """Return whether a repair may well change this file."""


class HiddenCheck(BaseModel):
    """Statements that end in an expression, and the `repr` of its value when the code is right."""

    model_config = ConfigDict(frozen=True)

    code: str
    expected: str


class FailedAttempt(BaseModel):
    """A replacement of the wrong line that does not repair it, and what the example prints then."""

    model_config = ConfigDict(frozen=True)

    line: str
    output: str


class OneLineBug(CodingScenario):
    """A module of which one line is wrong. The agent sees it with numbered lines."""

    files: dict[str, str]
    path: str
    """The module that the agent is shown."""
    example: str
    """An expression that the agent may evaluate."""
    example_value: str
    line: int = Field(ge=1)
    """Number of the line that the repair replaces."""
    repaired: str
    """That line, repaired."""
    failed_attempt: FailedAttempt | None = None
    """For demonstrations; None where no other wrong line fails the example."""
    checks: tuple[HiddenCheck, ...] = Field(min_length=1)

    @property
    def workspace(self) -> dict[str, Any]:
        return {"files": self.files}

    @property
    def tests(self) -> dict[str, Any]:
        return {"checks": [check.model_dump() for check in self.checks]}

    @property
    def reference(self) -> str:
        return self.repaired.strip()

    def opening_messages(self, system_prompt: str | None) -> list[dict[str, Any]]:
        lines = self.files[self.path].splitlines()
        listing = "\n".join(f"{number}|{line}" for number, line in enumerate(lines, 1))
        asked = load("task").format(path=self.path, listing=listing, failure=self.problem)
        return [{"role": "system", "content": system_prompt or load("system")}, {"role": "user", "content": asked}]

    def prelude(self) -> str:
        module = self.path.removesuffix(".py").replace("/", ".")
        return load("prelude").format(path=self.path, module=module, example=self.example, expected=self.example_value)

    def oracle_cells(self) -> list[str]:
        return [self.fix(self.repaired), "finish()"]

    def fix(self, line: str) -> str:
        """Return the cell that replaces the wrong line."""
        return f"fix({self.line}, {line.strip()!r})"

    def reference_patch(self) -> dict[str, Any]:
        lines = self.files[self.path].splitlines()
        lines[self.line - 1] = self.repaired
        return {"changed": {self.path: "\n".join(lines) + "\n"}, "deleted": []}

    def expects_change(self, path: str) -> bool:
        return path == self.path


class Edit(BaseModel):
    """Lines `first` to `last` of a file become `text`. With `last` before `first` nothing is replaced."""

    model_config = ConfigDict(frozen=True)

    path: str
    first: int = Field(ge=1)
    last: int = Field(ge=0)
    text: str


class RepositoryBug(CodingScenario):
    """A repository in a container image that has its dependencies and its tests."""

    image: str
    folder: str
    hidden: tuple[str, ...]
    """Files and folders of the image that the agent must not see."""
    command: str
    """Runs the tests; prints a report of pytest."""
    expected: dict[str, str] = Field(min_length=1)
    """Outcome of each test by its name, when the code is right."""
    edits: tuple[Edit, ...]
    deleted: tuple[str, ...] = ()
    """Files that the repair deletes."""

    @property
    def workspace(self) -> dict[str, Any]:
        return {"image": {"name": self.image, "folder": self.folder, "hidden": list(self.hidden)}}

    @property
    def tests(self) -> dict[str, Any]:
        return {"suite": {"command": self.command, "expected": self.expected}}

    @property
    def reference(self) -> str:
        return "\n".join(f"{edit.path}:{edit.first}-{edit.last}\n{edit.text}" for edit in self.edits)

    def opening_messages(self, system_prompt: str | None) -> list[dict[str, Any]]:
        asked = load("task_repository").format(repository=self.kind, problem=self.problem)
        system = system_prompt or load("system_repository")
        return [{"role": "system", "content": system}, {"role": "user", "content": asked}]

    def prelude(self) -> str:
        return load("prelude_repository")

    def oracle_cells(self) -> list[str]:
        # From the end of each file, so that the numbers of earlier lines stay right.
        edits = sorted(self.edits, key=lambda edit: (edit.path, -edit.first))
        lines = [f"edit({edit.path!r}, {edit.first}, {edit.last}, {edit.text!r})" for edit in edits]
        lines += [f"os.remove({path!r})" for path in self.deleted]
        return ["\n".join(lines), "finish()"]

    def expects_change(self, path: str) -> bool:
        return True
