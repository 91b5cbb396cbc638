from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from zenml.deployers.exceptions import DeployerError

from pipelines import deployment


def fake_client(pid: int) -> Any:
    return lambda: SimpleNamespace(get_deployment=lambda name: SimpleNamespace(deployment_metadata={"pid": pid}))


def test_dead_service_loses_its_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    service = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(deployment, "Client", fake_client(service.pid))
    with deployment._dead_service_noticed("name"):
        limit = time.monotonic() + 20
        while psutil.pid_exists(service.pid) and time.monotonic() < limit:
            time.sleep(0.05)
    assert not psutil.pid_exists(service.pid)
    service.wait()


def test_processes_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = psutil.Process().ppid()
    monkeypatch.setattr(deployment, "Client", fake_client(other))
    with deployment._dead_service_noticed("name"):
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
    monkeypatch.setattr(deployment.BaseDeployer, "get_active_deployer", lambda: deployer)
    failed = DeployerError("it took\ntoo long")
    assert deployment._last_error("name", failed) == "training.errors.BadInput: the adapter does not fit"


def test_without_a_log_the_deployers_error_is_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_log(name: str, tail: int) -> None:
        raise DeployerError("there is none")

    deployer = SimpleNamespace(get_deployment_logs=no_log)
    monkeypatch.setattr(deployment.BaseDeployer, "get_active_deployer", lambda: deployer)
    assert deployment._last_error("name", DeployerError("it took\ntoo long")) == "it took too long"
