"""A learn loop in a process of its own, which a SIGKILL ends at a chosen point of iteration 2."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.outreach import loop as loop_module
from tasks.outreach import webhook
from tasks.outreach.events import EventStore
from tasks.outreach.feedback import SimulatedProspects
from tasks.outreach.loop import LearnLoop
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.results import METRICS
from tasks.outreach.settings import OutreachSettings
from tasks.outreach.synthetic import synthetic_graph, synthetic_scenarios
from tasks.outreach.task import OutreachTask
from tasks.outreach.webhook import SECRET, Outbox
from tests.fakes.outreach_model import without_backend
from tests.training.toy_run import CountingBackend
from training.loop import trainer
from training.loop.validation import Validator
from training.record.progress import NoProgress
from training.scoring.scorer import Scorer
from training.settings import TrainerSettings

RULES = TrainerSettings(
    max_steps=3,
    groups_per_step=2,
    max_extra_groups=0,
    probe_rollouts=None,
    min_reward_std=0.0,
    advantage_balance=0.0,
    rollouts_per_group=4,
    demonstrations=4,
    validate_every=1,
    validation_questions=2,
    validation_metric="reward",
    scoring="blend",
    blend_weights={"verifiable": 0.3, "custom": 0.7},
    reward_function="tasks.outreach.feedback:feedback_reward",
    health_seconds=0,
)
RUN = "run"
POINTS: dict[str, tuple[Any, str, bool]] = {
    "first e-mail": (OutreachTask, "rollout", True),
    "scoring": (Scorer, "score", True),
    "before the update": (CountingBackend, "train", True),
    "after the update": (CountingBackend, "train", False),
    "e-mails": (loop_module, "write_json", False),
    "scores": (loop_module, "write_text", True),
    "messages": (EventStore, "add_messages", False),
    "validation": (Validator, "validate", True),
    "before the row": (trainer, "append_row", True),
    "after the row": (trainer, "append_row", False),
    "before the notice": (Outbox, "put", True),
    "after the notice": (Outbox, "put", False),
    "notice delivered": (webhook.Outbox, "_send", False),
    "state": (LearnLoop, "save_state", True),
    "end of the iteration": (LearnLoop, "step", False),
}
"""Point -> function, and whether the kill comes before or after its call."""


def loop_in(folder: Path, url: str | None) -> LearnLoop:
    graph, scenarios = synthetic_graph(0), synthetic_scenarios(0, 12, 4)
    settings = OutreachSettings()
    simulation = SimulatedProspects(graph, scenarios, 0)
    task = OutreachTask(graph, scenarios, simulation, settings, NodeScores.fresh(graph))
    outbox = Outbox(folder / RUN / "webhook", url, private=True, first_pause=0.01)
    return LearnLoop(folder / RUN, task, EventStore(folder / "feedback.sqlite"), outbox, NoProgress(), RULES.max_steps)


def run_loop(folder: Path, model_url: str, webhook_url: str) -> LearnLoop:
    loop_module.run_training = without_backend(model_url)
    loop = loop_in(folder, webhook_url)
    with loop._outbox:
        asyncio.run(loop.run(base_model="none", settings=RULES, max_tokens=96))
    return loop


def run_until_killed(folder: Path, model_url: str, webhook_url: str, secret: str, point: str) -> None:
    """In a child process: the kill patches this process's classes."""
    os.environ[SECRET] = secret
    owner, name, before = POINTS[point]
    setattr(owner, name, _killing(getattr(owner, name), folder, before))
    run_loop(folder, model_url, webhook_url)


def _killing(real: Callable[..., Any], folder: Path, before: bool) -> Callable[..., Any]:
    def die() -> None:
        if (folder / RUN / "iterations" / "0001" / METRICS).exists():
            os.kill(os.getpid(), signal.SIGKILL)

    async def awaited(result: Any) -> Any:
        found = await result
        die()
        return found

    def call(*arguments: Any, **options: Any) -> Any:
        if before:
            die()
            return real(*arguments, **options)
        result = real(*arguments, **options)
        if asyncio.iscoroutine(result):
            return awaited(result)
        die()
        return result

    return call
