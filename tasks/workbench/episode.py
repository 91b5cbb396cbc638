"""One episode: a hosted model does an office task with tools, in tables of its own."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Self

from openai import NOT_GIVEN
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel

from tasks.workbench.judge import Call
from tasks.workbench.prompts import load
from tasks.workbench.scenarios import WorkbenchScenario
from tasks.workbench.tables import Tables
from tasks.workbench.tools import call, tool_schemas
from training.guard.standstill import REPLY_TIMEOUT, progress_of
from training.llm_client import call_arguments
from training.policy_client import policy_client
from training.task import Policy


class Limits(BaseModel):
    """Limits of an episode."""

    max_turns: int
    max_tokens: int
    system_prompt: str | None = None


class Episode:
    """The state of an episode. `record` is ART's `messages_and_choices`, `messages` the same as plain messages."""

    def __init__(self, tables: Tables, scenario: WorkbenchScenario, limits: Limits) -> None:
        self.scenario, self.limits = scenario, limits
        self.workspace = tables.workspace()
        self.tools = self.offered()
        self.messages: list[dict[str, Any]] = [
            {"role": "system", "content": limits.system_prompt or self.instructions()},
            {"role": "user", "content": scenario.question},
        ]
        self.record: list[Any] = list(self.messages)
        self.calls: list[Call] = []
        self.outcome: str | None = None
        self.reason = ""
        self.seconds = 0.0
        self.turns = self.sampled_tokens = self.context_tokens = 0
        self._id = uuid.uuid4().hex

    def offered(self) -> list[dict[str, Any]]:
        """Return the tools that a reply can call, as OpenAI tool definitions. OpenAI's API allows no dots in names."""
        tools = tool_schemas(self.scenario.toolkits)
        for schema in tools:
            schema["function"]["name"] = schema["function"]["name"].replace(".", "__")
        return tools

    def instructions(self) -> str:
        return load("system")

    async def replies(self, policy: Policy, count: int = 1) -> list[Choice]:
        """Sample replies to the state, with one request."""
        progress = progress_of(policy.base_url)
        async with progress.required(REPLY_TIMEOUT):
            answer = await policy_client(policy).chat.completions.create(
                messages=self.messages,
                tools=self.tools or NOT_GIVEN,
                logprobs=True,
                n=count,
                **policy.request_arguments(prompt_cache_key=self._id),
            )
        progress.moved()
        self.context_tokens = answer.usage.prompt_tokens if answer.usage else 0
        return answer.choices

    def taking(self, choice: Choice) -> Self:
        """Execute a reply, and return this episode."""
        message = choice.message
        tokens = (choice.logprobs.content if choice.logprobs else None) or []
        self.sampled_tokens += len(tokens)
        self.context_tokens += len(tokens)
        requested = [
            (made.id, made.function.name, made.function.arguments)
            for made in message.tool_calls or []
            if made.type == "function" and self.tools
        ]
        text = self.text_of(choice)
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if requested:
            said = message.model_dump(include={"role", "content", "tool_calls"})
        elif choice.finish_reason == "length":
            self.outcome = "truncated"
        elif "<tool_call>" in text:  # from a server that does not parse calls
            self.outcome = "malformed_call"
        trained = choice.model_copy(update={"message": ChatCompletionMessage(role="assistant", content=text)})
        self.act(said, trained, requested)
        return self

    def text_of(self, choice: Choice) -> str:
        return choice.message.content or ""

    def act(self, said: dict[str, Any], record: Any, requested: Sequence[tuple[str, str, str]]) -> None:
        """Append a reply and execute its calls, given as id, tool and arguments in JSON. One without calls ends the episode."""
        self.turns += 1
        if not requested:
            self.outcome = self.outcome or "finished"
        self.messages.append(said)
        self.record.append(record)
        seen = []
        for id, written_name, written in requested:
            name = written_name.replace("__", ".")
            arguments = call_arguments(written or "{}")
            shown = "The arguments are no JSON object."
            if arguments is not None:
                self.calls.append(Call(name, arguments))
                shown = call(self.workspace, name, arguments)
            seen.append({"role": "tool", "tool_call_id": id, "content": shown})
        if self.outcome is None and self.turns >= self.limits.max_turns:
            self.outcome = "max_turns"
        if self.outcome is None:  # nobody replies to the last observation
            self.messages += seen
            self.record += seen
