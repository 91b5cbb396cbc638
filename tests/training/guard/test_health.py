"""What the health monitor finds, with real processes, files and servers; and that it says each cause once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.fakes.server import Answer, FakeServer, Request
from tests.training.toy_run import RecordedProgress, ToyTask, settings, train
from training.backends import GpuMemory
from training.guard import health
from training.guard.health import HealthMonitor, _cgroup_limits
from training.health_limits import HealthLimits

GIGABYTE = 10**9


def own_processes() -> type[psutil.Process]:
    """Processes that do not count the children that other tests have left behind."""
    left = set(psutil.Process().children(recursive=True))

    class Process(psutil.Process):
        def children(self, recursive: bool = False) -> list[psutil.Process]:
            return [child for child in super().children(recursive) if child not in left]

    return Process


class Monitored:
    """A monitor that looks when it is told to; on a machine with enough of everything unless a test says otherwise."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.set = lambda name, value: monkeypatch.setattr(health, name, value)
        self.memory = SimpleNamespace(total=64 * GIGABYTE, available=32 * GIGABYTE)
        self.gpu: GpuMemory | None = None
        self.url: str | None = None
        self.recorded: list[str] = []
        monkeypatch.setattr(health.psutil, "virtual_memory", lambda: self.memory)
        monkeypatch.setattr(health.psutil, "Process", own_processes())
        self.set("_cgroup_limits", lambda: [])
        self.set("gpu_memory", lambda: self.gpu)
        self.limits = HealthLimits(disk_bytes=0)
        self._monitor = HealthMonitor(0, self.limits, folder, lambda: self.url, self.recorded.append)

    def limit(self, **changes: float) -> None:
        self._monitor._limits = self.limits.model_copy(update=changes)

    def looks(self, times: int = 4) -> list[str]:
        for _ in range(times):
            self._monitor.look()
        return self.recorded


@pytest.fixture
def monitored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Monitored:
    return Monitored(tmp_path, monkeypatch)


def test_a_healthy_machine_gives_no_warning(monitored: Monitored) -> None:
    assert monitored.looks() == []


