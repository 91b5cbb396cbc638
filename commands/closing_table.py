"""The end of an evaluation: its page, its summary and the closing table."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from zenml.models import PipelineRunResponse

from commands.pipeline_run import output
from reports.console import console, say
from reports.tables import accuracy_over_minutes, closing_table, gain
from steps.artifact_names import METRICS, REPORT
from steps.project import OUTPUTS
from training.files import write_text


def print_closing_table(run: PipelineRunResponse, version: str, *, summary: Path | None) -> tuple[dict[str, Any], str]:
    """Print the closing table of a finished evaluation. Write its page, and its metrics to `summary`.

    Returns the metrics and the path of the page, relative to the current directory.
    """
    metrics: dict[str, Any] = output(run, "compute_metrics", METRICS).load()
    report = write_text(OUTPUTS / "reports" / f"{version}.html", output(run, "compute_metrics", REPORT).load())
    if summary is not None:
        write_text(summary, json.dumps(metrics, indent=2) + "\n")
    say("")
    console.print(closing_table(metrics))
    for line in filter(None, (gain(metrics), accuracy_over_minutes(metrics))):
        say(line)
    return metrics, os.path.relpath(report)
