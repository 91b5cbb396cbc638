"""One episode: a policy repairs a bug by running cells in a workspace; then the hidden checks run in a fresh one."""

from __future__ import annotations

import ast
import re
import time
import uuid
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import openai
from openai.types.chat.chat_completion import Choice
from pydantic import BaseModel, ConfigDict, Field

from tasks.coding.errors import WorkspaceGone
from tasks.coding.sandbox_client import SandboxClient
from tasks.coding.scenarios import CodingScenario
from tasks.coding.settings import CodingSettings
from training.guard.standstill import progress_of
from training.task import Policy

Outcome = Literal["finished", "max_repl_steps", "truncated", "context", "empty", "workspace_lost"]
CHARACTERS_PER_TOKEN = 3
"""Lower than any tokenizer's mean on code: an estimate that errs on the safe side."""
SHORTENED = "[output shortened to save context]"
_THOUGHT = re.compile(r"\A\s*<think>.*?(?:</think>|\Z)", re.DOTALL)
"""At the beginning of a reply, perhaps unfinished."""
_FENCE = re.compile(r"```(?:python|py)?\n(.*?)```", re.DOTALL)


class CodingRun(BaseModel):
    """The result of one episode. `record` is ART's `messages_and_choices`."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    outcome: Outcome
    cells: list[str]
    patch: dict[str, Any]
    passed: list[bool]
    """Of each hidden check."""
    steps: int
    shortened: int
    """Outputs that were shortened to keep within `max_context_tokens`."""
    sampled_tokens: int
    context_tokens: int
    seconds: float
    record: list[Any] = Field(default_factory=list, exclude=True)

    @property
    def correct(self) -> bool:
        return all(self.passed)

    def transcript(self) -> list[dict[str, str]]:
        """Return a readable transcript: cells, their output, the patch and the tests."""
        turns = [turn.message.model_dump() if isinstance(turn, Choice) else turn for turn in self.record]
        shown = [{"role": turn["role"], "content": turn["content"] or ""} for turn in turns]
        patch = "\n".join(f"{path}:\n{text}" for path, text in self.patch["changed"].items()) or "nothing was changed"
        shown.append({"role": "patch", "content": patch})
        shown.append({"role": "tests", "content": f"{sum(self.passed)} of {len(self.passed)} hidden checks pass"})
        return shown


class Reply(BaseModel):
    """One cell, as text and as ART trains on it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    text: str
    turn: Any
    truncated: bool = False
    sampled_tokens: int = 0
    context_tokens: int | None = None


class Actor(Protocol):
    """Writes cells."""

    async def reply(self, messages: list[dict[str, Any]]) -> Reply | None:
        """Return the next cell; `None` ends the episode."""
        ...


class PolicyActor:
    """A model behind an OpenAI-compatible endpoint, which may do nothing for at most `patience` seconds."""

    def __init__(self, policy: Policy, client: openai.AsyncOpenAI, patience: float) -> None:
        self._policy, self._client, self._patience = policy, client, patience
        self._episode = uuid.uuid4().hex

    async def reply(self, messages: list[dict[str, Any]]) -> Reply:
        progress = progress_of(self._policy.base_url)
        # Around each reply, not the episode: while cells and tests run, the server rightly does nothing.
        async with progress.required(self._patience):
            answer = await self._client.chat.completions.create(
                messages=messages,
                logprobs=True,
                **self._policy.request_arguments(prompt_cache_key=self._episode),
            )
        progress.moved()
        choice = answer.choices[0]
        tokens = (choice.logprobs.content if choice.logprobs else None) or []
        if tokens and choice.finish_reason != "length":
            raw = b"".join(bytes(token.bytes or []) for token in tokens).decode("utf-8", "replace")
            choice.message.content = raw.removesuffix("<|im_end|>")
        return Reply(
            text=choice.message.content or "",
            turn=choice,
            truncated=choice.finish_reason == "length",
            sampled_tokens=len(tokens),
            context_tokens=answer.usage.total_tokens if answer.usage else None,
        )


class ScriptedActor:
    """A policy that replays known cells: those of the oracle, or none."""

    def __init__(self, cells: Sequence[str]) -> None:
        self._cells = list(cells)

    async def reply(self, messages: list[dict[str, Any]]) -> Reply | None:
        if not self._cells:
            return None
        text = self._cells.pop(0)
        return Reply(text=text, turn={"role": "assistant", "content": text})


def cell_of(reply: str) -> str:
    """Return the code of a reply: the part between its first fences, or all of it. Thoughts are no code."""
    said = _THOUGHT.sub("", reply)
    fenced = _FENCE.search(said)
    return (fenced.group(1) if fenced else said).strip()


