"""Repairing code as a task for the trainer."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from tasks.coding.built_in import built_in_scenarios
from tasks.coding.checking import require_checked
from tasks.coding.r2e_gym import repository_bugs
from tasks.coding.repl import (
    Actor,
    CodingRun,
    PolicyActor,
    ScriptedActor,
    estimated_tokens,
    play,
)
from tasks.coding.rewards import Result, reward_function
from tasks.coding.sandbox_client import SandboxClient
from tasks.coding.scenarios import CodingScenario, OneLineBug
from tasks.coding.settings import CodingSettings
from training.errors import BadInput
from training.guard.standstill import REPLY_TIMEOUT
from training.plugin import Attempt, EvaluatedTask
from training.policy_client import policy_client
from training.scoring.user_functions import reward_by
from training.task import CALL_SEQUENCE, Policy

if TYPE_CHECKING:  # ten seconds, which checks of settings and scenarios do not need
    import art

EXAMPLE_PASSES = "the example passes"
"""Text that `fix` (in the prelude) prints when the repair is right."""
RETRIES = 1 / 3
"""Share of the demonstrations whose first repair fails. Without any, a policy finishes whatever the example says, and
reinforcement never sees that another repair pays.
"""


class CodingTask(EvaluatedTask):
    """Bugs to repair in a sandbox.

    The base URL is that of the sandbox service; `max_tokens` are sampled per cell. A policy's server that
    makes no progress for `REPLY_TIMEOUT` seconds fails the episode.

    Raises:
        BadInput: there is no such reward function, or a prompt does not fit into `max_context_tokens`.
    """

    name = "coding"

    def __init__(
        self,
        scenarios: Sequence[CodingScenario],
        settings: CodingSettings,
        sandbox_url: str,
        *,
        max_tokens: int,
        system_prompt: str | None = None,
        seed: int = 0,
        max_concurrent: int = 8,
    ) -> None:
        self.max_concurrent = max_concurrent
        self.scenarios, self.settings, self.sandbox_url = list(scenarios), settings, sandbox_url
        self.max_tokens, self.system_prompt, self.seed = max_tokens, system_prompt, seed
        self._reward = reward_function(settings.coding_reward)
        require_room(self.scenarios, settings, max_tokens=max_tokens, system_prompt=system_prompt)

    def train_scenarios(self) -> list[CodingScenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "train"]

    def test_scenarios(self) -> list[CodingScenario]:
        return [scenario for scenario in self.scenarios if scenario.split == "test"]

    def kind(self, scenario: CodingScenario) -> str:
        return scenario.kind

    def demonstrations(self, scenarios: Sequence[CodingScenario], limit: int) -> list[art.Trajectory]:
        """Return reference patches as episodes, for randomly selected scenarios.

        In the share `RETRIES` of them the first repair fails and the second one is right. They show that the agent may
        repair again after the example has failed.
        """
        chosen = list(scenarios)
        chance = random.Random(f"demonstrations-{self.seed}")
        chance.shuffle(chosen)
        return [self._demonstration(scenario, retry=chance.random() < RETRIES) for scenario in chosen[:limit]]

    def _demonstration(self, scenario: CodingScenario, *, retry: bool) -> art.Trajectory:
        import art

        repair, finish = scenario.oracle_cells()
        turns = scenario.opening_messages(self.system_prompt)
        if retry and isinstance(scenario, OneLineBug) and (failed := scenario.failed_attempt):
            turns += [
                {"role": "assistant", "content": scenario.fix(failed.line)},
                {"role": "user", "content": failed.output},
            ]
        turns += [
            {"role": "assistant", "content": repair},
            {"role": "user", "content": EXAMPLE_PASSES},
            {"role": "assistant", "content": finish},
        ]
        return art.Trajectory(
            messages_and_choices=turns, reward=1.0, metadata={"scenario_id": scenario.id, "kind": scenario.kind}
        )

    async def rollout(self, policy: Policy, scenario: CodingScenario) -> art.Trajectory:
        import art

        run = await self.run(policy, scenario)
        result = Result(
            passed=sum(run.passed),
            checks=len(run.passed),
            steps=run.steps,
            finished=run.outcome == "finished",
            step_cost=self.settings.step_cost,
        )
        return art.Trajectory(
            messages_and_choices=run.record,
            reward=await reward_by("coding_reward", self._reward, result),
            metrics={
                "correct": run.correct,
                "passed_share": sum(run.passed) / len(run.passed),
                "turns": run.steps,
                "finished": run.outcome == "finished",
                "suspect_touched_other_files": bool(
                    run.patch["deleted"] or not all(map(scenario.expects_change, run.patch["changed"]))
                ),
                "sampled_tokens": run.sampled_tokens,
                "context_tokens": run.context_tokens,
                "seconds": run.seconds,
            },
            metadata={
                "scenario_id": scenario.id,
                "question": scenario.problem,
                "kind": scenario.kind,
                "outcome": run.outcome,
                "answer": "\n".join(run.patch["changed"].values()) or None,
                "reference": scenario.reference,
                "tests": f"{sum(run.passed)} of {len(run.passed)}",
                "shortened_outputs": run.shortened,
                CALL_SEQUENCE: json.dumps(run.cells),
            },
        )

    def described(self, scenario: CodingScenario) -> dict[str, str]:
        kind = f"{scenario.kind} (unseen)" if scenario.held_out_family else scenario.kind
        return {
            **{"scenario_id": scenario.id, "kind": kind},
            **{"question": scenario.problem, "reference": scenario.reference},
        }

    async def attempt(self, policy: Policy, scenario: CodingScenario, *, hosted: bool) -> Attempt:
        return _attempt(await self.run(policy, scenario))

    def others(self) -> Mapping[str, Callable[[CodingScenario], Awaitable[Attempt | None]]]:
        """Return "oracle", which makes the reference repair, and "do nothing"."""

        async def oracle(scenario: CodingScenario) -> Attempt:
            return _attempt(await self.scripted(scenario.oracle_cells(), scenario))

        async def do_nothing(scenario: CodingScenario) -> Attempt:
            return _attempt(await self.scripted([], scenario))

        return {"oracle": oracle, "do_nothing": do_nothing}

    async def prepare(self, folder: Path) -> str:
        """Check that every bug's tests fail before the reference patch, and pass after it."""
        # The tests of a repository take minutes, those of a built-in bug milliseconds.
        passed = folder / "checked_bugs.txt" if self.settings.bugs != BUILT_IN else None
        await require_checked(self.scenarios, self.sandbox_url, concurrent=self.max_concurrent, passed=passed)
        return f"{len(self.scenarios)} bugs: their tests fail before the reference patch and pass after it"

    async def run(self, policy: Policy, scenario: CodingScenario) -> CodingRun:
        """One episode of a policy."""
        return await self._play(PolicyActor(policy, policy_client(policy), REPLY_TIMEOUT), scenario)

    async def scripted(self, cells: Sequence[str], scenario: CodingScenario) -> CodingRun:
        """One episode of known cells."""
        return await self._play(ScriptedActor(cells), scenario)

    async def _play(self, actor: Actor, scenario: CodingScenario) -> CodingRun:
        sandbox = _sandbox_client(self.sandbox_url)
        return await play(
            actor, scenario, self.settings, sandbox, max_tokens=self.max_tokens, system_prompt=self.system_prompt
        )


