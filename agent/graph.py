"""The ReAct loop as an explicit LangGraph graph: `model -> tools -> model -> ...`.

Prebuilt agents hide three things that training needs: the raw reply with its token ids and log-probabilities, the end of
the episode at a malformed tool call, and a turn limit that counts replies.
"""

from __future__ import annotations

import asyncio
import json
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, AnyMessage, convert_to_messages
from langchain_core.runnables import Runnable
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from pydantic import BaseModel, Field

from environment.models import FinalAnswer
from environment.tools import READ, MailTools, tool_schemas
from training.loopback import is_here
from training.task import Policy

TOOL_CALL_TAG = "<tool_call>"
_CALL_BEGINS = re.compile(rf"{TOOL_CALL_TAG}|^>>\S", re.MULTILINE)
"""How calls begin in the forms of `training.backends.torch.tool_calls`. A quoted line (`>> so`) is none."""

Outcome = Literal["answered", "no_tool_call", "malformed_call", "max_turns", "truncated"]


class ToolCallRecord(BaseModel):
    """One executed call and the short ids of the mails in its observation."""

    name: str
    arguments: dict[str, Any]
    observation: str
    email_ids: list[int] = Field(default_factory=list)
    passage_ids: list[int] = Field(default_factory=list)
    invalid: bool = False

    @property
    def read_ids(self) -> list[int]:
        """The mails of which the observation shows a passage that proves an answer: the one read, or hits of a search."""
        return self.email_ids if self.name == READ else self.passage_ids


@dataclass(frozen=True)
class EpisodeContext:
    """Constants of an episode that the graph's nodes use."""

    model: Runnable
    tools: MailTools
    max_turns: int
    question: str
    episode: str
    """OpenAI's `prompt_cache_key`: servers that keep sampled ids distinguish conversations of equal text by it."""


class EpisodeState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    record: Annotated[list[Any], operator.add]
    """ART's `messages_and_choices`: the same turns, replies as `Choice` with the sampled tokens."""
    calls: Annotated[list[ToolCallRecord], operator.add]
    turns: int
    answer: FinalAnswer | None
    outcome: Outcome | None


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], ChatOpenAI]] = WeakKeyDictionary()


def connect(policy: Policy) -> Runnable:
    """Return a chat model with the mail tools bound.

    Policies at the same base URL share one client and its connection pool. Otherwise the policy of each training step
    would keep its sockets open until the end of the run. Pools cannot cross event loops, so each loop has its own.
    """
    of_this_loop = _clients.setdefault(asyncio.get_running_loop(), {})
    server = (policy.base_url, policy.api_key)
    if server not in of_this_loop:
        of_this_loop[server] = ChatOpenAI(
            model=policy.model,
            base_url=policy.base_url,
            api_key=policy.api_key,
            logprobs=True,
            max_retries=2,
            http_async_client=DefaultAsyncHttpxClient(trust_env=not is_here(policy.base_url)),
        )
    return of_this_loop[server].bind_tools(
        tool_schemas(),
        tool_choice="required" if policy.must_call else None,
        **policy.request_arguments(),
    )


async def sample_replies(
    model: Runnable, messages: Sequence[dict[str, Any]], count: int, conversation: str, callbacks: list[Any]
) -> tuple[list[AIMessage], int]:
    """Sample `count` replies to one prompt with one request; `model` is from `connect`.

    Returns the replies, and the number of tokens of the prompt, 0 if the server does not report it.
    """
    result = await model.bound.agenerate(
        [convert_to_messages(messages)],
        callbacks=callbacks,
        n=count,
        prompt_cache_key=conversation,
        **model.kwargs,
    )
    [generations] = result.generations
    usage = (result.llm_output or {}).get("token_usage") or {}
    return [generation.message for generation in generations], int(usage.get("prompt_tokens") or 0)


