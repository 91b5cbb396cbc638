"""The profiles of backend=local for tasks other than mail, as `test_gpu_profiles.py` rehearses those for mail.

A file of its own, so that a worker can run it next to that one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkout import Checkout, settings
from tests.gpu_checkout import Judges, assert_rehearsed, gpu_checkout, tiny_qwen
from tests.sandbox.docker_daemon import require_bubblewrap
from tests.sandbox.served import served_images
from tests.tasks.coding.r2e_rows import MODULE, REPORT, folder_of, row

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


@pytest.fixture
def images(tmp_path: Path) -> Iterator[str]:
    """A sandbox service with the repository of the bugs."""
    require_bubblewrap()
    testbed = tmp_path / "testbed"
    (testbed / "pkg").mkdir(parents=True)
    (testbed / "pkg" / "target.py").write_text(MODULE)
    (testbed / "run_tests.sh").write_text(REPORT)
    with served_images(tmp_path, {"/testbed": testbed}) as url:
        yield url


def test_repositories_of_r2e_gym_to_an_evaluation(checkout: Checkout, images: str, tmp_path: Path) -> None:
    base = tiny_qwen(tmp_path / "qwen3", "qwen3", "qwen3")
    # A model of random numbers repairs nothing, so the rewards of a group would not differ.
    (checkout.folder / "own_rewards.py").write_text(
        "import itertools\nnumbers = itertools.count()\n\ndef varied(result):\n    return float(next(numbers) % 2)\n"
    )
    words = ["--config", "configs/coding_local.yaml"]
    words += settings(base_model=base, bugs=folder_of(tmp_path / "data", [row(number) for number in range(6)]))
    words += settings(sandbox_url=images, coding_reward="own_rewards:varied", max_concurrent=2, max_tokens=32)
    words += settings(max_steps=2, groups_per_step=1, validate_every=1, validation_questions=1, coding_test_size=2)
    words += settings(max_repl_steps=3)
    done = checkout.run("--pipeline", "eval", *words, "--summary", "summary.json")
    assert_rehearsed(checkout.folder / "outputs" / "runs", done, ("untouched", "grpo", "grpo"))


def test_the_learn_loop_of_outreach(checkout: Checkout, judges: Judges, tmp_path: Path) -> None:
    base = tiny_qwen(tmp_path / "qwen2.5", "qwen2", "qwen2_5")
    words = ["--config", "configs/learn_loop_gpu.yaml", *settings(backend="local", base_model=base)]
    words += settings(
        ruler_api_base=judges.url, max_steps=2, groups_per_step=2, validate_every=1, validation_questions=2
    )
    words += settings(train_prospects=6, test_prospects=2, max_tokens=32, max_turns=2, experiment="tiny")
    done = checkout.run("--pipeline", "learn-loop", *words)
    assert_rehearsed(checkout.folder / "outputs" / "learn_loop", done, ("untouched", "grpo", "grpo"))
