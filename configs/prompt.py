"""The system prompt that a function of the user returns."""

from __future__ import annotations

from pydantic import ValidationError

from configs.config import Config
from configs.schema import AgentConfig, ConfigError
from training.scoring.user_functions import load_function


def with_prompt(config: Config) -> Config:
    """Return the configuration with the system prompt that its prompt function returns, if it names one.

    Raises ConfigError if there is a system prompt already, or the function fails or returns no valid prompt; BadInput if there
    is no such function.
    """
    agent = config.agent
    if agent.prompt_function is None:
        return config
    if agent.system_prompt is not None:
        raise ConfigError("prompt_function and system_prompt both define the system prompt: set one of them")
    function = load_function("prompt_function", agent.prompt_function)
    try:
        text = function()
    except Exception as error:  # the user's function may raise anything
        raise ConfigError(
            f"prompt_function={agent.prompt_function}: it failed ({type(error).__name__}: {error})"
        ) from error
    try:
        agent = AgentConfig.model_validate({**dict(agent), "system_prompt": text or ""})
    except ValidationError as error:
        raise ConfigError(
            f"prompt_function={agent.prompt_function}: invalid return value: {error.errors()[0]['msg']}"
        ) from None
    return config.model_copy(update={"agent": agent})
