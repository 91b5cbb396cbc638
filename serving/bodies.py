"""The bodies of requests and responses."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

MAX_QUESTION_CHARS = 4_000
MAX_ADDRESS_CHARS = 320
MAX_DATE_CHARS = 64
MAX_TIMEOUT_SECONDS = 300
MAX_BATCH = 64
MAX_INBOXES = 200
MAX_COMMENT_CHARS = 2_000
MAX_CORRECTION_CHARS = 500
PASSAGE_CHARS = 60
MAX_PASSAGES = 3


def today() -> str:
    """Return the `query_date` of a question that is asked without one."""
    return date.isoformat(datetime.now(UTC).date())


def first_problem(error: ValidationError) -> tuple[str, str]:
    """Return the first field that is wrong, and what is wrong with it."""
    first = error.errors()[0]
    return str(first["loc"][0]), first["msg"].removeprefix("Value error, ")


def storable_text(text: str) -> str:
    """Return `text`. Raises ValueError when UTF-8 or SQLite cannot store it."""
    if any("\ud800" <= character <= "\udfff" or character == "\0" for character in text):
        raise ValueError("holds characters that are not text")
    return text


class TaskQuestion(BaseModel):
    """One question to the agent of any task."""

    model_config = ConfigDict(extra="forbid", strict=True)

    # The lengths are checked below, with a message that says how long the text was.
    question: str = Field(
        description="what to find out", json_schema_extra={"minLength": 1, "maxLength": MAX_QUESTION_CHARS}
    )

    @field_validator("question")
    @classmethod
    def _bounded(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("is empty: ask something")
        if len(text) > MAX_QUESTION_CHARS:
            raise ValueError(f"has {len(text):,} characters: at most {MAX_QUESTION_CHARS:,} are allowed")
        return text

    @field_validator("*")
    @classmethod
    def _encodable(cls, text: str) -> str:
        return storable_text(text)


class Question(TaskQuestion):
    """One question about an inbox. `query_date` is ISO 8601; a bare date means the end of that day.

    `MailAnswering.accepted` parses the date and looks up the inbox.
    """

    inbox_address: str = Field(description="whose mail is searched", json_schema_extra={"maxLength": MAX_ADDRESS_CHARS})
    query_date: str = Field(
        description="the day of asking: later mail is not seen",
        examples=["2024-05-15"],
        json_schema_extra={"maxLength": MAX_DATE_CHARS},
    )

    @field_validator("inbox_address")
    @classmethod
    def _address(cls, text: str) -> str:
        if len(text) > MAX_ADDRESS_CHARS:
            raise ValueError(f"has {len(text):,} characters: at most {MAX_ADDRESS_CHARS:,} are allowed")
        return text

    @field_validator("query_date")
    @classmethod
    def _date(cls, text: str) -> str:
        if len(text) > MAX_DATE_CHARS:
            raise ValueError(f"has {len(text):,} characters: at most {MAX_DATE_CHARS:,} are allowed")
        return text


Timeout = Annotated[
    float | None,
    Field(ge=1, le=MAX_TIMEOUT_SECONDS, description="seconds that the agent may take; null: the service's default"),
]


class TaskInvocation(BaseModel):
    """The body of `POST /invoke` where another task than mail is served."""

    model_config = ConfigDict(extra="forbid")

    parameters: TaskQuestion
    timeout: Timeout = None


class Invocation(TaskInvocation):
    """The body of `POST /invoke` and `POST /stream`."""

    parameters: Question


class Submission(BaseModel):
    """The body of `POST /submit`: one question in `parameters`, or several in `batch`."""

    model_config = ConfigDict(extra="forbid")

    parameters: Question | None = None
    batch: list[Question] | None = Field(default=None, min_length=1, max_length=MAX_BATCH)
    timeout: Timeout = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Submission:
        if (self.parameters is None) == (self.batch is None):
            raise ValueError("set either parameters (one question) or batch (a list of questions)")
        return self

    def questions(self) -> list[Question]:
        return self.batch or ([self.parameters] if self.parameters else [])


class ServedModel(BaseModel):
    """The model that answers. Every load of a model has a new `load_id`."""

    checkpoint: str
    run: str
    """Key of the training run, which is in the name of its report."""
    step: int
    base_model: str
    mails: int | None = Field(description="null: the task has no mailbox")
    loaded_at: datetime
    load_id: str
    process_id: int


class Mark(BaseModel):
    """Characters of a mail's field that prove the answer: from `start` up to `end`, counted in Unicode code points."""

    field: Literal["subject", "from_address", "body"]
    start: int
    end: int


