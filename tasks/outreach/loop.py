"""The learn loop: an outreach run as a training run with additional files per iteration.

An iteration is a GRPO step of the trainer. The trainer passes its rollouts to this module before the step counts as
finished, and the finished step afterwards. The folder of an iteration holds

* `emails.json`: the e-mails that the iteration learnt from; `validation.json`: e-mails of the updated policy to the
same few prospects in every iteration;
* `node_scores.json`: the graph's scores after the iteration, with which the next one begins; `top_half.json`: those of
the top-half rule, for comparison;
* `metrics.json`: figures; it is written last.

An interrupted iteration runs again from the scores of the one before it and replaces its files. The trainer's history
says which iterations are finished. If one of these lacks `metrics.json`, a resumed run writes it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import art
from pydantic import BaseModel, ConfigDict

from tasks.outreach.events import EventStore, RecordedFeedback
from tasks.outreach.node_scores import NodeScores, SentEmail, TopHalfScores, read_scores
from tasks.outreach.off_policy import Estimate, by_scores, estimate, logged_choices
from tasks.outreach.results import (
    BASELINE,
    EMAILS,
    FINAL,
    METRICS,
    SCORES,
    STATE,
    TOP_HALF,
    VALIDATION,
    write_json,
)
from tasks.outreach.task import OutreachTask
from tasks.outreach.webhook import Outbox
from tasks.outreach.written import WrittenEmail
from training.files import write_text
from training.loop.trainer import TrainingRun
from training.record.history import HISTORY_FILE, StepRecord, checkpoint_folder, read_history, without_damaged_end
from training.record.progress import ForwardedProgress, Progress
from training.session import run_training
from training.settings import TrainerSettings

_GOODBYE_SECONDS = 20.0
"""Seconds that the end of a run waits for the webhook's receiver. Remaining notices are delivered when the run is
started again.
"""


class IterationMetrics(BaseModel):
    """Figures of an iteration. `expected_*` are the simulation's probabilities, None where feedback is recorded."""

    model_config = ConfigDict(frozen=True)

    iteration: int
    emails: int
    reward_mean: float | None
    reward_median: float | None
    reward_min: float | None
    reward_max: float | None
    reply_rate: float | None
    expected_reply_rate: float | None
    finished: float | None
    """Share of the rollouts that sent an e-mail."""
    validation_reply_rate: float | None
    validation_expected: float | None
    by_scores: Estimate | None
    """Estimated reply rate of always following the scores with which the iteration began, from its e-mails. Those scores
    do not depend on these e-mails; estimates for the new scores would be too high."""
    seconds: float
    alerts: list[str]


class ComparedEmails(NamedTuple):
    """E-mails of the iteration `first` and of the last one, to prospects of the same kind."""

    first: int
    before: list[WrittenEmail]
    after: list[WrittenEmail]


