"""`--pipeline compare`: compare finished and unfinished training runs of this checkout. Needs no ZenML."""

from __future__ import annotations

import hashlib
import os

from reports.comparison import ComparedRun, comparison_html, comparison_table
from reports.console import console, say
from steps.project import OUTPUTS, RUNS
from training.errors import BadInput
from training.files import write_text
from training.record.experiment import find_runs, known_runs
from training.record.history import HISTORY_FILE, read_history


def run_compare(names: list[str]) -> None:
    """Print the table and write the page. Raises BadInput if a name fits no run or several."""
    runs = []
    for experiment, folder in find_runs(known_runs(RUNS), list(dict.fromkeys(names))):
        files = list(folder.rglob(HISTORY_FILE))
        if len(files) != 1:
            raise BadInput(f"run {experiment.run} has no history yet: its first step is not finished")
        rows = [row.model_dump() for row in read_history(files[0])]
        described = {**experiment.model_dump(mode="json"), "config_hash": experiment.config_hash}
        runs.append(ComparedRun(experiment.name, described, rows))
    if len({run.label for run in runs}) < len(runs):
        runs = [ComparedRun(f"{run.label} ({run.experiment['run']})", run.experiment, run.rows) for run in runs]
    console.print(comparison_table(runs))
    digest = hashlib.sha256(" ".join(run.experiment["run"] for run in runs).encode()).hexdigest()[:8]
    report = write_text(OUTPUTS / "reports" / f"compare-{digest}.html", comparison_html(runs))
    say(f"report: {os.path.relpath(report)}")
