"""E-mail search as a task for the trainer."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, islice, zip_longest

import art

from agent.decisions import OPEN, QUERY, DecisionPlay
from agent.demonstrations import demonstration, play_oracle
from agent.exploit_flags import exploit_flags
from agent.judges import Judge
from agent.reward import OF_REFERENCE, rubric, verifiable_reward
from agent.reward_weights import RewardWeights
from agent.rollout import AgentRun, answer_question
from agent.settings import DECISIONS, EMAIL_SEARCH, USUAL_DECISIONS, AgentSettings, DemonstrationSettings
from environment.email_db import MailDatabase
from environment.models import Scenario
from environment.scenarios import open_scenario
from environment.tools import PASSAGE_HITS, tool_schemas
from training.task import CALL_SEQUENCE, UNLABELLED, VERDICT_COST, Policy


class EmailSearchTask:
    """Questions about the mailboxes of one database; implements `training.task.Task`."""

    name = EMAIL_SEARCH
    decisions = DECISIONS
    usual_decisions = USUAL_DECISIONS

    def __init__(
        self,
        database: MailDatabase,
        scenarios: Sequence[Scenario],
        judge: Judge,
        settings: AgentSettings,
        *,
        weights: RewardWeights | None = None,
        show: DemonstrationSettings | None = None,
        seed: int = 0,
    ) -> None:
        """`show` says what demonstrations show; by default as the configuration does."""
        self.database = database
        self.scenarios = list(scenarios)
        self.judge = judge
        self.settings = settings
        self.weights = weights or RewardWeights()
        self.show = show or DemonstrationSettings()
        self.seed = seed

    def train_scenarios(self) -> list[Scenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "train"]

    def kind(self, scenario: Scenario) -> str:
        """Return how many mails the answer needs: whether to search again is the hardest decision to learn."""
        return f"{len(scenario.message_ids)} mails"

    def oracle(self, scenario: Scenario, *, hindsight: bool = True) -> AgentRun:
        """Play the episode of an agent that knows the gold mails; see `play_oracle` for `hindsight`."""
        mailbox, gold_ids = open_scenario(scenario, self.database)
        return play_oracle(scenario, mailbox, gold_ids, self.settings, hindsight=hindsight, show=self.show)

    def demonstrations(self, scenarios: Sequence[Scenario], limit: int) -> list[art.Trajectory]:
        """Return oracle episodes without hindsight for randomly selected scenarios, alternating one-mail and multi-mail
        questions while both last.

        Episodes that the oracle fails are left out. Whether to answer or to search again is the hardest decision to
        learn. Batches that contain both kinds contrast the two decisions; batches of one kind would pull the policy
        back and forth.
        """
        scenarios = list(scenarios)
        random.Random(f"demonstrations-{self.seed}").shuffle(scenarios)
        by_mails: dict[int, list[Scenario]] = {}
        for scenario in scenarios:
            if not scenario.labelled:
                continue
            by_mails.setdefault(len(scenario.message_ids), []).append(scenario)
        in_turn = zip_longest(*(self._examples(by_mails[mails]) for mails in sorted(by_mails)))
        return list(islice(filter(None, chain.from_iterable(in_turn)), limit))

    def _examples(self, scenarios: Sequence[Scenario]) -> Iterator[art.Trajectory]:
        """Yield demonstrations of the scenarios that the oracle without hindsight answers from the right mails."""
        for scenario in scenarios:
            run = self.oracle(scenario, hindsight=False)
            if run.answer is not None and set(run.answer.source_ids) == set(scenario.message_ids):
                yield demonstration(run, scenario, self.settings)

    def is_open(self, scenario: Scenario, decisions: Collection[str]) -> bool:
        """Return whether the question, typed as it is, finds another mail than a gold mail first.

        If `decisions` are about opening but not about queries, a gold mail must also be second or third: without a better
        query, nothing else could be opened.
        """
        mailbox, gold_ids = open_scenario(scenario, self.database)
        found = [hit.id in gold_ids for hit in mailbox.search([scenario.question], max_results=PASSAGE_HITS)]
        chooses = OPEN in decisions and QUERY not in decisions
        return not any(found[:1]) and (any(found) or not chooses)

    async def decide(
        self,
        policy: Policy,
        scenario: Scenario,
        decisions: Collection[str],
        replies: int,
        probes: int,
        *,
        continued: bool,
    ) -> list[art.TrajectoryGroup]:
        mailbox, gold_ids = open_scenario(scenario, self.database)
        play = DecisionPlay(policy, scenario, mailbox, gold_ids, self.judge, self.settings, self.weights)
        return await play.groups(decisions, replies, probes, continued=continued)

    async def rollout(self, policy: Policy, scenario: Scenario) -> art.Trajectory:
        mailbox, gold_ids = open_scenario(scenario, self.database)
        run = await answer_question(policy, mailbox, scenario.question, self.settings)
        paid: dict[str, float] = {}
        if scenario.labelled:
            verdict = (
                await self.judge.judge(scenario.question, scenario.answer, run.answer.answer) if run.answer else None
            )
            counts = rubric(run, scenario, gold_ids, correct=bool(verdict and verdict.correct))
            reward = verifiable_reward(counts, self.settings.max_turns, self.weights)
            measured = counts.model_dump()
            if verdict is not None and verdict.cost is not None:
                paid[VERDICT_COST] = verdict.cost
        else:
            counts = rubric(run, scenario, gold_ids, correct=False)
            reward = 0.0
            measured = counts.model_dump(exclude=set(OF_REFERENCE))
        return art.Trajectory(
            messages_and_choices=run.record,
            tools=tool_schemas(),
            reward=reward,
            metrics={
                **measured,
                **exploit_flags(
                    run,
                    gold_ids,
                    scenario.question,
                    self.settings.max_results,
                    scenario.answer if scenario.labelled else None,
                ),
                "sampled_tokens": run.sampled_tokens,
                "context_tokens": run.context_tokens,
                "seconds": run.seconds,
                **paid,
            },
            metadata={
                "scenario_id": scenario.id,
                "question": scenario.question,
                "kind": scenario.kind,
                "outcome": run.outcome,
                "answer": run.answer.answer if run.answer else None,
                CALL_SEQUENCE: json.dumps([[call.name, call.arguments] for call in run.calls], sort_keys=True),
                **({"reference": scenario.answer} if scenario.labelled else {UNLABELLED: True}),
            },
        )
