"""A checkout on a machine with GPUs, and base models of the profiles' shapes."""

from __future__ import annotations

from pathlib import Path

import agent.prompts
import tasks.coding.prompts
import tasks.outreach.prompts
from tests.checkout import ROOT, Checkout
from tests.fakes.gpu_machine import gpu_machine
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
