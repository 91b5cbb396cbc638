"""What only a process of its own shows: exit codes, and that nothing heavy is imported for a refusal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import run
from cluster.errors import RunFailed
from tests import standstill
from tests.checkout import Checkout
from tests.front_door import FrontDoor

pytestmark = pytest.mark.service

ROOT = Path(__file__).parents[1]


def test_refusals_leave_with_2_before_anything_heavy_is_imported() -> None:
    code = "import sys, run\ncode = run.main(sys.argv[1:])\nprint(sorted(sys.modules))\nsys.exit(code)"
    words = ["--pipeline", "train", "--set", "max_steps=-1"]
    done = standstill.run([sys.executable, "-c", code, *words], cwd=ROOT, env=dict(os.environ))
    assert done.returncode == 2 and done.stderr.startswith("error: trainer.max_steps=-1"), done.stderr
    for library in ("'zenml'", "'torch'", "'art'", "'transformers'", "'litellm'"):
        assert library not in done.stdout


def test_a_run_that_failed_elsewhere_leaves_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise RunFailed("the pod is gone")

    monkeypatch.setattr(run, "execute", fail)
    done = FrontDoor(tmp_path, monkeypatch).run("--pipeline", "train")
    assert (done.returncode, done.stderr) == (1, "error: the pod is gone\n")


def test_the_installed_command_ends_on_both_signals_like_run_py() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    named = scripts["email-search-agent"].removeprefix("run:")
    tells = "run.main = lambda: [signal.getsignal(n) is signal.default_int_handler for n in (2, 15)] != [True] * 2"
    code = f"import signal, sys, run; {tells}; sys.exit(run.{named}())"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("words", [["--help"], ["--help", "trainer"]], ids=" ".join)
def test_nobody_reads_on(words: list[str]) -> None:
    """`run.py --help | head -1`."""
    command = [sys.executable, "run.py", *words]
    told = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert told.stdout
    told.stdout.close()
    told.stdout = None
    assert told.communicate()[1] == b""


def test_the_fork_server_gives_what_a_process_would(tmp_path: Path) -> None:
    """Arguments, folder, environment, output, exit code and signals, with a `run.py` that tells of them."""
    checkout = Checkout(tmp_path, {**Checkout.create(tmp_path / "other").environment, "TOLD": "yes"})
    (tmp_path / "run.py").write_text(TELLS)
    for words, code, errors in ((["0"], 0, ""), (["3"], 3, ""), (["sorry"], 1, "sorry\n"), (["kill"], -9, "")):
        for run_it in (checkout.run, checkout.run_alone):
            done = run_it(*words)
            assert (done.returncode, done.stderr) == (code, errors)
            assert done.stdout == f"run.py {words} {tmp_path} yes None True []\nat exit\n" or code < 0
    background = checkout.start("sleep")
    with standstill.guarded(background):
        while "Handlers" not in background.printed():
            assert background.poll() is None
            time.sleep(0.02)
        background.terminate()
    assert background.wait() == -15 and background.communicate()[0].endswith("<Handlers.SIG_IGN: 1>\n")
    with pytest.raises(AssertionError, match="it did nothing for"):
        checkout.run("sleep", idle_seconds=3)


TELLS = """
import atexit, os, signal, sys, time
ours = [name for name in ("run", "training", "configs", "commands", "tests") if name in sys.modules]
print(sys.argv[0], sys.argv[1:], os.getcwd(), os.environ["TOLD"], os.environ.get("ZENML_DEBUG"),
      sys.stdin.read() == "", ours, flush=True)
atexit.register(print, "at exit")
word = sys.argv[1]
if word == "sleep":
    print(repr(signal.getsignal(signal.SIGINT)), flush=True)
    time.sleep(3600)
if word == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(word) if word.isdigit() else word)
"""
