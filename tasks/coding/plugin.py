"""Code repair for `run.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tasks.coding.rewards import reward_function, reward_sources
from tasks.coding.sandbox_client import require_sandbox
from tasks.coding.sandbox_service import sandbox_service
from tasks.coding.scenarios import CodingScenario
from tasks.coding.settings import CodingSettings
from tasks.coding.task import BUILT_IN, CodingTask, load_scenarios, require_demonstrable, require_room
from training.errors import BadInput
from training.loopback import is_here
from training.plugin import Check, Say, TaskPlugin

_ELSEWHERE = {"model_name", "project", "sandbox_url"}
"""Settings that do not make a run another one: it is the same on any sandbox."""


class CodingPlugin(TaskPlugin):
    """Bugs, repaired in a sandbox."""

    name = "coding"
    title = "Coding agent"
    unit = "bugs"
    settings = CodingSettings
    code = ("sandbox", "tasks/coding")

    def model_name(self, settings: CodingSettings) -> str:
        return settings.model_name

    def scenarios(self, settings: CodingSettings) -> list[CodingScenario]:
        return load_scenarios(settings)

    def max_turns(self, settings: CodingSettings, training: Any) -> int:
        return settings.max_repl_steps

    def require(self, settings: CodingSettings, training: Any) -> None:
        reward_function(settings.coding_reward)
        require_demonstrable(settings, training.demonstrations)
        if settings.max_context_tokens > training.max_context:
            raise BadInput(
                f"max_context_tokens={settings.max_context_tokens} is above max_context={training.max_context}: "
                "longer rollouts are not trained on"
            )

    def checks(
        self, settings: CodingSettings, training: Any, scenarios: Sequence[CodingScenario], elsewhere: Sequence[str]
    ) -> Iterator[Check]:
        yield "prompts", lambda: self._prompts(settings, training, scenarios)
        yield "sandbox", lambda: self._sandbox(settings, training, elsewhere)

    def _prompts(self, settings: CodingSettings, training: Any, scenarios: Sequence[CodingScenario]) -> str:
        """Check that every prompt leaves room for a reply."""
        prompt = training.system_prompt
        require_room(scenarios, settings, max_tokens=training.max_tokens, system_prompt=prompt)
        return f"fit into {settings.max_context_tokens} tokens"

    def _sandbox(self, settings: CodingSettings, training: Any, elsewhere: Sequence[str]) -> str:
        """Return the health of the sandbox in words. Without a `sandbox_url` one is started here, and stopped again."""
        images = settings.bugs != BUILT_IN
        if elsewhere:
            if settings.sandbox_url is None or is_here(settings.sandbox_url):
                raise BadInput(
                    f"sandbox_url={settings.sandbox_url}: step {elsewhere[0]} runs in a pod, which has no right to confine the "
                    "code that it runs: start `python -m sandbox` on another machine and name an address of it that pods reach"
                )
            return f"{settings.sandbox_url}, which is not asked: a pod may reach a service that this machine does not"
        if images and settings.sandbox_url is None:
            raise BadInput(
                f"bugs={settings.bugs}: these bugs come as container images; start a sandbox with `python -m sandbox --set "
                "runner=docker` or `--set runner=kubernetes` and name it by sandbox_url"
            )
        with sandbox_service(settings.sandbox_url, capacity=2 * training.max_concurrent, images=images) as url:
            return require_sandbox(url, images=images, workspaces=training.max_concurrent)

    def identity(self, settings: CodingSettings, scenarios: Sequence[CodingScenario]) -> list[Any]:
        # The number of held-out built-in bugs does not change those to train on.
        irrelevant = _ELSEWHERE | ({"coding_test_size"} if settings.bugs == BUILT_IN else set())
        trained_on = [bug.digest() for bug in scenarios if bug.split == "train"]
        return [settings.model_dump(mode="json", exclude=irrelevant), trained_on]

    def evaluation_identity(self, settings: CodingSettings, scenarios: Sequence[CodingScenario]) -> list[Any]:
        held_out = [bug.digest() for bug in scenarios if bug.split == "test"]
        return [self.identity(settings, scenarios), held_out]

    def described(self, settings: CodingSettings) -> dict[str, str]:
        return {"coding_scenarios": settings.bugs}

    def sources(self, settings: CodingSettings) -> dict[str, str]:
        return reward_sources(settings.coding_reward)

    @contextmanager
    def opened(self, settings: CodingSettings, trained_with: Mapping[str, Any], say: Say) -> Iterator[CodingTask]:
        if settings.project is not None:
            os.environ["WANDB_PROJECT"] = settings.project
        scenarios = load_scenarios(settings)
        concurrent, images = trained_with["max_concurrent"], settings.bugs != BUILT_IN
        with sandbox_service(settings.sandbox_url, capacity=2 * concurrent, images=images, say=say) as sandbox_url:
            yield CodingTask(
                scenarios,
                settings,
                sandbox_url,
                max_tokens=trained_with["max_tokens"],
                system_prompt=trained_with["system_prompt"],
                seed=trained_with["seed"],
                max_concurrent=concurrent,
            )


PLUGIN = CodingPlugin()
