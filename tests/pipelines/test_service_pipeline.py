"""A service that does not start: noticed at once, and reported in one line by ZenML's own command."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from click.testing import CliRunner
from zenml.cli.cli import cli
from zenml.deployers.exceptions import DeployerError, DeploymentProvisionError, DeploymentTimeoutError
from zenml.enums import DeploymentStatus
from zenml.pipelines.pipeline_definition import Pipeline

from pipelines import service_pipeline
from pipelines.inference import inference_pipeline
from tests.ports import free_port

pytestmark = pytest.mark.service


def fake_client(pid: int) -> Any:
    return lambda: SimpleNamespace(
        get_deployment=lambda name: SimpleNamespace(id="1", deployment_metadata={"pid": pid})
    )


def test_dead_service_loses_its_process_id(monkeypatch: pytest.MonkeyPatch) -> None:
    service = subprocess.Popen([sys.executable, "-c", ""])
    monkeypatch.setattr(service_pipeline, "Client", fake_client(service.pid))
    with service_pipeline._watched_start("name"):
        limit = time.monotonic() + 300
        while psutil.pid_exists(service.pid) and time.monotonic() < limit:
            time.sleep(0.05)
    assert not psutil.pid_exists(service.pid)
    service.wait()


def test_processes_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    other = psutil.Process().ppid()
    monkeypatch.setattr(service_pipeline, "Client", fake_client(other))
    with service_pipeline._watched_start("name"):
        time.sleep(1.5)
    assert psutil.pid_exists(other)


@pytest.mark.parametrize("pid", [os.getpid(), os.getppid(), 2**22 + 1, None], ids=["own", "parent", "other", "none"])
def test_only_a_record_of_this_process_is_forgotten(pid: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container, the service of the one before often had the same process id."""
    updates: list[Any] = []
    client = SimpleNamespace(
        get_deployment=lambda name: SimpleNamespace(id=name, deployment_metadata={"pid": pid} if pid else None),
        zen_store=SimpleNamespace(update_deployment=lambda name, update: updates.append((name, update))),
    )
    monkeypatch.setattr(service_pipeline, "Client", lambda: client)
    service_pipeline._forget_own_process("agent")
    if pid in (os.getpid(), os.getppid()):
        [(name, update)] = updates
        assert (name, update.status, update.deployment_metadata) == ("agent", DeploymentStatus.ABSENT, {})
    else:
        assert not updates


LISTENING = """
import socket, sys, time
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(1000)
"""


@contextmanager
def listening(port: int) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen([sys.executable, "-c", LISTENING, str(port)])
    try:
        while not service_pipeline._listens(program.pid, port):
            time.sleep(0.02)
        yield program
    finally:
        program.kill()
        program.wait()


def deployer_of(monkeypatch: pytest.MonkeyPatch, *states: Any) -> None:
    """ZenML says this of the deployment, one after the other."""
    said = iter(states)
    deployer = SimpleNamespace(flavor="local", refresh_deployment=lambda _: next(said))
    monkeypatch.setattr(service_pipeline.BaseDeployer, "get_active_deployer", lambda: deployer)
    monkeypatch.setattr(service_pipeline, "LOOK_SECONDS", 0.01)


def state(pid: int, port: int, status: DeploymentStatus = DeploymentStatus.RUNNING) -> Any:
    return SimpleNamespace(id="1", url="http://here", status=status, deployment_metadata={"pid": pid, "port": port})


def test_the_answer_of_another_program_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    port, elsewhere = free_port(), free_port()
    with listening(port) as other, listening(elsewhere) as own:
        for own_state in (state(own.pid, port), state(own.pid, port, DeploymentStatus.PENDING)):
            monkeypatch.setattr(service_pipeline, "PORT_SECONDS", 0.05)
            deployer_of(monkeypatch, *[own_state] * 1000)
            with pytest.raises(DeploymentProvisionError, match="another program answers at http://here"):
                service_pipeline._own_service(own_state)
        monkeypatch.setattr(service_pipeline, "PORT_SECONDS", 60)
        deployer_of(monkeypatch, state(own.pid, port), state(own.pid, port, DeploymentStatus.ERROR))
        with pytest.raises(DeploymentProvisionError):
            service_pipeline._own_service(state(own.pid, port))
        loading, ready = state(other.pid, port, DeploymentStatus.PENDING), state(other.pid, port)
        deployer_of(monkeypatch, loading, loading, ready)
        assert service_pipeline._own_service(ready) is ready


def test_another_deployment_waits_until_this_one_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(service_pipeline, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(service_pipeline, "_started", lambda _: set())
    second = threading.Event()

    def deploy_second() -> None:
        with service_pipeline._watched_start("second"):
            second.set()

    with service_pipeline._watched_start("first"):
        thread = threading.Thread(target=deploy_second)
        thread.start()
        assert not second.wait(0.3)
        with listening(port) as service:
            monkeypatch.setattr(service_pipeline, "_started", lambda _: {service.pid})
            assert second.wait(60)
    thread.join()


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), DeploymentTimeoutError("timed out")])
def test_what_an_unfinished_deployment_has_started_is_stopped(
    monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def fails(self: Pipeline, deployment_name: str, timeout: int | None) -> None:
        # ZenML has not noted its process id yet.
        started.append(subprocess.Popen([sys.executable, "-c", LISTENING, str(free_port()), "the-id"]))
        raise failure

    other = subprocess.Popen([sys.executable, "-c", LISTENING, str(free_port())])
    deployer_of(monkeypatch, state(0, 0, DeploymentStatus.ERROR))
    known = SimpleNamespace(id="the-id", deployment_metadata={})
    monkeypatch.setattr(service_pipeline, "Client", lambda: SimpleNamespace(get_deployment=lambda name: known))
    monkeypatch.setattr(Pipeline, "deploy", fails)
    said = "does not run" if isinstance(failure, KeyboardInterrupt) else "it was not ready in time and is stopped"
    try:
        with pytest.raises((KeyboardInterrupt, service_pipeline.ServiceNotStarted), match=said):
            inference_pipeline.deploy("agent")
        started[0].wait(60)
        assert other.poll() is None
    finally:
        for process in (*started, other):
            process.kill()
            process.wait()


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

    deployer = SimpleNamespace(
        flavor="other", get_deployment_logs=lambda name, tail: iter(["BadInput: no checkpoint yet", "bye"])
    )
    monkeypatch.setattr(service_pipeline.BaseDeployer, "get_active_deployer", lambda: deployer)
    monkeypatch.setattr(Pipeline, "deploy", failed)
    done = CliRunner().invoke(cli, ["pipeline", "deploy", "pipelines.inference.inference_pipeline", "--name", "agent"])
    assert done.exit_code == 1
    assert done.output.splitlines()[-1] == (
        "Error: service agent did not start: BadInput: no checkpoint yet (see `zenml deployment logs agent`)"
    )