def sampled_choice(reply: AIMessage) -> Choice:
    """Return the reply as ART trains on it.

    The content is the raw sampled text including tool-call markup: ART's tokenizer then replaces it by the sampled ids
    instead of rendering the parsed call again. If the server returns no log-probabilities, the content is the parsed text
    and the reply is not trainable.
    """
    tokens = (reply.response_metadata.get("logprobs") or {}).get("content") or []
    raw = b"".join(bytes(token["bytes"] or []) for token in tokens).decode("utf-8", errors="replace")
    finish_reason = reply.response_metadata.get("finish_reason") or "stop"
    if tokens and finish_reason != "length":
        raw = raw.removesuffix("<|im_end|>")
    return Choice(
        index=0,
        finish_reason=finish_reason,
        message=ChatCompletionMessage(role="assistant", content=raw if tokens else _as_text(reply)),
        logprobs=ChoiceLogprobs.model_validate({"content": tokens}) if tokens else None,
    )


def _as_text(reply: AIMessage) -> str:
    """Return text and calls of a reply in the form in which our policies write them."""
    calls = [json.dumps({"name": call["name"], "arguments": call["args"]}) for call in reply.tool_calls]
    return "\n".join(filter(None, [reply.text, *(f"{TOOL_CALL_TAG}\n{call}\n</tool_call>" for call in calls)]))


def observation_of(call: ToolCallRecord, question: str) -> str:
    """Return the observation as the model sees it. The question follows a mail, which helps a small model compare them."""
    return f"{call.observation}\n\nQuestion: {question}" if call.name == READ else call.observation


def outcome_of(reply: AIMessage, choice: Choice) -> Outcome | None:
    """Return how a reply ends the episode: `None` if it has a well-formed tool call, which is yet to be executed."""
    if reply.tool_calls:
        return None
    if choice.finish_reason == "length":
        return "truncated"
    return "malformed_call" if _CALL_BEGINS.search(choice.message.content or "") else "no_tool_call"


async def call_model(state: EpisodeState, runtime: Runtime[EpisodeContext]) -> dict[str, Any]:
    """Get one reply of the policy. A reply without a well-formed tool call ends the episode."""
    reply = await runtime.context.model.ainvoke(state["messages"], prompt_cache_key=runtime.context.episode)
    choice = sampled_choice(reply)
    turns = state["turns"] + 1
    return {"messages": [reply], "record": [choice], "turns": turns, "outcome": outcome_of(reply, choice)}


class Executed(NamedTuple):
    """The calls of one reply, what the policy sees of them, and the final answer if one of them gave it."""

    calls: list[ToolCallRecord]
    seen: list[dict[str, Any]]
    answer: FinalAnswer | None


def execute(reply: AIMessage, tools: MailTools, question: str) -> Executed:
    """Execute the reply's calls in order, up to the first final answer."""
    calls: list[ToolCallRecord] = []
    seen: list[dict[str, Any]] = []
    for call in reply.tool_calls:
        result = tools.call(call["name"], call["args"])
        calls.append(
            ToolCallRecord(
                name=call["name"],
                arguments=call["args"],
                observation=result.observation,
                email_ids=result.email_ids,
                passage_ids=result.passage_ids,
                invalid=result.invalid,
            )
        )
        if result.final is not None:
            return Executed(calls, seen, result.final)
        content = observation_of(calls[-1], question)
        seen.append({"role": "tool", "tool_call_id": call["id"] or "", "content": content})
    return Executed(calls, seen, None)


async def call_tools(state: EpisodeState, runtime: Runtime[EpisodeContext]) -> dict[str, Any]:
    """Execute the reply's calls. A final answer ends the episode."""
    calls, seen, answer = execute(state["messages"][-1], runtime.context.tools, runtime.context.question)
    if answer is not None:
        # Without the last observation, which nobody replies to, the trajectory ends with a message of the policy.
        return {"calls": calls, "answer": answer, "outcome": "answered"}
    outcome = "max_turns" if state["turns"] >= runtime.context.max_turns else None
    return {"messages": convert_to_messages(seen), "record": seen, "calls": calls, "outcome": outcome}


def _after_node(next_node: str) -> Callable[[EpisodeState], str]:
    return lambda state: END if state["outcome"] else next_node


@cache
def react_graph() -> CompiledStateGraph:
    """Return the compiled graph. It holds no state of an episode."""
    graph = StateGraph(EpisodeState, context_schema=EpisodeContext)
    graph.add_node("model", call_model)
    graph.add_node("tools", call_tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", _after_node("tools"), ["tools", END])
    graph.add_conditional_edges("tools", _after_node("model"), ["model", END])
    return graph.compile()
