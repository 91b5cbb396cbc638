"""Outreach as a task for the trainer: an e-mail per scenario, rewarded by deterministic checks and by feedback."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any, Protocol

import art
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from tasks.outreach.email import Email, check_email, verifiable_reward
from tasks.outreach.feedback import Feedback
from tasks.outreach.graph import FACT_TYPES, KnowledgeGraph
from tasks.outreach.node_scores import NodeScores
from tasks.outreach.prompts import load
from tasks.outreach.scenarios import Scenario
from tasks.outreach.settings import OutreachSettings
from tasks.outreach.tools import CONNECTED, CONTEXT, FINALIZE, TOOLS, OutreachTools, ToolResult, call_text
from tasks.outreach.written import WrittenEmail
from training.guard.standstill import REPLY_TIMEOUT, progress_of
from training.llm_client import call_arguments
from training.plugin import Attempt
from training.policy_client import policy_client
from training.task import CALL_SEQUENCE, Policy

_END = "<|im_end|>"
SENDS_PER_EMAIL = 200
"""Simulated recipients of an e-mail: with fewer, the reply rates of similar e-mails differ by chance alone."""


class FeedbackSource(Protocol):
    """Source of feedback on e-mails: the simulation, or recorded events."""

    def send(self, scenario: Scenario, check: Any, sends: int, message_id: str) -> Feedback: ...


class OutreachTask:
    """Implements `training.task.Task`.

    `scores` orders what the tools list; the learn loop replaces it after every iteration. With `explore`, sampled e-mails
    see lists ordered by draws from the scores' posteriors.
    """

    name = "outreach"

    def __init__(
        self,
        graph: KnowledgeGraph,
        scenarios: Sequence[Scenario],
        feedback: FeedbackSource,
        settings: OutreachSettings,
        scores: NodeScores,
        *,
        seed: int = 0,
        explore: bool = False,
        rubric: str | None = None,
    ) -> None:
        """`rubric` is what the judge is told, by default the packaged one."""
        self.graph = graph
        self.scenarios = list(scenarios)
        self.feedback = feedback
        self.settings = settings
        self.scores = scores
        self.seed = seed
        self.explore = explore
        self.rubric = load("rubric") if rubric is None else rubric

    def train_scenarios(self) -> list[Scenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "train"]

    def test_scenarios(self) -> list[Scenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "test"]

    def described(self, scenario: Scenario) -> dict[str, str]:
        """Return what a prediction says of a scenario. No e-mail is the right one, so there is no reference."""
        told = {"kind": scenario.prospect.industry, "question": describe(scenario), "reference": ""}
        return {"scenario_id": scenario.id, **told}

    async def attempt(self, policy: Policy, scenario: Scenario) -> Attempt:
        """Write one e-mail. Its record and feedback are what was `measured`."""
        started = time.monotonic()
        trajectory = await self.rollout(policy, scenario)
        email = WrittenEmail.of(trajectory)
        return Attempt(
            correct=None,
            outcome=email.outcome,
            answer=email.body,
            turns=int(trajectory.metrics["turns"]),
            seconds=time.monotonic() - started,
            transcript=[dict(turn) for turn in trajectory.messages()],
            measured=email.model_dump(mode="json"),
        )

    def demonstrations(self, scenarios: Sequence[Scenario], limit: int) -> list[art.Trajectory]:
        """Return demonstrations of the format.

        They use the facts that a list shows first. All scores are equal, so the lists are in random order: nobody can
        demonstrate which facts make a prospect reply.
        """
        chance = random.Random(f"demonstrations-{self.seed}")
        order = list(scenarios)
        chance.shuffle(order)
        return [self._demonstration(order[number % len(order)], chance) for number in range(limit)] if order else []

    def _demonstration(self, scenario: Scenario, chance: random.Random) -> art.Trajectory:
        tools = self._tools(scenario, scores=NodeScores.fresh(self.graph, 1.0), seed=str(chance.random()))
        record: list[Any] = opening(scenario)

        def act(name: str, arguments: dict[str, Any]) -> None:
            result = tools.call(name, arguments)
            record.append({"role": "assistant", "content": call_text(name, arguments)})
            if result.email is None:
                record.append({"role": "tool", "tool_call_id": f"call_{len(record)}", "content": result.text})

        with_facts = {
            s: facts for s in scenario.seeds if (facts := [n for n in tools.listed(s) if n.type in FACT_TYPES])
        }
        if with_facts:
            start = chance.choice(list(with_facts))
            act(CONNECTED, {"node_id": start})
            facts = with_facts[start][: chance.choice((1, 1, 2))]
        else:
            facts = [chance.choice(self.graph.facts)]
        for fact in facts:
            act(CONTEXT, {"node_id": fact.id})
        prospect = scenario.prospect
        body = " ".join(
            [
                f"Hi {prospect.first_name},",
                *(f"{fact.text} [{fact.id}]" for fact in facts),
                f"Would {scenario.goal} help {prospect.company}?",
            ]
        )
        act(
            FINALIZE,
            {"subject": f"{facts[0].name} at {prospect.company}", "body": body, "citations": [f.id for f in facts]},
        )
        return art.Trajectory(
            messages_and_choices=record, tools=TOOLS, reward=0.0, metadata={"scenario_id": scenario.id}
        )

    def _tools(
        self, scenario: Scenario, *, scores: NodeScores | None = None, seed: str, explore: bool = False
    ) -> OutreachTools:
        return OutreachTools(
            self.graph, scores or self.scores, scenario, self.settings.max_neighbours, seed, explore=explore
        )

    async def rollout(self, policy: Policy, scenario: Scenario) -> art.Trajectory:
        message_id = uuid.uuid4().hex
        tools = self._tools(scenario, seed=message_id, explore=self.explore and policy.temperature > 0)
        record: list[Any] = opening(scenario)
        sent: list[Any] = opening(scenario)
        calls: list[tuple[str, dict[str, Any]]] = []
        counts = {"turns": 0, "sampled_tokens": 0, "context_tokens": 0, "invalid_calls": 0}
        email: Email | None = None
        first_fact: str | None = None
        first_logprob: float | None = None
        options: tuple[str, ...] = ()
        options_of: str | None = None
        outcome = "max_turns"
        progress = progress_of(policy.base_url)
        client = policy_client(policy)
        while counts["turns"] < self.settings.max_turns and email is None:
            async with progress.required(REPLY_TIMEOUT):
                reply = await client.chat.completions.create(
                    messages=sent,
                    tools=TOOLS,
                    logprobs=True,
                    **policy.request_arguments(prompt_cache_key=message_id),
                )
            progress.moved()
            choice = reply.choices[0]
            record.append(as_sampled(choice))
            counts["turns"] += 1
            counts["sampled_tokens"] += len(_logprobs(choice))
            counts["context_tokens"] = reply.usage.total_tokens if reply.usage else 0
            call = _call_of(choice)
            if call is None:
                outcome = "truncated" if choice.finish_reason == "length" else "malformed_call"
                break
            name, arguments, call_id = call
            calls.append((name, arguments))
            read = len(tools.read)
            result: ToolResult = tools.call(name, arguments)
            counts["invalid_calls"] += result.invalid
            if len(tools.read) == 1 and read == 0:
                first_fact, first_logprob = tools.read[0].id, sum(_logprobs(choice)) if _logprobs(choice) else None
                options, options_of = tools.options, tools.options_of
            email = result.email
            if email is None and counts["turns"] < self.settings.max_turns:
                observation = {"role": "tool", "tool_call_id": call_id, "content": result.text}
                record.append(observation)
                sent += [choice.message.model_dump(exclude_none=True), observation]
        check = check_email(email, scenario.prospect, tools.read, tools.names, self.rubric) if email else None
        back = self.feedback.send(scenario, check, SENDS_PER_EMAIL, message_id)
        signatures = [json.dumps(call, sort_keys=True) for call in calls]
        return art.Trajectory(
            messages_and_choices=record,
            tools=TOOLS,
            reward=verifiable_reward(check),
            metrics={
                **counts,
                **(check.model_dump(exclude={"stated"}) if check else {}),
                "finished": check is not None,
                "facts_stated": len(check.stated) if check else 0,
                "quality": check.quality if check else 0.0,
                "sends": back.sends if check else 0,
                "reply_rate": back.reply_rate,
                "open_rate": back.open_rate,
                "open_weight": self.settings.open_weight,
                **({"expected_reply_rate": back.expected} if back.expected is not None else {}),
                **({"first_fact_logprob": first_logprob} if first_logprob is not None else {}),
                "suspect_cites_everything": bool(check and check.cites_everything),
                "suspect_addresses_judge": bool(check and check.addresses_judge),
                "suspect_quotes_rubric": bool(check and check.quotes_rubric),
                # One repeat is taken for a mistake, two for a habit.
                "suspect_repeated_calls": len(signatures) - len(set(signatures)) >= 2,
            },
            metadata={
                "scenario_id": scenario.id,
                "question": describe(scenario),
                "message_id": message_id,
                "outcome": "finished" if email else outcome,
                "subject": email.subject if email else None,
                "body": email.body if email else None,
                "citations": json.dumps(email.citations if email else []),
                "facts": json.dumps(check.stated if check else []),
                "first_fact": first_fact,
                "options": json.dumps(options),
                "options_of": options_of,
                CALL_SEQUENCE: json.dumps(signatures),
            },
        )


def describe(scenario: Scenario) -> str:
    """Return the description of the scenario for the agent."""
    return load("prospect").format(
        **scenario.prospect.model_dump(), goal=scenario.goal, seeds=", ".join(scenario.seeds)
    )


def opening(scenario: Scenario) -> list[dict[str, str]]:
    return [{"role": "system", "content": load("system")}, {"role": "user", "content": describe(scenario)}]


def as_sampled(choice: Choice) -> Choice:
    """Return the reply with its raw text, including tool-call markup, which ART replaces by the sampled ids."""
    tokens = (choice.logprobs and choice.logprobs.content) or []
    raw = b"".join(bytes(token.bytes or []) for token in tokens).decode("utf-8", "replace")
    content = raw.removesuffix(_END) if tokens else choice.message.content
    return choice.model_copy(update={"message": ChatCompletionMessage(role="assistant", content=content)})


def _logprobs(choice: Choice) -> list[float]:
    return [token.logprob for token in (choice.logprobs and choice.logprobs.content) or []]


def _call_of(choice: Choice) -> tuple[str, dict[str, Any], str] | None:
    """Return name, arguments and id of the reply's tool call; None unless there is exactly one well-formed call."""
    calls = choice.message.tool_calls or []
    if len(calls) != 1:
        return None
    try:
        arguments = call_arguments(calls[0].function.arguments)
    except AttributeError:  # of a call that is none of a function
        return None
    return None if arguments is None else (calls[0].function.name, arguments, calls[0].id)
