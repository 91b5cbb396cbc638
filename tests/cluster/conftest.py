"""An emulated cluster, a kubeconfig that leads there, and a ZenML stack that uses both."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from kubernetes.config import kube_config
from zenml.client import Client
from zenml.enums import StackComponentType
from zenml.utils.code_utils import CodeArchive

from cluster.settings import StackSettings
from cluster.stack import components_of, register_flavors
from tests.fakes.kubernetes import ApiServer

CONTEXT = "emulated"


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    """An emulated cluster with nothing in it."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def cluster(api_server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ApiServer:
    """An emulated cluster that is ready for the stack, in the kubeconfig's context `emulated`."""
    api_server.put("/api/v1/namespaces/zenml")
    api_server.put("/api/v1/namespaces/zenml/serviceaccounts/email-agent")
    api_server.put("/api/v1/nodes/gpu-1", status={"allocatable": {"cpu": "8", "nvidia.com/gpu": "1"}})
    api_server.put("/api/v1/nodes/cpu-1", status={"allocatable": {"cpu": "8"}})
    values = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": CONTEXT,
        "clusters": [{"name": "c", "cluster": {"server": api_server.url}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": CONTEXT, "context": {"cluster": "c", "user": "u"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(values))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return api_server


@pytest.fixture(scope="session")
def own_flavors() -> None:
    register_flavors()


@pytest.fixture
def kubernetes_stack(cluster: ApiServer, own_flavors: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A ZenML whose active stack has our orchestrator, and which uploads the code without the committed adapter.

    ZenML lets a Kubernetes orchestrator work with the test's database and artifact store when it counts as local, which
    changes nothing but a volume of the pods.
    """
    all_files = CodeArchive.get_files

    def without_adapter(archive: CodeArchive) -> dict[str, str]:
        return {name: path for name, path in all_files(archive).items() if not name.startswith("models")}

    # Compressing its 36 MB takes over a second each time.
    monkeypatch.setattr(CodeArchive, "get_files", without_adapter)
    client = Client()
    before = client.active_stack_model
    wanted = {
        component.kind: component
        for component in components_of(
            StackSettings(
                kubernetes_context="emulated", artifact_store="s3://b/p", container_registry="registry.example.com"
            )
        )
    }
    orchestrator = wanted[StackComponentType.ORCHESTRATOR]
    local = orchestrator.configuration | {"local": True, "pass_zenml_token_as_secret": False}
    components: dict[StackComponentType, UUID | str] = {
        kind: before.components[kind][0].id for kind in (StackComponentType.ARTIFACT_STORE,)
    }
    for kind, configuration in (
        (StackComponentType.ORCHESTRATOR, local),
        (StackComponentType.CONTAINER_REGISTRY, wanted[StackComponentType.CONTAINER_REGISTRY].configuration),
        (StackComponentType.IMAGE_BUILDER, {}),
        (StackComponentType.DEPLOYER, wanted[StackComponentType.DEPLOYER].configuration | {"local": True}),
    ):
        component = client.create_stack_component("scheduling", wanted[kind].flavor, kind, configuration)
        components[kind] = component.id
    stack = client.create_stack("scheduling", components)
    client.activate_stack(stack.id)
    yield client
    client.activate_stack(before.id)
    for schedule in client.list_schedules().items:
        client.zen_store.delete_schedule(schedule.id, soft=False)
    client.delete_stack(stack.id)
    for kind in components.keys() - {StackComponentType.ARTIFACT_STORE}:
        client.delete_stack_component("scheduling", kind)
