"""What a deployed service holds from start to end: the policy, the mail database, and the loop on which agents run."""

from __future__ import annotations

import asyncio
import os
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.error import URLError
from urllib.request import urlopen

from agent.rollout import AgentRun, answer_question
from agent.settings import AgentSettings
from environment.email_db import Mailbox, MailDatabase, parse_query_date
from serving.answer import Answer, Question, ServedModel
from training.task import Policy

HEALTH_TIMEOUT_SECONDS = 2


class AnswerService:
    """Answers questions with one policy that is loaded already. Threads may share it.

    Episodes of all callers run on one event loop: they share its connections, and the policy's server batches them.
    """

    def __init__(
        self,
        policy: Policy,
        database: MailDatabase,
        settings: AgentSettings,
        model: ServedModel,
        stop: Callable[[], None],
    ) -> None:
        self.policy = policy
        self.database = database
        self.settings = settings
        self.model = model
        self._stop = stop
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="agent-episodes", daemon=True)
        self._thread.start()

    def mailbox(self, question: Question) -> Mailbox:
        """The inbox that is asked about, as it was then. Raises `BadInput` when it is unknown."""
        return self.database.mailbox(question.inbox_address, parse_query_date(question.query_date))

    def answer(self, question: Question) -> Answer:
        """Runs the agent; blocks until it has answered or given up.

        Raises:
            BadInput: unknown inbox.
            TimeoutError: after `settings.rollout_timeout` seconds.
            openai.OpenAIError: the policy's server failed.
        """
        episode = answer_question(self.policy, self.mailbox(question), question.question, self.settings)
        run: AgentRun = asyncio.run_coroutine_threadsafe(episode, self._loop).result()
        final = run.answer
        return Answer(
            question=question.question,
            answer=final.answer if final else None,
            source_ids=list(final.source_ids) if final else [],
            success=final is not None,
            outcome=run.outcome,
            turns=run.turns,
            seconds=round(run.seconds, 3),
        )

    def warm_up(self) -> None:
        """Takes the first sampled token of a question, so that the service neither starts broken nor slow.

        It leaves the prompt's part that all questions share in the server's prefix cache. Raises what `answer` raises.
        """
        mailbox = self.database.mailbox(self.database.inboxes()[0], datetime.now(UTC))
        policy = self.policy.model_copy(update={"max_tokens": 1})
        asyncio.run_coroutine_threadsafe(
            answer_question(policy, mailbox, "Is anybody there?", self.settings), self._loop
        ).result()

    def is_healthy(self) -> bool:
        """Whether the policy's server answers."""
        try:
            url = f"{self.policy.base_url.removesuffix('/v1')}/health"
            with urlopen(url, timeout=HEALTH_TIMEOUT_SECONDS) as response:
                return response.status == 200
        except (URLError, TimeoutError, ConnectionError):
            return False

    def close(self) -> None:
        """Stops the episodes and the policy's server and closes the database."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)
        self._stop()
        self.database.close()


def describe_model(checkpoint: str, step: int, base_model: str, database: MailDatabase) -> ServedModel:
    """A `ServedModel` for a model that this process has loaded just now."""
    return ServedModel(
        checkpoint=checkpoint,
        step=step,
        base_model=base_model,
        mails=database.email_count(),
        loaded_at=datetime.now(UTC),
        load_id=uuid.uuid4().hex,
        process_id=os.getpid(),
    )
