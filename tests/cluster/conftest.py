"""An emulated cluster, and a kubeconfig that leads there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes.config import kube_config
from kubernetes_api import ApiServer

CONTEXT = "emulated"


@pytest.fixture
def api_server() -> Iterator[ApiServer]:
    """An emulated cluster with nothing in it."""
    with ApiServer() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


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
