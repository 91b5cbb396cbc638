"""Baselines that do not learn. A trained agent must beat them."""

from __future__ import annotations

import re

from environment.email_db import Mailbox
from environment.models import EmailView, FinalAnswer
from environment.words import content_words

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def search_and_quote(mailbox: Mailbox, question: str) -> FinalAnswer | None:
    """Search all content words of the question, cite the top hit and answer with its best-matching sentence.

    The best sentence of subject and body shares the most content words with the question; ties go to the first. Return
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


def do_nothing() -> FinalAnswer | None:
    """Give no answer: the lowest baseline, and a check that silence earns nothing."""
    return None


def _sentences(mail: EmailView) -> list[str]:
    """Split subject and body at sentence and line ends. Numbers such as 4.5 stay whole."""
    pieces = _SENTENCE_END.split(f"{mail.subject}\n{mail.body}")
    return [piece.strip() for piece in pieces if piece.strip()]
