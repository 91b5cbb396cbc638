"""Files in a learn loop's folder, for writers and readers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

STATE, METRICS, SCORES, TOP_HALF = "state.json", "metrics.json", "node_scores.json", "top_half.json"
EMAILS, VALIDATION = "emails.json", "validation.json"
BASELINE, FINAL = "baseline_emails.json", "final_emails.json"


def write_json(path: Path, value: Any) -> None:
    """Write a value, all or nothing."""
    write_text(path, json.dumps(value, indent=1))


def write_text(path: Path, text: str) -> None:
    """Write a file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)
