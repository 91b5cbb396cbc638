"""The init and cleanup hooks of the deployed pipeline, which run when a service starts and stops.

Functions import model code themselves, because a deployment needs only their names.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agent.settings import AgentSettings
from steps.artifact_names import SCENARIOS
from steps.project import MODELS
from training.errors import BadInput

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

    `checkpoint` and `mail_database` name artifacts as in `steps.model_registry`; `base_model` replaces the source that
    the checkpoint names; `episode` overrides fields of `AgentSettings`.

    Raises:
        BadInput: nothing is trained yet, or the checkpoint is damaged or belongs to another base model.
    """
    from serving.policy_process import PolicyProcess
    from serving.service import AnswerService, describe_model
    from steps.model_registry import find_checkpoint, find_mail_database
    from steps.published_model import base_model_files
    from training.task import Policy

    stored = find_checkpoint(checkpoint, unpromoted=False)
    manifest = stored.checkpoint.manifest
    database = find_mail_database(stored, mail_database).load()
    source = base_model or manifest.base_model_source
    base = base_model_files(source, manifest.base_model_checksum, models=Path(models_dir))
    stored.checkpoint.require_base(base)
    settings = episode_settings(manifest.config, episode)
    served = {
        "model_dir": str(base.path),
        "adapters": {SERVED_MODEL: str(stored.checkpoint.path)},
        "trained_with": manifest.config,
    }
    program = [sys.executable, "-m", "serving.policy_program"]
    server = PolicyProcess(lambda port: [*program, json.dumps({**served, "port": port})])

    def policy(base_url: str) -> Policy:
        return Policy(base_url=base_url, model=SERVED_MODEL, temperature=0, max_tokens=settings.max_tokens)

    model = describe_model(stored.reference, manifest.name, manifest.step, manifest.base_model, database)
    service = AnswerService(server, policy, database, settings, model, example_questions(manifest.data))
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
