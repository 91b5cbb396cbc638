"""The pipeline that is deployed as an HTTP service.

    python run.py --pipeline deploy --name NAME
    zenml pipeline deploy pipelines.inference.inference_pipeline --name NAME

Both need a trained checkpoint and a mail database, which the init hook loads once, before the service accepts requests.
"""

from __future__ import annotations

from typing import Any

from zenml import pipeline
from zenml.config import DeploymentDefaultEndpoints, DeploymentSettings, EndpointMethod, EndpointSpec, MiddlewareSpec

from serving.answer import Answer, Question
from steps.inference.run_single_inference import run_single_inference
from steps.inference.service_lifecycle import load_service, unload_service

PORT = 8080
HIGHEST_PORT = 65535
START_SECONDS = 300
# The endpoint reads the body itself, to bound it and to answer in one line; this is what /docs shows of it.
REQUEST_BODY = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "properties": {"parameters": Question.model_json_schema()},
                "required": ["parameters"],
            }
        }
    },
}

# Handlers are named, not imported: whoever deploys need not load the agent.
DEPLOYMENT = DeploymentSettings(
    app_title="E-mail search agent",
    app_description="Answers questions about a mailbox and cites the mails that prove the answer.",
    custom_endpoints=[
        EndpointSpec(path="/", method=EndpointMethod.GET, handler="serving.endpoint.page", auth_required=False),
        EndpointSpec(
            path="/invoke",
            method=EndpointMethod.POST,
            handler="serving.endpoint.invoke_endpoint",
            extra_kwargs={"openapi_extra": {"requestBody": REQUEST_BODY}},
        ),
        EndpointSpec(path="/health", method=EndpointMethod.GET, handler="serving.endpoint.health", auth_required=False),
        EndpointSpec(path="/model", method=EndpointMethod.GET, handler="serving.endpoint.model_info"),
    ],
    custom_middlewares=[MiddlewareSpec(middleware="serving.endpoint.BodyLimit")],
    include_default_endpoints=DeploymentDefaultEndpoints.ALL & ~DeploymentDefaultEndpoints.DASHBOARD,
)


def deployer_settings(port: int) -> dict[str, Any]:
    """Settings of the active stack's deployer: `port` or the next free one, and how long a start may take."""
    return {
        "port": port,
        "allocate_port_if_busy": True,
        "port_range": (port, HIGHEST_PORT),
        "lcm_timeout": START_SECONDS,
    }


@pipeline(
    on_init=load_service,
    on_cleanup=unload_service,
    settings={"deployment": DEPLOYMENT, "deployer": deployer_settings(PORT)},
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "WANDB_ERROR_REPORTING": "false"},
    enable_cache=False,
    # Each of these costs every request database writes, and nothing reads them.
    enable_artifact_metadata=False,
    enable_heartbeat=False,
    enable_step_logs=False,
    enable_pipeline_logs=False,
)
def inference_pipeline(question: str = "", inbox_address: str = "", query_date: str = "") -> Answer:
    """One question about one inbox, as it was on `query_date`. The defaults only let the pipeline compile."""
    return run_single_inference(question=question, inbox_address=inbox_address, query_date=query_date)
