"""What happens to a run that is killed, starved or lied to: nothing that was finished is lost, and nobody has to repair anything."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import art
import pytest

from tests import children
from tests.fakes.judge import JudgeModel, by_id, one_short, prose
from tests.training.backends.torch.tiny_models import save_tiny_model
from tests.training.injection import (
    POINTS,
    SETTINGS,
    VALIDATED,
    VALIDATED_POINTS,
    Varied,
    settings_at,
    train,
    train_until_killed,
)
from tests.training.toy_run import RecordedProgress
from training.backends.torch.adapter_trainer import AdapterTrainer
from training.backends.torch.settings import UNFINISHED_SFT
from training.errors import BadInput
from training.record.history import CHECKPOINTS, HISTORY_FILE, StepRecord, checkpoint_digest, is_intact, read_history
from training.task import Policy

pytestmark = pytest.mark.service

FINISHED_BEFORE = {"warm start": 0, "first validation": 0, "rollout": 2, "update": 2, "checkpoint": 2}
"""Rows that are on disk when the run is killed: the warm start's and that of step 1."""


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), "llama")


def model_dir(folder: Path, task: str = "guessing-game") -> Path:
    return folder / "art" / "models" / task


def history(folder: Path) -> list[StepRecord]:
    return read_history(model_dir(folder) / HISTORY_FILE)


def require_whole(folder: Path) -> None:
    """All steps once and in order, the last checkpoints as their rows say, and nothing half-made beside them."""
    rows = history(folder)
    assert [row.step for row in rows] == list(range(SETTINGS.max_steps + 1))
    assert [row.checkpoint_step for row in rows] == [1, 2, 3, 4]
    assert sorted(entry.name for entry in (model_dir(folder) / CHECKPOINTS).iterdir()) == ["0001", "0003", "0004"]
    assert all(is_intact(model_dir(folder), row) for row in (rows[0], *rows[-2:]))
    assert not [path for path in folder.rglob("*") if path.suffix in (".tmp", ".partial")]
    assert not (model_dir(folder) / UNFINISHED_SFT).exists()


@pytest.mark.parametrize("point", [*POINTS, *VALIDATED_POINTS])
def test_a_kill_at_any_point_loses_no_finished_step(
    point: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert children.exit_code(train_until_killed, tmp_path, base, point) == -signal.SIGKILL
    before = history(tmp_path)
    assert len(before) == FINISHED_BEFORE.get(point, 2)

    taught: list[Any] = []
    sft_step = AdapterTrainer.sft_step
    monkeypatch.setattr(AdapterTrainer, "sft_step", lambda *given: taught.append(given) or sft_step(*given))
    recorded = RecordedProgress()
    run = train(tmp_path, base, settings_at(point), recorded)
    assert len(taught) == (2 if point == "warm start" else 0), "batches of the warm start"
    assert history(tmp_path)[: len(before)] == before and run.resumed_from == (before[-1].step if before else None)
    assert len(recorded.rows) == SETTINGS.max_steps + 1 - len(before) and recorded.warnings == []
    require_whole(tmp_path)


def test_a_run_without_steps_ends_with_its_warm_start_alone(base: Path, tmp_path: Path) -> None:
    run = train(tmp_path, base, SETTINGS.model_copy(update={"max_steps": 0}))
    assert run.checkpoint == model_dir(tmp_path) / CHECKPOINTS / "0001" and not list(tmp_path.rglob(UNFINISHED_SFT))


def damage(file: Path) -> None:
    with file.open("r+b") as stream:
        stream.truncate(file.stat().st_size // 2)


@pytest.fixture
def finished_run(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(folder, base)
    return folder


def test_a_damaged_checkpoint_is_noticed_and_the_one_before_it_taken(base: Path, finished_run: Path) -> None:
    def resume(damaged: str, file: str) -> RecordedProgress:
        damage(model_dir(finished_run) / CHECKPOINTS / damaged / file)
        recorded = RecordedProgress()
        train(finished_run, base, progress=recorded)
        require_whole(finished_run)
        return recorded

    recorded = resume("0004", "adapter_model.safetensors")
    assert [row.step for row in recorded.rows] == [3]
    assert (
        recorded.warnings
        == ["the checkpoint of step 3 is damaged or gone: resuming after step 2"]
        == recorded.rows[0].warnings
    )
    damage(model_dir(finished_run) / CHECKPOINTS / "0003" / "adapter_model.safetensors")
    recorded = resume("0004", "optimizer.pt")
    assert [row.step for row in recorded.rows] == [1, 2, 3] and "resuming after step 0" in recorded.warnings[0]
    shutil.rmtree(model_dir(finished_run) / CHECKPOINTS)
    recorded = RecordedProgress()
    train(finished_run, base, progress=recorded)
    assert [row.step for row in recorded.rows] == [0, 1, 2, 3] and "resuming from the start" in recorded.warnings[0]


def test_a_damaged_best_checkpoint_is_not_the_result(base: Path, tmp_path: Path) -> None:
    first = train(tmp_path, base, VALIDATED)
    assert first.checkpoint_of == 0  # all validate alike, and of equals the earliest is the best
    damage(first.checkpoint / "adapter_model.safetensors")
    recorded = RecordedProgress()
    again = train(tmp_path, base, VALIDATED, recorded)
    assert "step 0, the best one, is damaged" in recorded.warnings[0]
    assert again.checkpoint_of == 2 and again.warm_start is None
    assert checkpoint_digest(again.checkpoint) == again.history[2].checkpoint_digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True).returncode
    ):
        pytest.skip("needs the right to mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


class FillsTheDisk(RecordedProgress):
    """After step 1 there is no space left."""

    def __init__(self, filler: Path) -> None:
        super().__init__()
        self.filler = filler

    def step(self, row: StepRecord) -> None:
        super().step(row)
        if row.step == 1:
            with pytest.raises(OSError, match="No space left"), self.filler.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))


