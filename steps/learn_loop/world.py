"""Build graph, prospects, feedback and task of a learn loop from its configuration."""

from __future__ import annotations

import hashlib
import os
import re
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
from tasks.outreach.settings import SYNTHETIC_GRAPH
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from training.errors import BadInput
from training.scoring.ruler import read_rubric
from training.scoring.scorer import scoring_sources

if TYPE_CHECKING:
    from tasks.outreach.task import FeedbackSource, OutreachTask

EVENTS = LEARN_LOOPS / "feedback.sqlite"
"""Messages of all runs, and their events."""
MODEL_NAME = "ART_MODEL_NAME"
TASK = "outreach"
"""The task that runs of the loop record."""


def world_of(config: LearnLoopConfig) -> tuple[KnowledgeGraph, list[Scenario]]:
    """Read or build graph and scenarios. Raises `BadInput` if one cannot be used."""
    if config.graph == SYNTHETIC_GRAPH and config.prospects is None:
        scenarios = synthetic_scenarios(config.graph_seed, config.train_prospects, config.test_prospects)
        return synthetic_graph(config.graph_seed), scenarios
    if config.prospects is None:
        raise BadInput(f"graph={config.graph} needs prospects as well: a JSON Lines file (docs/outreach.md)")
    synthetic = config.graph == SYNTHETIC_GRAPH
    graph = synthetic_graph(config.graph_seed) if synthetic else read_graph(Path(config.graph).expanduser())
    return graph, read_scenarios(Path(config.prospects).expanduser(), graph)


def source_version(config: LearnLoopConfig) -> str:
    """Return the sha256 of the contents of the user's files."""
    digest = hashlib.sha256()
    for name in (config.graph if config.graph != SYNTHETIC_GRAPH else None, config.prospects):
        path = Path(name).expanduser() if name else None
        for file in sorted(path.iterdir()) if path and path.is_dir() else [path] if path else []:
            digest.update(file.name.encode() + b"\0" + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()[:16]


def model_name() -> str:
    """Return the name of the trained model. Raises `BadInput` if ART_MODEL_NAME is no name for a folder."""
    name = os.environ.get(MODEL_NAME) or "outreach"
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", name, re.ASCII):
        raise BadInput(
            f"{MODEL_NAME}={name!r}: use up to 64 letters, digits, '.', '_' and '-', and begin with one of the first two"
        )
    return name


def sources_of(config: LearnLoopConfig) -> dict[str, str]:
    """Return setting -> sha256 of the file, files or function that it names, and of the model's name."""
    named = hashlib.sha256(model_name().encode()).hexdigest()
    return {**scoring_sources(config), "graph and prospects": source_version(config), MODEL_NAME: named}


def graph_of(lines: str) -> KnowledgeGraph:
    """Parse the graph of an artifact."""
    with tempfile.TemporaryDirectory() as folder:
        (file := Path(folder) / "graph.jsonl").write_text(lines, encoding="utf-8")
        return read_graph(file)


def open_task(
    config: LearnLoopConfig,
    graph: KnowledgeGraph,
    scenarios: Sequence[Scenario],
    scores: NodeScores | None = None,
    *,
    explore: bool = False,
) -> OutreachTask:
    """Build the configured task, with fresh scores unless `scores` is given."""
    from tasks.outreach.task import OutreachTask  # takes seconds to import, so bad input is reported first

    feedback: FeedbackSource
    if config.feedback == "recorded":
        feedback = RecordedFeedback(EventStore(EVENTS))
    else:
        feedback = SimulatedProspects(graph, scenarios, config.graph_seed, random_replies=config.random_replies)
    scores = scores or NodeScores.fresh(graph)
    rubric = read_rubric(config)
    task = OutreachTask(graph, scenarios, feedback, config, scores, seed=config.seed, explore=explore, rubric=rubric)
    task.name = model_name()
    return task
