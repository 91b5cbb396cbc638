"""The values that pass between packages: mails, search results, scenarios and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


@dataclass(frozen=True)
class Attachment:
    """A file attached to a mail, as it travelled: `encoding` is its Content-Transfer-Encoding. `text` is what was read of it."""

    name: str
    encoded: bytes = field(repr=False)
    encoding: str = ""
    text: str = ""


class Email(BaseModel):
    """One mail as a source delivers it. `date` is naive UTC, `None` when the source has none."""

    model_config = ConfigDict(frozen=True)

    message_id: str
    subject: str = ""
    from_address: str = ""
    from_name: str = ""
    """The sender's name as the mail gives it."""
    to_addresses: tuple[str, ...] = ()
    cc_addresses: tuple[str, ...] = ()
    bcc_addresses: tuple[str, ...] = ()
    date: datetime | None = None
    body: str = ""
    file_name: str = ""
    replies_to: tuple[str, ...] = ()
    """Message-IDs of earlier mails in its thread: the first one, and the one it answers."""
    attachments: tuple[Attachment, ...] = Field(default=(), exclude=True, repr=False)
    """Its files. The database keeps their names, and the text if it was read, at the end of the body."""


class DroppedMail(BaseModel):
    """An unused mail, or a file that is not a mail: the reason, its place in the source, and details."""

    model_config = ConfigDict(frozen=True)

    reason: str
    where: str
    detail: str = ""


class SearchResult(BaseModel):
    """One hit. The model sees the short integer `id`; reports use `message_id`."""

    id: int
    message_id: str
    date: datetime
    from_address: str
    subject: str
    snippet: str


class EmailView(BaseModel):
    """A mail as the inbox's owner sees it: the first copy that they sent or received."""

    id: int
    message_id: str
    date: datetime
    from_address: str
    from_name: str = ""
    to_addresses: tuple[str, ...]
    cc_addresses: tuple[str, ...]
    subject: str
    body: str
    thread: tuple[int, ...] = ()
    """Ids of the other mails of its thread in this inbox, oldest first."""


class Scenario(BaseModel):
    """A question about one mailbox, with its reference answer and the mails that prove it.

    `message_ids` are in the order in which an agent needs them: if a question takes two mails, the first one names the
    topic of the second. `query_date` is the moment of asking; later mails do not exist yet. An unlabelled question has
    neither reference answer nor mails, so its answers can only be compared with each other.
    """

    id: str
    question: str
    answer: str = ""
    message_ids: tuple[str, ...] = ()
    inbox_address: str
    query_date: datetime
    split: Literal["train", "test"]
    how_realistic: float = Field(default=1.0, ge=0, le=1)
    kind: str = "unknown"
    """Kind of fact asked for (`phone`, `room` …); reports group results by it."""

    @property
    def labelled(self) -> bool:
        """Whether the reference answer and the mails that prove it are known."""
        return bool(self.answer and self.message_ids)


class FinalAnswer(BaseModel):
    """What the agent returned: the answer and the Message-IDs of the mails it cites."""

    answer: str
    source_ids: tuple[str, ...] = ()
