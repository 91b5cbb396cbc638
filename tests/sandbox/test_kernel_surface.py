"""Limits and isolation hold against programs that call the kernel themselves."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from sandbox.inside.system_calls import NUMBERS
from sandbox.limits import Limits
from sandbox.local import LocalRunner
from tests.sandbox.isolated import isolated_runner
from tests.sandbox.kernel_programs import (
    AWAKE,
    BURNER,
    CALLS,
    COUNTER,
    HIDDEN_MEMORY,
    HIDDEN_TIME,
    HOLDER,
    SURFACE,
)

pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the programs have the numbers of x86_64"),
]

LIMITS = Limits(wall_seconds=120, cpu_seconds=100, memory_bytes=128 << 20, processes=8, disk_bytes=16 << 20)


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    runner = isolated_runner(LIMITS)
    yield runner
    runner.close()


@pytest.mark.parametrize("name", AWAKE)
def test_nothing_runs_between_two_cells(runner: LocalRunner, name: str) -> None:
    workspace = runner.open()
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    workspace.exec(COUNTER + AWAKE[name])
    workspace.read_file("raced")  # answered when the cell has been stopped, and what it left behind has ended
    repl = {process.pid for process in psutil.Process().children(recursive=True)} - before
    first, begun = workspace.read_file("raced"), time.monotonic()
    while time.monotonic() - begun < 0.3:
        for pid in repl:  # as if the cell had found one more way; one that left a dead child has ended
            os.kill(pid, signal.SIGCONT)
        assert workspace.read_file("raced") == first
    until = time.monotonic() + 60
    while repl and (seen := workspace.exec("time.sleep(0.05); count[0]")).ok and int(seen.output) <= int(first):
        assert time.monotonic() < until, "it goes on with the next cell"
    workspace.close()


@pytest.mark.parametrize("name", HIDDEN_MEMORY)
def test_memory_is_counted_or_refused_however_it_is_held(runner: LocalRunner, name: str) -> None:
    workspace = runner.open()
    seen = workspace.exec(HOLDER + HIDDEN_MEMORY[name])
    assert "BREACH" not in seen.output and seen.ended != "wall time limit of 120 s"
    assert not seen.ok and ("Error" in seen.output or "memory limit" in (seen.ended or "")), seen
    workspace.close()


@pytest.mark.parametrize("name", HIDDEN_TIME)
def test_processor_time_is_counted_whoever_reaps_the_process(name: str) -> None:
    runner = LocalRunner(LIMITS.model_copy(update={"cpu_seconds": 0.5}))
    workspace = runner.open()
    assert workspace.exec(BURNER + HIDDEN_TIME[name]).ended == "CPU time limit of 0.5 s"
    runner.close()


@pytest.mark.parametrize("name", SURFACE)
def test_what_workspaces_share_is_out_of_reach(runner: LocalRunner, name: str) -> None:
    workspace = runner.open()
    seen = workspace.exec(CALLS + SURFACE[name])
    workspace.close()
    assert "BREACH" not in seen.output and (seen.ok or "OSError" in seen.output or "PermissionError" in seen.output), (
        seen
    )


def test_the_numbers_are_those_of_the_kernel() -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if not header.exists():
        pytest.skip("no headers of the kernel")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", header.read_text())}
    assert {name: numbers[0] for name, numbers in NUMBERS.items()} == {name: known[name] for name in NUMBERS}


def test_a_lock_in_one_workspace_is_not_seen_in_another(runner: LocalRunner) -> None:
    first, second = runner.open(), runner.open()
    shared = ["/usr", "/dev/null", "/", os.__file__]
    lock = "import fcntl, os\nfiles = [os.open(place, os.O_RDONLY) for place in {places!r} if os.path.exists(place)]\n"
    for how in ("fcntl.flock(file, fcntl.LOCK_EX)", "fcntl.lockf(file, fcntl.LOCK_SH)"):
        assert first.exec(f"{lock.format(places=shared)}for file in files: {how}").ok
        assert second.exec(f"{lock.format(places=shared)}for file in files: {how}").ok
    for place in shared:
        file = os.open(place, os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(file)
    first.close()
    second.close()


def test_ordinary_programs_are_not_refused(runner: LocalRunner) -> None:
    workspace = runner.open()
    seen = workspace.exec(
        "import asyncio, multiprocessing, socket, sqlite3, subprocess, tempfile, threading, signal, mmap\n"
        "from concurrent.futures import ProcessPoolExecutor\n"
        "assert subprocess.run(['sh', '-c', 'echo a | cat; exit 3'], capture_output=True).returncode == 3\n"
        "async def run(): return await (await asyncio.create_subprocess_exec('true')).wait()\n"
        "assert asyncio.run(run()) == 0\n"
        "with ProcessPoolExecutor(2) as pool: assert list(pool.map(abs, [-1, 2])) == [1, 2]\n"
        "assert multiprocessing.Value('i', 3).value == 3\n"
        "base = sqlite3.connect('x.db'); base.execute('create table t (x)'); base.commit(); base.close()\n"
        "thread = threading.Thread(target=print, args=('thread',)); thread.start(); thread.join()\n"
        "ours, theirs = socket.socketpair(); ours.send(b'x'); assert theirs.recv(1) == b'x'\n"
        "signal.setitimer(signal.ITIMER_REAL, 1000); signal.setitimer(signal.ITIMER_REAL, 0)\n"
        "file = tempfile.TemporaryFile(); file.truncate(8192); mmap.mmap(file.fileno(), 8192)[0] = 1\n"
        "assert open('/dev/zero', 'rb').read(3) == bytes(3)\n"
    )
    workspace.close()
    assert seen.ok, seen


def test_files_of_all_folders_are_limited_together(runner: LocalRunner) -> None:
    workspace = runner.open()
    seen = workspace.exec(
        "total = 0\nfor folder in ('/work', '/tmp', '/dev/shm'):\n    try:\n"
        "        for number in range(100):\n"
        "            with open(f'{folder}/{number}', 'wb') as file: total += file.write(bytes(1 << 20))\n"
        "    except OSError as error: pass\ntotal >> 20"
    )
    assert 8 <= int(seen.output) <= 16
    workspace.close()


def test_a_stopped_workspace_answers_many_callers_in_turn() -> None:
    """Workspaces that are held do not disturb each other: 8 at once, each with a thread that never sleeps."""
    runner = LocalRunner(LIMITS)
    workspaces = [runner.open() for _ in range(8)]
    spin = "import threading\nspinning = threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True)\nspinning.start()"
    with ThreadPoolExecutor(8) as threads:
        assert all(seen.ok for seen in threads.map(lambda each: each.exec(spin), workspaces))
    used = sum(sum(process.cpu_times()[:2]) for process in psutil.Process().children(recursive=True))
    time.sleep(0.5)
    assert sum(sum(process.cpu_times()[:2]) for process in psutil.Process().children(recursive=True)) - used < 0.2
    runner.close()
