"""Deploying the inference pipeline as a service with a name and a URL."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zenml.client import Client
from zenml.deployers import BaseDeployer
from zenml.deployers.exceptions import DeployerError

from pipelines.inference import PORT, deployer_settings, inference_pipeline
from reports.console import say
from steps.inference.service_lifecycle import episode_settings, load_service
from steps.model_registry import describe_version, find_checkpoint, find_mail_database
from steps.project import MODELS, ROOT
from training.backends.base_model import resolve_base_model

LOG_LINES = 200


def deploy_inference(
    name: str,
    *,
    checkpoint: str | None = None,
    unpromoted: bool = False,
    base_model: str | None = None,
    models_dir: Path = MODELS,
    episode: dict[str, Any] | None = None,
    port: int = PORT,
    settings: dict[str, Any] | None = None,
) -> str:
    """Deploys (or updates) the service `name` and returns its URL once it answers.

    Everything that the service needs is looked up here first, so that what is missing is said at once and not in the log
    of a service that did not start; the service is pinned to what was found. Arguments are those of `load_service`;
    `settings` are ZenML's, and where they configure the deployer, `port` counts for nothing.

    Without a `checkpoint` it is that of the version in production. Only with `unpromoted` is it, when there is none, that of the
    latest version.

    Raises:
        BadInput: nothing trained or promoted yet, a damaged checkpoint, or one of another base model.
        RuntimeError: the service did not start.
    """
    stored = find_checkpoint(checkpoint, unpromoted=unpromoted)
    manifest = stored.checkpoint.manifest
    named = f"step {manifest.step} of run {manifest.name}"
    say(f"{name} serves {describe_version(stored.model_version) if stored.model_version else named}")
    database = find_mail_database(stored)
    source = base_model or stored.checkpoint.manifest.base_model_source
    base = resolve_base_model(source, models_dir)
    stored.checkpoint.require_base(base.id, base.checksum)
    episode_settings(stored.checkpoint.manifest.config, episode)
    pinned = {
        "checkpoint": stored.reference,
        "mail_database": str(database.id),
        "base_model": str(Path(source).resolve()) if Path(source).exists() else source,
        # Another machine keeps models where its own checkout is.
        **({"models_dir": str(models_dir.resolve())} if models_dir != MODELS else {}),
        "episode": episode or {},
    }
    configured = inference_pipeline.with_options(
        on_init=load_service, on_init_kwargs=pinned, settings={"deployer": deployer_settings(port), **(settings or {})}
    )
    try:
        # The service imports our modules from the folder in which it was started.
        with contextlib.chdir(ROOT), _dead_service_noticed(name):
            deployment = configured.deploy(deployment_name=name)
    except DeployerError as error:
        raise RuntimeError(
            f"service {name} did not start: {_last_error(name, error)} (see `zenml deployment logs {name}`)"
        ) from error
    assert deployment.url is not None, "a running deployment has a URL"
    return deployment.url


@contextlib.contextmanager
def _dead_service_noticed(name: str) -> Iterator[None]:
    """Reaps the service's process should it end.

    ZenML asks whether the process id exists. A dead child keeps its id until somebody waits for it, so without this a
    service that cannot start is waited for until the time limit.
    """
    started = threading.Event()

    def reap() -> None:
        while not started.wait(1):
            with contextlib.suppress(KeyError, ChildProcessError):
                if pid := (Client().get_deployment(name).deployment_metadata or {}).get("pid"):
                    os.waitpid(pid, os.WNOHANG)

    thread = threading.Thread(target=reap, name="reap-dead-service", daemon=True)
    thread.start()
    try:
        yield
    finally:
        started.set()
        thread.join()


def _last_error(name: str, failed: DeployerError) -> str:
    """The last line of the service's log that names an error, other than that a hook failed; `failed` when there is no log."""
    try:
        log = list(BaseDeployer.get_active_deployer().get_deployment_logs(name, tail=LOG_LINES))
    except DeployerError:
        return " ".join(str(failed).split())[:300]
    errors = [line.strip() for line in log if re.match(r"\s*[\w.]*(Error|Exception|BadInput)\b", line)]
    errors = [line for line in errors if "HookExecutionException" not in line]
    return errors[-1][:300] if errors else "the log names no error"
