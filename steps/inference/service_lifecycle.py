"""What happens once when a service starts and once when it stops: the pipeline's init and cleanup hooks.

The imports of model code are inside, because deploying a service needs only the names of these functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent.settings import AgentSettings
from steps.project import MODELS

SERVED_MODEL = "trained"


def load_service(
    checkpoint: str | None = None,
    mail_database: str | None = None,
    base_model: str | None = None,
    models_dir: str = str(MODELS),
    episode: dict[str, Any] | None = None,
) -> object:
    """Loads model and mail database into an `AnswerService`, which every invocation finds as its pipeline's state.

    `checkpoint` and `mail_database` name artifacts as in `steps.model_registry`; `base_model` replaces the source that
    the checkpoint names; `episode` overrides fields of `AgentSettings`.

    Raises:
        BadInput: nothing trained yet, a damaged checkpoint, or one of another base model.
    """
    from serving.service import AnswerService, describe_model
    from steps.model_registry import find_checkpoint, find_mail_database
    from training.backends.base_model import resolve_base_model
    from training.backends.serving import open_policy_server
    from training.task import Policy

    stored = find_checkpoint(checkpoint, unpromoted=False)
    manifest = stored.checkpoint.manifest
    database = find_mail_database(stored, mail_database).load()
    base = resolve_base_model(base_model or manifest.base_model_source, Path(models_dir))
    stored.checkpoint.require_base(base.id, base.checksum)
    settings = episode_settings(manifest.config, episode)
    server = open_policy_server(base.path, {SERVED_MODEL: stored.checkpoint.path}, manifest.config)
    policy = Policy(base_url=server.base_url, model=SERVED_MODEL, temperature=0, max_tokens=settings.max_tokens)
    model = describe_model(stored.reference, manifest.step, manifest.base_model, database)
    service = AnswerService(policy, database, settings, model, stop=server.close)
    service.warm_up()
    return service


def episode_settings(trained_with: dict[str, Any], overrides: dict[str, Any] | None = None) -> AgentSettings:
    """Prompt and limits that the policy was trained with, unless overridden: with others it has another task."""
    known = {name: trained_with[name] for name in AgentSettings.model_fields if name in trained_with}
    return AgentSettings.model_validate(known | (overrides or {}))


def unload_service() -> None:
    """Stops the policy's server and closes the database."""
    from serving.endpoint import loaded_service

    loaded_service().close()
