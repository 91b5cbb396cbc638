"""The agent's steps as events for a waiting client: `step`, `source` and `token`."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from fastapi.sse import ServerSentEvent

from agent.graph import ToolCallRecord
from environment.email_db import Mailbox
from environment.tools import FINAL_ANSWER, READ, SEARCH, tool_schemas
from training.backends.torch.tool_calls import short_name

_COMPACT = rf'^>>{short_name(FINAL_ANSWER, tool_schemas())}(?:\s*=\s*\{{\s*"answer"\s*:)?\s*'
_WRITTEN = re.compile(rf'(?:"{FINAL_ANSWER}".*?"answer"\s*:\s*|{_COMPACT})"((?:[^"\\]|\\.)*)', re.DOTALL | re.MULTILINE)
"""The answer in a call of either form of `tool_calls.py`, as far as it has been written."""
_SHOWN_KEYWORDS = 20
_SHOWN_CHARS = 80
_ACTIONS = {SEARCH: "search", READ: "read", FINAL_ANSWER: "answer"}


class EventQueue:
    """A `Watcher` that runs on the agents' event loop. Its events are read on the loop that created it."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[ServerSentEvent] = asyncio.Queue()
        self._reply = b""
        self._shown = ""
        self._steps = 0

    async def get(self) -> ServerSentEvent:
        return await self._queue.get()

    def get_nowait(self) -> ServerSentEvent | None:
        return None if self._queue.empty() else self._queue.get_nowait()

    def sampled(self, text: bytes) -> None:
        """Send the new part of the answer that the policy is writing."""
        self._reply += text
        written = _WRITTEN.search(self._reply.decode("utf-8", "ignore"))
        answer = _unescaped(written[1]) if written else ""
        if len(answer) > len(self._shown) and answer.startswith(self._shown):
            self._send("token", {"text": answer[len(self._shown) :]})
            self._shown = answer

    def called(self, call: ToolCallRecord) -> None:
        """Send the tool call, and the mail that it read."""
        self._reply, self._shown = b"", ""
        self._steps += 1
        step: dict[str, Any] = {"number": self._steps, "action": _ACTIONS.get(call.name, "unknown tool")}
        if call.invalid:
            step["invalid"] = True
        elif call.name == SEARCH:
            keywords = call.arguments.get("keywords")
            words = keywords if isinstance(keywords, list) else [keywords]
            step |= {
                "keywords": [str(word)[:_SHOWN_CHARS] for word in words[:_SHOWN_KEYWORDS]],
                "found": len(call.email_ids),
            }
        elif call.name == READ:
            step["found"] = len(call.email_ids)
        self._send("step", step)
        if call.name == READ and call.email_ids and (mail := self._mailbox.read(call.email_ids[0])):
            source = {"message_id": mail.message_id, "date": mail.date.isoformat()}
            self._send("source", source | {"from_address": mail.from_address, "subject": mail.subject})

    def _send(self, event: str, data: dict[str, Any]) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, ServerSentEvent(event=event, data=data))


def _unescaped(text: str) -> str:
    """Return the decoded part of an incomplete JSON string."""
    for end in range(len(text), max(len(text) - 12, -1), -1):  # the end may be half of an escape
        try:
            decoded = json.loads(f'"{text[:end]}"', strict=False)
        except ValueError:
            continue
        return decoded.encode("utf-8", "ignore").decode("utf-8")
    return ""
