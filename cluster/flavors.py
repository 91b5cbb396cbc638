"""ZenML's Kubernetes orchestrator and step operator, made resilient to outages of the API server and to lost nodes.

ZenML's own classes have three problems. They report a step as failed after a minute without the API server, while its pod
continues. The step operator waits silently for a pod that cannot start, even if its image does not exist. A run whose pods
are lost with their node fails, although its orchestrator is restarted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from kubernetes.client import ApiClient, V1CronJob, V1Job
from kubernetes.client.exceptions import ApiException
from urllib3 import Retry
from zenml import log_metadata
from zenml.enums import ExecutionStatus
from zenml.integrations.kubernetes import kube_utils
from zenml.integrations.kubernetes.constants import (
    KUBERNETES_CRON_JOB_METADATA_KEY,
    KUBERNETES_SECRET_TOKEN_KEY_NAME,
    STEP_NAME_ANNOTATION_KEY,
    STEP_OPERATOR_ANNOTATION_KEY,
)
from zenml.integrations.kubernetes.flavors import KubernetesOrchestratorFlavor, KubernetesStepOperatorFlavor
from zenml.integrations.kubernetes.orchestrators import KubernetesOrchestrator
from zenml.integrations.kubernetes.step_operators import KubernetesStepOperator
from zenml.logger import get_logger
from zenml.models import ScheduleResponse, ScheduleUpdate, StepRunResponse

FLAVOR = "resilient_kubernetes"
REQUEST_SECONDS = 30
"""Time limit of a request in seconds. Requests that could not be sent are repeated, see `PATIENCE`."""
PATIENCE = Retry(total=None, connect=12, read=3, redirect=3, status=3, other=3, backoff_factor=1, backoff_max=20)
"""Twelve attempts to connect, with pauses of 2, 4, 8, 16 and then 20 seconds: almost three minutes."""
PENDING = "pending"
"""Key of the metadata of a step run with the reason why its pod does not start or has ended; empty once it started."""
ENDING_SECONDS = 90
"""Seconds that a new attempt waits for pods of an earlier one to end; Kubernetes gives them 30."""

logger = get_logger(__name__)


def with_retries(client: ApiClient, retries: Retry | bool) -> ApiClient:
    """Set the retries of `client` and of all clients with its configuration. Return `client`."""
    client.configuration.retries = retries
    client.rest_client.pool_manager.connection_pool_kw["retries"] = retries
    return client


class ResilientOrchestrator(KubernetesOrchestrator):
    """ZenML's Kubernetes orchestrator with repeated requests, except for schedules, where a user waits at a terminal."""

    _patient = True

    def get_kube_client(self, incluster: bool | None = None) -> ApiClient:
        return with_retries(super().get_kube_client(incluster), PATIENCE if self._patient else False)

    def update_schedule(self, schedule: ScheduleResponse, update: ScheduleUpdate) -> None:
        self._patient = False
        super().update_schedule(schedule, update)

    def delete_schedule(self, schedule: ScheduleResponse) -> None:
        """Delete the secret with the token of a schedule's jobs, the CronJob, and its finished jobs.

        The secret goes first, because only the CronJob names it: what failed can be repeated.

        Kubernetes would end an active run together with its CronJob.

        Raises:
            RuntimeError: a run is active.
        """
        namespace, cron_job = self.config.kubernetes_namespace, self.cron_job(schedule)
        if cron_job and cron_job.status and cron_job.status.active:
            raise RuntimeError(
                "a run is under way and would end with it: pause the schedule and delete it when the run has ended, or end "
                f"the run first: kubectl delete job {cron_job.status.active[0].name} -n {namespace}"
            )
        for secret in _token_secrets(cron_job) if cron_job else ():
            with _absence_ignored():
                kube_utils.delete_secret(self._k8s_core_api, namespace, secret)
        super().delete_schedule(schedule)

    def cron_job(self, schedule: ScheduleResponse) -> V1CronJob | None:
        """Return the CronJob of a schedule; None if it is gone."""
        self._patient = False
        name = schedule.run_metadata.get(KUBERNETES_CRON_JOB_METADATA_KEY)
        if name is not None:
            with _absence_ignored():
                return self._k8s_batch_api.read_namespaced_cron_job(name, self.config.kubernetes_namespace)
        return None


