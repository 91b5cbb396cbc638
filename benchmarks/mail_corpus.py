"""The mails of `benchmarks.environment`: real ones, and varied repetitions up to any number."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice

from environment.errors import BadMail
from environment.mail_text import FIRST_DATE, LAST_DATE
from environment.models import Email
from environment.sources.parquet import parquet_emails, parquet_questions

MAX_BODY_CHARS = 5_000
MAX_RECIPIENTS = 30


@dataclass(frozen=True)
class Corpus:
    """`mails` mails, all different. `message_ids` are those of the real mails among them."""

    source: str
    message_ids: frozenset[str]
    mails: int

    @classmethod
    def of(cls, source: str, questions: str, mails: int) -> Corpus:
        """Choose one copy of each mail: the one that a question is about, else the first."""
        gold = {message_id for question in parquet_questions(questions) for message_id in question.message_ids}
        chosen: dict[bytes, str] = {}
        for email in filter(_is_kept, parquet_emails(source)):
            content = "\0".join((email.subject.strip(), email.body.strip(), email.from_address.lower()))
            digest = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=16).digest()
            if digest not in chosen or email.message_id in gold:
                chosen[digest] = email.message_id
        if not chosen:
            raise BadMail(f"there is no usable mail in {source}")
        return cls(source, frozenset(chosen.values()), mails)

    def __iter__(self) -> Iterator[Email]:
        return islice(self._endless(), self.mails)

    def _endless(self) -> Iterator[Email]:
        for company in count():
            seen: set[str] = set()
            for number, email in enumerate(parquet_emails(self.source)):
                if email.message_id in self.message_ids and email.message_id not in seen and _is_kept(email):
                    seen.add(email.message_id)
                    yield _varied(email, company, number) if company else email


def _is_kept(email: Email) -> bool:
    recipients = (*email.to_addresses, *email.cc_addresses, *email.bcc_addresses)
    return (
        0 < len(email.body.strip()) <= MAX_BODY_CHARS - 100
        and len(recipients) <= MAX_RECIPIENTS
        and bool(email.message_id and email.from_address)
        and email.date is not None
        and FIRST_DATE <= email.date <= LAST_DATE
    )


def _varied(email: Email, company: int, number: int) -> Email:
    def elsewhere(addresses: Iterable[str]) -> tuple[str, ...]:
        return tuple(f"c{company}.{address}" for address in addresses)

    return email.model_copy(
        update={
            "message_id": f"<{company}.{number}@varied.example>",
            "from_address": f"c{company}.{email.from_address}",
            "to_addresses": elsewhere(email.to_addresses),
            "cc_addresses": elsewhere(email.cc_addresses),
            "bcc_addresses": elsewhere(email.bcc_addresses),
            "body": f"{email.body}\n\nRef. {company}-{number}",
        }
    )


class TimedSource:
    """The mails, and the seconds that their source took."""

    def __init__(self, emails: Iterable[Email]) -> None:
        self._emails = iter(emails)
        self.seconds = 0.0

    def __iter__(self) -> TimedSource:
        return self

    def __next__(self) -> Email:
        started = time.perf_counter()
        try:
            return next(self._emails)
        finally:
            self.seconds += time.perf_counter() - started
