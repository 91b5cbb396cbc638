"""Run one episode: a policy answers a question from a mailbox."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, convert_to_messages
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ConfigDict, Field

from agent.graph import EpisodeContext, Outcome, ToolCallRecord, connect, react_graph
from agent.prompted import COST, PromptedModel
from agent.prompts import load
from agent.settings import AgentSettings
from environment.email_db import Mailbox
from environment.models import FinalAnswer
from environment.tools import MailTools
from training.guard.standstill import REPLY_TIMEOUT, PolicyServerProgress, progress_of
from training.task import Policy


class AgentRun(BaseModel):
    """The result of one episode. `record` is ART's `messages_and_choices`; `seconds` is wall time."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    answer: FinalAnswer | None
    outcome: Outcome
    turns: int
    seconds: float
    context_tokens: int = 0
    """Tokens of the last prompt and its reply, that is, of the whole conversation, if the server reports usage."""
    prompt_tokens: int = 0
    """Sum over all replies that report usage."""
    cost: float | None = None
    """US dollars; None if no reply has a known price."""
    calls: list[ToolCallRecord] = Field(default_factory=list)
    record: list[Any] = Field(default_factory=list, exclude=True)

    @property
    def sampled_tokens(self) -> int:
        """Number of sampled tokens in replies that report log-probabilities."""
        choices = [turn for turn in self.record if isinstance(turn, Choice) and turn.logprobs]
        return sum(len(choice.logprobs.content or []) for choice in choices)

    def transcript(self) -> list[dict[str, str]]:
        """Return the conversation as role and content pairs."""
        turns = [turn.message.model_dump() if isinstance(turn, Choice) else turn for turn in self.record]
        return [{"role": turn["role"], "content": turn["content"] or ""} for turn in turns]


class Watcher(Protocol):
    """Receives the events of a running episode in order. Its methods must not block."""

    def sampled(self, text: bytes) -> None:
        """Receive `text`, the next UTF-8 bytes of a reply, including tool-call markup."""

    def called(self, call: ToolCallRecord) -> None:
        """Receive a finished tool call."""


class _NotesProgress(AsyncCallbackHandler):
    """Note every streamed token and every ended reply as progress of the policy's server."""

    def __init__(self, progress: PolicyServerProgress) -> None:
        self._progress = progress

    async def on_llm_new_token(self, *_: Any, **__: Any) -> None:
        self._progress.moved()

    async def on_llm_end(self, *_: Any, **__: Any) -> None:
        self._progress.moved()


@contextlib.asynccontextmanager
async def noting_progress(policy: Policy) -> AsyncIterator[list[AsyncCallbackHandler]]:
    """Yield callbacks for requests to the policy's server. Raise `TimeoutError` when it makes no progress."""
    progress = progress_of(policy.base_url)
    async with progress.required(REPLY_TIMEOUT):
        yield [_NotesProgress(progress)]


def opening_messages(question: str, mailbox: Mailbox, settings: AgentSettings) -> list[dict[str, str]]:
    """Return system and user message. The system message is the same for all questions, so servers can reuse its cache."""
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
    watcher: Watcher | None = None,
) -> AgentRun:
    """Run the agent on one question.

    With a `watcher`, the policy's server streams its replies.

    Raises:
        TimeoutError: when the policy's server makes no progress on any episode for `REPLY_TIMEOUT` seconds.
        openai.OpenAIError: when the policy's server fails. A failed episode is an error, not a wrong answer.
    """
    started = time.monotonic()
    system, user = opening_messages(question, mailbox, settings)
    state = {
        "messages": convert_to_messages([system, user]),
        "record": [system, user],
        "turns": 0,
        "calls": [],
        "answer": None,
        "outcome": None,
    }
    # Requests of a prompted model have their own time limit.
    model: Any = policy
    limit: AbstractAsyncContextManager[list[AsyncCallbackHandler]] = contextlib.nullcontext([])
    if isinstance(policy, Policy):
        model = connect(policy)
        limit = noting_progress(policy)
    context = EpisodeContext(model, MailTools(mailbox, settings), settings.max_turns, question, uuid.uuid4().hex)
    # Two graph steps per turn. The limit only guards against an endless graph.
    config: dict[str, Any] = {"recursion_limit": 2 * settings.max_turns + 2}
    async with limit as config["callbacks"]:
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
    """Forward one event of LangGraph's stream to the watcher."""
    if mode == "updates":
        for call in part.get("tools", {}).get("calls", []):
            watcher.called(call)
    elif isinstance(part[0], AIMessageChunk):
        tokens = (part[0].response_metadata.get("logprobs") or {}).get("content") or []
        if text := b"".join(bytes(token["bytes"] or []) for token in tokens):
            watcher.sampled(text)
