"""Replay recorded cases: judge's verdicts and question checks with the value that is thought right.

  python -m benchmarks.cases FOLDER

FOLDER has `judge.jsonl` (`id`, `area`, `question`, `reference`, `answer`, `expected`, `today`, `arguable`) and `mail.jsonl`,
whose rows with the area "question checks" are replayed (`input` with `answer` and `text`, `expected`, `today`). `today` is the
outcome when the case was recorded. Arguable cases are counted on their own. The last line is JSON.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent.judges.exact import judge_exactly
from agent.question_writing.checks import is_said
from benchmarks.output import show


class Outcome(NamedTuple):
    """One replayed case. `reason` says why it differs from what is expected."""

    id: str
    area: str
    right: bool
    right_before: bool
    reason: str = ""


def replay(folder: Path) -> Iterator[Outcome]:
    """Yield the outcome of each case of the judge and the question checks."""
    for case in rows(folder / "judge.jsonl"):
        verdict = judge_exactly(case["question"], case["reference"], case["answer"])
        area = "judge, arguable" if case["arguable"] else f"judge, {'right' if case['expected'] else 'wrong'} answers"
        differs = f"{case['reference']!r} <- {case['answer']!r}: {verdict.reason}"
        expected = case["expected"]
        yield Outcome(case["id"], area, verdict.correct == expected, case["today"] == expected, differs)
    for case in rows(folder / "mail.jsonl"):
        if case["area"] == "question checks":
            given = case["input"]
            right = is_said(given["answer"], given["text"]) == case["expected"]
            area = f"question checks{', arguable' if case['today'] == 'arguable' else ''}"
            yield Outcome(case["id"], area, right, case["today"] == "ok", f"{given['answer']!r} in {given['text']!r}")


def rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file, none if there is no such file."""
    return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line] if file.exists() else []


def report(outcomes: list[Outcome]) -> int:
    """Print the cases per area, the failing ones and a JSON line. Return the exit code: 0, or 2 without cases."""
    if not outcomes:
        print("error: no cases there; name a folder with judge.jsonl or mail.jsonl", file=sys.stderr)
        return 2
    cases = Counter(outcome.area for outcome in outcomes)
    right = Counter(outcome.area for outcome in outcomes if outcome.right)
    before = Counter(outcome.area for outcome in outcomes if outcome.right_before)
    failing = [outcome for outcome in outcomes if not outcome.right]
    for outcome in failing:
        print(f"{outcome.id} ({outcome.area}): {outcome.reason}")
    table = [(area, total, before[area], right[area]) for area, total in sorted(cases.items())]
    show("Cases right", ("", "cases", "when recorded", "now"), table)
    areas = {area: {"cases": total, "before": was, "now": now} for area, total, was, now in table}
    print(json.dumps({"areas": areas, "failing": [outcome.id for outcome in failing]}))
    return 0


def main() -> int:
    if len(sys.argv) != 2:
        print("error: python -m benchmarks.cases FOLDER", file=sys.stderr)
        return 2
    return report(list(replay(Path(sys.argv[1]))))


if __name__ == "__main__":
    sys.exit(main())
