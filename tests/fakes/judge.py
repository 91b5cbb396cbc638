"""A judge on loopback with scores chosen by a test."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from agent.judges import Verdict
from agent.judges.exact import ExactJudge
from tests.fakes.language_model import LanguageModel, Reply


class JudgeModel(LanguageModel):
    """Calls `reply` with the ids of the trajectories that it was shown and with all that it was shown; answers after `seconds`."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Callable[[list[str], str], Reply] = by_id
        self.seconds = 0.0

    @property
    def rules(self) -> dict[str, Any]:
        """The settings of a trainer that is judged by it."""
        return {"scoring": "ruler", "ruler_model": "openai/own", "ruler_api_base": self.url}

    def answer(self, request: dict[str, Any]) -> Reply:
        time.sleep(self.seconds)
        asked = request["messages"][-1]["content"]
        return self.reply(re.findall(r'<trajectory id="(\d+)">', asked), asked)


def by_id(ids: list[str], asked: str = "") -> str:
    """The first trajectory is the worst, the last one the best; said in reverse, so that order means nothing."""
    return scores({id: number / max(1, len(ids) - 1) for number, id in enumerate(ids)})


def scores(values: dict[str, float]) -> str:
    recorded = [
        {"trajectory_id": id, "explanation": f"so good is {id}", "score": value} for id, value in values.items()
    ]
    return json.dumps({"scores": recorded[::-1]})


def prose(ids: list[str], asked: str = "") -> str:
    return f"I like the first of these {len(ids)} best, but all of them are nice."


def one_short(ids: list[str], asked: str = "") -> str:
    return by_id(ids[:-1])


class PaidJudge(ExactJudge):
    """Accepts every answer, for half a dollar each."""

    async def judge(self, question: str, reference: str, answer: str) -> Verdict:
        return Verdict(correct=True, reason="", cost=0.5)
