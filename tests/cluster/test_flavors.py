"""Our step operator and orchestrator on an emulated API server: pods that do not start or are lost, and an unreachable
server.
"""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from kubernetes.client import BatchV1Api, CoreV1Api
from urllib3 import Retry
from zenml.client import Client
from zenml.enums import ExecutionStatus, StackComponentType
from zenml.integrations.kubernetes.constants import STEP_NAME_ANNOTATION_KEY, STEP_OPERATOR_ANNOTATION_KEY
from zenml.integrations.kubernetes.orchestrators.kubernetes_orchestrator_entrypoint import _reconstruct_nodes
from zenml.orchestrators.dag_runner import NodeStatus
from zenml.step_operators import BaseStepOperator

from cluster import flavors
from tests.fakes.kubernetes import ApiServer

pytestmark = pytest.mark.service

JOBS = "/apis/batch/v1/namespaces/zenml/jobs"
JOB = f"{JOBS}/train"
POD = "/api/v1/namespaces/zenml/pods/train-1"
STEP = SimpleNamespace(id=uuid4(), name="train_agent")
RUN = SimpleNamespace(id=uuid4(), steps={STEP.name: SimpleNamespace(status=ExecutionStatus.RUNNING)})


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


def put_job(cluster: ApiServer, **status: Any) -> None:
    cluster.put(JOB, metadata={"labels": {"step_run_id": str(STEP.id)}}, status=status)


def put_pod(cluster: ApiServer, **status: Any) -> None:
    put_job(cluster)
    pod = {"containers": [{"name": "main"}]}
    cluster.put(POD, metadata={"labels": {"job-name": "train"}}, spec=pod, status={"phase": "Pending", **status})


def unschedulable(why: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}]}


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": "no such image"}}
    named = {"name": "main", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    return {"containerStatuses": [{**named, "state": state}]}


def test_an_unschedulable_pod_is_reported(cluster: ApiServer, operator: Any, said: list[str]) -> None:
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


@pytest.mark.parametrize(
    ("condition", "status"), [("Complete", ExecutionStatus.COMPLETED), ("Failed", ExecutionStatus.FAILED)]
)
def test_a_job_that_ended(cluster: ApiServer, operator: Any, condition: str, status: ExecutionStatus) -> None:
    put_job(cluster, conditions=[{"type": condition, "status": "True", "message": "it ended"}])
    assert operator.get_status(STEP) == status


def test_a_job_that_was_deleted(operator: Any, said: list[str]) -> None:
    assert operator.get_status(STEP) == ExecutionStatus.FAILED and said == ["its job was deleted"]


def put_job_of_step(cluster: ApiServer, name: str, *ended: str, operator: bool = True) -> None:
    """A job of the step: the step operator's, or the one whose pod waits for that."""
    annotations = {STEP_NAME_ANNOTATION_KEY: STEP.name, **({STEP_OPERATOR_ANNOTATION_KEY: "gpu"} if operator else {})}
    labels = {"run_id": str(RUN.id), "step_name": STEP.name}
    conditions = [{"type": condition, "status": "True"} for condition in ended]
    cluster.put(
        f"{JOBS}/{name}", metadata={"annotations": annotations, "labels": labels}, status={"conditions": conditions}
    )


def submit(operator: Any) -> None:
    info = SimpleNamespace(
        config=SimpleNamespace(command=None),
        pipeline_configuration=SimpleNamespace(settings={}),
        pipeline=SimpleNamespace(name="training_pipeline"),
        snapshot=SimpleNamespace(project_id=uuid4()),
        pipeline_step_name=STEP.name,
        run_id=RUN.id,
        run_name="run",
        step_run_id=STEP.id,
        get_image=lambda key: "image",
    )
    operator.submit_with_allocation(info, ["python", "-m", "zenml", "--step"], {}, None)


def submitted(cluster: ApiServer) -> str:
    """Where the job is that `submit` made."""
    [path] = [path for path in cluster.objects if path.startswith(JOBS) and path.endswith("step-operator")]
    return path


def test_a_new_attempt_ends_the_job_of_the_previous_one(cluster: ApiServer, operator: Any) -> None:
    put_job_of_step(cluster, "left")
    put_job_of_step(cluster, "over", "Failed")
    put_job_of_step(cluster, "waiting", operator=False)
    submit(operator)
    assert f"{JOBS}/left" not in cluster.objects
    assert {f"{JOBS}/over", f"{JOBS}/waiting", submitted(cluster)} <= cluster.objects.keys()


def test_waiting_for_an_old_job_is_bounded(cluster: ApiServer, operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node is away: what is deleted there stays until the node says so."""
    monkeypatch.setattr(flavors, "ENDING_SECONDS", 0)
    monkeypatch.setattr(flavors.kube_utils, "delete_job", lambda *words, **options: None)
    put_job_of_step(cluster, "left")
    submit(operator)
    assert submitted(cluster)


def test_an_old_job_may_end_before_it_is_deleted(
    cluster: ApiServer, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = flavors.kube_utils.delete_job

    def late(batch: Any, namespace: str, name: str, **options: Any) -> None:
        del cluster.objects[f"{JOBS}/{name}"]
        delete(batch, namespace, name, **options)

    monkeypatch.setattr(flavors.kube_utils, "delete_job", late)
    put_job_of_step(cluster, "left")
    submit(operator)
    assert submitted(cluster)


def test_a_restarted_orchestrator_continues_with_the_waiting_job(cluster: ApiServer, operator: Any) -> None:
    """ZenML takes any job that names the step for it: a lost training would be a failed step, whatever retries are left."""
    submit(operator)
    cluster.objects[submitted(cluster)]["status"] = {"conditions": [{"type": "Failed", "status": "True"}]}
    put_job_of_step(cluster, "waiting", operator=False)
    snapshot = SimpleNamespace(
        step_configurations={STEP.name: SimpleNamespace(spec=SimpleNamespace(upstream_steps=[]))}
    )
    [node] = _reconstruct_nodes(snapshot, RUN, "zenml", BatchV1Api(operator.get_kube_client()))
    assert node.status == NodeStatus.RUNNING and node.metadata["job_name"] == "waiting"


def test_an_interrupted_wait_ends_its_job(cluster: ApiServer, operator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(step_run: Any) -> None:
        raise KeyboardInterrupt

    put_job(cluster)
    monkeypatch.setattr(operator, "get_status", interrupted)
    with pytest.raises(KeyboardInterrupt):
        operator.wait(STEP)
    assert JOB not in cluster.objects


def test_an_unreachable_cluster_does_not_fail_the_step(
    cluster: ApiServer, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`wait` goes by ZenML's server then."""
    cluster.failing["/apis/batch"] = 500
    monkeypatch.setattr(flavors.ResilientStepOperator, "_limits", {"api_request_timeout": 300, "max_retries": 0})
    with pytest.raises(Exception, match="500"):
        operator.get_status(STEP)


def test_requests_wait_for_an_unreachable_api_server(
    cluster: ApiServer, kubernetes_stack: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flavors, "PATIENCE", Retry(total=None, connect=8, backoff_factor=0.2))
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
