"""Scenarios: prospects with a goal, and the nodes of the graph where the search begins."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.outreach.graph import Identifier, KnowledgeGraph, Text, explain, read_lines
from training.errors import BadInput


class Prospect(BaseModel):
    """A person to write to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Text
    role: Text
    company: Text
    industry: Text
    employees: int = Field(ge=1, le=10_000_000)

    @property
    def first_name(self) -> str:
        return self.name.split()[0]

    @property
    def described(self) -> str:
        """Return the prospect in words, on one line."""
        return f"{self.name}, {self.role} at {self.company} ({self.industry}, {self.employees:,} employees)"


class Scenario(BaseModel):
    """One e-mail to write."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Identifier
    split: Literal["train", "test"]
    prospect: Prospect
    goal: Text
    seeds: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
    """Ids of the nodes in the prompt, from which the agent starts."""


def read_scenarios(path: Path, graph: KnowledgeGraph) -> list[Scenario]:
    """Read scenarios from JSON Lines.

    Raises:
        BadInput: a line cannot be used, an id repeats, a seed is no node of the graph, or a split is empty or shares a prospect
            or an industry with the other; the message names file and line where there is one.
    """
    scenarios: dict[str, Scenario] = {}
    for where, values in read_lines(path):
        try:
            scenario = Scenario.model_validate(values)
        except ValidationError as error:
            raise BadInput(f"{where}: {explain(error)}") from None
        if scenario.id in scenarios:
            raise BadInput(f"{where}: scenario {scenario.id} exists already; every id may be used once")
        require_seeds(scenario, graph, where)
        scenarios[scenario.id] = scenario
    require_disjoint(scenarios.values(), str(path))
    return list(scenarios.values())


def require_seeds(scenario: Scenario, graph: KnowledgeGraph, where: str) -> None:
    """Raise `BadInput` when the graph lacks a node that the scenario starts from."""
    for seed in scenario.seeds:
        if seed not in graph:
            raise BadInput(f"{where}: scenario {scenario.id} starts from node {seed!r}, which the graph does not have")


def require_disjoint(scenarios: Iterable[Scenario], where: str) -> None:
    """Raise `BadInput` when a split is empty, or shares a prospect or an industry with the other."""
    train, test = ([scenario for scenario in scenarios if scenario.split == split] for split in ("train", "test"))
    for split, found in (("train", train), ("test", test)):
        if not found:
            raise BadInput(f"{where}: there is no scenario with split {split}; both train and test are needed")
    for what, key in (
        ("industry", lambda s: s.prospect.industry),
        ("prospect", lambda s: (s.prospect.name, s.prospect.company)),
    ):
        if shared := {key(s) for s in train} & {key(s) for s in test}:
            raise BadInput(
                f"{where}: the {what} {min(shared)} is in train and in test; a held-out {what} must not be trained on"
            )