class ResilientStepOperator(KubernetesStepOperator):
    """ZenML's Kubernetes step operator with repeated requests, one job at a time, and reasons why pods do not start.

    Its pod submits the step's job and waits for it. If that pod is lost, its successor submits a new job.
    """

    _said = ""

    def get_kube_client(self) -> ApiClient:
        return with_retries(super().get_kube_client(), PATIENCE)

    def submit_with_allocation(self, info: Any, *arguments: Any, **options: Any) -> None:
        """Submit the step's job after ending jobs of earlier attempts, because two jobs would publish the same training."""
        self._end_earlier(info)
        super().submit_with_allocation(info, *arguments, **options)
        # A restarted orchestrator adopts every job that names a step. It would mistake the end of this job for the end
        # of the step, although a retry continues the step.
        for job in self._jobs(step_run_id=info.step_run_id):
            kube_utils.update_job(
                self._k8s_batch_api,
                self.config.kubernetes_namespace,
                job.metadata.name,
                {STEP_NAME_ANNOTATION_KEY: None},
                **self._limits,
            )

    def wait(self, step_run: StepRunResponse) -> ExecutionStatus:
        """Wait for the step's job. An interruption ends the job too, because nothing would record its end."""
        try:
            return super().wait(step_run)
        except BaseException:
            self.cancel(step_run)
            raise

    def get_status(self, step_run: StepRunResponse) -> ExecutionStatus:
        """Return the status of the step's job. Write the reason for a pending one to the step's log and metadata.

        Raises if the API server does not answer; `wait` then uses the status of the step on ZenML's server.
        """
        jobs = self._jobs(step_run_id=step_run.id)
        if not jobs:
            self._say(step_run, "its job was deleted")
            return ExecutionStatus.FAILED
        status, why = kube_utils.check_job_status(
            self._k8s_batch_api,
            self._k8s_core_api,
            self.config.kubernetes_namespace,
            jobs[0].metadata.name,
            fail_on_container_waiting_reasons=self.config.fail_on_container_waiting_reasons,
            **self._limits,
        )
        self._say(step_run, why or "")
        return {
            kube_utils.JobStatus.SUCCEEDED: ExecutionStatus.COMPLETED,
            kube_utils.JobStatus.FAILED: ExecutionStatus.FAILED,
        }.get(status, ExecutionStatus.RUNNING)

    def _end_earlier(self, info: Any) -> None:
        deadline = time.monotonic() + ENDING_SECONDS
        asked: set[str] = set()
        labels = {"run_id": info.run_id, "step_name": info.pipeline_step_name}
        while running := {job.metadata.name for job in self._jobs(**labels) if _runs_step(job)}:
            for name in running - asked:
                logger.warning("Step `%s`: ending the job of an earlier attempt, %s", info.pipeline_step_name, name)
                with _absence_ignored():  # it may end between the two requests
                    kube_utils.delete_job(self._k8s_batch_api, self.config.kubernetes_namespace, name, **self._limits)
                asked.add(name)
            if time.monotonic() > deadline:  # its node does not answer
                return
            time.sleep(1)

    def _jobs(self, **labels: Any) -> list[V1Job]:
        selector = ",".join(f"{name}={kube_utils.sanitize_label_value(str(value))}" for name, value in labels.items())
        batch, namespace = self._k8s_batch_api, self.config.kubernetes_namespace
        return kube_utils.list_jobs(batch, namespace, label_selector=selector, **self._limits).items

    @property
    def _limits(self) -> dict[str, int | None]:
        return {"api_request_timeout": self.config.api_request_timeout, "max_retries": self.config.max_api_retries}

    def _say(self, step_run: StepRunResponse, why: str) -> None:
        if why == self._said:
            return
        self._said = why
        logger.warning("Step `%s`: %s", step_run.name, why or "its pod has started")
        log_metadata({PENDING: why}, step_id=step_run.id)


@contextmanager
def _absence_ignored() -> Iterator[None]:
    """Ignore that the object does not exist."""
    try:
        yield
    except ApiException as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _token_secrets(cron_job: V1CronJob) -> set[str]:
    """Return the names of the secrets from which the jobs of a CronJob take ZenML's token."""
    containers = cron_job.spec.job_template.spec.template.spec.containers
    sources = [variable.value_from for container in containers for variable in container.env or []]
    keys = [source.secret_key_ref for source in sources if source is not None and source.secret_key_ref is not None]
    return {key.name for key in keys if key.key == KUBERNETES_SECRET_TOKEN_KEY_NAME}


def _runs_step(job: V1Job) -> bool:
    """Return whether a job is that of a step operator and active. The job whose pod waits for it has the same labels."""
    conditions = {condition.type for condition in job.status.conditions or [] if condition.status == "True"}
    return STEP_OPERATOR_ANNOTATION_KEY in (job.metadata.annotations or {}) and not conditions & {"Complete", "Failed"}


class ResilientOrchestratorFlavor(KubernetesOrchestratorFlavor):
    """Flavor of `ResilientOrchestrator`."""

    @property
    def name(self) -> str:
        return FLAVOR

    @property
    def implementation_class(self) -> type[ResilientOrchestrator]:
        return ResilientOrchestrator


class ResilientStepOperatorFlavor(KubernetesStepOperatorFlavor):
    """Flavor of `ResilientStepOperator`."""

    @property
    def name(self) -> str:
        return FLAVOR

    @property
    def implementation_class(self) -> type[ResilientStepOperator]:
        return ResilientStepOperator
