"""Decisions of an episode: states in which several replies of the policy are compared at once.

Comparing single replies is much cheaper than comparing whole episodes, because everything before a decision is played once
and nothing has to be played after it. A decision is named after the move that is right in its state:

* `query`: a gold mail is missing, and no search has shown it yet: search, or search again.
* `open`: a search has shown a gold mail that has not been read: open that hit.
* `answer`: all gold mails have been read: answer, and cite them.

What a reply earns follows from the reward of episodes. A reply that ends the episode earns the episode's reward. Any other
earns a share of what a correct answer is worth, but only for showing or opening a gold mail that was missing. Finding the
same mail twice, or going on after everything has been read, earns nothing; only reading on in a gold mail may be needed.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import art
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable
from openai.types.chat.chat_completion import Choice

from agent.exploit_flags import exploit_flags
from agent.graph import ToolCallRecord, connect, execute, outcome_of, sample_replies, sampled_choice
from agent.judges import Judge
from agent.reward import rubric, verifiable_reward
from agent.reward_weights import RewardWeights
from agent.rollout import AgentRun, noting_progress, opening_messages
from agent.settings import DECISIONS, AgentSettings
from environment.email_db import Mailbox
from environment.models import Scenario
from environment.tools import READ, SEARCH, MailTools, tool_schemas
from training.task import CALL_SEQUENCE, DECISION, VERDICT_COST, Policy

QUERY, OPEN, ANSWER = DECISIONS

_BY_RANK = (1.0, 0.6, 0.4)
"""Progress of a search by the rank of the missing gold mail among its unread hits. The last value is for all later ranks."""
_FRUITLESS = 0.3
"""Progress of a sound call that shows nothing missing while something is: the episode can still be won."""


@dataclass(frozen=True)
class State:
    """An episode before a reply of the policy.

    Earlier replies are plain messages, so that only the next one is trained on. Server and trainer then tokenize the same
    text, which makes the ids of the prompt equal in both.
    """

    messages: list[dict[str, Any]]
    tools: MailTools
    calls: list[ToolCallRecord]
    turns: int
    gold: frozenset[int]

    @property
    def read(self) -> set[int]:
        return {id for call in self.calls if call.name == READ for id in call.email_ids}

    @property
    def shown(self) -> set[int]:
        return {id for call in self.calls if call.name == SEARCH for id in call.email_ids}

    def due(self) -> str:
        """Return the decision of this state."""
        missing = self.gold - self.read
        return ANSWER if not missing else OPEN if missing & self.shown else QUERY

    def may_follow(self) -> set[str]:
        """Return the decisions that this state or a later one may have."""
        missing = self.gold - self.read
        return {ANSWER, *([OPEN] if missing else []), *([QUERY] if missing - self.shown else [])}

    def progress(self, call: ToolCallRecord) -> float:
        """Return how far an executed call gets towards the gold mails that are missing here, between 0 and 1."""
        read, found = self.read, set(call.email_ids)
        missing = self.gold - read
        if call.invalid or any((call.name, call.arguments) == (c.name, c.arguments) for c in self.calls):
            return 0.0
        if call.name == READ:
            # Other arguments may mean the same: 1 and "1".
            if any(call.observation == c.observation for c in self.calls):
                return 0.0
            if missing & found:
                return 1.0
            # Reading on in a long gold mail may be needed, too.
            return _FRUITLESS if found and (missing or found & self.gold) else 0.0
        if not missing:
            return 0.0
        unread = [id for id in call.email_ids if id not in read]
        rank = next((rank for rank, id in enumerate(unread) if id in missing - self.shown), None)
        return _FRUITLESS if rank is None else _BY_RANK[min(rank, len(_BY_RANK) - 1)]


@dataclass(frozen=True)
class Branch:
    """One reply in a state: its trajectory with its reward, and the state that it leads to (`None`: the episode ended)."""

    trajectory: art.Trajectory
    leads_to: State | None

    @property
    def right(self) -> bool:
        return bool(self.trajectory.metrics["correct"])


@dataclass(frozen=True)
class _Reply:
    choice: Choice
    context_tokens: int
    run: AgentRun
    """The episode up to this reply. Its outcome is `max_turns` if it goes on."""
    leads_to: State | None
    progress: float

    @property
    def key(self) -> str:
        """Equal for replies that do the same."""
        calls = [(call.name, call.arguments) for call in self.run.calls]
        return json.dumps([self.run.outcome, calls, self.leads_to is None], sort_keys=True)


_Result = tuple[float, dict[str, Any]]
"""What a reply earns, and its metrics."""


class DecisionPlay:
    """Plays the episode of one scenario and compares replies at its decisions."""

    def __init__(
        self,
        policy: Policy,
        scenario: Scenario,
        mailbox: Mailbox,
        gold_ids: Sequence[int],
        judge: Judge,
        settings: AgentSettings,
        weights: RewardWeights,
    ) -> None:
        self._policy = policy
        self._scenario = scenario
        self._gold_ids = list(gold_ids)
        self._judge = judge
        self._settings = settings
        self._weights = weights
        self._schemas = tool_schemas()
        messages = [dict(message) for message in opening_messages(scenario.question, mailbox, settings)]
        self._start = State(messages, MailTools(mailbox, settings), [], 0, frozenset(gold_ids))

    async def groups(
        self, decisions: Collection[str], replies: int, probes: int, *, continued: bool
    ) -> list[art.TrajectoryGroup]:
        """Return one group of `replies` trajectories per state that has one of `decisions`, or of `probes` if all are right.

        The episode continues with the reply that earned most; ties go to the first. It ends when none of `decisions` can
        follow, or when a decision has come up more often than there are gold mails and no reply was right. In other states
        the policy replies greedily. With `continued`, a reply earns the reward of the episode that the greedy policy
        finishes from there. Replies with the same calls are finished once.

        Raises:
            TimeoutError: when the policy's server makes no progress.
            openai.OpenAIError: when the policy's server fails.
        """
        groups: list[art.TrajectoryGroup] = []
        times: Counter[str] = Counter()
        state: State | None = self._start
        async with noting_progress(self._policy) as callbacks:
            sampling = self._model(self._policy)
            greedy = self._model(self._policy.model_copy(update={"temperature": 0.0}))
            while state is not None and state.may_follow() & set(decisions):
                due = state.due()
                if due not in decisions:
                    [reply] = await self._replies(greedy, state, 1, callbacks)
                    state = reply.leads_to
                    continue
                known: dict[str, _Result] = {}
                branches: list[Branch] = []
                for count in (probes, replies - probes):
                    if count and not (branches and all(branch.right for branch in branches)):
                        sampled = await self._replies(sampling, state, count, callbacks)
                        finishing = greedy if continued else None
                        branches += await self._rewarded(state, sampled, finishing, known, callbacks)
                groups.append(art.TrajectoryGroup([branch.trajectory for branch in branches]))
                best = max(branches, key=lambda branch: branch.trajectory.reward)
                times[due] += 1
                # A policy that does not find its mail would be asked in state after state, each time to no avail.
                lost = times[due] > len(state.gold) and not any(branch.right for branch in branches)
                state = None if due == ANSWER or lost else best.leads_to
        return groups

    def _model(self, policy: Policy) -> Runnable:
        return connect(policy)

    async def _replies(self, model: Runnable, state: State, count: int, callbacks: list[Any]) -> list[_Reply]:
        """Sample replies with one request, and execute their calls."""
        # A key of its own keeps the server from using the sampled ids of an earlier request with the same text.
        messages, prompt_tokens = await sample_replies(model, state.messages, count, uuid.uuid4().hex, callbacks)
        return [self._executed(state, message, prompt_tokens) for message in messages]

    def _executed(self, state: State, message: AIMessage, prompt_tokens: int) -> _Reply:
        choice = sampled_choice(message)
        tools = state.tools.fork()
        calls, seen, answer = execute(message, tools, self._scenario.question)
        outcome = "answered" if answer else outcome_of(message, choice)
        turns = state.turns + 1
        goes_on = outcome is None and turns < self._settings.max_turns
        gains, before = [], state
        for call in calls:
            gains.append(before.progress(call))
            before = replace(before, calls=[*before.calls, call])
        leads_to = None
        if goes_on:
            turn = {"role": "assistant", "content": choice.message.content}
            leads_to = State([*state.messages, turn, *seen], tools, before.calls, turns, state.gold)
        sampled = len(choice.logprobs.content or []) if choice.logprobs else 0
        return _Reply(
            choice=choice,
            context_tokens=prompt_tokens + sampled,
            run=AgentRun(
                answer=answer,
                outcome=outcome or "max_turns",
                turns=turns,
                seconds=0.0,
                calls=before.calls,
                record=[*state.messages, choice],
            ),
            leads_to=leads_to,
            # The mean, so that a reply cannot earn by opening every hit.
            progress=sum(gains) / len(gains) if gains else 0.0,
        )

    async def _rewarded(
        self,
        state: State,
        replies: Sequence[_Reply],
        greedy: Runnable | None,
        known: dict[str, _Result],
        callbacks: list[Any],
    ) -> list[Branch]:
        """Return the branches of a state. Replies that do the same are judged, or finished, once: `known` has their results."""
        new = {reply.key: reply for reply in replies if reply.key not in known}
        results = await asyncio.gather(*(self._result(state, reply, greedy, callbacks) for reply in new.values()))
        known.update(zip(new, results, strict=True))
        branches = []
        for reply in replies:
            reward, metrics = known[reply.key]
            branches.append(Branch(self._trajectory(state, reply, reward, metrics), reply.leads_to))
            # One verdict was paid for all replies that do the same.
            known[reply.key] = reward, {name: value for name, value in metrics.items() if name != VERDICT_COST}
        return branches

    async def _result(self, state: State, reply: _Reply, greedy: Runnable | None, callbacks: list[Any]) -> _Result:
        """Return what a reply earns, and its metrics. `correct` means that it made the right move."""
        end = reply
        while greedy is not None and end.leads_to is not None:
            [end] = await self._replies(greedy, end.leads_to, 1, callbacks)
        run, scenario = end.run, self._scenario
        verdict = await self._judge.judge(scenario.question, scenario.answer, run.answer.answer) if run.answer else None
        counts = rubric(run, scenario, self._gold_ids, correct=bool(verdict and verdict.correct))
        reward = verifiable_reward(counts, self._settings.max_turns, self._weights)
        if end.leads_to is not None:
            reward = self._weights.best * reply.progress
            if not reply.progress and state.due() == ANSWER:
                reward = self._weights.no_answer
        metrics: dict[str, Any] = counts.model_dump()
        if reply.leads_to is not None:
            metrics["correct"] = reply.progress == 1.0
        if verdict is not None and verdict.cost is not None:
            metrics[VERDICT_COST] = verdict.cost
        return reward, metrics

    def _trajectory(self, state: State, reply: _Reply, reward: float, metrics: dict[str, Any]) -> art.Trajectory:
        run, scenario = reply.run, self._scenario
        calls = run.calls[len(state.calls) :]
        return art.Trajectory(
            messages_and_choices=run.record,
            tools=self._schemas,
            reward=reward,
            metrics={
                **metrics,
                **exploit_flags(run, self._gold_ids, scenario.question, self._settings.max_results, scenario.answer),
                "turns": run.turns,
                "sampled_tokens": run.sampled_tokens,
                "context_tokens": reply.context_tokens,
            },
            metadata={
                DECISION: state.due(),
                "scenario_id": scenario.id,
                "question": scenario.question,
                "kind": scenario.kind,
                "outcome": run.outcome if reply.leads_to is None else None,
                "answer": run.answer.answer if run.answer else None,
                "reference": scenario.answer,
                CALL_SEQUENCE: json.dumps([[call.name, call.arguments] for call in calls], sort_keys=True),
            },
        )
