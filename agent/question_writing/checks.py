"""Check written questions: the cited mails must contain the answer, search must find them, and duplicates are rejected.

The checks are deterministic, need no model and err on the strict side. They reject a correct answer in words that the mail
does not use, and let no hallucinated number, date or name pass.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from itertools import pairwise

from pydantic import ValidationError

from agent.judges.exact import count_words, normalise, parsed
from agent.judges.facts import Fact, ParsedText, fold, plain, uninflected
from agent.judges.notations import parse
from agent.judges.turning import unsaid
from agent.question_writing.author import WrittenQuestion
from agent.question_writing.batches import Batch
from environment.email_db import MailDatabase
from environment.mail_text import LAST_DATE, one_line, parse_query_date, storable
from environment.sources.parquet import Question
from environment.words import content_words, words

_MAX_QUESTION_CHARS = 400
_MAX_ANSWER_WORDS = 30
_MAX_ANSWER_CHARS = 1_000
"""A word may be of any length: "a-b-c" is one. Each of its parts is looked for in the whole mail."""
_SEARCH_RESULTS = 10
_WORDS_IN_MAIL = 0.6
"""Minimum share of the answer's words in the mail. All names, numbers and dates must be there."""
_SAME_WORDING = 0.7
"""Jaccard similarity of words from which two questions about one mail count as duplicates."""
_MAX_DELAY_DAYS = 31
_BETWEEN_NAMES = re.compile(r"[,;/|&]")


class QuestionChecks:
    """Checks questions one after the other. Duplicates are relative to the questions kept before."""

    def __init__(self, database: MailDatabase, *, min_realism: float, max_messages: int) -> None:
        """Reject questions below `min_realism` and those that cite more than `max_messages` mails."""
        self._database = database
        self._min_realism = min_realism
        self._max_messages = max_messages
        self._of_mail: dict[str, list[tuple[frozenset[str], str]]] = {}
        self._of_inbox: dict[str, set[frozenset[str]]] = {}

    def check(self, written: object, batch: Batch, texts: Sequence[str]) -> Question | str:
        """Return the question, or the reason for rejecting it.

        `texts` are the batch's mails as the model saw them, numbered from 1.
        """
        try:
            read_in = WrittenQuestion.model_validate(written)
        except ValidationError:
            return "malformed"
        question, answer = one_line(storable(read_in.question)), one_line(storable(read_in.answer))
        numbers = list(dict.fromkeys(read_in.mail_ids))
        if not question or not answer or not 0 <= read_in.how_realistic <= 1:
            return "malformed"
        if read_in.how_realistic < self._min_realism:
            return "unrealistic"
        too_long = len(question) > _MAX_QUESTION_CHARS or len(answer) > _MAX_ANSWER_CHARS
        if too_long or count_words(answer) > _MAX_ANSWER_WORDS:
            return "too_long"
        if not numbers:
            return "no_mail_cited"
        if not all(1 <= number <= len(texts) for number in numbers):
            return "mail_not_in_batch"
        if len(numbers) > self._max_messages:
            return "too_many_mails"
        source = "\n".join(texts[number - 1] for number in numbers)
        if not is_said(answer, source):
            return "answer_not_in_mail"
        if is_said(answer, question, share=1.0):
            return "answer_in_question"
        mail_ids = [batch.mail_ids[number - 1] for number in numbers]
        mailbox = self._database.mailbox(batch.inbox, LAST_DATE)
        cited = [mail for id in mail_ids if (mail := mailbox.read(id))]
        message_ids = tuple(mail.message_id for mail in cited)
        id = hashlib.sha256("\0".join((batch.inbox, *message_ids, question)).encode()).hexdigest()[:12]
        asked_at = _query_date(max(mail.date for mail in cited), id)
        about = content_words(question)
        hits = self._database.mailbox(batch.inbox, parse_query_date(asked_at)).search(
            about, max_results=_SEARCH_RESULTS
        )
        if not {hit.id for hit in hits}.intersection(mail_ids):
            return "not_found_by_search"
        if self._asked_before(batch.inbox, message_ids, about, answer):
            return "duplicate"
        return Question(
            id=id,
            question=question,
            answer=answer,
            message_ids=message_ids,
            how_realistic=read_in.how_realistic,
            inbox_address=batch.inbox,
            query_date=asked_at.isoformat(),
        )

    def _asked_before(self, inbox: str, message_ids: tuple[str, ...], about: list[str], answer: str) -> bool:
        """Return whether this was asked before about the inbox or a mail. Record the question if not."""
        stems = frozenset(uninflected(part) for word in about for part in words(word))
        same_answer = normalise(answer)
        of_inbox = self._of_inbox.setdefault(inbox, set())
        if stems in of_inbox:
            return True
        for message_id in message_ids:
            for other_stems, other_answer in self._of_mail.get(message_id, []):
                if other_answer == same_answer or len(stems & other_stems) >= _SAME_WORDING * len(stems | other_stems):
                    return True
        of_inbox.add(stems)
        for message_id in message_ids:
            self._of_mail.setdefault(message_id, []).append((stems, same_answer))
        return False


