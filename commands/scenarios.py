"""`--pipeline scenarios`: have an LLM write questions about mail that has none."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from datetime import UTC, datetime
from operator import attrgetter

from commands.data import version_of_source
from commands.pipeline_run import output, run_pipeline, say_if_cached
from configs.config import Config
from configs.loading import load_config
from environment.home import as_called
from environment.question_table import write_question_table
from reports.console import say
from steps.artifact_names import QUESTIONS
from steps.project import OUTPUTS, ROOT

_TRAINING = "configs/enron_local.yaml"
_QUESTIONS_DEPEND_ON = (
    *("data.owner", "data.max_messages", "data.max_body_chars", "data.attachment_text"),
    "agent.read_chars",
)
"""With other values, training would leave out questions, or ask about text that the agent cannot read."""


def run_scenarios(config: Config, *, cache: bool) -> None:
    """Have an LLM write questions about mail, and print where they are and how to train with them."""
    from pipelines.question_writing import question_writing_pipeline
    from steps.data.write_questions import require_model

    questions, data = config.questions, config.data
    require_model(questions)
    run = run_pipeline(
        question_writing_pipeline,
        {
            "config": questions,
            "data": data,
            "source_version": version_of_source(data),
            "read_chars": config.agent.read_chars,
            "fresh": "" if cache else datetime.now(UTC).isoformat(),
        },
        enable_cache=cache,
        settings=config.settings,
    )
    say_if_cached(run, "questions")
    written = output(run, "write_questions", QUESTIONS)
    rows, facts = written.load(), written.run_metadata
    # Named after its content, so that a folder never changes after data was prepared from it.
    name = hashlib.sha256("".join(row.model_dump_json() for row in rows).encode()).hexdigest()[:10]
    folder = OUTPUTS / "questions" / name
    if not folder.is_dir():
        write_question_table(rows, folder)
    say(
        f"questions: {len(rows):,} (inboxes: {facts['inboxes']:,}, batches of mails: {facts['batches']:,}, {facts['spent']})"
    )
    if facts["rejected"]:
        say("  questions left out: " + ", ".join(f"{count:,} {reason}" for reason, count in facts["rejected"].items()))
    if facts["unusable"]:
        say(f"  batches without a usable reply: {facts['unusable']:,}")
    if facts["stopped"] != "enough":
        why = f"max_cost={questions.max_cost}" if facts["stopped"] == "max_cost" else "there are no further mails"
        say(f"  fewer than were wanted: {why}")
    shown = os.path.relpath(folder)
    say(f"written to {shown}")
    values = [f"emails={data.emails}", f"train_questions={shown}", *_other_values(config)]
    words = shlex.join(word for value in values for word in ("--set", value))
    say(as_called(f"train with them: python run.py --pipeline all --config {_TRAINING} {words}"))


def _other_values(config: Config) -> list[str]:
    """Return `key=value` for each setting that the questions depend on and that differs in the training's file."""
    values = attrgetter(*_QUESTIONS_DEPEND_ON)
    pairs = zip(_QUESTIONS_DEPEND_ON, values(config), values(load_config(ROOT / _TRAINING, [])), strict=True)
    return [f"{key}={json.dumps(ours)}" for key, ours, theirs in pairs if ours != theirs]