class LearnLoop(ForwardedProgress):
    """Forwards the events of a training run, and stores the node scores, e-mails and figures of every iteration."""

    def __init__(
        self, folder: Path, task: OutreachTask, store: EventStore, outbox: Outbox, progress: Progress, iterations: int
    ) -> None:
        super().__init__(progress)
        self.folder = folder
        self._task = task
        self._store = store
        self._outbox = outbox
        self._iterations = iterations

    async def run(
        self, *, base_model: str, settings: TrainerSettings, max_tokens: int, start: Path | None = None
    ) -> TrainingRun:
        """Run to the last iteration. Resumes after the last finished one. The checkpoint is that of the last iteration, because
        choosing the best one would need more e-mails.

        Raises:
            BadInput: as `run_training`.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        finished = self._finished_rows()
        for row in finished:
            if not (self._of(row.step) / METRICS).exists():
                self._finish(row)
        self._task.scores = self.scores_after(finished[-1].step if finished else 0)
        self.save_state("running", finished[-1].step if finished else 0)
        run = await run_training(
            self._task,
            base_model=base_model,
            settings=settings,
            max_tokens=max_tokens,
            run_folder=self.folder / "training",
            progress=self,
            start=start,
            run=self.folder.name,
        )
        row = run.history[-1]
        last, trained = row.step, row.checkpoint_step
        compared = self.compared_emails(last)
        for emails, target in ((compared.before, BASELINE), (compared.after, FINAL)):
            write_json(self.folder / target, [email.model_dump() for email in emails])
        self._outbox.flush(_GOODBYE_SECONDS)
        self.save_state("finished", last)
        kept = checkpoint_folder(run.folder, trained) if trained else None
        return run.model_copy(update={"checkpoint": kept, "checkpoint_of": last})

    def _finished_rows(self) -> list[StepRecord]:
        """Return the rows after which the trainer continues, without those of a damaged checkpoint."""
        histories = sorted((self.folder / "training").rglob(HISTORY_FILE))
        return without_damaged_end(histories[0].parent, read_history(histories[0])) if histories else []

    def _of(self, iteration: int) -> Path:
        return self.folder / "iterations" / f"{iteration:04d}"

    def _notice_name(self, iteration: int) -> str:
        return f"{self.folder.name}-{iteration:04d}"

    def emails(self, iteration: int, name: str = EMAILS) -> list[WrittenEmail]:
        """Return the e-mails of an iteration; an empty list if it wrote none."""
        file = self._of(iteration) / name
        return (
            [WrittenEmail.model_validate(entry) for entry in json.loads(file.read_text(encoding="utf-8"))]
            if file.exists()
            else []
        )

    def compared_emails(self, last: int) -> ComparedEmails:
        """Return the e-mails of the policy before the first update and of that of the iteration `last`.

        They go to the prospects that are held aside for validation. A run that does not validate has those of its first
        iteration, which the policy wrote before its update.
        """
        first, name = (0, VALIDATION) if self.emails(0, VALIDATION) else (1, EMAILS)
        return ComparedEmails(first, self.emails(first, name), self.emails(last, name))

    def metrics(self) -> list[IterationMetrics]:
        """Return the figures of every finished iteration."""
        files = sorted((self.folder / "iterations").glob(f"*/{METRICS}"))
        return [IterationMetrics.model_validate_json(file.read_text(encoding="utf-8")) for file in files]

    def scores_after(self, iteration: int) -> NodeScores:
        """Return the graph's scores after an iteration; before the first one all are 1.0."""
        file = self._of(iteration) / SCORES
        return read_scores(file) if file.exists() else NodeScores.fresh(self._task.graph)

    def top_half_after(self, iteration: int) -> TopHalfScores:
        """Return the scores of the top-half rule after an iteration."""
        file = self._of(iteration) / TOP_HALF
        if not file.exists():
            return TopHalfScores.fresh(self._task.graph)
        return TopHalfScores.model_validate_json(file.read_text(encoding="utf-8"))

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        written = [WrittenEmail.of(trajectory) for group in groups for trajectory in group.trajectories]
        folder = self._of(step)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / METRICS).unlink(missing_ok=True)  # the iteration runs again
        notices = self._outbox.withdraw(self._notice_name(step))
        write_json(folder / (EMAILS if split == "train" else VALIDATION), [email.model_dump() for email in written])
        if split == "train":
            sent = [SentEmail(scenario=email.scenario, facts=email.facts, reward=email.reward) for email in written]
            before = self.scores_after(step - 1)
            scores = before.updated(sent) if self._task.settings.learn_nodes else before
            write_text(folder / SCORES, scores.model_dump_json())
            write_text(folder / TOP_HALF, self.top_half_after(step - 1).updated(sent).model_dump_json())
            self._task.scores = scores
            finished = [(email.message_id, email.scenario, email.facts) for email in written if email.body is not None]
            announced = [email["message_id"] for notice in notices for email in notice["emails"]]
            self._store.add_messages(self.folder.name, step, finished, announced)
        self._progress.rollouts(groups, split=split, step=step)

    def step(self, row: StepRecord) -> None:
        self._finish(row)
        if isinstance(self._task.feedback, RecordedFeedback):
            self._task.feedback.refresh()
        self._progress.step(row)

    def stopped(self, reason: str, best: str = "") -> None:
        # The loop continues from its last policy, so the best one in validation does not matter.
        self._progress.stopped(f"{reason}; the policy of the last iteration is kept")

    def _finish(self, row: StepRecord) -> None:
        """Write the results of a finished iteration. Idempotent."""
        emails, validation = self.emails(row.step), self.emails(row.step, VALIDATION)
        rewards = [email.reward for email in emails]
        metrics = IterationMetrics(
            iteration=row.step,
            emails=len(emails),
            reward_mean=statistics.fmean(rewards) if rewards else None,
            reward_median=statistics.median(rewards) if rewards else None,
            reward_min=min(rewards, default=None),
            reward_max=max(rewards, default=None),
            reply_rate=_mean([email.reply_rate for email in emails]),
            expected_reply_rate=_mean([email.expected for email in emails]),
            finished=_mean([float(email.body is not None) for email in emails]),
            validation_reply_rate=_mean([email.reply_rate for email in validation]),
            validation_expected=_mean([email.expected for email in validation]),
            by_scores=self._by_scores(emails, self.scores_after(row.step - 1)),
            seconds=row.seconds,
            alerts=[alert.name for alert in row.alerts],
        )
        folder = self._of(row.step)
        folder.mkdir(parents=True, exist_ok=True)
        scores = self.scores_after(row.step).scores
        write_text(self.folder / SCORES, json.dumps(scores))
        shown = [
            email.model_dump(include={"message_id", "scenario", "subject", "body", "citations"}) for email in emails
        ]
        notice = {"run": self.folder.name, "metrics": metrics.model_dump(), "node_scores": scores, "emails": shown}
        self._outbox.put(self._notice_name(row.step), notice)
        write_text(folder / METRICS, metrics.model_dump_json())
        self.save_state("running", row.step)

    def _by_scores(self, emails: Sequence[WrittenEmail], scores: NodeScores) -> Estimate | None:
        choices = logged_choices(emails, self._task, scores, explore=self._task.explore)
        return estimate(choices, [by_scores(choice.options, scores) for choice in choices])

    def save_state(self, state: str, iteration: int, error: str | None = None) -> None:
        """Write the progress of the run for other processes."""
        told = {"state": state, "iteration": iteration, "iterations": self._iterations, "error": error}
        write_json(self.folder / STATE, {**told, "undelivered": self._outbox.undelivered()})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
