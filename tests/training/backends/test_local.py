"""ART's own backend with vLLM, Unsloth and TRL replaced at its border: the guessing game with a tiny Qwen2."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import art
import httpx
import psutil
import pytest
import torch

from tests.fakes.gpu_machine import become_gpu_machine, gpu_machine
from tests.training import injection
from tests.training.backends.torch.tiny_models import save_tiny_model
from tests.training.guessing_game import GuessingGame
from training.backends.local import explained
from training.errors import BadInput
from training.guard.preflight import check_run
from training.loop.trainer import TrainingRun
from training.record.history import checkpoint_folder
from training.record.progress import Progress
from training.settings import TrainerSettings
from training.task import Policy

pytestmark = pytest.mark.service

STANDS_IN = ("trl", "unsloth", "art.unsloth")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), "qwen2")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture
def machine(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, value in gpu_machine(runtime).items():
        monkeypatch.setenv(name, value)
    for name in ("IMPORT_UNSLOTH", "CUDA_VISIBLE_DEVICES"):  # ART sets them
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("UNSLOTH_RETURN_HIDDEN_STATES", "1")
    become_gpu_machine(monkeypatch.setattr)
    yield
    for name in [name for name in sys.modules if name in STANDS_IN or name.startswith("art.unsloth.")]:
        del sys.modules[name]


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


def train(
    folder: Path, base: Path, progress: Progress | None = None, task: Any = None, **settings: object
) -> TrainingRun:
    plain = {
        "backend": "local",
        "probe_rollouts": None,
        "max_extra_groups": 0,
        "min_reward_std": 0.0,
        "advantage_balance": 0.0,
        "learning_rate_schedule": "constant",
        "scale_rewards": "group",
        "top_p": 1.0,
    }
    size = {"groups_per_step": 3, "rollouts_per_group": 6, "learning_rate": 1e-3, "max_context": 1024}
    rules = TrainerSettings(**{**plain, **size, **settings})
    return injection.train(folder, base, rules, progress, task or GuessingGame(), max_tokens=80)


class Alternating(GuessingGame):
    """Every other sampled rollout earns a reward, so that every rollout of every step is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rewards = itertools.cycle((0.0, 1.0))

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        reward = next(self.rewards) if policy.temperature else 0.0
        trajectory = await super().rollout(policy, scenario)
        trajectory.reward = reward
        return trajectory


def said_by_vllm(run: TrainingRun) -> list[str]:
    lines = (run.folder / "logs" / "vllm-runtime.log").read_text().splitlines()
    return [line.removeprefix("vllm ") for line in lines if line.startswith("vllm ")]


def assert_trained_on_what_was_sampled(run: TrainingRun) -> None:
    """The trainer's log-probabilities of the last batch are those that vLLM recorded."""
    from art.loss import shift_tensor
    from art.preprocessing.pack import packed_tensors_from_dir
    from art.unsloth import train
    from unsloth import FastLanguageModel

    last = run.history[-1]
    policy = checkpoint_folder(run.folder, last.checkpoint_step - 1)
    model, _ = FastLanguageModel.from_pretrained(model_name=str(policy), max_seq_length=1024, load_in_4bit=True)
    batch = packed_tensors_from_dir(
        dir=str(run.folder / "tensors"), num_sequences=last.rollouts_trained, sequence_length=1024
    )
    recorded, mask = shift_tensor(batch["logprobs"], math.nan), shift_tensor(batch["assistant_mask"], False)
    bias = train.calculate_attn_bias(
        *recorded.shape, torch.device("cpu"), batch["group_ids"], batch["parent_ids"], torch.float16
    )
    with torch.no_grad():
        hidden = model(input_ids=batch["tokens"], causal_mask=bias).logits
        head = model.get_output_embeddings().weight.t()
        computed, _ = train._calculate_logprobs(head, hidden, shift_tensor(batch["tokens"], 0), 1024)
    torch.testing.assert_close(computed[mask], recorded[mask], atol=1e-3, rtol=0)


