"""The pipeline that is deployed as an HTTP service.

    python run.py --pipeline deploy --name NAME
    zenml pipeline deploy pipelines.inference.inference_pipeline --name NAME

Both need a trained checkpoint and a mail database, which the init hook loads once, before the service accepts requests.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from zenml import pipeline
from zenml.client import Client
from zenml.config import DeploymentDefaultEndpoints, DeploymentSettings, EndpointMethod, EndpointSpec, MiddlewareSpec

from serving.answer import Answer
from steps.inference.run_single_inference import run_single_inference
from steps.inference.service_lifecycle import REPOSITORY, load_service, unload_service

PORT = 8080
HIGHEST_PORT = 65535

# Handlers are named, not imported: whoever deploys need not load the agent.
DEPLOYMENT = DeploymentSettings(
    app_title="E-mail search agent",
    app_description="Answers questions about a mailbox and cites the mails that prove the answer.",
    custom_endpoints=[
        EndpointSpec(path="/", method=EndpointMethod.GET, handler="serving.endpoint.page", auth_required=False),
        EndpointSpec(path="/invoke", method=EndpointMethod.POST, handler="serving.endpoint.invoke_endpoint"),
        EndpointSpec(path="/health", method=EndpointMethod.GET, handler="serving.endpoint.health", auth_required=False),
        EndpointSpec(path="/model", method=EndpointMethod.GET, handler="serving.endpoint.model_info"),
    ],
    custom_middlewares=[MiddlewareSpec(middleware="serving.endpoint.BodyLimit")],
    include_default_endpoints=DeploymentDefaultEndpoints.ALL & ~DeploymentDefaultEndpoints.DASHBOARD,
)


def deployer_settings(port: int) -> dict[str, Any]:
    """Settings of the active stack's deployer: `port` or the next free one."""
    return {"port": port, "allocate_port_if_busy": True, "port_range": (port, HIGHEST_PORT)}


@pipeline(
    on_init=load_service,
    on_cleanup=unload_service,
    settings={"deployment": DEPLOYMENT, "deployer": deployer_settings(PORT)},
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "WANDB_ERROR_REPORTING": "false"},
    enable_cache=False,
)
def inference_pipeline(question: str = "", inbox_address: str = "", query_date: str = "") -> Answer:
    """One question about one inbox, as it was on `query_date`. The defaults only let the pipeline compile."""
    return run_single_inference(question=question, inbox_address=inbox_address, query_date=query_date)


def deploy_inference(
    name: str,
    *,
    checkpoint: str | None = None,
    base_model: str | None = None,
    models_dir: Path = REPOSITORY / "models",
    episode: dict[str, Any] | None = None,
    port: int = PORT,
) -> str:
    """Deploys (or updates) the service `name` and returns its URL.

    Everything that the service needs is looked up here first, so that what is missing is said at once and not in the log
    of a service that did not start; the service is pinned to what was found. Arguments are those of `load_service`.

    Raises:
        BadInput: nothing trained yet, a damaged checkpoint, or one of another base model.
        RuntimeError: the service did not start.
    """
    from steps.model_registry import find_checkpoint, find_mail_database
    from training.backends.base_model import resolve_base_model

    stored = find_checkpoint(checkpoint)
    database = find_mail_database(stored)
    source = base_model or stored.checkpoint.manifest.base_model_source
    base = resolve_base_model(source, models_dir)
    stored.checkpoint.require_base(base.id, base.checksum)
    configured = inference_pipeline.with_options(
        on_init=load_service,
        on_init_kwargs={
            "checkpoint": stored.reference,
            "mail_database": str(database.id),
            "base_model": source,
            "models_dir": str(models_dir.resolve()),
            "episode": episode or {},
        },
        settings={"deployer": deployer_settings(port)},
    )
    # The service imports our modules from the folder in which it was started.
    with contextlib.chdir(REPOSITORY):
        deployment = configured.deploy(deployment_name=name)
    url = Client().get_deployment(deployment.id).url
    if not url:
        raise RuntimeError(f"service {name} did not start: see `zenml deployment logs {name}`")
    return url
