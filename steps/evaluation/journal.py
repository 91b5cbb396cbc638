"""The journals of evaluations in progress: where they are, and when they are no longer needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from zenml import get_step_context
from zenml.client import Client
from zenml.models import ArtifactVersionResponse
from zenml.utils.time_utils import utc_now

from agent.answer_journal import AnswerJournal
from agent.metrics import Prediction
from reports.console import say
from steps.project import EVALUATIONS, code_digest

CODE = ("agent", "environment", "training")
"""Rooms whose code answers about mail depend on."""
TASK_CODE = ("sandbox", "tasks", "training")
"""Rooms whose code the episodes of other tasks depend on."""
_JOURNAL = "journal"
"""Key of the metadata that names the journal of stored answers."""


def open_journal(config: BaseModel, *, code: Sequence[str] = CODE, **asked: Any) -> AnswerJournal:
    """Return the journal of steps with the artifacts of the current one, this configuration, the code of these rooms, and
    `asked`: what else the answers depend on. Say how many answers an interrupted evaluation left in it.
    """
    inputs = get_step_context().step_run.inputs
    key = {
        "code": code_digest(*code),
        "config": config.model_dump(mode="json"),
        "artifacts": {name: str(inputs[name][0].id) for name in sorted(inputs) if name != "base"},
        **asked,
    }
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
    journal = AnswerJournal(EVALUATIONS / f"{digest[:16]}.jsonl")
    if journal.answers:
        of_production = " of the version in production" if "production" in asked else ""
        say(f"{journal.answers} answers of the interrupted evaluation{of_production} are kept")
    return journal


def finish_journal(journal: AnswerJournal, predictions: Sequence[Prediction], *, output: str) -> None:
    """Note with the step's output `output` that its journal is finished. If a question ended in an error, the next run repeats
    the step instead of taking its output from the cache, because the cause may be gone.

    ZenML stores the output when the step has returned. So a later step deletes the journal: `delete_journal`.
    """
    context = get_step_context()
    if any(prediction.error for prediction in predictions):
        Client().update_step_run(context.step_run.id, cache_expires_at=utc_now())
    else:
        context.add_output_metadata({_JOURNAL: journal.path.name}, output_name=output)


def delete_journal(predictions: ArtifactVersionResponse) -> None:
    """Delete the journal of stored answers, if it is on this machine."""
    if name := predictions.run_metadata.get(_JOURNAL):
        (EVALUATIONS / Path(str(name)).name).unlink(missing_ok=True)
