"""The manifests that ZenML's deployer applies for the profiles of deployment on Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zenml.client import Client
from zenml.deployers.exceptions import DeploymentProvisionError
from zenml.integrations.kubernetes.deployers import KubernetesDeployer

from configs.loading import load_config
from pipelines.inference import DEPLOYMENT, inference_pipeline
from pipelines.service_pipeline import ServiceNotStarted
from tests.fakes.kubernetes import require_valid

pytestmark = pytest.mark.service

PORT = DEPLOYMENT.uvicorn_port
CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.fixture
def manifests(
    request: pytest.FixtureRequest, kubernetes_stack: Client, monkeypatch: pytest.MonkeyPatch
) -> dict[str, dict[str, Any]]:
    """By kind, as the real deployer rendered them."""
    rendered: list[dict[str, Any]] = []

    def provision(
        self: KubernetesDeployer, deployment: Any, stack: Any, environment: Any, secrets: Any, timeout: int
    ) -> Any:
        rendered.extend(self._prepare_deployment_resources(deployment, environment, secrets)[1])
        raise DeploymentProvisionError("far enough")

    monkeypatch.setattr(KubernetesDeployer, "do_provision_deployment", provision)
    settings = load_config(CONFIGS / getattr(request, "param", "deployment_k8s.yaml"), []).settings
    settings["docker"] = {"skip_build": True, "parent_image": "registry.example.com/agent:1"}
    try:
        with pytest.raises(ServiceNotStarted, match="far enough"):
            inference_pipeline.with_options(settings=settings).deploy(deployment_name="asked")
    finally:
        kubernetes_stack.zen_store.delete_deployment(kubernetes_stack.get_deployment("asked").id)
    for manifest in rendered:
        require_valid(manifest)
    return {manifest["kind"]: manifest for manifest in rendered}


def test_the_deployment(manifests: dict[str, dict[str, Any]]) -> None:
    spec = manifests["Deployment"]["spec"]
    assert spec["replicas"] == 2
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/agent:1"
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "4096Mi"}, "limits": {"memory": "6Gi"}}
    assert "nvidia" not in str(spec)
    ready, alive = container["readinessProbe"], container["livenessProbe"]
    assert ready["httpGet"] == alive["httpGet"] == {"path": "/health", "port": PORT}
    assert alive["initialDelaySeconds"] == 300 and ready["periodSeconds"] == 5


def test_the_service(manifests: dict[str, dict[str, Any]]) -> None:
    spec = manifests["Service"]["spec"]
    assert spec["type"] == "LoadBalancer" and spec["ports"][0]["port"] == PORT
    labels = manifests["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"].items() <= labels.items()


def test_the_servers_token_is_a_secret(manifests: dict[str, dict[str, Any]]) -> None:
    (container,) = manifests["Deployment"]["spec"]["template"]["spec"]["containers"]
    by_name = {entry["name"]: entry for entry in container["env"]}
    for name in manifests.get("Secret", {}).get("data", {}):
        assert "secretKeyRef" in by_name[name]["valueFrom"] and "value" not in by_name[name]


@pytest.mark.parametrize(
    ("manifests", "memory", "shared"),
    [("deployment_vllm_k8s.yaml", "48Gi", True), ("deployment_torch_gpu_k8s.yaml", "16Gi", False)],
    indirect=["manifests"],
)
def test_a_replica_with_a_gpu(manifests: dict[str, dict[str, Any]], memory: str, shared: bool) -> None:
    spec = manifests["Deployment"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1
    assert container["resources"]["limits"] == {"memory": memory, "nvidia.com/gpu": "1"}
    assert container["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert "nodeAffinity" in pod["affinity"] and pod["tolerations"][0]["key"] == "nvidia.com/gpu"
    mounts = [mount["mountPath"] for mount in container.get("volumeMounts") or []]
    assert ("/dev/shm" in mounts) == shared
    alive, ready = container["livenessProbe"], container["readinessProbe"]
    assert alive["initialDelaySeconds"] == 1800, "a first start is not killed while it fetches the base"
    assert ready["periodSeconds"] * ready["failureThreshold"] >= 1800
