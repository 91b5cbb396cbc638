"""A model that writes well-formed e-mails about the fact that it is told to choose, and a training run without a backend."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from tasks.outreach.tools import CONNECTED, CONTEXT, FINALIZE
from tests.fakes.language_model import LanguageModel, called
from tests.training.toy_run import CountingBackend, CountingModel
from training.loop.trainer import Trainer, TrainingRun
from training.record.progress import Progress
from training.settings import TrainerSettings
from training.task import Policy, Task


class OutreachModel(LanguageModel):
    """Looks at the first start node, reads one of the facts listed there and writes about it."""

    follows_order = False
    """Whether it takes the fact that is listed first, or any."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(0)

    @property
    def policy(self) -> Policy:
        return Policy(base_url=self.url, model="scripted")

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        prospect, *turns = [message for message in request["messages"] if message["role"] in ("user", "tool")]
        if not turns:
            return called(CONNECTED, {"node_id": re.search(r"Start: (\w+)", prospect["content"]).group(1)})
        seen = turns[-1]["content"]
        if len(turns) == 1:
            facts = re.findall(r"^(f\d+) ", seen, re.MULTILINE)
            return called(CONTEXT, {"node_id": facts[0] if self.follows_order else self.chance.choice(facts)})
        fact, text = re.match(r"\[(\w+)\] (.*) \(source", seen).groups()
        name = re.match(r"Prospect: (\w+)", prospect["content"]).group(1)
        body = f"Hi {name}, {text} [{fact}] Would a short call help?"
        return called(FINALIZE, {"subject": "Hello", "body": body, "citations": [fact]})


def without_backend(url: str, backend: type[CountingBackend] = CountingBackend) -> Any:
    """What stands in for `run_training`: the trainer with a backend that only counts, and rollouts from the model at `url`."""

    async def run_training(
        task: Task,
        *,
        base_model: str,
        settings: TrainerSettings,
        max_tokens: int,
        run_folder: Path,
        progress: Progress,
        run: str,
        start: Path | None,
    ) -> TrainingRun:
        assert run == run_folder.parent.name, "loops are told apart on a server that they share"
        model = CountingModel(run_folder)
        model.inference_base_url = url
        options = {"max_tokens": max_tokens, "progress": progress, "start": start}
        return await Trainer(task, model, backend(model), settings, **options).run()

    return run_training
