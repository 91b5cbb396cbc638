"""The init and cleanup hooks of the deployed pipeline, which run when a service starts and stops.

Functions import model code themselves, because a deployment needs only their names.
"""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agent.settings import AgentSettings
from reports.console import say
from steps.artifact_names import SCENARIOS
from steps.project import MODELS
from tasks import answering_plugin, trained_settings
from training.errors import BadInput
from training.record.experiment import MAIL_TASK

if TYPE_CHECKING:
    from serving.bodies import Question

SERVED_MODEL = "trained"


def load_service(
    checkpoint: str | None = None,
    mail_database: str | None = None,
    base_model: str | None = None,
    models_dir: str = str(MODELS),
    episode: dict[str, Any] | None = None,
) -> object:
    """Load model and mail database into an `AnswerService`, the pipeline state of every invocation.

    A checkpoint of another task is loaded into a `TaskService`, without mail.

    `checkpoint` and `mail_database` name artifacts as in `steps.model_registry`; `base_model` replaces the source that
    the checkpoint names; `episode` overrides fields of `AgentSettings`.

    Raises:
        BadInput: nothing is trained yet, or the checkpoint is damaged or belongs to another base model.
    """
    from serving.policy_process import PolicyProcess
    from serving.service import AnswerService, Service, describe_model
    from serving.task_service import TaskService
    from steps.model_registry import find_checkpoint, find_mail_database
    from steps.published_model import base_model_files
    from training.task import Policy

    stored = find_checkpoint(checkpoint, unpromoted=False)
    manifest = stored.checkpoint.manifest
    task = stored.checkpoint.task
    database = find_mail_database(stored, mail_database).load() if task == MAIL_TASK else None
    source = base_model or manifest.base_model_source
    base = base_model_files(source, manifest.base_model_checksum, models=Path(models_dir))
    stored.checkpoint.require_base(base)
    described = partial(describe_model, stored.reference, manifest.name, manifest.step, manifest.base_model)
    served = {
        "model_dir": str(base.path),
        "adapters": {SERVED_MODEL: str(stored.checkpoint.path)},
        "trained_with": manifest.config,
    }
    program = [sys.executable, "-m", "serving.policy_program"]
    server = PolicyProcess(lambda port: [*program, json.dumps({**served, "port": port})])

    def policy(max_tokens: int, base_url: str) -> Policy:
        return Policy(base_url=base_url, model=SERVED_MODEL, temperature=0, max_tokens=max_tokens)

    service: Service[Any, Any]
    if database is None:
        plugin, chosen = answering_plugin(task), trained_settings(task, manifest.config)
        opened = contextlib.ExitStack()
        world = opened.enter_context(plugin.opened(chosen, manifest.config, say))
        asks = partial(plugin.scenario_of, chosen)
        service = TaskService(server, partial(policy, world.max_tokens), described(), world, asks, opened.close)
    else:
        settings, examples = episode_settings(manifest.config, episode), example_questions(manifest.data)
        model = described(mails=database.email_count())
        service = AnswerService(server, partial(policy, settings.max_tokens), database, settings, model, examples)
    service.warm_up()
    return service


def example_questions(trained_on: dict[str, str]) -> dict[str, list[Question]]:
    """Return held-out questions by inbox from the data of the checkpoint, if this store has them."""
    from zenml.client import Client

    from serving.bodies import Question

    try:
        scenarios = Client().get_artifact_version(trained_on[SCENARIOS]).load()
    except KeyError:  # a checkpoint may come from the store of another machine
        return {}
    examples: dict[str, list[Question]] = {}
    for scenario in sorted(scenarios, key=lambda scenario: scenario.split != "test"):
        with contextlib.suppress(ValidationError):  # longer than the service accepts
            asked = Question(
                question=scenario.question,
                inbox_address=scenario.inbox_address,
                query_date=scenario.query_date.date().isoformat(),
            )
            examples.setdefault(scenario.inbox_address, []).append(asked)
    return examples


def episode_settings(trained_with: dict[str, Any], overrides: dict[str, Any] | None = None) -> AgentSettings:
    """Return prompt and limits of the training, because the policy learnt its task with them.

    `overrides` replace fields. Raises `BadInput` if one cannot be used.
    """
    known = {name: trained_with[name] for name in AgentSettings.model_fields if name in trained_with}
    try:
        return AgentSettings.model_validate(known | (overrides or {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(f"checkpoint: its settings cannot be used: {first['loc'][0]}: {first['msg']}") from None


def unload_service() -> None:
    """Stop the policy's server and close the database."""
    from serving.runner import loaded_service

    loaded_service().close()
