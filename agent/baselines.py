"""Policies that do not learn: what an agent must beat before it has shown anything."""

from __future__ import annotations

import re

from environment.email_db import Mailbox
from environment.models import EmailView, FinalAnswer
from environment.words import content_words

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def search_and_quote(mailbox: Mailbox, question: str) -> FinalAnswer | None:
    """Searches all content words of the question, cites the top hit and answers with its best-matching sentence.

    The best sentence of the subject and body shares the most content words with the question; the first one wins a tie.
    `None` when nothing is found.
    """
    keywords = content_words(question)
    hits = mailbox.search(keywords, max_results=1)
    mail = mailbox.read(hits[0].id) if hits else None
    if mail is None:
        return None
    asked = set(keywords)
    quote = max(_sentences(mail), key=lambda sentence: len(asked.intersection(content_words(sentence))), default="")
    return FinalAnswer(answer=quote, source_ids=(mail.message_id,))


def do_nothing() -> None:
    """Gives no answer: the floor, and a check that silence earns nothing."""
    return None


def _sentences(mail: EmailView) -> list[str]:
    """Pieces of the subject and body between sentence ends and line ends; numbers such as 4.5 stay whole."""
    pieces = _SENTENCE_END.split(f"{mail.subject}\n{mail.body}")
    return [piece.strip() for piece in pieces if piece.strip()]
