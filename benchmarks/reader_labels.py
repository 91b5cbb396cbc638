"""Compare judges with a reader: how often does their verdict on an answer agree with the label of somebody who read it?

  python -m benchmarks.reader_labels PREDICTIONS [--labels FILE] [--judge openai/NAME --api-base http://127.0.0.1:8080/v1]

PREDICTIONS is a finished evaluation, as JSON Lines or a JSON list. The default labels are of answers to the Kaminski questions of
docs/own_mail.md. A label names a question and the checksum of the answer, so other answers to the same question are left out.
Another training gives other answers, of which few have a label: those of a few words, for example.
`exact` is always compared, and `--judge` with it. The last line is JSON.

The reader saw question, reference and answer, but not the mails, and followed these instructions:

* Right: somebody who asked the question would learn from the answer what the reference says. Order, wording and further true
  details do not matter.
* If the reference has several facts, the answer needs those that the question asks for.
* Wrong: a value, name or date differs, or the answer leaves out what was asked, answers another question, or contradicts itself.
* An answer that the reference neither confirms nor contradicts is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Otherwise LiteLLM's import waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from agent.judges import Judge, JudgeError
from agent.judges.settings import JudgeSettings, open_judge
from agent.metrics import Prediction, wilson_interval
from benchmarks.hit_places import read_predictions
from benchmarks.output import progress, show
from training.errors import BadInput

LABELS = Path(__file__).with_suffix(".jsonl")


class Label(BaseModel):
    """A reader's verdict on one answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario_id: str
    answer: str
    """`checksum` of the answer."""
    right: bool


def checksum(answer: str) -> str:
    """Return the first 16 digits of the SHA-256 of an answer."""
    return hashlib.sha256(answer.encode()).hexdigest()[:16]


def main() -> int:
    """Return the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("predictions", type=Path)
    add("--labels", type=Path, default=LABELS)
    add("--judge", help="a model to compare too, any of LiteLLM, as provider/model")
    add("--api-base", help="base URL of a self-hosted judge")
    arguments = parser.parse_args()
    judges = {"exact": JudgeSettings()}
    if arguments.judge:
        judges[arguments.judge] = JudgeSettings(
            judge="llm", judge_model=arguments.judge, judge_api_base=arguments.api_base
        )
    try:
        labelled = with_labels(read_predictions(arguments.predictions), arguments.labels)
        for settings in judges.values():
            settings.require_judge()
        figures = {name: agreement(labelled, open_judge(settings)) for name, settings in judges.items()}
    except (BadInput, ValidationError, ValueError, OSError, JudgeError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    header = (
        "judge",
        "answers",
        "agreement",
        "interval",
        "right: accepted",
        "right: refused",
        "wrong: accepted",
        "kappa",
    )
    rows = [(name, *row.values()) for name, row in figures.items()]
    show(f"Labels of {arguments.labels.name}", header, rows)
    print(json.dumps(figures))
    return 0


def with_labels(predictions: Sequence[Prediction], file: Path) -> list[tuple[Prediction, bool]]:
    """Return the answers that the file has a label of, once each. Raises ValueError if there is none."""
    lines = ",".join(filter(str.strip, file.read_text(encoding="utf-8").split("\n")))
    labels = {(label.scenario_id, label.answer): label.right for label in _LABELS.validate_json(f"[{lines}]")}
    answers = {(p.scenario_id, checksum(p.answer)): p for p in predictions if p.answer is not None}
    if not (known := [(prediction, labels[key]) for key, prediction in answers.items() if key in labels]):
        raise ValueError(f"{file} has no label of these answers: it names answers of another policy or other questions")
    return known


def agreement(labelled: Sequence[tuple[Prediction, bool]], judge: Judge) -> dict[str, Any]:
    """Ask the judge about the answers, and count where it agrees with the labels.

    `kappa` is Cohen's (J. Cohen, Educational and Psychological Measurement 20, 1960); None if chance alone explains everything.
    """

    async def ask() -> list[bool]:
        verdicts = []
        for number, (prediction, _) in enumerate(labelled, start=1):
            verdict = await judge.judge(prediction.question, prediction.reference, prediction.answer or "")
            verdicts.append(verdict.correct)
            if number % 50 == 0:
                progress(f"{number} of {len(labelled)} answers")
        return verdicts

    pairs = list(zip(asyncio.run(ask()), (right for _, right in labelled), strict=True))
    n, agreed = len(pairs), sum(accepted == right for accepted, right in pairs)
    accepted, right = sum(verdict for verdict, _ in pairs) / n, sum(label for _, label in pairs) / n
    by_chance = accepted * right + (1 - accepted) * (1 - right)
    low, high = wilson_interval(agreed, n)
    return {
        "answers": n,
        "agreement": round(agreed / n, 3),
        "interval": f"{low:.3f}-{high:.3f}",
        "right_accepted": pairs.count((True, True)),
        "right_refused": pairs.count((False, True)),
        "wrong_accepted": pairs.count((True, False)),
        "kappa": round((agreed / n - by_chance) / (1 - by_chance), 3) if by_chance < 1 else None,
    }


_LABELS = TypeAdapter(list[Label])


if __name__ == "__main__":
    sys.exit(main())
