"""A pipeline that is deployed as a service of this checkout, and whose failed start is reported in one line."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import psutil
from filelock import FileLock, Timeout
from zenml.client import Client
from zenml.deployers import BaseDeployer
from zenml.deployers.exceptions import DeployerError, DeploymentProvisionError, DeploymentTimeoutError
from zenml.enums import DeploymentStatus
from zenml.models import DeploymentResponse, DeploymentUpdate
from zenml.pipelines.pipeline_definition import Pipeline
from zenml.utils import source_utils
from zenml.utils.daemon import stop_process

from steps.background import called_every
from steps.project import ROOT

LOG_LINES = 200
LOOK_SECONDS = 1.0
PORT_SECONDS = 120.0
"""Time that a deployment waits for another one that has chosen its port and does not listen yet."""


class ServiceNotStarted(click.ClickException):
    """The service did not start; the message quotes its log. ZenML's command line prints it instead of a traceback."""


class ServicePipeline(Pipeline):
    """A pipeline whose service ZenML starts in this checkout, whatever the working directory."""

    def deploy(self, deployment_name: str, timeout: int | None = None, *args: Any, **kwargs: Any) -> DeploymentResponse:
        """Deploy as `zenml pipeline deploy` and `run.py --pipeline deploy` do.

        A service that does not start, or whose start is interrupted, is stopped.

        Raises:
            ServiceNotStarted: its process ended before it served, or it did not serve within `timeout` seconds.
            KeyboardInterrupt: the start was interrupted. Its message says what runs now.
        """
        source_utils.set_custom_source_root(str(ROOT))
        local = BaseDeployer.get_active_deployer().flavor == "local"
        if local:
            _forget_own_process(deployment_name)
        watched = _watched_start(deployment_name) if local else contextlib.nullcontext()
        try:
            with contextlib.chdir(ROOT), watched:
                deployment = super().deploy(deployment_name, timeout, *args, **kwargs)
                return _own_service(deployment) if local else deployment
        except DeployerError as error:
            cause = _last_error(deployment_name, error)
            if local:
                _stop_started(deployment_name)
            raise ServiceNotStarted(
                f"service {deployment_name} did not start: {cause} (see `zenml deployment logs {deployment_name}`)"
            ) from error
        except KeyboardInterrupt:
            raise KeyboardInterrupt(_interrupted(deployment_name, local=local)) from None


def service_pipeline(**options: Any) -> Callable[[Callable[..., Any]], ServicePipeline]:
    """Decorate a function like ZenML's `pipeline`, whose options it takes."""
    return lambda function: ServicePipeline(name=function.__name__, entrypoint=function, **options)


def _forget_own_process(name: str) -> None:
    """Keep ZenML from stopping this process for a service that died.

    Containers count process ids from 1, so the service of the one before, which ZenML stops first, had this process's id.
    """
    with contextlib.suppress(KeyError):  # ZenML does not know the deployment yet
        deployment = Client().get_deployment(name)
        here = psutil.Process()
        if (deployment.deployment_metadata or {}).get("pid") in {here.pid, *(parent.pid for parent in here.parents())}:
            forgotten = DeploymentUpdate(status=DeploymentStatus.ABSENT, deployment_metadata={})
            Client().zen_store.update_deployment(deployment.id, forgotten)


@contextlib.contextmanager
def _watched_start(name: str) -> Iterator[None]:
    """Let no other deployment choose a port until this one listens, and reap the service's process if it ends.

    ZenML chooses a free port before it starts the process that listens on it. It checks whether the process id exists.
    A dead child keeps its id until it is reaped, so otherwise ZenML would wait for a dead service until the time limit.
    """
    lock = FileLock(Path(tempfile.gettempdir()) / f"email-agent-deployment.{os.getuid()}.lock", thread_local=False)
    with contextlib.suppress(Timeout):  # then the service that finds its port taken does not start
        lock.acquire(timeout=PORT_SECONDS)

    def look() -> None:
        for pid in _started(name):
            with contextlib.suppress(ChildProcessError):  # reaped already
                if os.waitpid(pid, os.WNOHANG)[0] or _listens(pid):
                    lock.release()

    try:
        with called_every(LOOK_SECONDS, look, thread="watch-start"):
            yield
    finally:
        lock.release()


def _started(name: str) -> set[int]:
    """Return the process ids of the supervisors of this deployment that this process may have started."""
    pids = set()
    with contextlib.suppress(KeyError):  # ZenML does not know the deployment yet
        deployment = Client().get_deployment(name)
        if pid := (deployment.deployment_metadata or {}).get("pid"):
            pids.add(pid)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if str(deployment.id) in child.cmdline():
                    pids.add(child.pid)
    return pids


def _listens(pid: int, port: int | None = None) -> bool:
    """Return whether the process listens on TCP, on any port by default."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.Process(pid).net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and port in (None, connection.laddr.port):
                return True
    return False


def _own_service(deployment: DeploymentResponse) -> DeploymentResponse:
    """Return the deployment once its own process listens on its port and answers.

    ZenML asks whatever answers at the URL, which may be another service.

    Raises:
        DeploymentProvisionError: another program has the port.
    """
    deployer = BaseDeployer.get_active_deployer()
    until = time.monotonic() + PORT_SECONDS
    while True:
        deployment = deployer.refresh_deployment(deployment.id)
        known = deployment.deployment_metadata or {}
        own = _listens(known.get("pid", 0), known.get("port", 0))
        if own and deployment.status == DeploymentStatus.RUNNING:
            return deployment
        if deployment.status == DeploymentStatus.ERROR or (not own and time.monotonic() > until):
            raise DeploymentProvisionError(f"another program answers at {deployment.url}")
        time.sleep(LOOK_SECONDS)


def _stop_started(name: str) -> DeploymentStatus | None:
    """Stop what this process has started of the deployment. Return the deployment's state, None if it does not exist."""
    children = {child.pid for child in psutil.Process().children()}
    for pid in _started(name) & children:
        with contextlib.suppress(psutil.Error):
            stop_process(pid)
    with contextlib.suppress(DeployerError):
        return BaseDeployer.get_active_deployer().refresh_deployment(name).status
    return None


def _interrupted(name: str, *, local: bool) -> str:
    if not local:
        return (
            f"stopped waiting; the start of {name} goes on: `zenml deployment describe {name}`, or `deprovision {name}`"
        )
    if _stop_started(name) == DeploymentStatus.RUNNING:
        return f"stopped; service {name} runs as before"
    return f"stopped; service {name} does not run, the same command starts it"


def _last_error(name: str, failed: DeployerError) -> str:
    """Return the last error in the service's log, except that of the hook; `failed` if there is no log."""
    if isinstance(failed, DeploymentTimeoutError):
        return "it was not ready in time and is stopped"
    try:
        log = list(BaseDeployer.get_active_deployer().get_deployment_logs(name, tail=LOG_LINES))
    except DeployerError:
        return " ".join(str(failed).split())[:300]
    errors = [line.strip() for line in log if re.match(r"\s*[\w.]*(Error|Exception|BadInput|BadMail)\b", line)]
    errors = [line for line in errors if "HookExecutionException" not in line]
    return errors[-1][:300] if errors else "the log names no error"
