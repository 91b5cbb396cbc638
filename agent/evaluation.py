"""Ask every policy and every non-learning baseline the same questions, and judge the predictions."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from agent.answer_journal import AnswerJournal
from agent.baselines import do_nothing, search_and_quote
from agent.demonstrations import play_oracle
from agent.judges import Judge, JudgeError
from agent.metrics import Prediction
from agent.prompted import PromptedModel
from agent.rollout import AgentRun, answer_question
from agent.settings import AgentSettings
from environment.email_db import MailDatabase
from environment.models import Scenario
from environment.scenarios import open_scenario
from training.task import Policy

MOST_ATTEMPTS = 3
"""Maximum attempts of a question that fails with an error."""

WARM_START, START = "warm_start", "start"
"""Names of the policy before the first GRPO step: after a warm start, or in a run that continued from an adapter."""
BASELINES = ("search_and_quote", "oracle", "do_nothing")


def select_questions(scenarios: Sequence[Scenario], limit: int | None, seed: int = 0) -> list[Scenario]:
    """Return at most `limit` test scenarios, selected by their ids and the seed only."""
    test = sorted((scenario for scenario in scenarios if scenario.split == "test"), key=lambda scenario: scenario.id)
    random.Random(seed).shuffle(test)
    return test if limit is None else test[:limit]


class Evaluation:
    """Asks the questions of one database and has the answers judged.

    Policies are not asked again what is in `journal`.
    """

    def __init__(
        self,
        database: MailDatabase,
        judge: Judge,
        settings: AgentSettings,
        *,
        max_concurrent: int,
        journal: AnswerJournal | None = None,
    ) -> None:
        self.database = database
        self.judge = judge
        self.settings = settings
        self._journal = journal
        self._slots = asyncio.Semaphore(max_concurrent)

    async def policy(
        self,
        name: str,
        policy: Policy | PromptedModel,
        scenarios: Sequence[Scenario],
        *,
        sample: int = 0,
        advance: Callable[[], None] = lambda: None,
    ) -> list[Prediction]:
        """Return a policy's predictions, numbered `sample`, in the order of `scenarios`.

        Questions that ended in an error are asked again after all others, up to `MOST_ATTEMPTS` times in total.
        """

        async def ask(scenario: Scenario) -> AgentRun:
            mailbox = self.database.mailbox(scenario.inbox_address, scenario.query_date)
            return await answer_question(policy, mailbox, scenario.question, self.settings)

        async def one(scenario: Scenario, first: bool) -> Prediction:
            prediction = self._journal.find(name, sample, scenario.id) if self._journal else None
            if prediction is None:
                async with self._slots:
                    prediction = await self._predict(name, scenario, ask)
                prediction = prediction.model_copy(update={"sample": sample})
                if self._journal:
                    self._journal.add(prediction)
            if first:
                advance()
            return prediction

        predictions = list(await asyncio.gather(*(one(scenario, True) for scenario in scenarios)))
        for _ in range(MOST_ATTEMPTS - 1):
            failed = [number for number, prediction in enumerate(predictions) if prediction.error is not None]
            again = await asyncio.gather(*(one(scenarios[number], False) for number in failed))
            for number, prediction in zip(failed, again, strict=True):
                predictions[number] = _with_cost_of(predictions[number], prediction)
        return predictions

    async def baseline(self, name: str, scenarios: Sequence[Scenario]) -> list[Prediction]:
        """Return the predictions of a non-learning row (one of `BASELINES`)."""

        async def act(scenario: Scenario) -> AgentRun:
            mailbox, gold_ids = open_scenario(scenario, self.database)
            if name == "oracle":
                return play_oracle(scenario, mailbox, gold_ids, self.settings)
            started = time.monotonic()
            answer = search_and_quote(mailbox, scenario.question) if name == "search_and_quote" else do_nothing()
            seconds = time.monotonic() - started
            return AgentRun(
                answer=answer,
                outcome="answered" if answer else "no_tool_call",
                turns=1 if answer else 0,
                seconds=seconds,
            )

        # The oracle is defined by the reference: without one it has nothing to show.
        asked = [scenario for scenario in scenarios if scenario.labelled or name != "oracle"]
        return [await self._predict(name, scenario, act) for scenario in asked]

    async def _predict(
        self, name: str, scenario: Scenario, act: Callable[[Scenario], Awaitable[AgentRun]]
    ) -> Prediction:
        known = {
            "policy": name,
            "scenario_id": scenario.id,
            "kind": scenario.kind,
            "question": scenario.question,
            "reference": scenario.answer,
            "inbox_address": scenario.inbox_address,
            "query_date": f"{scenario.query_date:%Y-%m-%d}",
            "gold_ids": list(scenario.message_ids),
        }
        started = time.monotonic()
        run, verdict = None, None
        try:
            run = await act(scenario)
            if run.answer and scenario.labelled:
                verdict = await self.judge.judge(scenario.question, scenario.answer, run.answer.answer)
        except Exception as error:  # any failure becomes this question's result, with its name and message
            spent = {"prompt_tokens": run.prompt_tokens, "cost": run.cost} if run else {}
            if isinstance(error, JudgeError):
                spent |= {"judge_tokens": error.prompt_tokens, "judge_cost": error.cost}
            return Prediction(
                **known,
                **spent,
                answer=None,
                source_ids=[],
                correct=None,
                reason=str(error),
                turns=0,
                seconds=time.monotonic() - started,
                error=type(error).__name__,
                outcome="error",
                transcript=[],
            )
        return Prediction(
            **known,
            answer=run.answer.answer if run.answer else None,
            source_ids=list(run.answer.source_ids) if run.answer else [],
            correct=bool(verdict and verdict.correct) if scenario.labelled else None,
            same_meaning=verdict.same_meaning if verdict else None,
            reason=verdict.reason if verdict else run.outcome,
            turns=run.turns,
            seconds=run.seconds,
            prompt_tokens=run.prompt_tokens,
            cost=run.cost,
            judge_tokens=verdict.prompt_tokens if verdict else 0,
            judge_cost=verdict.cost if verdict else None,
            error=None,
            outcome=run.outcome,
            transcript=run.transcript(),
        )


def _with_cost_of(failed: Prediction, prediction: Prediction) -> Prediction:
    """Return the prediction with the cost of a failed attempt at the same question added."""
    costs = {
        name: _sum(getattr(failed, name), getattr(prediction, name)) for name in ("cost", "judge_cost", "judge_tokens")
    }
    return prediction.model_copy(update=costs)


def _sum(first: float | None, second: float | None) -> float | None:
    return second if first is None else first + (second or 0)
