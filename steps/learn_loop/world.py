"""What a learn loop's configuration means: its graph, prospects, feedback and task."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from configs.schema import LearnLoopConfig
from steps.project import LEARN_LOOPS
from tasks.outreach.events import EventStore, RecordedFeedback
from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.graph import KnowledgeGraph, read_graph
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.scenarios import Scenario, read_scenarios
from tasks.outreach.settings import SYNTHETIC_GRAPH, OutreachSettings
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from training.errors import BadInput

if TYPE_CHECKING:
    from tasks.outreach.task import OutreachTask

EVENTS = LEARN_LOOPS / "feedback.sqlite"
"""Messages of all runs, and what happened to them."""


def world_of(config: LearnLoopConfig) -> tuple[KnowledgeGraph, list[Scenario]]:
    """Read or build graph and scenarios. Raises `BadInput` when one cannot be used."""
    if config.graph == SYNTHETIC_GRAPH and config.prospects is None:
        scenarios = synthetic_scenarios(config.graph_seed, config.train_prospects, config.test_prospects)
        return synthetic_graph(config.graph_seed), scenarios
    if config.prospects is None:
        raise BadInput(f"graph={config.graph} needs prospects as well: a JSON Lines file (docs/outreach.md)")
    synthetic = config.graph == SYNTHETIC_GRAPH
    graph = synthetic_graph(config.graph_seed) if synthetic else read_graph(Path(config.graph).expanduser())
    return graph, read_scenarios(Path(config.prospects).expanduser(), graph)


def source_version(config: LearnLoopConfig) -> str:
    """sha256 of the user's files; equal for equal contents."""
    digest = hashlib.sha256()
    for name in (config.graph if config.graph != SYNTHETIC_GRAPH else None, config.prospects):
        path = Path(name).expanduser() if name else None
        for file in sorted(path.iterdir()) if path and path.is_dir() else [path] if path else []:
            digest.update(file.name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()[:16]


def graph_of(lines: str) -> KnowledgeGraph:
    """The graph of an artifact."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "graph.jsonl").write_text(lines, encoding="utf-8")
        return read_graph(file)


def open_task(
    config: LearnLoopConfig, graph: KnowledgeGraph, scenarios: Sequence[Scenario], scores: NodeScores | None = None
) -> OutreachTask:
    """The task as configured, with fresh scores unless some are given."""
    from tasks.outreach.task import OutreachTask  # art takes seconds to import, and bad input is told before

    settings = OutreachSettings.model_validate(config.model_dump(include=set(OutreachSettings.model_fields)))
    if config.feedback == "recorded":
        feedback = RecordedFeedback(EventStore(EVENTS))
    else:
        feedback = SimulatedProspects(graph, scenarios, config.graph_seed)
    scores = scores or NodeScores.fresh(graph, settings.node_decay)
    task = OutreachTask(graph, scenarios, feedback, settings, scores, seed=config.seed)
    task.name = os.environ.get("ART_MODEL_NAME", task.name)
    return task