def is_said(answer: str, text: str, *, share: float = _WORDS_IN_MAIL) -> bool:
    """Return whether `text` has every number, date and name of `answer`, and at least a `share` of its content words.

    It also needs the words of `answer` that turn a meaning round ("not", "before").

    The result is False for an answer without any of these (yes, no), because nothing identifies it.
    """
    text = plain(text)
    ours, theirs = parse(answer), parse(text)
    if not all(_has(fact, theirs) for fact in ours.facts) or unsaid(parsed(text), parsed(answer)):
        return False
    said = {uninflected(word) for word in words(fold(text))} | theirs.stems
    about = [word for word in ours.words if word.can_name]
    found = [word for word in about if all(uninflected(part) in said for part in words(fold(word.text)))]
    if any(word.capitalised and word not in found for word in about) or not _names_whole(ours, theirs, text):
        return False
    return bool(ours.facts or about) and len(found) >= share * len(about)


def _has(fact: Fact, text: ParsedText) -> bool:
    """Return whether the text has the fact, alone, as the year of a date or as an end of a range of times or dates."""
    for other in text.facts:
        ends = [other] if other.kind == "figure" else [other, *other.ends]
        if any(fact.agrees(end) for end in ends) or (other.kind == "date" and fact.value == (str(other.value[2]),)):
            return True
    return False


def _names_whole(answer: ParsedText, text: ParsedText, source: str) -> bool:
    """Return whether names in a row are so in the text, also as "Voss, Dana": none is put together from two people."""
    stems = [word.stem for word in text.words]
    places: dict[str, list[int]] = {}
    for place, stem in enumerate(stems):
        places.setdefault(stem, []).append(place)
    for first, last in pairwise(answer.words):
        adjacent = first.names and last.names and first.item == last.item and last.span[0] - first.span[1] == 1
        if not adjacent or last.stem not in places or first.stem not in places:
            continue
        forward = any(
            after.stem == last.stem and not _BETWEEN_NAMES.search(source[text.words[place].span[1] : after.span[0]])
            for place in places[first.stem]
            for after in text.words[place + 1 : place + 3]
        )
        heads = [place for place in places[last.stem] if first.stem in stems[place + 1 : place + 2]]
        if not forward and not any(place == 0 or not text.words[place - 1].names for place in heads):
            return False
    return True


def _query_date(latest: datetime, id: str) -> date:
    """Return a day within a month after the question's `latest` mail, derived from its `id`, as in the public questions.

    Without the delay the answer would always be in the newest mail, and training would teach only to look there.
    """
    return latest.date() + timedelta(days=1 + int(id, 16) % _MAX_DELAY_DAYS)
