"""A task in one file: say which of two numbers is larger.

python run.py --pipeline eval --task examples.larger_number:PLUGIN --set 'task_settings={most: 99}' --set demonstrations=16 \
    --set max_steps=2 --set validate_every=0
python run.py --pipeline deploy --task examples.larger_number:PLUGIN --unpromoted --name numbers
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import art
from pydantic import BaseModel, ConfigDict, Field

from training.errors import BadInput
from training.plugin import Attempt, EvaluatedTask, Say, TaskPlugin
from training.policy_client import policy_client
from training.task import CALL_SEQUENCE, Policy


class Settings(BaseModel):
    """Which numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    most: int = Field(default=999, ge=9, description="largest number")
    pairs: int = Field(default=60, ge=4, description="pairs of numbers, half of them held out")


class Pair(BaseModel):
    """Two numbers."""

    id: str
    split: Literal["train", "test"]
    numbers: tuple[int, int]

    @property
    def question(self) -> str:
        return f"Which is larger, {self.numbers[0]} or {self.numbers[1]}? Reply with the number."

    @property
    def opening(self) -> list[Any]:
        return [{"role": "user", "content": self.question}]


class LargerNumber(EvaluatedTask):
    """The reward is 1 for the larger number and 0 otherwise."""

    name = "larger-number"

    def __init__(self, pairs: Sequence[Pair], max_tokens: int) -> None:
        self.pairs, self.max_tokens = pairs, max_tokens

    def train_scenarios(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.split == "train"]

    def test_scenarios(self) -> list[Pair]:
        return [pair for pair in self.pairs if pair.split == "test"]

    def demonstrations(self, scenarios: Sequence[Pair], limit: int) -> list[art.Trajectory]:
        shown = [(pair, {"role": "assistant", "content": str(max(pair.numbers))}) for pair in scenarios[:limit]]
        return [art.Trajectory(messages_and_choices=[*pair.opening, reply], reward=1.0) for pair, reply in shown]

    async def rollout(self, policy: Policy, scenario: Pair) -> art.Trajectory:
        ask = policy_client(policy).chat.completions.create
        reply = await ask(messages=scenario.opening, logprobs=True, **policy.request_arguments())
        choice = reply.choices[0]
        said = (choice.message.content or "").strip()
        correct = said == str(max(scenario.numbers))
        used = reply.usage
        usage = {"sampled_tokens": used.completion_tokens, "context_tokens": used.total_tokens} if used else {}
        return art.Trajectory(
            messages_and_choices=[*scenario.opening, choice],
            reward=float(correct),
            metrics={"correct": correct, "turns": 1, **usage},
            metadata={"scenario_id": scenario.id, "question": scenario.question, "answer": said, CALL_SEQUENCE: said},
        )

    def described(self, scenario: Pair) -> dict[str, str]:
        reference = str(max(scenario.numbers))
        return {"scenario_id": scenario.id, "kind": "pair", "question": scenario.question, "reference": reference}

    async def attempt(self, policy: Policy, scenario: Pair, *, hosted: bool) -> Attempt:
        played = await self.rollout(policy, scenario)
        said, turns = str(played.metadata["answer"]), [dict(turn) for turn in played.messages()]
        tokens = int(played.metrics.get("sampled_tokens", 0))
        return Attempt(correct=bool(played.reward), answer=said, turns=1, transcript=turns, sampled_tokens=tokens)


class Plugin(TaskPlugin):
    """`PLUGIN` is what `--task` names."""

    name = "larger-number"
    title = "Larger number"
    unit = "pairs"
    settings = Settings

    def scenarios(self, settings: Settings) -> list[Pair]:
        chance = random.Random(0)
        drawn = [chance.sample(range(settings.most + 1), 2) for _ in range(settings.pairs)]
        return [
            Pair(id=f"pair-{n}", split="test" if n % 2 else "train", numbers=numbers) for n, numbers in enumerate(drawn)
        ]

    def scenario_of(self, settings: Settings, question: str) -> Pair:
        if len(found := re.findall(r"\d+", question)) != 2:
            raise BadInput(f"has {len(found)} numbers: write two")
        return Pair(id="asked", split="test", numbers=(int(found[0]), int(found[1])))

    @contextmanager
    def opened(self, settings: Settings, trained_with: Mapping[str, Any], say: Say) -> Iterator[LargerNumber]:
        yield LargerNumber(self.scenarios(settings), trained_with["max_tokens"])


PLUGIN = Plugin()
