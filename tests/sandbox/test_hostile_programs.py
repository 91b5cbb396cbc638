"""Hostile programs leave the host and other workspaces as they are, yield a bounded observation, and earn nothing."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.checks import Check, run_checks
from sandbox.errors import NoIsolation, Starved, Unusable
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from sandbox.workspace import Changes, Workspace
from tests.sandbox.hostile_programs import BUGGY, PROGRAMS
from tests.sandbox.isolated import isolated_runner

pytestmark = pytest.mark.service

LIMITS = Limits(
    wall_seconds=1.0, cpu_seconds=0.5, memory_bytes=128 << 20, processes=8, disk_bytes=16 << 20, output_bytes=2000
)
FILES = {
    "target.py": BUGGY,
    "tests/test_target.py": "from target import double\n\ndef test():\n    assert double(1) == 2\n",
}
PATIENT = 120.0
"""Limit of a cell that is expected to end by itself: a busy machine may take many times as long."""
CHECKS = [Check(code="import target\ntarget.double(1)", expected="2"), Check(code="target.double(4)", expected="8")]


@pytest.fixture(autouse=True)
def _busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that gets no processor for a while is not lost."""
    for module in ("sandbox.workspace", "sandbox.local"):
        monkeypatch.setattr(f"{module}.GRACE", 300.0)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = isolated_runner(LIMITS)
    yield runner
    runner.close()


@pytest.fixture(scope="module")
def victim(runner: LocalRunner) -> Iterator[Workspace]:
    """Another episode, in the middle of its work."""
    workspace = runner.open({"victim.txt": "mine"}, seconds=PATIENT)
    assert workspace.exec("count = 41").ok
    yield workspace
    workspace.close()


def descendants(pid: int) -> set[int]:
    """All processes below one, as the host sees them."""
    try:
        tasks = [(task / "children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):  # ended in the meantime
        return set()
    children = {int(child) for task in tasks for child in task}
    return children.union(*map(descendants, children))


def ended(before: set[int]) -> bool:
    """Whether all processes but those of `before` end; a busy machine takes a while to end those that were killed."""
    until = time.monotonic() + PATIENT
    while not descendants(os.getpid()) <= before:
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_hostile_program_is_contained_and_earns_nothing(name: str, runner: LocalRunner, victim: Workspace) -> None:
    before = descendants(os.getpid())
    gc.collect()  # closes what earlier tests left behind, which would hide a leak of this one
    handles = len(os.listdir("/proc/self/fd"))
    workspace = runner.open(FILES)
    seen = workspace.exec(PROGRAMS[name])
    assert len(seen.output) <= LIMITS.output_bytes + 100
    until = time.monotonic() + PATIENT
    # The workspace itself goes on. On a busy machine what was left behind may use up a cell's limits.
    while (again := workspace.exec("1 + 1")).ended and time.monotonic() < until:
        pass
    assert again.output.endswith("2\n") and again.ok
    try:
        patch = workspace.changes()
    except Unusable:
        patch = Changes()
    workspace.close()
    with contextlib.suppress(Starved):  # on a busy machine: an error, which earns nothing either
        verdicts = run_checks(runner, FILES, patch, CHECKS)
        assert len(verdicts) == len(CHECKS) and not all(verdict.passed for verdict in verdicts)
    assert victim.exec("count + 1").output == "42\n"
    assert victim.read_file("victim.txt") == "mine" and victim.changes() == Changes()
    assert ended(before)
    assert len(os.listdir("/proc/self/fd")) <= handles


def test_the_checks_pass_when_the_bug_is_repaired(runner: LocalRunner) -> None:
    patch = Changes(changed={"target.py": "def double(number):\n    return number + number\n"})
    patient = LocalRunner(LIMITS.lasting(PATIENT))
    assert all(verdict.passed for verdict in run_checks(patient, FILES, patch, CHECKS))
    patient.close()


LOOP = "for _ in range(10**9): pass"
BUSY = "import os\nprint(flush=True)\nwhile True: pass"


def test_code_that_gets_no_processor_is_no_wrong_repair() -> None:
    """Beside busy processes on the same core, until four times the wall time is over: nobody can say what it would do."""
    allowed = os.sched_getaffinity(0)
    runner = LocalRunner(LIMITS.model_copy(update={"wall_seconds": 1.0, "cpu_seconds": 0.9}))
    others = []
    try:
        runner.require_isolation()
        runner.close()
        os.sched_setaffinity(0, {min(allowed)})  # of this thread, and of the processes that it starts
        for _ in range(16):  # each in a session of its own, as the scheduler may share the processor among sessions
            command = [sys.executable, "-c", BUSY]
            others.append(subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True))
        for other in others:
            assert other.stdout is not None and other.stdout.readline(), "it is busy from here on"
        with pytest.raises(Starved, match=r"too busy to run the tests: wall time limit of 1 s"):
            run_checks(runner, {"target.py": LOOP}, Changes(), CHECKS)
    except NoIsolation as error:
        pytest.skip(str(error))
    finally:
        for other in others:
            other.kill()
            other.communicate()
        os.sched_setaffinity(0, allowed)
        runner.close()


def test_code_that_sleeps_until_the_limit_is_a_wrong_repair(runner: LocalRunner) -> None:
    sleeps = {"target.py": "import time\ntime.sleep(1000)\n"}
    until, verdicts = time.monotonic() + PATIENT, None
    while verdicts is None:
        try:
            verdicts = run_checks(runner, sleeps, Changes(), CHECKS)
        except Starved:  # on a busy machine, on the way to the sleep
            assert time.monotonic() < until
    assert [verdict.passed for verdict in verdicts] == [False, False]
    assert verdicts[0].found == "no value: wall time limit of 1 s"


@pytest.mark.parametrize(
    ("name", "seconds", "words"),
    [
        ("sleep", None, "wall time limit"),
        ("many allocations", PATIENT, "memory"),
        ("memory shared by children", PATIENT, "memory"),
        ("flood", None, "limit"),
        ("exit without a word", PATIENT, "exited with code 0"),
    ],
)
def test_the_observation_says_why_the_repl_was_ended(
    name: str, seconds: float | None, words: str, runner: LocalRunner
) -> None:
    workspace = runner.open(FILES, seconds=seconds)
    seen = workspace.exec(PROGRAMS[name])
    workspace.close()
    assert re.search(words, (seen.ended or "") + seen.output, re.IGNORECASE), seen


def test_cpu_time_of_all_processes_is_limited() -> None:
    runner = LocalRunner(Limits(wall_seconds=120, cpu_seconds=0.3))
    workspace = runner.open(FILES)
    assert workspace.exec(PROGRAMS["busy children"]).ended == "CPU time limit of 0.3 s"
    runner.close()


@pytest.mark.parametrize(
    "name",
    [
        *(
            "connect",
            "send a datagram",
            "raw packets",
            "read the environment of init",
            "find other workspaces",
            "write to the system",
        ),
        *("device files", "become root", "listen for others"),
    ],
)
def test_what_is_forbidden_raises(name: str, runner: LocalRunner) -> None:
    workspace = runner.open(FILES, seconds=PATIENT)
    seen = workspace.exec(PROGRAMS[name])
    workspace.close()
    assert not seen.ok and "Error" in seen.output, seen


def test_no_key_of_the_host_is_seen(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    fresh = LocalRunner(LIMITS)
    workspace = fresh.open(seconds=PATIENT)
    seen = workspace.exec("import os; dict(os.environ)").output
    assert "sk-secret" not in seen and "{" in seen
    fresh.close()
