"""ZenML's Kubernetes orchestrator and step operator, taught to wait for an API server and to say why a pod does not start.

As they come, both take a minute without the API server for a failed step, while its pod goes on; and the step operator waits
without a word for a pod that cannot start, even for an image that does not exist.
"""

from __future__ import annotations

from kubernetes.client import ApiClient
from urllib3 import Retry
from zenml import log_metadata
from zenml.enums import ExecutionStatus
from zenml.integrations.kubernetes import kube_utils
from zenml.integrations.kubernetes.flavors import KubernetesOrchestratorFlavor, KubernetesStepOperatorFlavor
from zenml.integrations.kubernetes.orchestrators import KubernetesOrchestrator
from zenml.integrations.kubernetes.step_operators import KubernetesStepOperator
from zenml.logger import get_logger
from zenml.models import ScheduleResponse, ScheduleUpdate, StepRunResponse

FLAVOR = "resilient_kubernetes"
REQUEST_SECONDS = 30
"""How long one request may take; a request that could not be sent at all is repeated, see `PATIENCE`."""
PATIENCE = Retry(total=None, connect=12, read=3, redirect=3, status=3, other=3, backoff_factor=1, backoff_max=20)
"""Twelve attempts to connect, with pauses of 2, 4, 8, 16 and then 20 seconds: almost three minutes."""
PENDING = "pending"
"""Metadata of a step run: why its pod does not start, or why it ended; empty when it started after all."""

logger = get_logger(__name__)


def with_retries(client: ApiClient, retries: Retry | bool) -> ApiClient:
    """The client, whose requests are repeated so; so are those of every client that is made of its configuration."""
    client.configuration.retries = retries
    client.rest_client.pool_manager.connection_pool_kw["retries"] = retries
    return client


class ResilientOrchestrator(KubernetesOrchestrator):
    """ZenML's Kubernetes orchestrator with patience, but not where somebody waits at a terminal: with schedules."""

    _patient = True

    def get_kube_client(self, incluster: bool | None = None) -> ApiClient:
        return with_retries(super().get_kube_client(incluster), PATIENCE if self._patient else False)

    def update_schedule(self, schedule: ScheduleResponse, update: ScheduleUpdate) -> None:
        self._patient = False
        super().update_schedule(schedule, update)

    def delete_schedule(self, schedule: ScheduleResponse) -> None:
        self._patient = False
        super().delete_schedule(schedule)


class ResilientStepOperator(KubernetesStepOperator):
    """ZenML's Kubernetes step operator with patience and with a word about pods that do not start."""

    _said = ""

    def get_kube_client(self) -> ApiClient:
        return with_retries(super().get_kube_client(), PATIENCE)

    def get_status(self, step_run: StepRunResponse) -> ExecutionStatus:
        """Status of the step's job; why it is pending goes to the step's log and metadata.

        Raises when the API server cannot be asked: `wait` then goes by what ZenML's server knows of the step.
        """
        namespace, limits = self.config.kubernetes_namespace, self._limits
        label = f"step_run_id={kube_utils.sanitize_label_value(str(step_run.id))}"
        jobs = kube_utils.list_jobs(self._k8s_batch_api, namespace, label_selector=label, **limits).items
        if not jobs:
            self._say(step_run, "its job was deleted")
            return ExecutionStatus.FAILED
        status, why = kube_utils.check_job_status(
            self._k8s_batch_api,
            self._k8s_core_api,
            namespace,
            jobs[0].metadata.name,
            fail_on_container_waiting_reasons=self.config.fail_on_container_waiting_reasons,
            **limits,
        )
        self._say(step_run, why or "")
        return {
            kube_utils.JobStatus.SUCCEEDED: ExecutionStatus.COMPLETED,
            kube_utils.JobStatus.FAILED: ExecutionStatus.FAILED,
        }.get(status, ExecutionStatus.RUNNING)

    @property
    def _limits(self) -> dict[str, int | None]:
        return {"api_request_timeout": self.config.api_request_timeout, "max_retries": self.config.max_api_retries}

    def _say(self, step_run: StepRunResponse, why: str) -> None:
        if why == self._said:
            return
        self._said = why
        logger.warning("Step `%s`: %s", step_run.name, why or "its pod has started")
        log_metadata({PENDING: why}, step_id=step_run.id)


class ResilientOrchestratorFlavor(KubernetesOrchestratorFlavor):
    """Registers `ResilientOrchestrator`."""

    @property
    def name(self) -> str:
        return FLAVOR

    @property
    def implementation_class(self) -> type[ResilientOrchestrator]:
        return ResilientOrchestrator


class ResilientStepOperatorFlavor(KubernetesStepOperatorFlavor):
    """Registers `ResilientStepOperator`."""

    @property
    def name(self) -> str:
        return FLAVOR

    @property
    def implementation_class(self) -> type[ResilientStepOperator]:
        return ResilientStepOperator
