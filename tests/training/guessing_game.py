"""A second task for the trainer, which has nothing to do with mail: find a number between 1 and 3 with one tool in two calls.

`guess(number)` answers higher, lower or right. Whoever halves the range always wins.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import art
import openai
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion import Choice

from training.task import Policy

LOWEST, HIGHEST, CALLS = 1, 3, 2
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "guess",
            "description": "higher, lower or right",
            "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
        },
    }
]


def observation(guess: int, hidden: int) -> str:
    return "right" if guess == hidden else "higher" if guess < hidden else "lower"


def call_text(number: int) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'guess', 'arguments': {'number': number}})}\n</tool_call>"


class GuessingGame:
    """Implements `training.task.Task`; a scenario is the hidden number. One scenario per number and copy."""

    name = "guessing-game"

    def __init__(self, copies: int = 8) -> None:
        self.copies = copies

    def train_scenarios(self) -> list[int]:
        return [number for number in range(LOWEST, HIGHEST + 1) for _ in range(self.copies)]

    def demonstrations(self, scenarios: Sequence[int], limit: int) -> list[art.Trajectory]:
        """Wins by halving."""
        hidden = [scenarios[index % len(scenarios)] for index in range(limit)]
        random.Random("demonstrations").shuffle(hidden)
        return [self._demonstration(number) for number in hidden]

    def _demonstration(self, hidden: int) -> art.Trajectory:
        low, high, turns = LOWEST, HIGHEST, opening()
        while True:
            guess = (low + high) // 2
            turns.append({"role": "assistant", "content": call_text(guess)})
            hint = observation(guess, hidden)
            if hint == "right":
                return art.Trajectory(messages_and_choices=turns, tools=TOOLS, reward=1.0)
            turns.append({"role": "tool", "tool_call_id": "call", "content": hint})
            low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)

    async def rollout(self, policy: Policy, scenario: int) -> art.Trajectory:
        turns = opening()
        sent = opening()
        guesses: list[int] = []
        sampled = 0
        key = f"{scenario} {random.random()}"
        # Certificates, which nobody asks for here, would take longer to load than the replies take.
        plain = openai.DefaultAsyncHttpxClient(verify=False)
        async with openai.AsyncOpenAI(
            base_url=policy.base_url, api_key=policy.api_key, max_retries=0, http_client=plain
        ) as client:
            while len(guesses) < CALLS and scenario not in guesses:
                reply = await client.chat.completions.create(
                    model=policy.model,
                    messages=sent,
                    tools=TOOLS,
                    temperature=policy.temperature,
                    max_tokens=policy.max_tokens,
                    logprobs=True,
                    extra_body={"prompt_cache_key": key},
                )
                choice = reply.choices[0]
                turns.append(_as_sampled(choice))
                sampled += len(choice.logprobs.content)
                number = _guess_of(choice)
                if number is None:
                    break
                guesses.append(number)
                if number != scenario and len(guesses) < CALLS:
                    hint = {
                        "role": "tool",
                        "tool_call_id": choice.message.tool_calls[0].id,
                        "content": observation(number, scenario),
                    }
                    turns.append(hint)
                    sent += [choice.message.model_dump(exclude_none=True), hint]
        # A win is worth 1, less 0.1 per guess; a well-formed guess 0.1 anyway.
        reward = 1.1 - 0.1 * len(guesses) if scenario in guesses else 0.1 * min(len(guesses), 1)
        return art.Trajectory(
            messages_and_choices=turns,
            tools=TOOLS,
            reward=reward,
            metrics={
                "correct": scenario in guesses,
                "turns": len(guesses),
                "sampled_tokens": sampled,
                "suspect_repeated_calls": len(set(guesses)) < len(guesses),
            },
            metadata={"scenario_id": str(scenario), "question": f"the number {scenario}"},
        )


def opening() -> list[Any]:
    return [{"role": "user", "content": f"{LOWEST} to {HIGHEST}"}]


def _as_sampled(choice: Choice) -> Choice:
    """The reply with its raw text, tool-call markup included, which is what ART replaces by the sampled ids."""
    raw = b"".join(bytes(token.bytes or []) for token in choice.logprobs.content).decode("utf-8", "replace")
    message = ChatCompletionMessage(role="assistant", content=raw.removesuffix("<|im_end|>"))
    return choice.model_copy(update={"message": message})


def _guess_of(choice: Choice) -> int | None:
    try:
        [call] = choice.message.tool_calls or []
        number = json.loads(call.function.arguments)["number"]
    except (ValueError, KeyError, TypeError):
        return None
    return number if call.function.name == "guess" and isinstance(number, int) else None