def _attempt(run: CodingRun) -> Attempt:
    return Attempt(
        answer=run.cells[0] if run.cells else None,
        correct=run.correct,
        reason=f"{sum(run.passed)} of {len(run.passed)} hidden checks pass",
        turns=run.steps,
        seconds=run.seconds,
        outcome=run.outcome,
        transcript=run.transcript(),
    )


# One client per event loop: creating one takes tens of milliseconds, and connections cannot cross event loops.
_sandboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SandboxClient]] = WeakKeyDictionary()


def _sandbox_client(base_url: str) -> SandboxClient:
    of_this_loop = _sandboxes.setdefault(asyncio.get_running_loop(), {})
    if base_url not in of_this_loop:
        of_this_loop[base_url] = SandboxClient(base_url)
    return of_this_loop[base_url]


BUILT_IN = "built-in"
BUGS_SEED = 42
"""Seed of the built-in bugs, and of the choice of bugs of another source. The same bugs make runs comparable."""


def load_scenarios(settings: CodingSettings) -> list[CodingScenario]:
    """Return the configured bugs. Raises BadInput if their source cannot be used."""
    train, test = settings.dataset_size, settings.coding_test_size
    if settings.bugs != BUILT_IN:
        return [
            *repository_bugs(settings.bugs, train=train, test=test, seed=BUGS_SEED, excluded=settings.excluded_bugs)
        ]
    if settings.excluded_bugs:
        raise BadInput("excluded_bugs: has no effect on the built-in bugs; leave it out or set bugs")
    if train is None:
        raise BadInput("dataset_size=null: there is no end of built-in bugs; set a number, or set bugs")
    return [*built_in_scenarios(train=train, test=test, seed=BUGS_SEED)]


def require_demonstrable(settings: CodingSettings, demonstrations: int) -> None:
    """Raise BadInput if a warm start is configured for bugs that have no demonstrations."""
    if settings.bugs != BUILT_IN and demonstrations:
        raise BadInput(
            f"demonstrations={demonstrations}: only the built-in bugs have demonstrations; set demonstrations=0 with bugs={settings.bugs}"
        )


def require_room(
    scenarios: Sequence[CodingScenario], settings: CodingSettings, *, max_tokens: int, system_prompt: str | None
) -> None:
    """Raise BadInput if a prompt and one cell exceed the context."""
    longest = max((estimated_tokens(scenario.opening_messages(system_prompt)) for scenario in scenarios), default=0)
    if longest + max_tokens > settings.max_context_tokens:
        raise BadInput(
            f"max_context_tokens={settings.max_context_tokens} is too small: the longest prompt has about {longest} tokens and a cell "
            f"up to max_tokens={max_tokens}; set it to at least {longest + max_tokens}"
        )