def test_one_gpu_samples_and_trains_in_turn_and_a_run_resumes(machine: None, base: Path, tmp_path: Path) -> None:
    recorded = Notes()
    rules = {
        "demonstrations": 40,
        "warm_start_learning_rate": 2e-2,
        "temperature": 0.7,
        "kl_penalty": 0.01,
        "validate_every": 1,
        "validation_questions": 6,
    }
    run = train(tmp_path, base, recorded, Alternating(), max_steps=2, **rules)
    assert [row.phase for row in run.history] == ["warm_start", "grpo", "grpo"]
    assert run.history[run.checkpoint_of].validation_accuracy >= 0.5, "demonstrations teach the game"
    [note] = recorded.notes
    assert "log-probabilities recorded for 100%, 0 tokens retokenised" in note
    assert [row.checkpoint_step for row in run.history] == [1, 2, 3]
    assert_trained_on_what_was_sampled(run)
    asleep = ["sleeps", "wakes up"]
    loaded = [[*asleep, f"loads guessing-game@{step}"] for step in range(1, 4)]
    assert said_by_vllm(run) == ["serves on GPU 0", "loads guessing-game@0", *sum(loaded, [])]

    resumed = train(tmp_path, base, task=Alternating(), max_steps=3, **rules)
    assert resumed.resumed_from == 2 and len(resumed.history) == 4
    assert said_by_vllm(resumed)[1] == "loads guessing-game@3"


def test_with_a_second_gpu_it_samples_during_the_update(
    machine: None, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    run = train(
        tmp_path, base, task=injection.Varied(), demonstrations=0, max_steps=3, max_steps_off_policy=1, validate_every=0
    )
    assert [row.checkpoint_step for row in run.history] == [1, 2, 3]
    assert [row.off_policy_steps for row in run.history] == [0, 1, 1]
    loaded = [f"loads guessing-game@{step}" for step in range(4)]
    assert said_by_vllm(run) == ["serves on GPU 3", *loaded]
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3", "as the evaluation's vLLM needs it"


@pytest.mark.parametrize("visible", ["GPU-1f0a,GPU-9c2b", "3,0", "2,"])
def test_a_second_gpu_that_art_cannot_name_is_refused(
    machine: None, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    message = f"^CUDA_VISIBLE_DEVICES={visible}: with max_steps_off_policy, .* such as 0,1$"
    with pytest.raises(BadInput, match=message):
        train(tmp_path, base, demonstrations=0, max_steps_off_policy=1)
    settings = TrainerSettings(backend="local", demonstrations=0, max_steps_off_policy=1)
    checks = check_run(settings, str(base), models=tmp_path, runs=tmp_path)
    [backend] = [check for check in checks if check.name == "backend"]
    assert not backend.ok and re.match(message, backend.found)


class Deadly(injection.Varied):
    """The process of the trainer is killed after the last rollout of the second step."""

    played = 0

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        trajectory = await super().rollout(policy, scenario)
        self.played += 1
        if self.played == 6:
            [trainer] = (child for child in psutil.Process().children() if child.name() == "model-service")
            trainer.kill()
            while trainer.status() != psutil.STATUS_ZOMBIE:  # the backend reads its exit status
                await asyncio.sleep(0.05)
        return trajectory


def test_a_trainer_that_dies_is_one_line_and_the_steps_before_stay(machine: None, base: Path, tmp_path: Path) -> None:
    small = {
        "demonstrations": 0,
        "groups_per_step": 1,
        "rollouts_per_group": 3,
        "validate_every": 0,
        "max_concurrent": 1,
    }
    with pytest.raises(
        BadInput, match="update: Child process 'model-service' was killed by signal 9; the same command"
    ):
        train(tmp_path, base, task=Deadly(), max_steps=3, **small)
    [history] = tmp_path.rglob("training_history.jsonl")
    assert len(history.read_text().splitlines()) == 1


def test_vllm_that_does_not_start_is_one_line(
    machine: None, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = tmp_path / "server"
    server.write_text("#!/bin/sh\necho 'no kernel image is available'\nexit 3\n")
    server.chmod(0o755)
    monkeypatch.setenv("ART_VLLM_RUNTIME_BIN", str(server))
    with pytest.raises(
        BadInput, match=r"start: vLLM subprocess exited with code \d+\. Check logs at .*vllm-runtime\.log"
    ):
        train(tmp_path / "run", base, demonstrations=0, max_steps=1, validate_every=0)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
            "update: the GPU's memory is exhausted",
        ),
        (httpx.ReadTimeout("no reply"), r"update: vLLM does not answer \(ReadTimeout: no reply\)"),
        (RuntimeError("uv is required to install ART's managed vLLM runtime."), "update: uv is required"),
    ],
)
def test_failures_of_the_machine_are_one_line(error: Exception, line: str) -> None:
    with pytest.raises(BadInput, match=line), explained("update"):
        raise error


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), explained("update"):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
