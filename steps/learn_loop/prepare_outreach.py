"""Load the knowledge graph and the prospects, built in or from the user's files."""

from __future__ import annotations

from typing import Annotated

from zenml import step
from zenml.config.cache_policy import CachePolicy

from configs.schema import LearnLoopConfig
from materializers.json_lines import JsonLinesMaterializer
from steps.artifact_names import KNOWLEDGE_GRAPH, PROSPECTS
from steps.learn_loop.world import world_of
from steps.project import source_files
from tasks.outreach.scenarios import Scenario


@step(
    output_materializers={PROSPECTS: JsonLinesMaterializer},
    cache_policy=CachePolicy(file_dependencies=source_files("tasks/outreach", "steps/learn_loop")),
)
def prepare_outreach(
    config: LearnLoopConfig, source_version: str
) -> tuple[Annotated[str, KNOWLEDGE_GRAPH], Annotated[list[Scenario], PROSPECTS]]:
    """Return the graph as JSON Lines, and the scenarios.

    `source_version` is a cache key: the version of the user's files.
    """
    graph, scenarios = world_of(config)
    return graph.to_lines(), scenarios
