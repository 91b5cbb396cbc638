"""Every setting of the trainer changes what a run does: a run is traced with one value and with another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import art
import pytest

from tests.training.toy_run import CountingBackend, CountingModel, RecordedProgress, ToyTask, run_with, settings
from training.settings import TrainerSettings

REVERSED, DOUBLED = (f"{__name__}:{name}_reward" for name in ("reversed", "doubled"))
ACTS: dict[str, tuple[dict[str, Any], Any]] = {
    "max_steps": ({}, 5),
    "epochs": ({"groups_per_step": 20}, 1),
    "groups_per_step": ({}, 4),
    "rollouts_per_group": ({}, 5),
    "probe_rollouts": ({}, 2),
    "max_extra_groups": ({}, 2),
    "min_reward_std": ({}, 0.45),
    "learning_rate": ({}, 1e-5),
    "learning_rate_schedule": ({}, "cosine"),
    "scale_rewards": ({}, "batch"),
    "warm_up_steps": ({}, 2),
    "policy_loss": ({}, "ppo"),
    "clip_low": ({}, 0.2),
    "clip_high": ({}, 0.3),
    "kl_penalty": ({}, 0.1),
    "advantage_balance": ({}, 0.5),
    "demonstrations": ({}, 4),
    "warm_start_learning_rate": ({}, 1e-4),
    "scoring": ({"reward_function": REVERSED}, "custom"),
    "reward_function": ({"scoring": "custom", "reward_function": DOUBLED}, REVERSED),
    "blend_weights": (
        {"scoring": "blend", "reward_function": REVERSED, "blend_weights": {"verifiable": 1.0, "custom": 0.5}},
        {"verifiable": 1.0, "custom": 0.25},
    ),
    "temperature": ({}, 0.5),
    "top_p": ({}, 0.5),
    "min_p": ({}, 0.1),
    "max_concurrent": ({}, 1),
    "max_steps_off_policy": ({}, 1),
    "validate_every": ({"validate_every": 2}, 3),
    "validation_questions": ({"validate_every": 2}, 9),
    "validation_metric": ({"validate_every": 1}, "reward"),
    "stop_plateau_steps": ({"validate_every": 1, "max_steps": 8}, 2),
    "stop_margin": ({"validate_every": 1}, 0.1),
    "stop_target": ({"validate_every": 1}, 0.3),
    "stop_seconds": ({}, 1e-9),
    "stop_tokens": ({}, 100),
    "seed": ({}, 1),
}  # fmt: skip
"""Setting -> settings that it is tried with, and the value that is compared with theirs."""

ELSEWHERE = {
    "backend": "test_session.py",
    "decisions": "loop/test_decisions.py",
    "decision_reward": "loop/test_decisions.py",
    "open_share": "loop/test_decisions.py",
    "ruler_model": "scoring/test_scorer.py",
    "ruler_api_base": "scoring/test_scorer.py",
    "ruler_rubric": "scoring/test_scorer.py",
    "extra_litellm_params": "scoring/test_scorer.py",
    "stop_cost": "guard/test_stopping.py",
    "health": "guard/test_health.py",
    "log_sample_rate": "loop/test_validation.py",
    "turn_credit": "scoring/test_turn_credit.py",
    "serverless_url": "backends/test_serverless.py",
    "gpu_price": "guard/test_gpu_use.py",
    "continue_from": "loop/test_continuing.py",
    "torch": "../configs/test_schema.py",
    "health_seconds": "guard/test_health.py",
    "lora_rank": "injection.py",
    "lora_layers": "injection.py",
    "max_context": "test_session.py",
    "experiment": "record/test_experiment.py",
}
"""Setting that a toy run has no use for -> the test file that drives it."""


def reversed_reward(trajectory: art.Trajectory) -> float:
    return -2 * float(trajectory.reward)


def doubled_reward(trajectory: art.Trajectory) -> float:
    return 2 * float(trajectory.reward)


class Tracing(CountingBackend):
    def __init__(self, model: CountingModel) -> None:
        super().__init__(model)
        self.updates: list[Any] = []

    async def train(self, model: Any, groups: Any, **arguments: Any) -> SimpleNamespace:
        rewards = [[trajectory.reward for trajectory in group.trajectories] for group in groups]
        self.updates.append((rewards, arguments))
        return await super().train(model, groups, **arguments)

    async def _train_sft(self, model: Any, trajectories: list[art.Trajectory], config: Any, dev_config: Any) -> Any:
        self.updates.append((len(trajectories), config.learning_rate, config.batch_size))
        async for metrics in super()._train_sft(model, trajectories, config, dev_config):
            yield metrics


class Habitual(ToyTask):
    """Half of the rollouts repeat their calls, every fourth question has no spread, and rollouts run at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most_running = 0

    async def rollout(self, policy: Any, scenario: int) -> art.Trajectory:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(0)
        trajectory = await super().rollout(policy, scenario)
        trajectory.metrics["suspect_repeated_calls"] = len(self.asked) % 2 == 0
        if policy.temperature and scenario % 4 == 0:
            trajectory.reward, trajectory.metrics["correct"] = 1.0, True
        self.running -= 1
        return trajectory


def trace(folder: Path, rules: TrainerSettings) -> Any:
    task, recorded = Habitual(), RecordedProgress()
    run, backend = run_with(Tracing, folder, rules, task, recorded)
    alerts = [[alert.name for alert in row.alerts] for row in run.history]
    return (
        backend.updates,
        task.asked,
        task.cuts,
        task.most_running,
        run.checkpoint_of,
        run.stopped,
        recorded.reasons,
        alerts,
    )


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What a run with these settings does, which is the same each time. Most settings are compared with the same run."""
    known: dict[str, Any] = {}

    def find(**values: Any) -> Any:
        rules = settings(**values)
        key = rules.model_dump_json()
        if key not in known:
            known[key] = trace(tmp_path_factory.mktemp("run"), rules)
            assert trace(tmp_path_factory.mktemp("again"), rules) == known[key]
        return known[key]

    return find


@pytest.mark.parametrize("setting", ACTS)
def test_another_value_makes_another_run(setting: str, traced: Callable[..., Any], tmp_path: Path) -> None:
    given, other = ACTS[setting]
    base = {"max_steps": 4, "learning_rate": 1e-4, **given}
    changed = {**base, setting: other}
    if setting == "scoring":
        base.pop("reward_function")
    assert trace(tmp_path, settings(**changed)) != traced(**base)


def test_no_setting_is_forgotten() -> None:
    assert set(ACTS) | set(ELSEWHERE) == set(TrainerSettings.model_fields) and not set(ACTS) & set(ELSEWHERE)
    for setting, file in ELSEWHERE.items():
        assert setting in (Path(__file__).parent / file).read_text(), f"{file} does not mention {setting}"
