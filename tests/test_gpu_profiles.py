"""The mail profiles of backend=local from data to answers, in a small size: vLLM, Unsloth, TRL and the GPUs are stand-ins."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.checkout import Checkout, settings
from tests.enron import company, write_enron
from tests.gpu_checkout import Judges, assert_rehearsed, gpu_checkout, tiny_qwen
from tests.ports import free_port
from tests.serving.deployed import ask
from tests.standstill import guarded

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runtime")


@pytest.fixture
def checkout(runtime: Path, tmp_path: Path) -> Checkout:
    checkout = gpu_checkout(tmp_path / "project", runtime)
    checkout.environment["OPENAI_API_KEY"] = "of-a-test"
    return checkout


@pytest.fixture
def judges() -> Iterator[Judges]:
    with Judges() as server:
        yield server


def mail_words(folder: Path, judges: Judges, profile: str = "training_local.yaml") -> list[str]:
    base = tiny_qwen(folder / "qwen2.5", "qwen2", "qwen2_5")
    words = ["--config", f"configs/{profile}", *write_enron(folder / "enron")]
    return words + settings(base_model=base, ruler_api_base=judges.url, judge_api_base=judges.url)


def test_mail_from_parquet_files_to_an_answer(checkout: Checkout, judges: Judges, tmp_path: Path) -> None:
    words = mail_words(tmp_path, judges)
    words += settings(max_steps=2, max_tokens=64, max_turns=3, validate_every=1, validation_questions=2, eval_limit=2)
    words += settings(demonstrations=4, warm_start_learning_rate=1e-3)
    done = checkout.run("--pipeline", "all", *words, "--summary", "summary.json")
    assert_rehearsed(checkout.folder / "outputs" / "runs", done, ("warm_start", "grpo", "grpo"))
    assert_served(checkout, tmp_path / "qwen2.5")


def assert_served(checkout: Checkout, base: Path) -> None:
    """vLLM answers in the deployed service, which takes it along when it goes."""
    question = next(question for question in company().scenarios() if question.split == "test")
    asked = question.model_dump(include={"question", "inbox_address"}) | {"query_date": "2024-06-28"}
    port = free_port()
    done = checkout.run("--pipeline", "deploy", "--name", "trained", "--unpromoted", *settings(port=port))
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        vllm = [process for process in psutil.process_iter(["cmdline"]) if serves(process, base)]
        assert vllm, "the torch engine answers"
        status, answer = ask(f"http://127.0.0.1:{port}", **asked)
        assert (
            status == 200
            and answer["question"] == question.question
            and {"answer", "source_ids", "success"} <= set(answer)
        ), answer
    finally:
        zenml = [str(Path(checkout.command()[0]).with_name("zenml")), "deployment", "deprovision", "trained", "-y"]
        os.spawnve(os.P_WAIT, zenml[0], zenml, checkout.environment)
    _, alive = psutil.wait_procs(vllm, timeout=60)
    assert not alive


def serves(process: psutil.Process, base: Path) -> bool:
    return {"serve", str(base)} <= set(process.info["cmdline"] or [])


def test_two_gpus_sample_and_train_at_once(runtime: Path, judges: Judges, tmp_path: Path) -> None:
    checkout = gpu_checkout(tmp_path / "project", runtime, gpus=2)
    checkout.environment["OPENAI_API_KEY"] = "of-a-test"
    words = mail_words(tmp_path, judges, "training_two_gpus_k8s.yaml")
    words += settings(max_steps=2, max_tokens=32, max_turns=2, validate_every=0, step_settings="{}", settings="{}")
    planned = checkout.run("--pipeline", "train", *words, "--dry-run")
    assert re.search(r"GPU 0: 80\.0 GB free, .*the trainer's weights.*; GPU 1: 80\.0 GB free, .*vLLM's", planned.stdout)
    done = checkout.run("--pipeline", "train", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["off_policy_steps"] for row in checkout.history()] == [0, 1]
    [log] = (checkout.folder / "outputs" / "runs").rglob("vllm-runtime.log")
    said = [line for line in log.read_text().splitlines() if line.startswith("vllm ")]
    assert said[0] == "vllm serves on GPU 1" and len(said) == 4 and not any("sleeps" in line for line in said)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_training_leaves_nothing_on_the_gpu(
    checkout: Checkout, judges: Judges, tmp_path: Path, number: signal.Signals
) -> None:
    words = mail_words(tmp_path, judges)
    words += settings(max_steps=50, groups_per_step=1, rollouts_per_group=2, max_tokens=16, validate_every=0)
    run = checkout.start("--pipeline", "train", *words)
    with guarded(run):
        while not checkout.history():
            assert run.poll() is None, run.communicate()[0]
            time.sleep(0.1)
        children = psutil.Process(run.pid).children(recursive=True)
        commands = [" ".join(child.cmdline()) for child in children]
        assert any("art-vllm-runtime-server" in command for command in commands), commands
        run.send_signal(number)
        said, _ = run.communicate()
    gone, alive = psutil.wait_procs(children, timeout=60)
    assert not alive, [command for child, command in zip(children, commands, strict=True) if child in alive]
    assert "Traceback" not in said
    assert run.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL), said
