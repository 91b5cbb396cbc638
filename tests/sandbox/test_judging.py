# ruff: noqa: E501
"""What code under test does to its judge is a failed repair: no error, which a run would leave out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from sandbox.app import create_app
from sandbox.limits import Limits
from sandbox.settings import SandboxSettings
from tests.sandbox.isolated import isolated_runner
from tests.sandbox.kernel_programs import CALLS

pytestmark = pytest.mark.service

LIMITS = Limits(wall_seconds=2.0, cpu_seconds=1.9, processes=8)
ROOT = Path(__file__).parents[2]
LINK = """
link = [int(f) for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}')
        and os.readlink(f'/proc/self/fd/{f}').startswith('socket')][0]
"""
JUDGED = {
    "representation that is no text": "class Odd:\n    def __repr__(self): return '\\ud800'\ndef double(number): return Odd()",
    "name of an error that is no text": "def double(number): raise type('\\udfff', (Exception,), {})",
    "processor time of others": "def double(number):\n    while True:\n        try: signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n        except OSError: pass\n        if os.fork() == 0:\n            while time.process_time() < 0.05: pass\n            os._exit(0)\n        time.sleep(0.05)",
    "ready whenever it is looked at": "def double(number):\n    for _ in range(6):\n        def spin():\n            while True:\n                end = time.monotonic() + 0.001\n                while time.monotonic() < end: pass\n                time.sleep(0.012)\n        threading.Thread(target=spin, daemon=True).start()\n    time.sleep(1000)",
    "slow reply": LINK
    + "def double(number):\n    os.write(link, struct.pack('!I', 60000))\n    while True: os.write(link, b' '); time.sleep(0.1)",
    "reply of surrogates": LINK
    + "def double(number):\n    frame = sys._getframe()\n    while frame and 'request' not in frame.f_locals: frame = frame.f_back\n    body = ('{\"ok\": true, \"number\": \"%s\", \"value\": \"\\\\ud800\"}' % frame.f_locals['request']['number']).encode()\n    os.write(link, struct.pack('!I', len(body)) + body); time.sleep(1000)",
    "signals to the judge": "def double(number):\n    for signal_ in range(1, 65):\n        try: os.kill(1, signal_)\n        except OSError: pass\n    return 0",
    "limits of the judge": "import resource\ndef double(number):\n    for kind in range(16):\n        try: resource.prlimit(1, kind, (0, 0))\n        except (OSError, ValueError): pass\n    return 0",
    "priority of the judge": "def double(number):\n    for change in (lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)), lambda: os.sched_setaffinity(1, [0])):\n        try: change()\n        except OSError: pass\n    return 0",
    "value without end": "def double(number): return 'x' * (50 << 20)",
    "descriptors of the judge": LINK
    + "import array\ndef double(number):\n    for _ in range(50):\n        try: socket.socket(fileno=os.dup(link)).sendmsg([b'\\0'], [(1, 1, array.array('i', [0] * 30))])\n        except OSError: break\n    return 0",
}
"""Modules whose `double` attacks whoever runs it."""


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    runner = isolated_runner(LIMITS)
    with TestClient(create_app(SandboxSettings(limits=LIMITS), runner)) as client:
        yield client


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the programs have the numbers of x86_64")
@pytest.mark.parametrize("name", JUDGED)
def test_code_that_attacks_its_judge_has_failed(client: TestClient, name: str) -> None:
    files = {"target.py": "def double(number): return number + 1\n"}
    snapshot = client.post("/snapshots", json={"files": files}).json()["snapshot"]
    body = {
        "snapshot": snapshot,
        "patch": {"changed": {"target.py": CALLS + JUDGED[name]}},
        "checks": [{"code": "import target\ntarget.double(4)", "expected": "8"}, {"code": "1 + 1", "expected": "2"}],
    }
    until = time.monotonic() + 120
    while (answer := client.post("/tests", json=body)).status_code == 503 and time.monotonic() < until:
        pass  # on a busy machine, until it is judged
    assert answer.status_code == 200 and answer.json()[0]["passed"] is False, answer.text
    place = f"/workspaces/{client.post('/workspaces', json={'snapshot': snapshot}).json()['id']}"
    for code in (CALLS + JUDGED[name], "double(4)", "1"):
        assert client.post(f"{place}/cells", json={"code": code}).status_code == 200
    assert client.get(f"{place}/changes").status_code == 200
    assert client.delete(place).status_code == 204


def test_it_holds_for_an_ordinary_user() -> None:
    """The workspaces of an ordinary user run as that user, who may signal and limit the own processes."""
    python = shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")
    if os.geteuid() != 0 or python is None:
        pytest.skip("the other tests are run by an ordinary user already, or there is no Python for one")
    names = ("signals to the judge", "limits of the judge", "priority of the judge", "representation that is no text")
    program = (
        "import sys\nfrom tests.sandbox.test_judging import CALLS, JUDGED, LIMITS\n"
        "from sandbox.checks import Check, run_checks\nfrom sandbox.errors import NoIsolation\n"
        "from sandbox.local import LocalRunner\nfrom sandbox.workspace import Changes\n"
        "runner = LocalRunner(LIMITS)\n"
        "try: runner.require_isolation()\nexcept NoIsolation as error: sys.exit(print(error) or 5)\n"
        f"for name in {names!r}:\n"
        "    checks = [Check(code='import target\\ntarget.double(4)', expected='8'), Check(code='1 + 1', expected='2')]\n"
        "    verdicts = run_checks(runner, {'target.py': CALLS + JUDGED[name]}, Changes(), checks)\n"
        "    assert [verdict.passed for verdict in verdicts] == [False, True], (name, verdicts)\n"
        "runner.close()\n"
    )
    paths = os.pathsep.join([str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))])
    done = subprocess.run(
        [python, "-c", program],
        env={"PYTHONPATH": paths, "PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        user=65533,
        group=65533,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    if done.returncode == 5 or "Permission denied" in done.stderr:
        pytest.skip(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
