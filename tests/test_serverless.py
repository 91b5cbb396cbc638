"""backend=serverless from the front door: trained elsewhere, pulled, evaluated here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tests.checkout import SMALL_COMPANY, Checkout, settings
from tests.fakes.serverless import ENTITY, KEY, ServerlessService

pytestmark = pytest.mark.service

WORDS = [
    *SMALL_COMPANY,
    *settings(
        backend="serverless",
        base_model="tests/tiny",
        demonstrations=0,
        max_steps=2,
        groups_per_step=1,
        max_extra_groups=0,
    ),
    *settings(rollouts_per_group=2, max_concurrent=1, validate_every=0, max_tokens=16, max_turns=1, max_context=8192),
    *settings(eval_limit=2),
]


@pytest.fixture
def service(tiny_base: Path) -> Iterator[ServerlessService]:
    def make_adapter(folder: Path, seed: int) -> Path:
        import torch

        torch.manual_seed(seed)
        lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
        get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_base), lora).save_pretrained(folder / "adapter")
        return folder / "adapter"

    with ServerlessService(make_adapter) as running:
        yield running


@pytest.fixture
def checkout(tmp_path: Path, tiny_base: Path, service: ServerlessService) -> Iterator[Checkout]:
    """A checkout whose Hub cache has the tiny model as tests/tiny, and whose W&B is the service on loopback."""
    checkout = Checkout.create(tmp_path / "project")
    cached = Path(checkout.environment["HF_HUB_CACHE"]) / "models--tests--tiny"
    shutil.copytree(tiny_base, cached / "snapshots" / "0001")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0001")
    checkout.environment |= {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": service.url}
    checkout.environment |= {"WANDB_MODE": "offline", "WANDB_CACHE_DIR": str(tmp_path / "wandb")}
    yield checkout
    shutil.rmtree(cached)


def manifests(checkout: Checkout) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in (checkout.folder / "zenml").rglob("manifest.json")]


def test_a_run_trains_elsewhere_its_adapter_is_evaluated_and_equal_rewards_teach_nothing(
    checkout: Checkout, service: ServerlessService
) -> None:
    address = settings(serverless_url=f"{service.url}/v1")
    done = checkout.run("--pipeline", "all", *WORDS, *address, "--summary", "summary.json")
    assert done.returncode == 0, done.stdout + done.stderr
    [model] = service.models.values()
    assert (model["entity"], model["base_model"]) == (ENTITY, "tests/tiny")
    [trained, *_] = [m for m in manifests(checkout) if not m["name"].endswith("-warm-start")]
    assert trained["name"] in model["name"] and trained["base_model"] == "tests/tiny" and trained["step"] == 2
    assert service.jobs[0]["experimental_config"]["learning_rate"] > 0
    [group] = service.jobs[0]["trajectory_groups"]
    assert len(group["trajectories"]) == 2
    assert {f"{model['name']}:v1", f"{model['name']}:v2"} <= set(service.downloads)
    assert "trained" in done.stdout and "held-out questions" in done.stdout
    summary = json.loads((checkout.folder / "summary.json").read_text())
    assert list(summary["policies"]) == ["base", "trained"], (
        "without demonstrations there is no warm start to compare with"
    )

    # The same data, with another seed.
    trained_before = len(service.jobs)
    service.same_replies = True
    done = checkout.run("--pipeline", "train", *WORDS, *address, *settings(seed=5))
    assert done.returncode == 2 and len(service.jobs) == trained_before, done.stdout + done.stderr
    assert "nothing was learnt in 2 steps: in every group all rollouts earned the same reward" in done.stderr
