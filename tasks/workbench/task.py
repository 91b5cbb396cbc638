"""WorkBench as a task for the trainer."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tasks.workbench.episode import Episode, Limits
from tasks.workbench.judge import Call, Judge, Verdict, state_after
from tasks.workbench.program_episode import ProgramEpisode, played
from tasks.workbench.scenarios import WorkbenchScenario, published_calls
from tasks.workbench.tables import Tables, same
from training.plugin import Attempt, EvaluatedTask
from training.task import CALL_SEQUENCE, DECISION, Policy

if TYPE_CHECKING:  # ten seconds, which checks of settings and scenarios do not need
    import art

OTHERS = 3
"""Programs that are sampled where the greedy one fails. All have the cost of one prompt."""
OTHERS_TEMPERATURE = 0.5
"""The only one that was tried."""


class WorkbenchTask(EvaluatedTask):
    """Office tasks; implements `HasDecisions` too. The outcome is the reward."""

    name = "workbench"
    decisions = ("program",)
    usual_decisions = ("program",)

    def __init__(
        self,
        tables: Tables,
        scenarios: Sequence[WorkbenchScenario],
        limits: Limits,
        seed: int = 0,
    ) -> None:
        self.tables, self.scenarios, self.limits = tables, list(scenarios), limits
        self.seed = seed
        self._judges: dict[str, Judge] = {}
        self.max_tokens = limits.max_tokens

    def train_scenarios(self) -> list[WorkbenchScenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "train"]

    def test_scenarios(self) -> list[WorkbenchScenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "test"]

    def kind(self, scenario: WorkbenchScenario) -> str:
        return scenario.kind

    def judge(self, scenario: WorkbenchScenario) -> Judge:
        """Return the judge of a scenario's outcome."""
        if scenario.id not in self._judges:
            self._judges[scenario.id] = Judge(self.tables, scenario.reference)
        return self._judges[scenario.id]

    def demonstrations(self, scenarios: Sequence[WorkbenchScenario], limit: int) -> list[art.Trajectory]:
        """Return invented tasks as an honest agent does them, in random order."""
        made_up = [scenario for scenario in scenarios if scenario.program is not None]
        chosen = random.Random(f"demonstrations-{self.seed}").sample(made_up, len(made_up))[:limit]
        episodes = [played(self.tables, scenario, self.limits, str(scenario.program)) for scenario in chosen]
        return [self._trajectory(episode) for episode in self._in_pairs(episodes)]

    def _in_pairs(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return pairs with the same tools, in random order: an update computes a prompt once that its episodes share."""
        of_tools: dict[str, list[Episode]] = defaultdict(list)
        for episode in episodes:
            of_tools[episode.messages[0]["content"]].append(episode)
        pairs = [shown[first : first + 2] for shown in of_tools.values() for first in range(0, len(shown), 2)]
        random.Random(f"pairs-{self.seed}").shuffle(pairs)
        return [episode for pair in sorted(pairs, key=len, reverse=True) for episode in pair]

    def episode(self, scenario: WorkbenchScenario, *, hosted: bool = False) -> Episode:
        """Return the beginning of an episode. Hosted models call tools, as the published ones did."""
        kind = Episode if hosted else ProgramEpisode
        return kind(self.tables, scenario, self.limits)

    def verdict(self, episode: Episode) -> Verdict:
        """Return the verdict on an ended episode. One that hits a limit has failed, as in the original."""
        judge = self.judge(episode.scenario)
        return judge.verdict(episode.workspace.state(), failed=episode.outcome != "finished")

    async def run(self, policy: Policy, scenario: WorkbenchScenario, *, hosted: bool = False) -> Episode:
        """Play one episode; with `hosted`, of a model behind another OpenAI-compatible server than ours."""
        return await _finished(policy, self.episode(scenario, hosted=hosted))

    async def kept(self, policy: Policy, scenario: WorkbenchScenario) -> Episode:
        """Return the episode of a program, and of the first of several if the greedy one fails.

        If another policy has a second opinion, the outcome of its program must be the same. Otherwise nothing is done.
        """
        started = time.monotonic()
        begun = partial(ProgramEpisode, self.tables, scenario, self.limits)
        tried = [begun().taking(choice) for choice in await begun().replies(policy)]
        if tried[0].outcome != "finished":
            sampled = policy.model_copy(update={"temperature": OTHERS_TEMPERATURE})
            tried += [begun().taking(choice) for choice in await begun().replies(sampled, OTHERS)]
        episode = next((episode for episode in tried if episode.outcome == "finished"), tried[0])
        if episode.outcome == "finished" and scenario.second_opinion is not None:
            other = played(self.tables, scenario, self.limits, scenario.second_opinion)
            if other.outcome != "finished" or not same(other.workspace.state(), episode.workspace.state()):
                episode.undo("no_agreement")
        episode.turns, episode.seconds = len(tried), time.monotonic() - started
        return episode

    def described(self, scenario: WorkbenchScenario) -> dict[str, str]:
        reference = _written(scenario.reference) or "(no call)"
        return {
            **{"scenario_id": scenario.id, "kind": scenario.kind},
            **{"question": scenario.question, "reference": reference},
        }

    async def attempt(self, policy: Policy, scenario: WorkbenchScenario, *, hosted: bool) -> Attempt:
        episode = await (self.run(policy, scenario, hosted=True) if hosted else self.kept(policy, scenario))
        verdict = self.verdict(episode)
        return Attempt(
            answer=(_written(episode.calls) or None) if hosted or episode.outcome == "finished" else None,
            correct=verdict.correct,
            reason=episode.reason,
            turns=episode.turns,
            seconds=episode.seconds,
            outcome="side_effects" if verdict.side_effects else str(episode.outcome),
            transcript=[{"role": turn["role"], "content": turn["content"] or ""} for turn in episode.messages],
        )

    def others(self) -> Mapping[str, Callable[[WorkbenchScenario], Awaitable[Attempt | None]]]:
        """Return the published runs of each model, as far as the folder has some, and making no call at all."""
        runs = {
            model: {record["query"]: (calls, bool(record["error"])) for record, calls in published}
            for model, published in published_calls(self.tables.folder).items()
        }

        async def outcome(
            made: Mapping[str, tuple[Sequence[Call | None], bool]] | None, scenario: WorkbenchScenario
        ) -> Attempt | None:
            calls, failed = ((), False) if made is None else made.get(scenario.question, (None, False))
            if calls is None:
                return None
            verdict = self.judge(scenario).verdict(state_after(self.tables, calls), failed=failed)
            ended = "side_effects" if verdict.side_effects else "error_of_the_agent" if failed else "finished"
            return Attempt(correct=verdict.correct, turns=len(calls), outcome=ended)

        return {name: partial(outcome, made) for name, made in {**runs, "do_nothing": None}.items()}

    async def rollout(self, policy: Policy, scenario: WorkbenchScenario) -> art.Trajectory:
        return self._trajectory(await self.run(policy, scenario))

    def is_open(self, scenario: WorkbenchScenario, decisions: Collection[str]) -> bool:
        """Return whether the task takes several calls: replies in it are likely to differ."""
        return len(scenario.reference) > 1

    async def decide(
        self,
        policy: Policy,
        scenario: WorkbenchScenario,
        decisions: Collection[str],
        replies: int,
        probes: int,
        *,
        continued: bool,
    ) -> list[art.TrajectoryGroup]:
        """Compare programs for the task, which has only one decision."""
        import art

        group: list[art.Trajectory] = []
        for count in (probes, replies - probes):
            if count and not (group and all(trajectory.metrics["correct"] for trajectory in group)):
                choices = await self.episode(scenario).replies(policy, count)
                group += [
                    self._trajectory(self.episode(scenario).taking(choice), **{DECISION: "program"})
                    for choice in choices
                ]
        return [art.TrajectoryGroup(group)]

    def _trajectory(self, episode: Episode, **told: str) -> art.Trajectory:
        """Return the episode with the reward of its outcome; `told` is added to its metadata."""
        import art

        verdict, outcome = self.verdict(episode), episode.outcome
        scenario = episode.scenario
        return art.Trajectory(
            messages_and_choices=episode.record,
            tools=episode.tools,
            reward=float(verdict.correct),
            metrics={
                **verdict._asdict(),
                "turns": episode.turns,
                "sampled_tokens": episode.sampled_tokens,
                "context_tokens": episode.context_tokens,
            },
            metadata={
                "scenario_id": scenario.id,
                "question": scenario.question,
                "kind": scenario.kind,
                "outcome": outcome,
                CALL_SEQUENCE: json.dumps(episode.calls),
                **told,
            },
        )


def _written(calls: Sequence[Call]) -> str:
    return "\n".join(f"{call.name}({call.arguments})" for call in calls)


async def _finished(policy: Policy, episode: Episode) -> Episode:
    """Return the episode, played to its end."""
    started = time.monotonic()
    while episode.outcome is None:
        [choice] = await episode.replies(policy)
        episode.taking(choice)
    episode.seconds = time.monotonic() - started
    return episode
