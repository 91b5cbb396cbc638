"""A checkout on a machine with GPUs, base models of the profiles' shapes, and what the rehearsals of profiles share."""

from __future__ import annotations

import json
import math
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import agent.prompts
import tasks.coding.prompts
import tasks.outreach.prompts
from tests.checkout import ROOT, Checkout
from tests.fakes.gpu_machine import gpu_machine
from tests.fakes.judge import JudgeModel
from tests.fakes.language_model import Reply
from tests.training.backends.torch.tiny_models import save_tiny_model

TEMPLATES = ROOT / "tests" / "training" / "backends" / "chat_templates"
START = 'if __name__ == "__main__":\n'
BECOME = f"""
    sys.path.insert(1, {str(ROOT)!r})
    from tests.fakes.gpu_machine import become_gpu_machine

    become_gpu_machine()
"""


def gpu_checkout(folder: Path, runtime: Path, gpus: int = 1) -> Checkout:
    """Create a checkout in `folder` whose programs find GPUs. ART installs vLLM in `runtime`, unless that is done."""
    checkout = Checkout.create(folder)
    checkout.environment |= gpu_machine(runtime, gpus)
    for program in ("run.py", "serving/policy_program.py"):
        text = (folder / program).read_text()
        assert text.count(START) == 1
        (folder / program).write_text(text.replace(START, START + BECOME))
    return checkout


def tiny_qwen(folder: Path, family: str, template: str) -> Path:
    """Write a random Qwen with its template and the words of our prompts: a token is half a word, not a byte."""
    rooms = (agent.prompts, tasks.coding.prompts, tasks.outreach.prompts)
    text = [file.read_text() for room in rooms for file in Path(room.__file__).parent.glob("*.txt")]
    text.append((ROOT / "environment" / "tools.py").read_text())
    return save_tiny_model(
        folder, family, context=32768, text=text, vocabulary=2000, template=TEMPLATES / f"{template}.jinja"
    )


class Judges(JudgeModel):
    """RULER, and the judge of answers."""

    def answer(self, request: dict[str, Any]) -> Reply:
        ranks = "<trajectory id=" in request["messages"][-1]["content"]
        return super().answer(request) if ranks else '{"reasoning": "as the reference", "accept": true}'


def assert_rehearsed(runs: Path, done: CompletedProcess[str], phases: tuple[str, ...]) -> None:
    """Both steps updated the policy with the tokens that vLLM sampled, and vLLM answered the evaluation."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr and "the torch engine answers" not in done.stdout
    assert "log-probabilities recorded for 100%, 0 tokens retokenised" in done.stdout
    [history] = runs.rglob("training_history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    assert tuple(row["phase"] for row in rows) == phases
    assert all(row["groups_trained"] and math.isfinite(row["loss/train"]) for row in rows if row["phase"] == "grpo")
    assert not any(row["rollout_errors"] or row["warnings"] for row in rows)
    said = (history.parent / "logs" / "vllm-runtime.log").read_text()
    assert "was asked in its sleep" not in said and said.count("wakes up") == rows[-1]["checkpoint_step"]
