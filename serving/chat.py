"""A conversation in the form of OpenAI's chat completions: the bodies, and how a question is read out of messages."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from serving.access import Caller
from serving.bodies import MAX_QUESTION_CHARS, Reply
from serving.errors import Rejected

MODEL = "email-search-agent"
"""The model's name for a key of one inbox. Other keys name an inbox instead."""
MAX_MESSAGES = 400
GAVE_UP = "I found no answer in this mailbox."
_UNSUPPORTED = {
    "tools": "the agent has its own tools",
    "functions": "the agent has its own tools",
    "response_format": "answers are text",
    "audio": "answers are text",
    "modalities": "answers are text",
    "logit_bias": "answers are sampled greedily",
}


class Part(BaseModel):
    type: str
    text: str = ""


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None

    def text(self) -> str:
        """Return the text. Raises `Rejected` for a part that is no text, such as an image."""
        if isinstance(self.content, str) or self.content is None:
            return self.content or ""
        for part in self.content:
            if part.type not in ("text", "input_text", "output_text"):
                raise Rejected(400, f"messages: a part of type {part.type[:40]} is not understood: send text")
        return "\n".join(part.text for part in self.content)


class ChatError(BaseModel):
    message: str
    type: str
    code: int


class ChatProblem(BaseModel):
    """Every error response of these routes, in the form that OpenAI's clients show."""

    success: Literal[False] = False
    error: ChatError
    request_id: str


class ChatRequest(BaseModel):
    """The body of `POST /v1/chat/completions`. What would change the kind of answer is refused, the rest is ignored."""

    model_config = ConfigDict(extra="allow")

    model: str = Field(max_length=400, description=f"an inbox that `/v1/models` lists; {MODEL} for a key of one inbox")
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool | None = False
    n: int | None = None

    def require_supported(self) -> None:
        """Raise `Rejected` for a field whose value the agent cannot honour."""
        given = self.model_extra or {}
        for name, why in _UNSUPPORTED.items():
            value = given.get(name)
            if value and value not in ({"type": "text"}, ["text"]):
                raise Rejected(400, f"{name}: leave it out, {why}")
        if self.n not in (None, 1):
            raise Rejected(400, "n: only one answer is given")

    def question(self) -> str:
        """Return the last question with the exchange before it, without which "and when?" means nothing.

        Raises `Rejected` if the conversation does not end with a question.
        """
        turns = [(message.role, message.text().strip()) for message in self.messages]
        turns = [turn for turn in turns if turn[0] in ("user", "assistant")]
        if not turns or turns[-1][0] != "user" or not turns[-1][1]:
            raise Rejected(400, "messages: the last one must be a question of the user")
        question = turns[-1][1]
        if len(turns) >= 3 and turns[-2][0] == "assistant" and turns[-3][0] == "user":
            asked, answer = turns[-3][1], turns[-2][1].partition(_SOURCES)[0].strip()
            context = f"Before: {asked} Answer: {answer} Now: "
            if len(context) + len(question) <= MAX_QUESTION_CHARS:
                return context + question
        return question


_SOURCES = "\n\nSources:\n"


def inbox_of(model: str, caller: Caller) -> str:
    """Return the inbox that a model's name stands for. Raises `Rejected` if it stands for several."""
    if model != MODEL:
        return model
    if caller.inboxes is None or len(caller.inboxes) != 1:
        raise Rejected(404, f"model: {MODEL} is for a key of one inbox; name an inbox that /v1/models lists")
    return next(iter(caller.inboxes))


def cited(reply: Reply) -> str:
    """Return the lines that name the cited mails, with what goes before them; empty without any."""
    if reply.answer is None or not reply.sources:
        return ""
    lines = [
        f"[{number}] {source.date:%Y-%m-%d}, {source.from_address}: {' '.join(source.subject.split())}"
        for number, source in enumerate(reply.sources, start=1)
    ]
    return _SOURCES + "\n".join(lines)


def unlinked(text: str, before: str = "") -> str:
    """Return text in which links, images and elements of HTML are none any more for Markdown; `before` is what precedes it.

    Clients show replies as Markdown, which may hold HTML, and an image is fetched without a click: a mail that makes the model
    write one would send what it likes to a server of its author.
    """
    last = before[-1:]
    # The backslash follows the "<", which may have been sent already: no element begins with one.
    return re.sub(r"(?<=\])[(:]|(?<=<)[A-Za-z!/?]", r"\\\g<0>", last + text)[len(last) :]


def citations(reply: Reply) -> list[dict[str, Any]]:
    """Return the cited mails as values, with the passages in which the answer stands."""
    found = []
    for source in reply.sources:
        fields = source.model_dump(mode="json", include={"message_id", "date", "from_address", "subject"})
        found.append({**fields, "passages": source.passages(), "proves": source.found})
    return found
