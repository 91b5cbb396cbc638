"""How long a run will take, and the time that its progress lines show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Task, TaskID

import commands.clock
import reports.console
from commands.clock import begin_clock
from reports.console import TrainingConsole, clock
from tests.settings import config_of
from training.backends.torch.settings import TorchSettings
from training.backends.torch.speed import cpu_flops
from training.record.history import StepRecord

SAID = r"about (\d+) minutes on this machine, at the (\d+) GFLOP/s measured now; what is finished already is reused"


@pytest.fixture(autouse=True)
def on_a_machine_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(commands.clock, "RUNS", tmp_path)
    monkeypatch.setattr(commands.clock, "multiplies_bfloat16", lambda: False)
    yield
    clock.stop()


def minutes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gflops: float, **changes: Any) -> int:
    monkeypatch.setattr("training.backends.torch.speed.cpu_flops", lambda settings: gflops * 1e9)
    begin_clock(config_of(**changes), evaluates=True)
    found = re.fullmatch(SAID, " ".join(capsys.readouterr().out.split()))
    assert found and int(found[2]) == pytest.approx(gflops, abs=1)
    return int(found[1])


@pytest.mark.parametrize(("bfloat16", "gflops", "usual"), [(False, 170, 25), (True, 375, 10)])
def test_half_the_speed_takes_twice_the_time(
    bfloat16: bool, gflops: float, usual: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands.clock, "multiplies_bfloat16", lambda: bfloat16)
    measured, slow = (minutes(capsys, monkeypatch, speed) for speed in (gflops, gflops / 2))
    assert measured == pytest.approx(usual, abs=3), "what the default took on such a machine"
    assert slow == pytest.approx(2 * measured - 2, abs=2), "preparing takes two minutes on either"


def test_fewer_questions_and_demonstrations_take_less(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = minutes(capsys, monkeypatch, 170)
    assert minutes(capsys, monkeypatch, 170, demonstrations=16) < whole
    assert minutes(capsys, monkeypatch, 17, start_limit=20) < minutes(capsys, monkeypatch, 17)


def test_runs_of_unknown_pace_get_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    begin_clock(config_of(base_model="owner/model"), evaluates=True)
    begin_clock(config_of(backend="local", base_model="owner/model"), evaluates=True)
    assert capsys.readouterr().out == "" and clock.shown() == ""


def test_progress_lines_count_towards_the_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(reports.console.time, "monotonic", lambda: now[0])
    row = StepRecord(step=0, phase="warm_start", checkpoint_step=1, seconds=60.0, demonstrations=8)
    with TrainingConsole(2) as console:
        console.step(row)
        clock.begin(840.0)
        now[0] += 185.0
        console.step(row)
    before, after = capsys.readouterr().out.splitlines()
    assert before.endswith("60 s") and after == f"{before}  3:05 of about 14 min"


def test_the_estimate_follows_the_warm_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that was busy while its speed was measured."""
    now = [0.0]
    monkeypatch.setattr(reports.console.time, "monotonic", lambda: now[0])
    clock.begin(8000.0, warm_start=3400.0)
    now[0] = 1000.0  # 50 seconds of preparation, and a warm start of 950
    clock.warm_start_took(950.0)
    assert clock.shown() == f"16:40 of about {round((1000 + 4550 * 950 / 3400) / 60)} min"
    clock.warm_start_took(950.0)
    assert clock.shown() == "16:40 of about 38 min", "once is enough"


def test_the_estimate_follows_the_warm_start_from_its_first_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(reports.console.time, "monotonic", lambda: now[0])
    clock.begin(8000.0, warm_start=3400.0)
    stage = Task(TaskID(0), "warm start on 128 demonstrations", 64, 0, _get_time=lambda: now[0])
    stage.start_time = 50.0
    now[0], stage.completed = 145.0, 6
    assert clock.shown(stage) == "2:25 of about 133 min", "too early"
    now[0], stage.completed = 287.5, 16  # a quarter of 950 seconds
    assert clock.shown(stage) == f"4:47 of about {round((1000 + 4550 * 950 / 3400) / 60)} min"
    assert clock.shown() == clock.shown(stage), "also while the warm start is validated"
    clock.warm_start_took(950.0)  # most of it in an earlier process, which was killed
    assert clock.shown() == f"4:47 of about {round((287.5 + 4600 * 950 / 3400) / 60)} min"
    clock.begin(8000.0, warm_start=3400.0)
    now[0] += 287.5
    stage.description = "rest of the warm start on 128 demonstrations"
    assert clock.shown(stage) == "4:47 of about 133 min", "its length is not that of the warm start"


def test_the_speed_is_measured() -> None:
    assert 1e6 < cpu_flops(TorchSettings(threads=1), seconds=0.01) < 1e15
