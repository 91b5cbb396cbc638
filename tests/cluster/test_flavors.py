"""Our step operator and orchestrator against an emulated API server: pods that do not start, and a server that is away."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kubernetes.client import CoreV1Api
from kubernetes_api import ApiServer
from urllib3 import Retry
from zenml.client import Client
from zenml.enums import ExecutionStatus, StackComponentType
from zenml.step_operators import BaseStepOperator

from cluster import flavors

JOB = "/apis/batch/v1/namespaces/zenml/jobs/train"
POD = "/api/v1/namespaces/zenml/pods/train-1"
STEP = SimpleNamespace(id=uuid4(), name="train_agent")


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What reached the step's metadata."""
    found: list[str] = []
    monkeypatch.setattr(flavors, "log_metadata", lambda metadata, step_id: found.append(metadata[flavors.PENDING]))
    return found


@pytest.fixture
def operator(kubernetes_stack: Client, said: list[str]) -> Any:
    configuration = {"kubernetes_namespace": "zenml", "kubernetes_context": "emulated"}
    kind = StackComponentType.STEP_OPERATOR
    model = kubernetes_stack.create_stack_component("asked", flavors.FLAVOR, kind, configuration)
    yield BaseStepOperator.from_model(model)
    kubernetes_stack.delete_stack_component(model.id, kind)


def put_pod(cluster: ApiServer, **status: Any) -> None:
    cluster.put(JOB, status={})
    cluster.put(POD, spec={"containers": [{"name": "main"}]}, status={"phase": "Pending", **status})


def unschedulable(why: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]}


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    named = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {"containerStatuses": [{**named, "state": state}]}


def test_a_pod_that_no_node_takes(cluster: ApiServer, operator: Any, said: list[str]) -> None:
    put_pod(cluster, **unschedulable("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."))
    for _ in range(2):
        assert operator.get_status(STEP) == ExecutionStatus.RUNNING
    assert len(said) == 1 and "Insufficient nvidia.com/gpu" in said[0]
    put_pod(cluster, **unschedulable("0/2 nodes are available: 2 Insufficient memory."))
    operator.get_status(STEP)
    assert len(said) == 2 and "Insufficient memory" in said[1]
    del cluster.objects[POD]  # a pod that runs is none of those that are pending
    operator.get_status(STEP)
    assert said[2] == ""


def test_an_image_that_does_not_exist_fails_at_once(cluster: ApiServer, operator: Any, said: list[str]) -> None:
    put_pod(cluster, **waiting("ImagePullBackOff"))
    assert operator.get_status(STEP) == ExecutionStatus.FAILED
    assert "ImagePullBackOff" in said[0] and JOB not in cluster.objects


@pytest.mark.parametrize(("condition", "status"), [("Complete", ExecutionStatus.COMPLETED), ("Failed", ExecutionStatus.FAILED)])
def test_a_job_that_ended(cluster: ApiServer, operator: Any, condition: str, status: ExecutionStatus) -> None:
    cluster.put(JOB, status={"conditions": [{"type": condition, "status": "True", "message": "it ended"}]})
    assert operator.get_status(STEP) == status


def test_a_job_that_was_deleted(operator: Any, said: list[str]) -> None:
    assert operator.get_status(STEP) == ExecutionStatus.FAILED and said == ["its job was deleted"]


def test_a_cluster_that_cannot_be_asked_is_no_failed_step(
    cluster: ApiServer, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait` goes by ZenML's server then."""
    cluster.failing["/apis/batch"] = 500
    monkeypatch.setattr(flavors.ResilientStepOperator, "_limits", {"api_request_timeout": 1, "max_retries": 0})
    with pytest.raises(Exception, match="500"):
        operator.get_status(STEP)


def test_patience_outlasts_a_server_that_is_away(
    cluster: ApiServer, kubernetes_stack: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flavors, "PATIENCE", Retry(total=None, connect=5, backoff_factor=0.2))
    port = cluster.server_port
    cluster.shutdown()
    cluster.server_close()
    back: list[ApiServer] = []

    def return_later() -> None:
        time.sleep(1)
        server = ApiServer(port)
        server.objects = cluster.objects
        back.append(server)
        server.serve_forever(poll_interval=0.02)

    threading.Thread(target=return_later, daemon=True).start()
    orchestrator = kubernetes_stack.active_stack.orchestrator
    nodes = CoreV1Api(orchestrator.get_kube_client()).list_node().items
    assert len(nodes) == 2
    back[0].shutdown()
    back[0].server_close()


def test_patience_is_two_to_five_minutes() -> None:
    retry, pauses = flavors.PATIENCE, 0.0
    for _ in range(int(retry.connect or 0)):
        retry = retry.new(history=(*retry.history, SimpleNamespace(redirect_location=None)))
        pauses += retry.get_backoff_time()
    assert 120 <= pauses <= 300
