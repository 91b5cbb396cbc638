"""Compare our verdicts on WorkBench with the benchmark's own, on the published calls of its models. No model is asked.

  python -m benchmarks.workbench_verdicts FOLDER

FOLDER is in the benchmark's layout (docs/workbench.md), with the calls and verdicts of each model in `published/*.csv`. The
first table counts agreement. The second lists verdicts that would be different if the original could read texts with
line breaks, or did not compare row labels. The last line is JSON. Exit code 1 means that a verdict disagrees.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from pathlib import Path

from benchmarks.output import progress, show
from tasks.workbench.judge import Judge, parse, state_after
from tasks.workbench.scenarios import WorkbenchSettings, load_office, published_calls
from tasks.workbench.tables import State
from training.errors import BadInput

COPIES = 500


def main() -> int:
    """Return the exit code: 0 all agree, 1 some do not, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    try:
        tables, scenarios = load_office(WorkbenchSettings(folder=str(folder)))
        published = published_calls(folder)
        if not published:
            raise BadInput(f"{folder / 'published'}: holds no CSV file with calls of a model")
        known = {scenario.question: scenario for scenario in scenarios}
        if unknown := [r["query"] for runs in published.values() for r, _ in runs if r["query"] not in known]:
            raise BadInput(f"{folder / 'published'}: {unknown[0][:80]!r} is no task of this folder")
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    judges = {question: Judge(tables, scenario.reference) for question, scenario in known.items()}
    unlabelled = {question: _rows(state_after(tables, known[question].reference)) for question in known}
    rows, disagreeing, doubtful = [], [], []
    for model, runs in published.items():
        progress(f"{model}: {len(runs)} runs")
        agreeing = 0
        for record, calls in runs:
            question, failed = record["query"], bool(record["error"])
            state = state_after(tables, calls)
            ours = judges[question].verdict(state, failed=failed)
            if tuple(map(int, ours)) == (int(record["correct"]), int(record["side_effects"])):
                agreeing += 1
            else:
                disagreeing.append((model, question, ours))
            texts = [text.replace("\n", "\\n") for text in ast.literal_eval(record["function_calls"])]
            read = judges[question].verdict(state_after(tables, [parse(text) for text in texts]), failed=failed)
            if read != ours:
                doubtful.append((model, "line break in a text", question, read))
            if not ours.correct and not failed and _rows(state) == unlabelled[question]:
                doubtful.append((model, "row labels only", question, ours))
        correct = sum(int(record["correct"]) for record, _ in runs)
        rows.append((model, len(runs), correct, sum(int(record["side_effects"]) for record, _ in runs), agreeing))
    show("Agreement", ("", "tasks", "correct", "side effects", "agreeing"), rows)
    if doubtful:
        show(
            "Arguably wrong in the original",
            ("", "cause", "task", "otherwise"),
            [
                (
                    model,
                    cause,
                    question[:40],
                    "correct" if v.correct else "side effects" if v.side_effects else "undone",
                )
                for model, cause, question, v in doubtful
            ],
        )
    for model, question, verdict in disagreeing:
        print(f"disagrees: {model}, {verdict}: {question[:80]}", file=sys.stderr)
    began = time.perf_counter()
    for _ in range(COPIES):
        tables.workspace().__exit__()
    figures = {
        "verdicts": sum(map(len, published.values())),
        "disagreeing": len(disagreeing),
        "arguably_wrong": len(doubtful),
        "workspace_us": round((time.perf_counter() - began) / COPIES * 1e6, 1),
    }
    print(json.dumps(figures))
    return 1 if disagreeing else 0


def _rows(state: State) -> dict[str, list[list[str]]]:
    """Return the rows without their labels, in lower case."""
    return {table: [[str(value).lower() for value in row[1:]] for row in rows] for table, rows in state.items()}


if __name__ == "__main__":
    sys.exit(main())
