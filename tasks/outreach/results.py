"""Files in a learn loop's folder, for writers and readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from training.files import write_text

STATE, METRICS, SCORES, TOP_HALF = "state.json", "metrics.json", "node_scores.json", "top_half.json"
EMAILS, VALIDATION = "emails.json", "validation.json"
BASELINE, FINAL = "baseline_emails.json", "final_emails.json"


def write_json(path: Path, value: Any) -> None:
    """Write a value, all or nothing."""
    write_text(path, json.dumps(value, indent=1))
