"""Record a pipeline run for each answer, after the answer is sent.

ZenML needs a few tenths of a second of database writes to record a run. No client waits for that: the pipeline runs
after the response, and its step returns the answer that was given.
"""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from serving.bodies import Reply, TaskReply
from serving.log import cause

MAX_BEHIND = 500

logger = logging.getLogger(__name__)


class RunRecorder:
    """Run the pipeline for one answer after the other, in a separate thread."""

    def __init__(self, run: Callable[[Any], None], not_recorded: Callable[[Any], None]) -> None:
        """`run` runs the pipeline once.

        `not_recorded` gets an answer that arrives while `MAX_BEHIND` others wait, and one whose run failed.
        """
        self._run = run
        self._not_recorded = not_recorded
        self._waiting: queue.Queue[Reply | TaskReply | None] = queue.Queue(MAX_BEHIND)
        # ZenML finds the loaded service through the context in which the init hook ran.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="run-recorder", daemon=True)
        self._thread.start()

    def add(self, reply: Reply | TaskReply) -> None:
        try:
            self._waiting.put_nowait(reply)
        except queue.Full:
            self._not_recorded(reply)
            fields = {"request_id": reply.metadata.request_id, "behind": MAX_BEHIND}
            logger.warning("run not recorded", extra={"fields": fields})

    def close(self, timeout: float) -> None:
        """Record the waiting answers, for at most `timeout` seconds."""
        try:
            self._waiting.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _work(self) -> None:
        while (reply := self._waiting.get()) is not None:
            try:
                self._run(reply)
            except Exception as error:
                self._not_recorded(reply)
                fields = {"request_id": reply.metadata.request_id, **cause(error)}
                logger.error("run not recorded", extra={"fields": fields})
