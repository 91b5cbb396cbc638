"""Settings that a service inherits from the training of its checkpoint."""

from __future__ import annotations

from agent.settings import AgentSettings
from steps.inference.service_lifecycle import episode_settings


def test_prompt_and_limits_are_those_of_the_training() -> None:
    trained_with = {"system_prompt": "Search first.", "max_turns": 9, "learning_rate": 0.1}
    assert episode_settings(trained_with) == AgentSettings(system_prompt="Search first.", max_turns=9)
    assert episode_settings(trained_with, {"max_turns": 2}) == AgentSettings(system_prompt="Search first.", max_turns=2)
    assert episode_settings({"max_turns": 9}).system_prompt is None
