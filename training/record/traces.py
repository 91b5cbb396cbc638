"""Rollouts and their scores as traces in Weave, when WEAVE_PROJECT names a project."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from training.errors import BadInput
from training.record.experiment import Experiment
from training.record.progress import ForwardedProgress, Progress
from training.record.rollout_samples import JUDGED

if TYPE_CHECKING:
    import art

PROJECT = "WEAVE_PROJECT"


@contextmanager
def traced(progress: Progress, experiment: Experiment) -> Iterator[Progress]:
    """Wrap `progress` to send rollouts to Weave as well, if WEAVE_PROJECT is set.

    Weave sends in the background. What fails later is one warning, so a run does not depend on it.

    Raises:
        BadInput: Weave refuses the project or the key.
    """
    project = os.environ.get(PROJECT)
    if not project:
        yield progress
        return
    import weave

    try:
        # Rollouts are traced as a whole; automatic traces of their requests would be duplicates.
        client = weave.init(project, settings={"implicitly_patch_integrations": False, "print_call_link": False})
    except Exception as error:  # wandb, httpx and weave each have errors of their own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(
            f"{PROJECT}={project}: Weave cannot be used: {reason}; unset {PROJECT} to train without"
        ) from error
    tracing = _Traced(progress, client, experiment)
    try:
        yield tracing
    finally:
        with tracing.warned():
            weave.finish()


class _Traced(ForwardedProgress):
    def __init__(self, progress: Progress, client: Any, experiment: Experiment) -> None:
        super().__init__(progress)
        self._client = client
        self._failed = False
        self._about = {"run": experiment.run, "experiment": experiment.name, "config_hash": experiment.config_hash}

    def rollouts(self, groups: Sequence[art.TrajectoryGroup], *, split: str, step: int) -> None:
        self._progress.rollouts(groups, split=split, step=step)
        # The first error ends the traces of this step, because a dead server lets every call wait.
        with self.warned():
            for number, group in enumerate(groups):
                for trajectory in group.trajectories:
                    self._trace(trajectory, {"split": split, "step": step, "group": number})

    @contextmanager
    def warned(self) -> Iterator[None]:
        """Turn an error of Weave into a warning, the first time; later ones are silent."""
        try:
            yield
        except Exception as error:  # wandb, httpx and weave each have errors of their own
            if not self._failed:
                self._failed = True
                reason = " ".join(str(error).split())[:200] or type(error).__name__
                self._progress.warning(f"Weave fails, so traces are missing: {reason}; the run goes on")

    def _trace(self, trajectory: art.Trajectory, where: dict[str, Any]) -> None:
        """Log one call per rollout, with a child call per reply and tool, and the scores as feedback."""
        metadata = trajectory.metadata
        ended = datetime.now(UTC)
        began = ended - timedelta(seconds=float(trajectory.metrics.get("seconds", 0.0)))
        inputs = {name: metadata[name] for name in ("scenario_id", "question", "kind") if name in metadata}
        rollout = self._client.create_call(
            "rollout", {**where, **inputs}, attributes=self._about, use_stack=False, started_at=began
        )
        asked: dict[str, Any] = {}
        for message in trajectory.messages():
            if message["role"] == "assistant":
                asked = dict(message)
                self._child(rollout, "reply", {}, message.get("content") or message.get("tool_calls"))
            elif message["role"] == "tool":
                self._child(rollout, "tool", {"reply": asked.get("content")}, message.get("content"))
        output = {name: metadata[name] for name in ("answer", "outcome", "reference") if name in metadata}
        self._client.finish_call(rollout, output=json.loads(json.dumps(output, default=str)), ended_at=ended)
        judged = [line.removeprefix(JUDGED) for line in trajectory.logs if line.startswith(JUDGED)]
        scores = {"reward": trajectory.reward, **trajectory.metrics}
        rollout.feedback.add("scores", {**scores, **({"judge": judged[-1]} if judged else {})})

    def _child(self, parent: Any, op: str, inputs: dict[str, Any], output: Any) -> None:
        call = self._client.create_call(op, inputs, parent=parent, use_stack=False)
        self._client.finish_call(call, output=output)
