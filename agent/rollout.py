"""One episode: a question, a mailbox, a policy; out comes the answer and everything that happened on the way."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol

from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, convert_to_messages
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ConfigDict, Field

from agent.graph import EpisodeContext, Outcome, ToolCallRecord, connect, react_graph
from agent.prompted import COST, PromptedModel
from agent.prompts import load
from agent.settings import AgentSettings
from agent.standstill import progress_of
from environment.email_db import Mailbox
from environment.models import FinalAnswer
from environment.tools import MailTools
from training.task import Policy

if TYPE_CHECKING:  # ten seconds that the deployed service does not need
    import art


class AgentRun(BaseModel):
    """What one episode did. `record` is ART's `messages_and_choices`; `seconds` is wall time."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    answer: FinalAnswer | None
    outcome: Outcome
    turns: int
    seconds: float
    context_tokens: int = 0
    """Tokens of the last prompt and its reply: the whole conversation, as far as the server reported them."""
    prompt_tokens: int = 0
    """Over all replies, as far as the server reported them."""
    cost: float | None = None
    """US dollars, where replies have a price."""
    calls: list[ToolCallRecord] = Field(default_factory=list)
    record: list[Any] = Field(default_factory=list, exclude=True)

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled, as far as the server reported them."""
        choices = [turn for turn in self.record if isinstance(turn, Choice) and turn.logprobs]
        return sum(len(choice.logprobs.content or []) for choice in choices)

    def transcript(self) -> list[dict[str, str]]:
        """The conversation as plain role and content pairs, for people."""
        turns = [turn.message.model_dump() if isinstance(turn, Choice) else turn for turn in self.record]
        return [{"role": turn["role"], "content": turn["content"] or ""} for turn in turns]


class Watcher(Protocol):
    """Is told of an episode while it runs, in the order in which things happen. Must not block."""

    def sampled(self, text: bytes) -> None:
        """The policy has written `text`, the next UTF-8 bytes of a reply, tool-call markup included."""

    def called(self, call: ToolCallRecord) -> None:
        """A tool has been called."""


def opening_messages(question: str, mailbox: Mailbox, settings: AgentSettings) -> list[dict[str, str]]:
    """System and user message. Everything that differs between questions is in the latter, so that servers compute the former once."""
    asked = load("question").format(
        inbox_address=mailbox.address, today=f"{mailbox.query_date:%-d %b %Y}", question=question
    )
    return [{"role": "system", "content": settings.system_prompt or load("system")}, {"role": "user", "content": asked}]


async def answer_question(
    policy: Policy | PromptedModel,
    mailbox: Mailbox,
    question: str,
    settings: AgentSettings,
    *,
    examples: Sequence[art.Trajectory] = (),
    watcher: Watcher | None = None,
) -> AgentRun:
    """Runs the agent on one question. `examples` are demonstrations to put before it (few-shot prompting).

    With a `watcher` the policy's server is asked to stream its replies.

    Raises:
        TimeoutError: when the policy's server has done nothing for any episode for `settings.rollout_timeout` seconds.
        openai.OpenAIError: when the policy's server fails; a failed episode is an error, never a wrong answer.
    """
    started = time.monotonic()
    system, user = opening_messages(question, mailbox, settings)
    shots = [turn for example in examples for turn in example.messages_and_choices if turn["role"] != "system"]
    state = {
        "messages": convert_to_messages([system, *shots, user]),
        "record": [system, *shots, user],
        "turns": 0,
        "calls": [],
        "answer": None,
        "outcome": None,
    }
    # A prompted model's requests have time limits of their own.
    model: Any = policy
    limit: AbstractAsyncContextManager[None] = contextlib.nullcontext()
    callbacks = []
    if isinstance(policy, Policy):
        model = connect(policy, optional_arguments=settings.optional_arguments)
        progress = progress_of(policy.base_url)
        limit, callbacks = progress.required(settings.rollout_timeout), [progress]
    context = EpisodeContext(model, MailTools(mailbox, settings), settings.max_turns, question, uuid.uuid4().hex)
    # Two graph steps per turn; the limit only guards against a graph that does not end by itself.
    config = {"recursion_limit": 2 * settings.max_turns + 2, "callbacks": callbacks}
    async with limit:
        if watcher is None:
            final = await react_graph().ainvoke(state, context=context, config=config)
        else:
            final = state
            modes = ["messages", "updates", "values"]
            async for mode, part in react_graph().astream(state, context=context, config=config, stream_mode=modes):
                if mode == "values":
                    final = part
                else:
                    _tell(watcher, mode, part)
    replies = [message for message in final["messages"] if isinstance(message, AIMessage)]
    costs = [reply.response_metadata[COST] for reply in replies if reply.response_metadata.get(COST) is not None]
    return AgentRun(
        prompt_tokens=sum(reply.usage_metadata["input_tokens"] for reply in replies if reply.usage_metadata),
        cost=sum(costs) if costs else None,
        answer=final["answer"],
        outcome=final["outcome"],
        turns=final["turns"],
        seconds=time.monotonic() - started,
        context_tokens=_context_tokens(final["messages"]),
        calls=final["calls"],
        record=final["record"],
    )


def _context_tokens(messages: Sequence[AnyMessage]) -> int:
    replies = [message for message in messages if isinstance(message, AIMessage) and message.usage_metadata]
    return replies[-1].usage_metadata["total_tokens"] if replies else 0


def _tell(watcher: Watcher, mode: str, part: Any) -> None:
    """Pass on one piece of LangGraph's stream."""
    if mode == "updates":
        for call in part.get("tools", {}).get("calls", []):
            watcher.called(call)
    elif isinstance(part[0], AIMessageChunk):
        tokens = (part[0].response_metadata.get("logprobs") or {}).get("content") or []
        if text := b"".join(bytes(token["bytes"] or []) for token in tokens):
            watcher.sampled(text)
