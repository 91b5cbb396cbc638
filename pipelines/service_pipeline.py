"""A pipeline that is deployed as a service of this checkout, and whose failed start is reported in one line."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import Any

import click
from zenml.client import Client
from zenml.deployers import BaseDeployer
from zenml.deployers.exceptions import DeployerError
from zenml.models import DeploymentResponse
from zenml.pipelines.pipeline_definition import Pipeline
from zenml.utils import source_utils

from steps.background import called_every
from steps.project import ROOT

LOG_LINES = 200


class ServiceNotStarted(click.ClickException):
    """The service did not start; the message quotes its log. ZenML's command line prints it instead of a traceback."""


class ServicePipeline(Pipeline):
    """A pipeline whose service ZenML starts in this checkout, whatever the working directory."""

    def deploy(self, deployment_name: str, timeout: int | None = None, *args: Any, **kwargs: Any) -> DeploymentResponse:
        """Deploy as `zenml pipeline deploy` and `run.py --pipeline deploy` do.

        Raises:
            ServiceNotStarted: its process ended before it served, or it did not serve within `timeout` seconds.
        """
        source_utils.set_custom_source_root(str(ROOT))
        try:
            with contextlib.chdir(ROOT), _dead_service_noticed(deployment_name):
                return super().deploy(deployment_name, timeout, *args, **kwargs)
        except DeployerError as error:
            cause = _last_error(deployment_name, error)
            raise ServiceNotStarted(
                f"service {deployment_name} did not start: {cause} (see `zenml deployment logs {deployment_name}`)"
            ) from error


def service_pipeline(**options: Any) -> Callable[[Callable[..., Any]], ServicePipeline]:
    """Decorate a function like ZenML's `pipeline`, whose options it takes."""
    return lambda function: ServicePipeline(name=function.__name__, entrypoint=function, **options)


def _dead_service_noticed(name: str) -> contextlib.AbstractContextManager[None]:
    """Reap the service's process if it ends.

    ZenML checks whether the process id exists. A dead child keeps its id until it is reaped, so otherwise ZenML would
    wait for a dead service until the time limit.
    """
    pid = None

    def reap() -> None:
        nonlocal pid
        try:
            pid = pid or (Client().get_deployment(name).deployment_metadata or {}).get("pid")
            if pid:
                os.waitpid(pid, os.WNOHANG)
        except (KeyError, ChildProcessError):
            pid = None  # of the service that is replaced, or already reaped

    return called_every(1, reap, thread="reap-dead-service")


def _last_error(name: str, failed: DeployerError) -> str:
    """Return the last error in the service's log, except that of the hook; `failed` if there is no log."""
    try:
        log = list(BaseDeployer.get_active_deployer().get_deployment_logs(name, tail=LOG_LINES))
    except DeployerError:
        return " ".join(str(failed).split())[:300]
    errors = [line.strip() for line in log if re.match(r"\s*[\w.]*(Error|Exception|BadInput|BadMail)\b", line)]
    errors = [line for line in errors if "HookExecutionException" not in line]
    return errors[-1][:300] if errors else "the log names no error"