def finishes(cell: str) -> bool:
    """Return whether the cell calls `finish()` at its top level."""
    try:
        body = ast.parse(cell).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    calls = [node.value for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return any(isinstance(call.func, ast.Name) and call.func.id == "finish" for call in calls)


def estimated_tokens(messages: Sequence[dict[str, Any]]) -> int:
    return sum(len(message["content"]) // CHARACTERS_PER_TOKEN + 8 for message in messages)


def shown_output(observation: dict[str, Any]) -> str:
    """Return the observation of a cell: its output, and what happened to the REPL."""
    lines = ["(the REPL was restarted: earlier variables are lost)"] if observation["restarted"] else []
    lines.append(observation["output"].rstrip("\n"))
    if observation["ended"]:
        lines.append(f"(the cell was ended: {observation['ended']})")
    return "\n".join(line for line in lines if line) or "(no output)"


async def play(
    actor: Actor,
    scenario: CodingScenario,
    settings: CodingSettings,
    sandbox: SandboxClient,
    *,
    max_tokens: int,
    system_prompt: str | None,
) -> CodingRun:
    """Play the episode and run the hidden checks, once the workspace is destroyed.

    Raises:
        SandboxUnavailable: the sandbox fails, so the episode has no result.
        openai.OpenAIError: the policy's server fails.
        TimeoutError: it makes no progress on any episode.
    """
    started = time.monotonic()
    record: list[Any] = list(scenario.opening_messages(system_prompt))
    messages = [dict(message) for message in record]
    workspace = await sandbox.open(scenario)
    cells: list[str] = []
    outcome: Outcome = "max_repl_steps"
    sampled = context = shortened = 0
    replayed = False
    try:
        await sandbox.execute(workspace, scenario.prelude())
        while len(cells) < settings.max_repl_steps:
            reply = await actor.reply(messages)
            if reply is None:
                outcome = "empty"
                break
            record.append(reply.turn)
            sampled += reply.sampled_tokens
            context = reply.context_tokens or estimated_tokens(messages) + reply.sampled_tokens
            cell = cell_of(reply.text)
            if reply.truncated or not cell:
                outcome = "truncated" if reply.truncated else "empty"
                break
            cells.append(cell)
            try:
                observation = await sandbox.execute(workspace, cell)
            except WorkspaceGone:
                # Bad luck does not repeat. Cells that end their workspace each time do, and have repaired nothing.
                replayed = True
                await sandbox.destroy(workspace)
                workspace = await sandbox.open(scenario)
                observation = await _replayed(sandbox, workspace, scenario, cells)
            if finishes(cell):
                outcome = "finished"
                break
            if len(cells) == settings.max_repl_steps:
                break
            told = {"role": "user", "content": shown_output(observation)}
            messages += [{"role": "assistant", "content": reply.text}, told]
            record.append(dict(told))
            if observation["restarted"] or observation["ended"]:
                await sandbox.execute(workspace, scenario.prelude())
            over = context + estimated_tokens([told]) + max_tokens - settings.max_context_tokens
            saved = _shorten(messages, record, over)
            shortened += saved
            if over > 0 and not saved:
                record.pop()
                outcome = "context"
                break
        patch = await sandbox.changes(workspace)
    except WorkspaceGone:
        if not replayed:
            raise
        outcome, patch = "workspace_lost", {"changed": {}, "deleted": []}
    finally:
        await sandbox.destroy(workspace)
    passed = await sandbox.test(scenario, patch)
    return CodingRun(
        outcome=outcome,
        cells=cells,
        patch=patch,
        passed=passed,
        steps=len(cells),
        shortened=shortened,
        sampled_tokens=sampled,
        context_tokens=context,
        seconds=time.monotonic() - started,
        record=record,
    )


async def _replayed(
    sandbox: SandboxClient, workspace: str, scenario: CodingScenario, cells: Sequence[str]
) -> dict[str, Any]:
    """Run cells again in a new workspace, with the prelude in each new REPL. Return the observation of the last cell."""
    observation: dict[str, Any] = {"restarted": True}
    for cell in cells:
        if observation["restarted"] or observation["ended"]:
            await sandbox.execute(workspace, scenario.prelude())
        observation = await sandbox.execute(workspace, cell)
    return observation


def _shorten(messages: list[dict[str, Any]], record: list[Any], over: int) -> int:
    """Shorten the oldest outputs by `over` tokens, both in the prompt and in the record. Return how many were
    shortened: none if all together are too short.

    Later turns are sampled in the shortened context; earlier turns were sampled in the full one.
    """
    if over <= 0:
        return 0
    outputs = [number for number, message in enumerate(messages) if message["role"] == "user"][1:]
    chosen: list[int] = []
    for number in outputs:
        length = len(messages[number]["content"])
        if over > 0 and length > 2 * len(SHORTENED):
            over -= (length - len(SHORTENED)) // CHARACTERS_PER_TOKEN
            chosen.append(number)
    if over > 0:  # the episode ends, so nothing would be sampled in the shorter context
        return 0
    for number in chosen:
        messages[number]["content"] = record[number]["content"] = SHORTENED
    return len(chosen)
