"""The GPU check runs where only torch, transformers, peft and safetensors are installed, here with a tiny shape on the CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.service
ROOT = Path(__file__).parents[2]
WITHOUT_THE_REST = """
import runpy, sys
for absent in ("pydantic", "zenml", "langchain_core", "litellm", "gguf", "rich"):
    sys.modules[absent] = None

def code(*words):
    sys.argv = ["gpu_check", *words]
    try:
        runpy.run_module("benchmarks.gpu_check", run_name="__main__")
    except SystemExit as end:
        return end.code

codes = [code("--device", "foo"), code("--device", "cpu"), code("--shape", "tiny", "--device", "cpu")]
sys.exit(0 if codes == [2, 2, 0] else f"exit codes {codes}")
"""


@pytest.mark.service
def test_it_runs_without_the_projects_other_packages_and_refuses_what_cannot_run() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_THE_REST], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    refusals = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.partition(";")[0].partition(":")[2] for line in refusals] == [
        " --device foo: torch finds no such device here",
        " on a CPU the full shapes take hours: use --shape tiny, or a machine with a GPU",
    ]
    (line,) = done.stdout.splitlines()
    figures = json.loads(line)
    assert figures["failed"] == [] and figures["tiny"]["passed"]
    assert all(0 < case["largest"] < 1e-4 for case in figures["tiny"]["exactness"].values())
    step = figures["tiny"]["grpo_step"]
    assert step["unique_tokens"] < step["tokens"] and step["margin_after"] > step["margin_before"]
    assert figures["tiny"]["rollouts"]["sampled_tokens"] == 64


def test_carried_loss_is_arts() -> None:
    from art.loss import loss_fn

    from benchmarks.gpu_check.carried import cispo_loss

    torch.manual_seed(0)
    inputs = {name: torch.randn(1, 40) for name in ("logprobs", "advantages", "weights")}
    inputs |= {"assistant_mask": torch.rand(1, 40) > 0.3, "group_ids": torch.zeros(1, 40, dtype=torch.long)}
    new = [torch.randn(1, 40, generator=torch.Generator().manual_seed(1)).mul_(2).requires_grad_() for _ in range(2)]
    losses = [
        loss(inputs, logprobs, None, None, {}, reduction="sum").policy_loss
        for loss, logprobs in zip((loss_fn, cispo_loss), new, strict=True)
    ]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(new[0].grad, new[1].grad)
