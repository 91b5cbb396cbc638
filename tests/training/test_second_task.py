"""A task without mail through the trainer and the torch backend, with a tiny random model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.training import injection
from tests.training.backends.torch.tiny_models import save_tiny_model
from tests.training.guessing_game import GuessingGame
from training.backends.torch.settings import TorchEngineSettings
from training.loop.trainer import TrainingRun
from training.record.progress import Progress
from training.settings import TrainerSettings

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"), "llama")


class Notes(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, sentence: str) -> None:
        self.notes.append(sentence)


def train(folder: Path, base: Path, progress: Progress | None = None, **settings: object) -> TrainingRun:
    plain = {
        "probe_rollouts": None,
        "max_extra_groups": 0,
        "min_reward_std": 0.0,
        "advantage_balance": 0.0,
        "learning_rate_schedule": "constant",
    }
    plain |= {"scale_rewards": "group", "top_p": 1.0, "torch": TorchEngineSettings(lora_plus_ratio=1.0)}
    size = {"groups_per_step": 4, "rollouts_per_group": 6, "learning_rate": 1e-3, "max_context": 1024}
    rules = TrainerSettings(**{**plain, **size, **settings})
    return injection.train(folder, base, rules, progress, GuessingGame(), max_tokens=80)


def test_the_untouched_model_cannot_play(base: Path, tmp_path: Path) -> None:
    [row] = train(tmp_path, base, demonstrations=0, max_steps=1, validate_every=0).history
    assert (row.accuracy, row.turns, row.groups_trained) == (0.0, 0.0, 0)


def test_demonstrations_teach_the_game_and_rollouts_train_on(base: Path, tmp_path: Path) -> None:
    run = train(
        tmp_path,
        base,
        demonstrations=40,
        warm_start_learning_rate=2e-2,
        max_steps=2,
        temperature=0.7,  # at 1 it may lose all 48 games
        validate_every=1,
        validation_questions=6,
    )
    assert [row.phase for row in run.history] == ["warm_start", "grpo", "grpo"]
    best = max(row.validation_accuracy or 0.0 for row in run.history)
    assert best >= 0.5 and run.history[run.checkpoint_of].validation_accuracy == best
    steps = run.history[1:]
    assert any(row.groups_trained for row in steps) and any((row.accuracy or 0.0) > 0 for row in steps)
    assert run.history[-1].checkpoint_step == 1 + sum(bool(row.groups_trained) for row in steps)
    assert all(row.entropy and row.sampled_tokens for row in steps)


def test_all_ways_to_learn_more_from_a_rollout_work_together(base: Path, tmp_path: Path) -> None:
    recorded = Notes()
    run = train(
        tmp_path,
        base,
        recorded,
        demonstrations=40,
        warm_start_learning_rate=2e-2,
        temperature=0.7,
        max_steps=3,
        validate_every=0,
        max_extra_groups=4,
        min_reward_std=0.01,
        scale_rewards="batch",
        turn_credit=0.5,
        kl_penalty=0.01,
        learning_rate_schedule="cosine",
        warm_up_steps=2,
        max_steps_off_policy=1,
    )
    steps = run.history[1:]
    updated = [row for row in steps if row.groups_trained]
    assert len(updated) > 1, [row.accuracy for row in steps]
    figures = [row.model_extra or {} for row in updated]
    assert all(math.isfinite(row["loss/train"]) and 0 < row["loss/grad_norm"] < 1e3 for row in figures), figures
    # Warm-up, the top of the cosine and its end, times the share of the four groups that the step learnt from.
    rates = [1e-3 * (0.5, 1.0, 0.1)[steps.index(row)] * row.groups_trained / 4 for row in updated]
    assert [row["loss/learning_rate"] for row in figures] == pytest.approx(rates)
    [note] = recorded.notes
    assert "log-probabilities recorded for 100%, 0 tokens retokenised" in note