def test_problems_found_twice_are_reported_once_and_peaks_never(monitored: Monitored) -> None:
    monitored.gpu = GpuMemory(799 * GIGABYTE // 10, 80 * GIGABYTE)
    assert monitored.looks(1) == []
    monitored.gpu = GpuMemory(40 * GIGABYTE, 80 * GIGABYTE)
    assert monitored.looks() == []
    monitored.gpu = GpuMemory(799 * GIGABYTE // 10, 80 * GIGABYTE)
    assert monitored.looks() == ["79.9 GB of the GPU's 80.0 GB are in use: the next update may not fit"]
    monitored.gpu = None
    monitored.looks()
    monitored.gpu = GpuMemory(80 * GIGABYTE, 80 * GIGABYTE)
    assert len(monitored.looks()) == 1


def test_memory_of_the_run_of_its_group_and_of_the_machine(monitored: Monitored) -> None:
    monitored.memory.available = 2 * GIGABYTE
    [recorded] = monitored.looks()
    left = "2.0 GB of 64.0 GB of memory are left on this machine, of which this run holds "
    assert re.fullmatch(rf"{re.escape(left)}\d\.\d GB: it may be killed", recorded)

    monitored.memory.available = 32 * GIGABYTE
    resident = health.psutil.Process().memory_info().rss
    for limit, causes in ((2 * resident, []), (resident, ["memory"])):
        monitored.set("_cgroup_limits", lambda limit=limit: [limit])
        assert [cause for cause, _ in health._processes(200)] == causes


@pytest.mark.service
def test_memory_of_children_counts(monitored: Monitored) -> None:
    limit = int((health.psutil.Process().memory_info().rss + 150_000_000) / 0.9)
    monitored.set("_cgroup_limits", lambda: [limit])
    assert list(health._processes(200)) == []
    holding = "held = b'x' * 300_000_000; print(1, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", holding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout
        child.stdout.readline()
        assert [cause for cause, _ in health._processes(200)] == ["memory"]


@pytest.mark.parametrize(
    ("lines", "files", "limits"),
    [
        ("0::/pod/box\n", {"pod/box/memory.max": "3000", "pod/memory.max": "max", "memory.max": "9000"}, [3000, 9000]),
        ("0::/elsewhere\n", {"memory.max": "5000"}, [5000]),
        (
            "9:cpu:/a\n4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "7000", "memory/memory.limit_in_bytes": "8000"},
            [7000, 8000],
        ),
        ("0::/\n", {}, []),
    ],
)
def test_limits_of_control_groups(lines: str, files: dict[str, str], limits: list[int], tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text(lines)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(f"{text}\n")
    assert list(_cgroup_limits(tmp_path / "cgroup", tmp_path / "fs")) == limits
    assert list(_cgroup_limits(tmp_path / "absent", tmp_path / "fs")) == []


@pytest.mark.service
def test_a_child_that_has_died_unnoticed_and_too_many_of_them(monitored: Monitored) -> None:
    dead, alive = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "3600"])
    try:
        while health.psutil.Process(dead.pid).status() != health.psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assert monitored.looks() == [f"child process true ({dead.pid}) has ended, and its parent has not noticed"]
        monitored.limit(child_processes=1)
        assert "this run has 2 child processes, more than 1" in monitored.looks()[1]
    finally:
        dead.wait()
        alive.kill()
        alive.wait()


def test_little_disk_is_said_of_the_run_and_of_temporary_files(monitored: Monitored, tmp_path: Path) -> None:
    monitored.limit(disk_bytes=10**18)
    of_run, of_temporary = monitored.looks()
    assert f"on the disk of the run ({tmp_path})" in of_run and "on the disk of temporary files" in of_temporary


def test_a_folder_that_remains_half_written(monitored: Monitored, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / "art" / f".{name}.partial").mkdir(parents=True)
    long_ago = time.time() - 7200
    os.utime(tmp_path / "art" / ".old.partial", (long_ago, long_ago))
    [recorded] = monitored.looks()
    assert ".old.partial is half-written for 2.0 hours" in recorded


class Server(FakeServer):
    """Answers /health as it is told to."""

    status = 200

    def respond(self, request: Request) -> Answer:
        return self.status if request.path == "/health" else 404


def test_a_server_that_fails_or_is_gone(monitored: Monitored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Server() as server:
        monitored.url = f"{server.url}/v1"
        assert monitored.looks() == []
        server.status = 500
        assert f"the policy's server at {monitored.url} does not answer" in monitored.looks()[0]
    gone = Monitored(tmp_path, monkeypatch)
    gone.url = "https://elsewhere.invalid/v1"  # other people's servers are not asked
    assert gone.looks() == []
    gone.url = monitored.url
    assert len(gone.looks()) == 1


def test_a_failing_check_is_reported_and_the_next_ones_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([PermissionError("no access to /proc"), PermissionError("no access to /proc"), None, None])
    looked = threading.Event()

    def causes(_: HealthMonitor) -> Any:
        failure = next(looks, None)
        if failure is not None:
            raise failure
        yield "disk", "the disk is full"

    recorded: list[str] = []

    def warn(sentence: str) -> None:
        recorded.append(sentence)
        if "disk" in sentence:
            looked.set()

    monkeypatch.setattr(HealthMonitor, "_causes", causes)
    with HealthMonitor(0.01, HealthLimits(), tmp_path, lambda: None, warn):
        assert looked.wait(300)
    assert [sentence for sentence in recorded if "could not be checked" in sentence] == recorded[:1]
    assert "PermissionError: no access to /proc" in recorded[0] and recorded[1:] == ["the disk is full"]


class Slow(ToyTask):
    async def rollout(self, *arguments: Any) -> Any:
        time.sleep(0.02)
        return await super().rollout(*arguments)


@pytest.mark.parametrize(("seconds", "times"), [(0.05, 1), (0, 0)])
def test_health_warnings_of_a_training_are_in_its_history(
    seconds: float, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        HealthMonitor, "_causes", lambda self: iter([("disk", f"the disk of {self._folder.name} is full")])
    )
    run = train(tmp_path, settings(health_seconds=seconds), Slow(), RecordedProgress())
    warnings = [warning for row in run.history for warning in row.warnings]
    assert warnings == [f"the disk of {tmp_path.name} is full"] * times
    assert not [thread for thread in threading.enumerate() if thread.name == "health"]
