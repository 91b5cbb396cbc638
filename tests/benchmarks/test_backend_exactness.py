"""The comparison of log-probabilities with transformers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import backend_exactness

pytestmark = pytest.mark.service


@pytest.fixture(autouse=True)
def unpatched_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo ART's patch of transformers, which other tests of the same process may have imported."""
    from art.transformers.patches import _preprocess_mask_arguments

    monkeypatch.setattr("transformers.masking_utils._preprocess_mask_arguments", _preprocess_mask_arguments)


def test_every_case_is_within_the_tolerance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(backend_exactness, "KEPT", ("int8",))
    monkeypatch.setattr(sys, "argv", ["exactness", "--lengths", "20", "50"])
    assert backend_exactness.main() == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < figures["largest"] < 1e-4
    assert len(figures["qwen2, int8: prefix reused"]) == 2


def test_a_difference_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = backend_exactness._dequantised
    monkeypatch.setattr(
        backend_exactness, "_dequantised", lambda network: {k: v * 1.01 for k, v in right(network).items()}
    )
    found = backend_exactness.compare(tmp_path, "llama", "int8", [20])
    assert max(found["base"]) > 1e-3
