"""The answers of an evaluation in progress, in a JSON Lines file, so that a killed evaluation resumes."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from agent.metrics import Prediction
from training.errors import BadInput


class AnswerJournal:
    """Predictions without error by policy, sample and question.

    A line that a killed run left incomplete is ignored, so its question is asked again. Raises `BadInput` if the file
    cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._predictions: dict[tuple[str, int, str], Prediction] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            content = path.read_bytes() if path.exists() else b""
            if content and not content.endswith(b"\n"):
                with path.open("ab") as file:
                    file.write(b"\n")
        except OSError as error:
            raise self._unusable(error) from error
        for line in content.splitlines():
            try:
                self._remember(Prediction.model_validate_json(line))
            except ValidationError:
                continue

    @property
    def answers(self) -> int:
        """Number of predictions in the journal."""
        return len(self._predictions)

    def find(self, policy: str, sample: int, scenario_id: str) -> Prediction | None:
        """Return the prediction of an earlier run, or None."""
        return self._predictions.get((policy, sample, scenario_id))

    def add(self, prediction: Prediction) -> None:
        """Store a prediction, unless it ended in an error, whose cause may be gone the next time."""
        if prediction.error is not None:
            return
        try:
            with self.path.open("ab") as file:
                file.write(_line(prediction))
        except OSError as error:
            raise self._unusable(error) from error
        self._remember(prediction)

    def _remember(self, prediction: Prediction) -> None:
        self._predictions[prediction.policy, prediction.sample, prediction.scenario_id] = prediction

    def _unusable(self, error: OSError) -> BadInput:
        return BadInput(f"cannot keep answers in {self.path}: {error.strerror or error}")


def _line(prediction: Prediction) -> bytes:
    """Return a prediction as one line. Half of a surrogate pair becomes a question mark: pydantic cannot write it."""
    text = json.dumps(prediction.model_dump(mode="json"), ensure_ascii=False)
    return text.encode("utf-8", "replace") + b"\n"
