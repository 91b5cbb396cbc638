"""Each preflight check on an emulated API server: the requirement is met, or missing with a remedy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import kube_config
from zenml.enums import StackComponentType, StoreType

from cluster import preflight
from cluster.preflight import StackCheck
from cluster.settings import StackSettings
from cluster.stack import components_of
from tests.fakes.kubernetes import ApiServer
from tests.fakes.server import Answer, FakeServer, Request
from training.errors import BadInput

pytestmark = pytest.mark.service


def settings(**values: Any) -> StackSettings:
    known = {
        "kubernetes_context": "emulated",
        "artifact_store": "s3://bucket/mail",
        "container_registry": "registry.example.com",
    }
    return StackSettings.model_validate({**known, **values})


@pytest.fixture(autouse=True)
def nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not the cluster's is asked in the tests that are about it only."""
    for name in ("_zenml_server", "_storage", "_registry", "_image_builder"):
        monkeypatch.setattr(preflight, name, lambda *_, name=name: StackCheck(name, True, ""))


def checks(**values: Any) -> dict[str, StackCheck]:
    return {check.name: check for check in preflight.check_stack(settings(**values)) if not check.name.startswith("_")}


def missing(**values: Any) -> str:
    """The line of the only check that fails."""
    (line,) = [str(check) for check in checks(**values).values() if not check.ok]
    assert "\n" not in line and "  missing  " in line
    return line


def test_a_cluster_that_has_everything(cluster: ApiServer) -> None:
    found = checks()
    assert list(found) == ["cluster access", "namespace", "your rights", "service account", "GPU nodes"]
    assert all(check.ok for check in found.values()), found
    assert "v1.34.0" in found["cluster access"].found and found["GPU nodes"].found == "1 of 2: gpu-1"
    assert {path.rpartition("/")[2] for path in cluster.objects} == {"zenml", "email-agent", "gpu-1", "cpu-1"}, (
        "left as it was"
    )


def test_no_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))
    assert "set KUBECONFIG" in missing()


@pytest.mark.parametrize(
    "content", [b"- a\n: b", b"text", b"", b"\xff\xfe", b"contexts: 1", b"{contexts: [], current-context: x}"]
)
def test_an_invalid_kubeconfig(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken").write_bytes(content)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "broken"))
    assert "no usable kubeconfig" in missing()


def test_a_wrong_context(cluster: ApiServer) -> None:
    assert "no context elsewhere" in missing(kubernetes_context="elsewhere")
    assert "use one of emulated as kubernetes_context" in missing(kubernetes_context="elsewhere")


def test_a_cluster_that_does_not_answer(cluster: ApiServer) -> None:
    cluster.shutdown()
    cluster.server_close()
    assert "does not answer" in missing()


def test_expired_credentials(cluster: ApiServer) -> None:
    cluster.failing["/version"] = 401
    assert "was refused (401)" in missing()


def test_no_namespace(cluster: ApiServer) -> None:
    del cluster.objects["/api/v1/namespaces/zenml"]
    assert missing().endswith("there is no zenml: kubectl create namespace zenml")


def test_no_service_account(cluster: ApiServer) -> None:
    del cluster.objects["/api/v1/namespaces/zenml/serviceaccounts/email-agent"]
    assert missing().endswith("kubectl create serviceaccount email-agent -n zenml")


def test_missing_rights(cluster: ApiServer) -> None:
    cluster.refused = {("get", "pods/log"), ("delete", "jobs")}
    found = checks()
    account, own = found["service account"], found["your rights"]
    assert account.found == "email-agent may not delete jobs, get pods/log"
    assert account.remedy == (
        "kubectl create rolebinding email-agent-edit --clusterrole=edit --serviceaccount=zenml:email-agent -n zenml"
    )
    assert own.found == "you may not get pods/log" and not own.ok


def test_no_gpu_node(cluster: ApiServer) -> None:
    assert "none of 2 nodes offers 2 nvidia.com/gpu" in missing(min_gpus=2)
    del cluster.objects["/api/v1/nodes/gpu-1"]
    assert "none of 1 nodes offers 1 nvidia.com/gpu" in missing()
    assert all(check.ok for check in checks(min_gpus=0).values())


def test_nodes_that_may_not_be_listed(cluster: ApiServer) -> None:
    cluster.failing["/api/v1/nodes"] = 403
    assert "GPU nodes" in missing() and "you may not look" in missing()


def test_a_setting_without_default_is_asked_for_before_anything_else() -> None:
    with pytest.raises(BadInput, match="artifact_store: needed"):
        next(preflight.check_stack(StackSettings(kubernetes_context="x", container_registry="y")))


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The checks that the other tests leave out."""
    monkeypatch.undo()
    yield


def test_a_local_zenml_database_is_not_a_server(real: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not preflight._zenml_server().ok
    store = SimpleNamespace(type=StoreType.REST, url="https://zenml.example.com")
    monkeypatch.setattr(preflight, "Client", lambda: SimpleNamespace(zen_store=store))
    assert preflight._zenml_server().ok


@pytest.mark.parametrize(("status", "ok"), [(200, True), (401, True), (404, False)])
def test_a_registry_may_want_credentials_but_must_be_one(
    real: None, status: int, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # could not reach a registry on this machine
    monkeypatch.setattr(preflight.urllib.request, "_opener", None)

    class Registry(FakeServer):
        def respond(self, request: Request) -> Answer:
            return status if request.path == "/v2/" else 500

    with Registry() as server:
        check = preflight._registry(settings(container_registry=f"127.0.0.1:{server.server_port}/mail"))
    assert check.ok is ok, check
    gone = preflight._registry(settings(container_registry=f"127.0.0.1:{server.server_port}"))
    assert not gone.ok and "does not answer" in gone.found


def test_secrets_are_looked_up_by_name_only(real: None) -> None:
    check = preflight._registry(settings(container_registry_secret="absent"))
    assert str(check).endswith("there is no ZenML secret absent: zenml secret create absent --username=… --password=…")


def test_storage_needs_its_libraries(real: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zenml.integrations.s3.artifact_stores", None)
    wanted = settings()
    (component,) = (c for c in components_of(wanted) if c.kind is StackComponentType.ARTIFACT_STORE)
    assert str(preflight._storage(wanted, component)).endswith("zenml integration install s3 -y")
