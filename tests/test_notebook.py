"""The notebook runs from its first cell to its last, on the real 135M model with the least settings."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.checkout import SMALL_COMPANY, Checkout, settings

NOTEBOOK = Path(__file__).parents[1] / "docs" / "colab.ipynb"
LEAST = [*SMALL_COMPANY[:4], *settings(demonstrations=2, max_steps=0, eval_limit=1)]


def test_it_is_stored_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not [cell for cell in notebook.cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.nightly
def test_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = Checkout.create(tmp_path / "checkout")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    [chosen] = [cell for cell in notebook.cells if "SETTINGS = [" in cell.source]
    chosen.source += f"\nSETTINGS = {LEAST!r}"
    for name, value in (checkout.environment | {"EMAIL_AGENT_PYTHON": sys.executable}).items():
        monkeypatch.setenv(name, value)
    client = NotebookClient(notebook, timeout=1800, kernel_name="python3")
    client.execute(cwd=str(checkout.folder))
    printed = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", []))
    assert "--steps" not in printed and "search" in printed and "model-q8_0.gguf" in printed
