"""The pipeline that is deployed as an HTTP service.

    python run.py --pipeline deploy --name NAME
    zenml pipeline deploy pipelines.inference.inference_pipeline --name NAME

Both need a trained checkpoint and a mail database, which the init hook loads once, before the service accepts requests.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from zenml.config import DeploymentSettings
from zenml.config.deployment_settings import CORSConfig

from pipelines.service_pipeline import service_pipeline
from steps.inference.run_single_inference import run_single_inference
from steps.inference.service_lifecycle import load_service, unload_service

PORT = 8080
HIGHEST_PORT = 65535
START_SECONDS = 1500
"""More than `serving.policy_process` waits for a model's server, so that the service can say what is missing."""
# The runner is named, not imported, because a deployment need not load the agent.
DEPLOYMENT = DeploymentSettings(
    app_title="E-mail search agent",
    app_description="Answers questions about a mailbox and cites the mails that prove the answer.",
    deployment_app_runner_flavor="serving.runner_flavor.ServiceRunnerFlavor",
    cors=CORSConfig(allow_origins=[]),
)


def deployer_settings(port: int, address: str = "127.0.0.1") -> dict[str, Any]:
    """Return settings of ZenML's local deployer: `port` or the next free one, and the time limit of a start."""
    return {
        "address": address,
        "port": port,
        "allocate_port_if_busy": True,
        "port_range": (port, HIGHEST_PORT),
        "lcm_timeout": START_SECONDS,
    }


@service_pipeline(
    on_init=load_service,
    on_cleanup=unload_service,
    settings={"deployment": DEPLOYMENT, "deployer": deployer_settings(PORT)},
    environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True", "WANDB_ERROR_REPORTING": "false"},
    enable_cache=False,
    # Each of these would cost database writes per request, and nothing reads them.
    enable_artifact_metadata=False,
    enable_heartbeat=False,
    enable_step_logs=False,
    enable_pipeline_logs=False,
)
def inference_pipeline(
    question: str = "", inbox_address: str = "", query_date: str = "", request_id: str = ""
) -> BaseModel:
    """Answer one question, about mail of one inbox as of `query_date`. The defaults only let the pipeline compile."""
    return run_single_inference(
        question=question, inbox_address=inbox_address, query_date=query_date, request_id=request_id
    )
