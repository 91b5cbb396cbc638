"""A service that does not start: noticed at once, and reported in one line by ZenML's own command."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from zenml.cli.cli import cli
from zenml.deployers.exceptions import DeployerError, DeploymentProvisionError
from zenml.pipelines.pipeline_definition import Pipeline

from pipelines import service_pipeline

pytestmark = pytest.mark.service


def fake_client(pid: int) -> Any:
    return lambda: SimpleNamespace(get_deployment=lambda name: SimpleNamespace(deployment_metadata={"pid": pid}))


def test_dead_service_loses_its_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    service = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(service_pipeline, "Client", fake_client(service.pid))
    with service_pipeline._dead_service_noticed("name"):
        limit = time.monotonic() + 300
        while psutil.pid_exists(service.pid) and time.monotonic() < limit:
            time.sleep(0.05)
    assert not psutil.pid_exists(service.pid)
    service.wait()


def test_processes_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = psutil.Process().ppid()
    monkeypatch.setattr(service_pipeline, "Client", fake_client(other))
    with service_pipeline._dead_service_noticed("name"):
        time.sleep(1.5)
    assert psutil.pid_exists(other)


def test_last_error_is_the_cause_and_not_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    log = [
        "INFO: starting",
        "training.errors.BadInput: the adapter does not fit",
        "zenml.exceptions.HookExecutionException: Failed to execute init hook",
        "INFO: bye",
    ]
    deployer = SimpleNamespace(get_deployment_logs=lambda name, tail: iter(log))
    monkeypatch.setattr(service_pipeline.BaseDeployer, "get_active_deployer", lambda: deployer)
    failed = DeployerError("it took\ntoo long")
    assert service_pipeline._last_error("name", failed) == "training.errors.BadInput: the adapter does not fit"


def test_without_a_log_the_deployers_error_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_log(name: str, tail: int) -> None:
        raise DeployerError("there is none")

    deployer = SimpleNamespace(get_deployment_logs=no_log)
    monkeypatch.setattr(service_pipeline.BaseDeployer, "get_active_deployer", lambda: deployer)
    assert service_pipeline._last_error("name", DeployerError("it took\ntoo long")) == "it took too long"


def test_the_command_of_zenml_reports_a_failed_start_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def failed(self: Pipeline, deployment_name: str, timeout: int | None) -> None:
        raise DeploymentProvisionError("the operational state is error")

    deployer = SimpleNamespace(get_deployment_logs=lambda name, tail: iter(["BadInput: no checkpoint yet", "bye"]))
    monkeypatch.setattr(service_pipeline.BaseDeployer, "get_active_deployer", lambda: deployer)
    monkeypatch.setattr(Pipeline, "deploy", failed)
    done = CliRunner().invoke(cli, ["pipeline", "deploy", "pipelines.inference.inference_pipeline", "--name", "agent"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == (
        "Error: service agent did not start: BadInput: no checkpoint yet (see `zenml deployment logs agent`)"
    )
