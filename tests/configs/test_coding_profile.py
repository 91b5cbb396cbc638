"""The flags of the upstream training loop: each is a setting of the coding task, documented with the profiles' values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.loading import load_config, place_of

ROOT = Path(__file__).parents[2]
# flag -> our setting, and the default of the flag
FLAGS = {
    "--base-model": ("base_model", "Qwen/Qwen3-14B"),
    "--num-epochs": ("epochs", 3),
    "--groups-per-step": ("groups_per_step", 8),
    "--rollouts-per-group": ("rollouts_per_group", 4),
    "--max-concurrent": ("max_concurrent", 32),
    "--max-steps": ("max_repl_steps", 15),
    "--max-context-tokens": ("max_context_tokens", 28000),
    "--learning-rate": ("learning_rate", 5e-6),
    "--dataset-size": ("dataset_size", None),
    "--log-sample-rate": ("log_sample_rate", 0.0),
}
# flags whose default is a place or a name of the upstream example, or that have no setting here
OTHERS = {
    "--experiment-name": "experiment",
    "--model-name": "model_name",
    "--project": "project",
    "--docker-url": "sandbox_url",
    "--vllm-url": None,
    "--cache-dir": None,
    "--log-dir": None,
}


def value_of(profile: str, setting: str) -> Any:
    section, key = place_of(setting, "")
    return getattr(getattr(load_config(ROOT / "configs" / profile, []), section), key)


@pytest.mark.parametrize("flag", FLAGS)
def test_the_gpu_profile_has_the_default_of_the_flag(flag: str) -> None:
    setting, default = FLAGS[flag]
    assert value_of("coding_local.yaml", setting) == default


@pytest.mark.parametrize("flag", [*FLAGS, *OTHERS])
def test_every_flag_is_documented_with_the_values_of_both_profiles(flag: str) -> None:
    page = (ROOT / "docs" / "coding.md").read_text()
    [row] = [line for line in page.splitlines() if line.startswith(f"| `{flag}` |")]
    setting = OTHERS[flag] if flag in OTHERS else FLAGS[flag][0]
    if setting is None:
        return
    shown = [cell.strip() for cell in row.strip("|").split("|")]
    assert shown[1].startswith(f"`{setting}`")
    for cell, file in ((shown[2], "coding.yaml"), (shown[3], "coding_local.yaml")):
        value = value_of(file, setting)
        if value is None:
            assert cell in ("null", "null: all", "null: started for the run", "the run's key") or "environment" in cell
        elif isinstance(value, str):
            assert cell == f"`{value}`"
        else:
            assert float(cell) == value
