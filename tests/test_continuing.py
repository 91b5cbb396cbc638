"""`--from`: a new run begins with an earlier run's adapter, under other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.checkout import SMALL_COMPANY, Checkout, settings


def manifests(checkout: Checkout) -> dict[str, Any]:
    """Of the trained checkpoints, by the run's name."""
    found = [json.loads(file.read_text()) for file in (checkout.folder / "zenml").rglob("manifest.json")]
    return {manifest["name"]: manifest for manifest in found if not manifest["name"].endswith("-warm-start")}


def test_a_run_continues_from_an_earlier_ones_adapter(tmp_path: Path, tiny_base: Path) -> None:
    checkout = Checkout.create(tmp_path / "project")
    words = [
        *("--pipeline", "train", *SMALL_COMPANY),
        *settings(
            base_model=tiny_base,
            demonstrations=2,
            max_steps=1,
            groups_per_step=1,
            max_extra_groups=0,
            rollouts_per_group=2,
        ),
        *settings(max_tokens=16, max_context=8192, validate_every=0, max_turns=1),
    ]
    first = checkout.run(*words, *settings(experiment="first"))
    assert first.returncode == 0, first.stdout + first.stderr
    [before] = manifests(checkout).values()

    continued = checkout.run(*words, "--from", "first", *settings(experiment="second", temperature=0.9))
    assert continued.returncode == 0 and "warm start on" not in continued.stdout, continued.stdout + continued.stderr
    after = manifests(checkout)
    [second] = [manifest for name, manifest in after.items() if name != before["name"]]
    assert second["config"]["continue_from"] and second["config"]["temperature"] == 0.9
    run_folder = next((checkout.folder / "outputs" / "runs").glob(f"{second['name']}-*"))
    [history] = run_folder.rglob("training_history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["continued", "grpo"]

    [folder] = [
        file.parent
        for file in (checkout.folder / "zenml").rglob("manifest.json")
        if json.loads(file.read_text())["name"] == second["name"]
    ]
    from_folder = checkout.run(*words, "--from", str(folder), *settings(experiment="third"))
    assert from_folder.returncode == 0, from_folder.stdout + from_folder.stderr
    [third] = [manifest for name, manifest in manifests(checkout).items() if name not in after]
    assert third["config"]["continue_from"] and third["config"]["temperature"] == before["config"]["temperature"]
