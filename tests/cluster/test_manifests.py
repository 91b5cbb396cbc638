"""The Jobs that ZenML submits for the profiles of training and evaluation on Kubernetes: only steps that run the model ask for GPUs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from zenml import save_artifact
from zenml.client import Client
from zenml.enums import StackComponentType
from zenml.step_operators import BaseStepOperator

from cluster.flavors import FLAVOR
from configs.loading import load_config
from configs.profiles import read_profile
from pipelines.training import training_pipeline
from tests.fakes.kubernetes import ApiServer, require_valid

pytestmark = pytest.mark.service

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGE = "registry.example.com/agent:1"


def the_job(cluster: ApiServer) -> dict[str, Any]:
    (job,) = cluster.of_kind("jobs")
    # The address that it is sent to says what it is, so the client leaves that out.
    require_valid({"apiVersion": "batch/v1", "kind": "Job", **job})
    return job


@pytest.mark.parametrize("file", ["training_k8s.yaml", "evaluation_k8s.yaml"])
def test_the_job_that_starts_a_run(
    cluster: ApiServer, kubernetes_stack: Client, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "must-not-travel")
    config = load_config(CONFIGS / file, [])
    settings = {**config.settings, "docker": {"skip_build": True, "parent_image": IMAGE}}
    settings[f"orchestrator.{FLAVOR}"] = {**settings[f"orchestrator.{FLAVOR}"], "synchronous": False}
    saved = [save_artifact([name], name=name).id for name in ("mail_database", "scenarios")]
    training_pipeline.with_options(settings=settings)(
        config=config.for_training(), run_key="r0", database=saved[0], scenarios=saved[1]
    )
    spec = the_job(cluster)["spec"]
    assert spec["backoffLimit"] == 3, "an orchestrator whose pod is lost is started again, and goes on with its run"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE and pod["serviceAccountName"] == "email-agent"
    assert "nvidia" not in str(pod) and "affinity" not in pod
    assert all(container["resources"][bound].keys() >= {"cpu", "memory"} for bound in ("requests", "limits"))
    assert "must-not-travel" not in str(pod)
    assert_unprivileged(container)


def assert_unprivileged(container: dict[str, Any]) -> None:
    security = container["securityContext"]
    assert security["runAsNonRoot"] is True and security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]} and not security.get("privileged")


@pytest.fixture
def step_operator(kubernetes_stack: Client) -> Any:
    """The step operator, submitting from here and not from a pod."""
    configuration = {"kubernetes_namespace": "zenml", "kubernetes_context": "emulated"}
    kind = StackComponentType.STEP_OPERATOR
    model = kubernetes_stack.create_stack_component("submitting", FLAVOR, kind, configuration)
    yield BaseStepOperator.from_model(model)
    kubernetes_stack.delete_stack_component(model.id, kind)


@pytest.mark.parametrize(
    ("file", "step", "gpus", "hours", "shared"),
    [
        ("training_k8s.yaml", "train_agent", "1", 12, "16Gi"),
        ("training_k8s.yaml", "run_inference", "1", 2, "8Gi"),
        ("training_k8s.yaml", "ask_production", "1", 2, "8Gi"),
        ("training_two_gpus_k8s.yaml", "train_agent", "2", 12, "16Gi"),
        ("training_two_gpus_k8s.yaml", "run_inference", "1", 2, "8Gi"),
        ("evaluation_k8s.yaml", "run_inference", "1", 2, "8Gi"),
        ("evaluation_k8s.yaml", "ask_production", "1", 2, "8Gi"),
    ],
)
def test_the_jobs_on_a_gpu(
    cluster: ApiServer, step_operator: Any, file: str, step: str, gpus: str, hours: int, shared: str
) -> None:
    settings = read_profile(CONFIGS / file)["step_settings"][step]["settings"]
    info = SimpleNamespace(
        config=SimpleNamespace(command=None),
        pipeline_configuration=SimpleNamespace(settings=settings),
        pipeline=SimpleNamespace(name="training_pipeline"),
        snapshot=SimpleNamespace(project_id=uuid4()),
        pipeline_step_name=step,
        run_id=uuid4(),
        run_name="run",
        step_run_id=uuid4(),
        get_image=lambda key: IMAGE,
    )
    step_operator.submit_with_allocation(info, ["python", "-m", "zenml", "--step"], {"A": "1"}, None)
    spec = the_job(cluster)["spec"]
    assert spec["activeDeadlineSeconds"] == hours * 3600 and spec["ttlSecondsAfterFinished"] == 24 * 3600
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    assert {entry["name"] for entry in container["env"]} == {"A", "ZENML_ENABLE_REPO_INIT_WARNINGS"}, (
        "keys by reference only"
    )
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    assert container["resources"]["requests"]["nvidia.com/gpu"] == gpus
    assert container["envFrom"] == [{"secretRef": {"name": "email-agent-keys"}}]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert pod["volumes"] == [{"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": shared}}]
    assert "nodeAffinity" in pod["affinity"] and pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert_unprivileged(container)
