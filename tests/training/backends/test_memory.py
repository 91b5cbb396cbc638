"""The memory of GPUs that the documents name is what `--dry-run` says."""

from __future__ import annotations

import re
from typing import Any

import pytest

from configs.loading import load_config
from tests.checkout import ROOT
from training.backends.base_model import ModelAccess
from training.backends.memory import gpu_parts
from training.guard.preflight import _memory
from training.settings import TrainerSettings

BILLIONS = {"Qwen/Qwen2.5-7B-Instruct": 7.62, "Qwen/Qwen2.5-14B-Instruct": 14.8, "Qwen/Qwen3-14B": 14.8}
PROFILES: list[tuple[str, dict[str, Any]]] = [
    ("training_local.yaml", {}),
    ("training_local.yaml", {"backend": "torch"}),
    ("training_k8s.yaml", {}),
    ("training_two_gpus_k8s.yaml", {}),
    ("coding_local.yaml", {}),
    ("learn_loop_gpu.yaml", {"backend": "local"}),
]


@pytest.mark.parametrize(("profile", "changes"), PROFILES)
def test_a_dry_run_says_of_each_profile_what_docs_gpu_lists(
    monkeypatch: pytest.MonkeyPatch, profile: str, changes: dict[str, Any]
) -> None:
    words = [f"trainer.{name}={value}" for name, value in changes.items()]
    trainer = load_config(ROOT / "configs" / profile, words).trainer
    settings = TrainerSettings.model_validate(trainer.model_dump(include=set(TrainerSettings.model_fields)))
    monkeypatch.setattr("training.guard.preflight.free_on_gpus", lambda: [80 * 10**9] * 2)
    access = ModelAccess(found="here", parameters=round(1e9 * BILLIONS[trainer.base_model]))
    said = _memory(settings, trainer.base_model, access)
    named = " ".join([f"`{profile}`", *(f"with `{name}={value}`" for name, value in changes.items())])
    assert f"\n| {named} | {trainer.base_model.partition('/')[2]} | {said} |\n" in (ROOT / "docs/gpu.md").read_text()


def test_docs_scale_counts_as_the_code_does() -> None:
    lines = (ROOT / "docs" / "scale.md").read_text().splitlines()

    def row(beginning: str) -> list[str]:
        [line] = (line for line in lines if line.startswith(f"| {beginning}"))
        return [cell.strip() for cell in line.split("|")[2:7]]

    parameters = [float(re.match(r"[\d.]+", cell)[0]) for cell in row("parameters, billions")]  # type: ignore[index]
    one = TrainerSettings(backend="local", lora_rank=16)
    two = one.model_copy(update={"max_steps_off_policy": 1})
    for beginning, settings in (("`backend: local` on one GPU", one), ("the same on two GPUs, that of vLLM", two)):
        counted = [sum(gpu_parts(billions * 1e9, settings)[-1].values()) / 1e9 for billions in parameters]
        assert [f"{size:.1f}" for size in counted] == row(beginning)


def test_the_margin_of_a_node_is_not_said_to_be_demanded() -> None:
    settings = load_config(ROOT / "configs" / "training_k8s.yaml", []).for_training()
    [parts] = gpu_parts(7.62e9, settings)
    for name in ("docs/kubernetes.md", "configs/training_k8s.yaml"):
        assert f"preflight check demands {sum(parts.values()) / 1e9:.0f} GB for a 7B base" in (ROOT / name).read_text()


def test_docs_scale_advises_only_settings_that_arts_backend_takes() -> None:
    section = (
        (ROOT / "docs" / "scale.md").read_text().partition("with ART's own backends")[2].partition("\nOn a CPU")[0]
    )
    advised = set(re.findall(r"`(\w+)[=`]", section)) & TrainerSettings.model_fields.keys()
    assert advised == {"max_steps_off_policy", "max_context"}
