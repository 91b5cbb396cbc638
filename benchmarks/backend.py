"""Compare the torch backend with other implementations: rollouts, decoding, updates, and their share of the hardware limits.

  python -m benchmarks.backend                          the e-mail task's step: 4 questions, 6 rollouts each
  python -m benchmarks.backend --quick                  under a minute: does everything run?
  python -m benchmarks.backend --llama-python PYTHON    with llama.cpp, from an environment that has xllamacpp
  python -m benchmarks.backend --trl-python PYTHON      with TRL's whole step, from one that has trl, peft and a CPU build of torch

Conversations are oracle demonstrations of the synthetic company. For each reply, all sides sample at temperature 1 as many
tokens as the demonstration's reply has, and continue with them and the demonstration's tool result. Input and output are
ids, with the same lengths on all sides. Each side runs in its own process with the same model, number format and threads.
The limits are a large matrix product and a read of memory, measured in the same run. A share is the time of the minimal
work at that limit, divided by the measured time. Figures go to stdout, the last line is JSON; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# Otherwise LiteLLM's import waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from transformers import AutoTokenizer

from agent.judges.exact import ExactJudge
from agent.settings import AgentSettings
from agent.task import EmailSearchTask
from benchmarks.backend_figures import (
    DECODE_PROMPT,
    DECODING,
    decode_figures,
    rollout_figures,
    step_figures,
    training_figures,
)
from benchmarks.backend_sides.job import Conversation, Job, ModelSize, Turn, least_rollout_work
from benchmarks.output import progress, show
from environment.email_db import MailDatabase, build_database
from environment.sources.synthetic import synthetic_company
from training.backends.gguf_writing import write_gguf
from training.backends.torch.backend import tokenize_demonstrations
from training.backends.torch.chat_format import ChatFormat
from training.backends.torch.hardware import physical_cores
from training.errors import BadInput

ROOT = Path(__file__).parents[1]
SIDES = "benchmarks.backend_sides"
QUICK_REPLY = 6


class SideFailed(Exception):
    """A side failed; the message is the last line of its error."""


def main() -> int:
    """Run all measurements. Return the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model",
        type=Path,
        default=Path("models/smollm2-135m-instruct"),
        help="a folder (default SmolLM2-135M-Instruct's)",
    )
    add("--scenarios", type=int, default=4, help="questions of the step (default 4)")
    add("--rollouts", type=int, default=6, help="rollouts of each (default 6)")
    add("--demonstrations", type=int, default=8, help="conversations of the supervised update (default 8)")
    add("--repeats", type=int, default=2, help="repetitions of each measurement; the fastest counts (default 2)")
    add("--threads", type=int, default=physical_cores(), help="default: one per physical core")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the products, on all sides")
    add("--llama-python", help="a Python that has xllamacpp: llama.cpp decodes too")
    add("--trl-python", help="a Python that has trl and peft: a whole step of its GRPOTrainer is measured too")
    add("--quick", action="store_true", help="smoke test: one question, two rollouts, short replies")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.scenarios, arguments.rollouts, arguments.demonstrations, arguments.repeats = 1, 2, 1, 1
    try:
        for name in ("scenarios", "rollouts", "demonstrations", "repeats", "threads"):
            if getattr(arguments, name) < 1:
                raise BadInput(f"--{name} is {getattr(arguments, name)}, but must be at least 1")
        if not (arguments.model / "config.json").is_file():
            raise BadInput(f"--model {arguments.model}: expected a folder with config.json and safetensors weights")
        with tempfile.TemporaryDirectory() as scratch:
            figures = measure(arguments, Path(scratch))
    except (BadInput, SideFailed) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return all figures, and print each when it is measured."""
    progress("playing the demonstrations")
    job = make_job(arguments, scratch)
    path = scratch / "job.json"
    job.write(path)
    work = least_rollout_work(job.groups)
    conversations = job.conversations
    figures: dict[str, Any] = {
        "model": arguments.model.name,
        "dtype": job.dtype,
        "threads": job.threads,
        "conversations": len(conversations),
        "turns": sum(len(c.turns) for c in conversations),
        "reply_tokens": sum(c.reply_tokens for c in conversations),
        "prompt_tokens": sum(_prompt_tokens(c) for c in conversations),
        "least_computed_tokens": work.tokens,
    }
    progress("measuring the processor")
    limits = run_side("limits", path, job)
    progress("measuring the torch backend")
    ours = run_side("ours", path, job)
    others = {
        name: compared(name, lambda side=side: run_side(side, path, job))
        for name, side in (("transformers.generate", "static_batches"), ("continuous batching", "continuous_batching"))
    }
    llama = compared("llama.cpp", lambda: run_llama(arguments.llama_python, path, job, scratch))
    trl = compared("TRL", lambda: run_trl(arguments.trl_python, path, job))
    figures["limits"] = limits
    show(
        f"Limits, --threads {job.threads}",
        ("", "measured"),
        [(name.replace("_", " "), round(value, 1)) for name, value in limits.items()],
    )
    size = ModelSize.of(job.model)
    gflops = limits[f"gemm_{job.dtype}_gflops"]
    bytes_per_number = 4 if job.dtype == "float32" else 2
    figures["rollouts"] = rollout_figures(job, size, work, ours["rollouts"], others, gflops, limits, bytes_per_number)
    figures["decode"] = decode_figures(job, size, ours["decode"], llama, gflops, limits, bytes_per_number)
    figures["training"] = training_figures(ours["training"], limits)
    figures["step"] = step_figures(ours, trl)
    figures["peak_memory_gb"] = round(ours["peak_memory_gb"], 2)
    return figures


# The work


def make_job(arguments: argparse.Namespace, scratch: Path) -> Job:
    """Return demonstrations as token ids: one for each of `--scenarios` questions for the rollouts, others for the
    supervised update.
    """
    company = synthetic_company()
    build_database(company.emails(), scratch / "mails.sqlite")
    database = MailDatabase(scratch / "mails.sqlite")
    task = EmailSearchTask(database, company.scenarios(), ExactJudge(), AgentSettings())
    wanted = arguments.scenarios + arguments.demonstrations
    examples = task.demonstrations(task.train_scenarios(), wanted)
    database.close()
    if len(examples) < wanted:
        raise BadInput(
            f"--scenarios and --demonstrations: the synthetic company has {len(examples)} demonstrations, not {wanted}"
        )
    chat = ChatFormat(AutoTokenizer.from_pretrained(arguments.model))
    batch = tokenize_demonstrations(chat, examples, learning_rate=0.0, max_length=1_000_000)
    played = [_conversation(t["input_ids"][0].tolist(), t["labels"][0].tolist()) for t in batch.trajectory_tensors]
    if arguments.quick:
        played = [_shortened(conversation) for conversation in played]
    chance = random.Random(0)
    vocabulary = ModelSize.of(arguments.model).vocabulary
    groups = [
        [_with_other_replies(conversation, chance, vocabulary) for _ in range(arguments.rollouts)]
        for conversation in played[: arguments.scenarios]
    ]
    sequences = 2 if arguments.quick else DECODING
    return Job(
        model=str(arguments.model.resolve()),
        dtype=arguments.dtype,
        threads=arguments.threads,
        repeats=arguments.repeats,
        gemm_size=512 if arguments.quick else 3072,
        groups=groups,
        demonstrations=played[arguments.scenarios :],
        decode_prompts=[[chance.randrange(100, vocabulary) for _ in range(DECODE_PROMPT)] for _ in range(sequences)],
        decode_tokens=8 if arguments.quick else 128,
    )


def _conversation(ids: list[int], labels: list[int]) -> Conversation:
    """Split a demonstration into turns at the boundaries of its labelled tokens, which are the replies."""
    edges = [i for i in range(1, len(ids)) if (labels[i] == -100) != (labels[i - 1] == -100)]
    opening, *parts = [ids[a:b] for a, b in zip([0, *edges], [*edges, len(ids)], strict=True)]
    replies = parts[::2]
    between = [*parts[1::2], []][: len(replies) - 1]  # what closes the last reply is not needed
    return Conversation(opening, [Turn(r, t) for r, t in zip(replies, [*between, []], strict=True)])


def _shortened(conversation: Conversation) -> Conversation:
    first, second, *_ = conversation.turns
    return Conversation(
        conversation.opening, [Turn(first.reply[:QUICK_REPLY], first.then), Turn(second.reply[:QUICK_REPLY], [])]
    )


def _with_other_replies(conversation: Conversation, chance: random.Random, vocabulary: int) -> Conversation:
    """Return the conversation with random replies. Rollouts of an update then share no tokens after the opening, which
    is the worst case for our backend.
    """
    turns = [Turn([chance.randrange(100, vocabulary) for _ in turn.reply], turn.then) for turn in conversation.turns]
    return Conversation(conversation.opening, turns)


def _prompt_tokens(conversation: Conversation) -> int:
    """Return the tokens of all turns when each is computed from the beginning."""
    total, length = 0, len(conversation.opening)
    for turn in conversation.turns:
        total += length
        length += len(turn.reply) + len(turn.then)
    return total


# The sides


def run_side(side: str, job_file: Path, job: Job, python: str = sys.executable, *more: str) -> dict[str, Any]:
    """Return the figures of one side. Raise `SideFailed` when it has none."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads)}
    command = [python, "-m", f"{SIDES}.{side}", str(job_file), *more]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.split("\n")
    if done.returncode < 0:
        raise SideFailed(
            f"{side}: killed by signal {-done.returncode}; 9 mostly means that there was not enough memory"
        )
    if done.returncode:
        raise SideFailed(f"{side}: {(done.stderr.strip() or done.stdout.strip() or 'no output').splitlines()[-1]}")
    return json.loads([line for line in lines if line.startswith("{")][-1])


def compared(name: str, side: Any) -> dict[str, Any] | str:
    """Return the figures of another side, or why there is no comparison with it."""
    progress(f"measuring {name}")
    try:
        return side()
    except (SideFailed, OSError) as error:
        progress(f"{name}: not compared: {error}")
        return f"not compared: {error}"


def run_llama(python: str | None, job_file: Path, job: Job, scratch: Path) -> dict[str, Any]:
    """Return the figures of llama.cpp. Raises `SideFailed`, also when there is no such side."""
    if python is None:
        raise SideFailed("--llama-python was not given")
    try:
        write_gguf(Path(job.model), scratch / "model.gguf", job.dtype)
    except BadInput as error:
        raise SideFailed(str(error)) from error
    return run_side("llama_cpp", job_file, job, python, str(scratch / "model.gguf"))


def run_trl(python: str | None, job_file: Path, job: Job) -> dict[str, Any]:
    """Return the figures of TRL. Raises `SideFailed`, also when there is no such side."""
    if python is None:
        raise SideFailed("--trl-python was not given")
    return run_side("trl_step", job_file, job, python)


if __name__ == "__main__":
    sys.exit(main())
