"""What there is to repair: a scenario is a repository with a bug, hidden checks, and the patch that repairs it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class HiddenCheck(BaseModel):
    """Statements that end in an expression, and the `repr` of its value when the code is right."""

    model_config = ConfigDict(frozen=True)

    code: str
    expected: str


class CodingScenario(BaseModel):
    """One bug."""

    model_config = ConfigDict(frozen=True)

    id: str
    split: Literal["train", "test"]
    kind: str
    """Family of the bug."""
    held_out_family: bool = False
    files: dict[str, str]
    problem: str
    """What the agent is told is wrong."""
    path: str
    """The module that the agent is shown."""
    example: str
    """An expression that the agent may evaluate."""
    example_value: str
    line: int = Field(ge=1)
    """Number of the line that the reference patch replaces."""
    repaired: str
    """That line, repaired."""
    checks: tuple[HiddenCheck, ...] = Field(min_length=1)

    def reference_patch(self) -> dict[str, str]:
        """The repaired files."""
        lines = self.files[self.path].splitlines()
        lines[self.line - 1] = self.repaired
        return {self.path: "\n".join(lines) + "\n"}