def test_a_full_disk_ends_the_run_in_one_line_and_it_goes_on_when_there_is_space(base: Path, small_disk: Path) -> None:
    filler = small_disk / "filler"
    with pytest.raises(BadInput, match="no space left .* the same command resumes") as caught:
        train(small_disk, base, progress=FillsTheDisk(filler))
    assert "\n" not in str(caught.value)
    before = history(small_disk)
    assert [row.step for row in before] == [0, 1]
    filler.unlink()
    train(small_disk, base)
    assert history(small_disk)[:2] == before
    require_whole(small_disk)


def test_off_policy_ratios_use_the_sampling_policy(base: Path, tmp_path: Path) -> None:
    rules = SETTINGS.model_copy(update={"max_steps_off_policy": 1, "learning_rate": 0.05, "warm_up_steps": 1})
    recorded = RecordedProgress()
    train(tmp_path, base, rules, recorded)
    require_whole(tmp_path)
    assert [row.off_policy_steps for row in recorded.rows] == [0, 0, 1, 1] and recorded.warnings == []
    divergences = [row.model_extra["loss/kl_old_new"] for row in recorded.rows[1:]]
    assert divergences[0] < 0.001 and all(divergence > 0.01 for divergence in divergences[1:]), divergences


class Hanging(Varied):
    """Rollouts of step 2 whose server never answers: `hangs` says which."""

    def __init__(self, hangs: Callable[[int], bool]) -> None:
        super().__init__()
        self.played = 0
        self.hangs = hangs

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        self.played += 1
        if policy.model.endswith("@2") and self.hangs(self.played):
            await asyncio.sleep(3600)
        return await super().rollout(policy, scenario)


def test_a_rollout_that_hangs_is_named_and_left_out(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.gathering.STEP_TIMEOUT", 8.0)
    monkeypatch.setattr("training.loop.trainer.STALL_SECONDS", 2.0)
    recorded = RecordedProgress()
    train(tmp_path, base, SETTINGS, recorded, Hanging(lambda played: played == 5))
    assert any("waiting for rollout 2 of question 1 in step 2" in sentence for sentence in recorded.warnings), (
        recorded.warnings
    )
    assert recorded.rows[2].rollout_errors == 1 and any(
        "1 rollouts failed (1 TimeoutError)" in sentence for sentence in recorded.rows[2].warnings
    )
    require_whole(tmp_path)


def test_a_server_that_hangs_ends_the_run_and_the_next_goes_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.gathering.STEP_TIMEOUT", 8.0)
    with pytest.raises(BadInput, match=r"step 2: 3 rollouts failed \(3 TimeoutError\), none finished"):
        train(tmp_path, base, SETTINGS, task=Hanging(lambda played: True))
    assert [row.step for row in history(tmp_path)] == [0, 1]
    train(tmp_path, base)
    require_whole(tmp_path)


@pytest.fixture
def judge() -> Iterator[JudgeModel]:
    with JudgeModel() as server:
        yield server


def judged(judge: JudgeModel, **changes: Any) -> Any:
    return SETTINGS.model_copy(update={**judge.rules, **changes})


@pytest.mark.parametrize("bad", [one_short, prose], ids=["7 of 8 scores", "prose"])
def test_a_judge_that_often_talks_nonsense_costs_requests_or_a_group(
    bad: Any, judge: JudgeModel, base: Path, tmp_path: Path
) -> None:
    replies: dict[str, int] = {}

    def reply(ids: list[str], asked: str) -> str:
        """Nonsense at first to every group, and to the very first group always."""
        assert len(ids) == 8
        replies[asked] = replies.get(asked, 0) + 1
        return bad(ids) if replies[asked] == 1 or asked == next(iter(replies)) else by_id(ids)

    judge.reply = reply
    recorded = RecordedProgress()
    train(tmp_path, base, judged(judge, groups_per_step=2, rollouts_per_group=8), recorded)
    rows = recorded.rows[1:]
    assert [row.groups_dropped for row in rows] == [1, 0, 0]
    assert [row.groups_trained for row in rows] == [1, 2, 2]
    assert [row.judge_requests for row in rows] == [6 + 2, 2 + 2, 2 + 2]
    assert "gave no usable scores" in rows[0].warnings[0] and not rows[1].warnings
    require_whole(tmp_path)


def test_a_judge_that_is_down_ends_the_run_and_the_next_goes_on(judge: JudgeModel, base: Path, tmp_path: Path) -> None:
    judge.reply = lambda ids, asked: by_id(ids) if len(judge.requests) == 1 else 503
    with pytest.raises(
        BadInput, match="step 2: judge openai/own at .* gave no usable scores .* the same command resumes"
    ) as caught:
        train(tmp_path, base, judged(judge))
    assert "\n" not in str(caught.value)
    before = history(tmp_path)
    assert [row.step for row in before] == [0, 1] and before[1].judge_requests == 1
    judge.reply = by_id
    train(tmp_path, base, judged(judge))
    assert history(tmp_path)[:2] == before
    require_whole(tmp_path)
