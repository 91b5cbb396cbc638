"""Another task than mail behind the same doors: a question becomes a scenario, and its episode the answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent.rollout import Watcher
from serving.access import Caller
from serving.answering import Answering
from serving.bodies import ServedModel, TaskQuestion, TaskReply, TaskReplyMetadata
from serving.errors import Rejected
from serving.service import PolicyServer, Service
from training.errors import BadInput
from training.plugin import Attempt, EvaluatedTask
from training.policy_client import policy_client
from training.task import Policy


@dataclass(frozen=True)
class AskedScenario:
    """A question, and the scenario that the task makes of it."""

    question: TaskQuestion
    scenario: Any


class TaskService(Service[AskedScenario, Attempt]):
    """Play episodes of a task on the scenarios of users."""

    def __init__(
        self,
        server: PolicyServer,
        policy: Callable[[str], Policy],
        model: ServedModel,
        task: EvaluatedTask,
        scenario_of: Callable[[str], Any],
        close_task: Callable[[], None],
    ) -> None:
        """`scenario_of` is the plug-in's, for its settings; `close_task` ends what it opened."""
        super().__init__(server, policy, model)
        self.scenario_of = scenario_of
        self._task, self._close_task = task, close_task

    async def _episode(self, policy: Policy, asked: AskedScenario, watcher: Watcher | None) -> Attempt:
        started = time.monotonic()
        attempt = await self._task.attempt(policy, asked.scenario, hosted=False)
        return attempt.model_copy(update={"seconds": round(time.monotonic() - started, 3)})

    async def _warm_up(self, policy: Policy) -> None:
        await policy_client(policy).chat.completions.create(
            messages=[{"role": "user", "content": "Is anybody there?"}], **policy.request_arguments()
        )

    def close(self) -> None:
        super().close()
        self._close_task()


class TaskAnswering(Answering[TaskReply]):
    """Make scenarios of questions, and replies of attempts."""

    service: TaskService

    def accepted(self, question: TaskQuestion) -> AskedScenario:
        """Return the question with its scenario. Raises `Rejected` if the task can make none of it."""
        try:
            return AskedScenario(question, self.service.scenario_of(question.question))
        except BadInput as error:
            raise Rejected(422, f"parameters.question: {error}") from None

    def _reply(self, answer: Attempt, metadata: dict[str, Any], seconds: float, caller: Caller) -> TaskReply:
        return TaskReply(
            question=metadata["parameters_used"].question,
            answer=answer.answer,
            transcript=answer.transcript,
            execution_time=round(seconds, 3),
            metadata=TaskReplyMetadata.model_validate(metadata),
        )
