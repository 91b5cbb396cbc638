"""Training on bugs with a tiny model while the sandbox or the training is killed: nothing that was finished is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from kubernetes import client as k8s

from tasks.coding.errors import SandboxUnavailable
from tasks.coding.sandbox_client import SandboxClient
from tasks.coding.sandbox_service import sandbox_service
from tests import children
from tests.ports import free_port
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.test_kubernetes import HOST, host_template, namespace  # noqa: F401 (a fixture)
from tests.tasks.coding.coding_training import POINTS, VariedCoding, train, train_until_killed
from tests.tasks.coding.test_sandbox_lost import wait_for
from tests.training.backends.torch.tiny_models import save_tiny_model
from tests.training.toy_run import RecordedProgress
from training.record.history import CHECKPOINTS, HISTORY_FILE, StepRecord, is_intact, read_history

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[3]
STEPS = 3


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), "llama")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    require_bubblewrap()
    with sandbox_service(None, capacity=8) as url:
        yield url


@pytest.fixture(scope="module")
def whole(base: Path, url: str, tmp_path_factory: pytest.TempPathFactory) -> list[StepRecord]:
    """The history of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder, base, url)
    return history(folder)


def model_dir(folder: Path) -> Path:
    return folder / "art" / "models" / "coding"


def history(folder: Path) -> list[StepRecord]:
    return read_history(model_dir(folder) / HISTORY_FILE)


def asked(rows: list[StepRecord]) -> list[list[int]]:
    return [[question.index for question in row.questions] for row in rows]


def require_whole(folder: Path, whole: list[StepRecord]) -> None:
    """All steps once and in order, on the bugs of the undisturbed run, with checkpoints as their rows say."""
    rows = history(folder)
    assert [row.step for row in rows] == list(range(STEPS + 1)) and asked(rows) == asked(whole)
    assert [row.checkpoint_step for row in rows] == [1, 2, 3, 4]
    assert all(is_intact(model_dir(folder), row) for row in (rows[0], *rows[-2:]))
    assert [row.rollout_errors for row in rows] == [0] * (STEPS + 1)
    assert not [path for path in (model_dir(folder) / CHECKPOINTS).rglob("*") if path.suffix in (".tmp", ".partial")]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_training_goes_on_after_its_last_finished_step(
    point: str, base: Path, url: str, whole: list[StepRecord], tmp_path: Path
) -> None:
    assert children.exit_code(train_until_killed, tmp_path, base, url, point) == -signal.SIGKILL
    before = history(tmp_path)
    assert len(before) == (0 if point == "warm start" else 2)
    recorded = RecordedProgress()
    run = train(tmp_path, base, url, recorded)
    assert history(tmp_path)[: len(before)] == before and run.resumed_from == (before[-1].step if before else None)
    assert len(recorded.rows) == STEPS + 1 - len(before) and recorded.warnings == []
    require_whole(tmp_path, whole)


def kill_service(url: str) -> None:
    """Kill the process that a training has started as its sandbox."""
    port = url.rpartition(":")[2]
    [process] = [child for child in psutil.Process().children() if port in child.cmdline()]
    process.kill()


@pytest.mark.slow
def test_a_sandbox_that_is_killed_in_the_middle_of_a_step_costs_no_rollout(
    base: Path, whole: list[StepRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = lost = 0
    execute, rollout = SandboxClient.execute, VariedCoding.rollout

    async def killing(client: SandboxClient, workspace: str, code: str) -> dict[str, Any]:
        nonlocal cells
        cells += 1
        if cells == 5:  # the first cell of the second step, whose three episodes are under way
            kill_service(client.base_url)
        return await execute(client, workspace, code)

    async def counting(task: VariedCoding, *arguments: Any) -> Any:
        nonlocal lost
        try:
            return await rollout(task, *arguments)
        except SandboxUnavailable:
            lost += 1
            raise

    monkeypatch.setattr(SandboxClient, "execute", killing)
    monkeypatch.setattr(VariedCoding, "rollout", counting)
    with sandbox_service(None, capacity=8) as url:
        train(tmp_path, base, url)
    assert lost >= 1
    require_whole(tmp_path, whole)


@pytest.mark.cluster
@pytest.mark.slow
def test_a_training_step_with_pods_as_sandboxes(base: Path, namespace: str, tmp_path: Path) -> None:  # noqa: F811
    port = free_port()
    words = ["runner=kubernetes", f"namespace={namespace}", f"pod_template={host_template(tmp_path)}", f"image={HOST}"]
    words += ["limits.wall_seconds=60", "limits.cpu_seconds=30", "start_seconds=300"]
    command = [
        sys.executable,
        "-m",
        "sandbox",
        "--port",
        str(port),
        *(part for word in words for part in ("--set", word)),
    ]
    started = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(f"http://127.0.0.1:{port}", started)
        train(tmp_path / "run", base, f"http://127.0.0.1:{port}", max_steps=1)
    finally:
        started.terminate()
        started.wait()
    rows = history(tmp_path / "run")
    assert [(row.step, row.rollout_errors) for row in rows] == [(0, 0), (1, 0)] and rows[1].groups_trained == 1
    left = k8s.CoreV1Api().list_namespaced_pod(namespace).items
    assert all(pod.metadata.deletion_timestamp for pod in left), "the service leaves pods behind"