class Source(BaseModel):
    """A mail that the answer cites."""

    message_id: str
    date: datetime
    from_address: str
    to_addresses: list[str]
    subject: str
    body: str = Field(description="the text of the mail, cut after 20,000 characters")
    read: bool = Field(description="the agent read this mail before it answered")
    found: bool = Field(description="the value of the answer stands in this mail")
    marks: list[Mark] = Field(description="where it stands")

    def passages(self) -> list[str]:
        """Return the first places of the text in which the answer stands, with the words around them."""
        marks = [mark for mark in self.marks if mark.field == "body"][:MAX_PASSAGES]
        return [self.body[max(0, mark.start - PASSAGE_CHARS) : mark.end + PASSAGE_CHARS] for mark in marks]


class Answer(BaseModel):
    """One answered question, as it is recorded as a pipeline run.

    `answer` is `None` when the agent gave up. `outcome` says how the episode ended. `success` means that the agent
    answered and cited at least one mail that it read in this episode.
    """

    question: str
    answer: str | None
    source_ids: list[str]
    success: bool
    outcome: str
    turns: int
    seconds: float
    proven: bool = False
    """The value of the answer stands in one of the cited mails."""
    sources: list[Source] = Field(default_factory=list, exclude=True)
    """The cited mails. The run does not record them: they are in the mail database."""
    sampled_tokens: int = Field(default=0, exclude=True)


class Episode(BaseModel):
    """The episode that led to the answer. Times are in seconds."""

    outcome: str = Field(
        description="answered; unproven: no cited mail was read; no_tool_call, malformed_call, max_turns, truncated: gave up"
    )
    turns: int
    seconds: float
    queued_seconds: float


class TaskReplyMetadata(BaseModel):
    request_id: str
    run_name: str = Field(description="the pipeline run that records this answer, written after it is sent")
    deployment_name: str
    parameters_used: TaskQuestion
    episode: Episode
    model: ServedModel


class TaskReply(BaseModel):
    """The response of `POST /invoke` where another task than mail is served."""

    question: str
    answer: str | None = Field(description="null when the agent gave up")
    transcript: list[dict[str, Any]] = Field(description="the conversation, as far as the task keeps it")
    execution_time: float
    metadata: TaskReplyMetadata


class ReplyMetadata(TaskReplyMetadata):
    parameters_used: Question


class Reply(BaseModel):
    """The response of `POST /invoke`, and the data of the event `answer`."""

    question: str
    answer: str | None = Field(description="null when the agent gave up")
    source_ids: list[str] = Field(description="Message-IDs of the cited mails")
    success: bool = Field(description="answered, citing at least one mail that was read for this question")
    proven: bool = Field(description="the answer's value stands in a cited mail")
    sources: list[Source]
    feedback_token: str | None = Field(description="lets the caller rate this answer once with POST /feedback")
    execution_time: float
    metadata: ReplyMetadata


class Problem(BaseModel):
    """Every error response: one line that says what is wrong, what is allowed and what to do."""

    success: Literal[False] = False
    error: str
    request_id: str


class Submitted(BaseModel):
    """Where to fetch the answers, in the order of the questions."""

    ids: list[str]
    urls: list[str]


class StoredAnswer(BaseModel):
    """The response of `GET /answers/{id}`."""

    id: str
    status: Literal["waiting", "running", "done", "failed"]
    reply: Reply | None = None
    error: str | None = None
    expires_at: datetime


class Feedback(BaseModel):
    """The body of `POST /feedback`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    token: str = Field(max_length=32_000, description="`feedback_token` of the answer")
    verdict: Literal["up", "down"]
    comment: str = Field(default="", max_length=MAX_COMMENT_CHARS)
    correct_answer: str = Field(default="", max_length=MAX_CORRECTION_CHARS, description="what it should have said")

    @field_validator("comment", "correct_answer")
    @classmethod
    def _encodable(cls, text: str) -> str:
        return storable_text(text)


class Accepted(BaseModel):
    success: Literal[True] = True


class InboxQuery(BaseModel):
    """The query of `GET /inboxes`."""

    model_config = ConfigDict(extra="forbid")

    contains: str = Field(default="", max_length=MAX_ADDRESS_CHARS, description="part of the address")
    limit: int = Field(default=20, ge=1, le=MAX_INBOXES)


class ExampleQuery(BaseModel):
    """The query of `GET /examples`."""

    model_config = ConfigDict(extra="forbid")

    inbox: str = Field(default="", max_length=MAX_ADDRESS_CHARS)


class Inboxes(BaseModel):
    """Inboxes that the caller may ask about, those with the most mail first; `total` counts all that match."""

    inboxes: list[str]
    total: int


class Examples(BaseModel):
    """Questions that are known to have an answer in an inbox."""

    examples: list[Question]


class Health(BaseModel):
    status: str
    load_id: str
