"""Search and read one mailbox: the SQL, the ranking and the limits that keep other people's and later mail out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import cached_property
from typing import Protocol

from environment.mail_text import normalise_address, utc_without_zone
from environment.models import EmailView, SearchResult
from environment.snippets import passage
from environment.words import query_words, stem

MAX_RESULTS = 20
_SUBJECT_BONUS = 0.5
"""Added to the weight of a word that is in the subject, because a subject says more about a mail than its body."""
_BOTH_BONUS = 0.05
"""Tie-breaker: prefer a mail that also has the subject's word in its body to a one-line thank-you for that mail."""
_SENDER_SHARE = 1e-6
"""Share of a word's weight that its occurrence in the sender's name or address counts for, in mails that have none of the words
in their text. It is so small that these come last."""
_FIRST_BATCH = 50

_HOLDING = "SELECT {number}, json_group_array(rowid) FROM email_fts WHERE email_fts MATCH ?"
# Only the owner's copies of a mail can match. The earliest matching copy represents the mail; ties go to the lowest id.
_EARLIEST = "min(copy.sent_at || printf('#%012d', copy.id))"
_IN_TIME = f"""
    SELECT own.email_id, {_EARLIEST} FROM json_each(?)
    CROSS JOIN delivery AS own ON own.email_id = value AND own.address_id = ?
    CROSS JOIN copy ON copy.id = own.copy_id
    WHERE copy.sent_at BETWEEN ? AND ? {{conditions}} GROUP BY own.email_id
"""
_NEWEST = f"""
    SELECT own.email_id, {_EARLIEST} FROM delivery AS own JOIN copy ON copy.id = own.copy_id
    WHERE own.address_id = ? AND copy.sent_at BETWEEN ? AND ? {{conditions}}
    GROUP BY own.email_id ORDER BY 2 DESC, 1 DESC LIMIT ?
"""
_OWN_COPIES = """
    SELECT DISTINCT copy.id, copy.message_id, copy.sent_at FROM delivery JOIN copy ON copy.id = copy_id
    WHERE delivery.email_id = ? AND address_id = ? AND copy.sent_at <= ? ORDER BY copy.sent_at, copy.id
"""
_IS_PERSON = "(address = ? OR (address >= ? AND address < ?))"
_SENT_BY = (
    "AND EXISTS (SELECT 1 FROM delivery AS other JOIN address ON address.id = other.address_id"
    f" WHERE other.copy_id = own.copy_id AND other.role = 'from' AND {_IS_PERSON})"
)
# Only the sender sees blind copies to other people.
_SENT_TO = (
    "AND EXISTS (SELECT 1 FROM delivery AS other JOIN address ON address.id = other.address_id"
    f" WHERE other.copy_id = own.copy_id AND {_IS_PERSON}"
    " AND (other.role IN ('to', 'cc')"
    " OR (other.role = 'bcc' AND (other.address_id = own.address_id OR own.role = 'from'))))"
)


class Queries(Protocol):
    """Runs SQL queries: the mail database."""

    def rows(self, query: str, *values: object) -> list[tuple]:
        """Return the rows of an SQL query."""
        ...


class Mailbox:
    """One inbox at one moment: only mail that its owner sent or received up to `query_date`.

    Date, recipients and thread of a mail come from the owner's copies of that time.
    """

    def __init__(self, database: Queries, address_id: int, address: str, query_date: datetime) -> None:
        self.address = address
        self.query_date = query_date
        self._database = database
        self._address_id = address_id
        self._latest = query_date.isoformat(" ")

    def search(
        self,
        keywords: Sequence[str],
        *,
        max_results: int = 5,
        sent_before: datetime | None = None,
        sent_after: datetime | None = None,
        from_addr: str = "",
        to_addr: str = "",
    ) -> list[SearchResult]:
        """Return the mails that match `keywords` best, best first. Ties go to the newest.

        A mail matches if it has any of the words in any inflection. Score = sum of the IDF of its matched words (see
        `_scores`), times 1.5 for a word in the subject and 1.55 for one in subject and body; term frequency is ignored.
        Mails that match only by the sender's name, or the part of the address before the @, come last.
        Among equal scores of the best `max_results`, mails whose snippet is a question come last. At most 20 words count;
        stop words count only if there are no others. No character is an operator.

        `max_results` is clamped to 1..20. `sent_before` and `sent_after` are inclusive. `from_addr` and `to_addr` (to or
        cc) are addresses or their part before the @; empty means anyone. With filters but without keywords, all mails
        that pass the filters match.
        """
        sought = query_words(keywords)
        if not sought and not (sent_before or sent_after or from_addr or to_addr):
            return []
        latest = self._latest
        if sent_before is not None:
            latest = min(latest, utc_without_zone(sent_before).isoformat(" "))
        earliest = utc_without_zone(sent_after).isoformat(" ") if sent_after is not None else ""
        conditions = ""
        values: list[object] = [earliest, latest]
        if from_addr:
            conditions += _SENT_BY
            values += _person(from_addr)
        if to_addr:
            conditions += _SENT_TO
            values += _person(to_addr)
        limit = min(max(int(max_results), 1), MAX_RESULTS)
        if sought:
            best = self._best(list(sought), limit, conditions, values)
        else:
            query = _NEWEST.format(conditions=conditions)
            best = {row[0]: (0.0, row[1]) for row in self._database.rows(query, self._address_id, *values, limit)}
        return self._results(best, frozenset(sought.values()))

    def read(self, email_id: int) -> EmailView | None:
        """Return the mail `email_id` as this inbox first received or sent it, or None if it has no such mail yet."""
        if not is_email_id(email_id):
            return None
        copies = self._database.rows(_OWN_COPIES, email_id, self._address_id, self._latest)
        if not copies:
            return None
        copy_id, message_id, sent_at = copies[0]
        sender, name, subject, body = self._database.rows(
            "SELECT from_address, from_name, subject, body FROM email WHERE id = ?", email_id
        )[0]
        people = self._database.rows(
            "SELECT role, address FROM delivery JOIN address ON address.id = address_id WHERE email_id = ? AND copy_id = ?"
            " AND role IN ('to', 'cc') ORDER BY role, place, address",
            email_id,
            copy_id,
        )
        return EmailView(
            id=email_id,
            message_id=message_id,
            date=datetime.fromisoformat(sent_at),
            from_address=sender,
            from_name=name,
            to_addresses=tuple(address for role, address in people if role == "to"),
            cc_addresses=tuple(address for role, address in people if role == "cc"),
            subject=subject,
            body=body,
            thread=self._thread_of(email_id),
        )

    def _thread_of(self, email_id: int) -> tuple[int, ...]:
        """Return the other mails of the thread, oldest first. Only headers of this inbox's own copies connect mails."""
        rows = self._database.rows(
            "SELECT own.email_id, copy.id, copy.sent_at FROM thread"
            " CROSS JOIN delivery AS own ON own.email_id = thread.email_id AND own.address_id = ?"
            " CROSS JOIN copy ON copy.id = own.copy_id AND copy.sent_at <= ?"
            " WHERE thread_id = (SELECT thread_id FROM thread WHERE email_id = ?) ORDER BY copy.sent_at, own.email_id",
            self._address_id,
            self._latest,
            email_id,
        )
        mail_of = {copy_id: own_id for own_id, copy_id, _ in rows}
        if len(set(mail_of.values())) < 2:
            return ()
        named = self._database.rows(
            "SELECT copy_id, message_id, replies FROM json_each(?) JOIN (SELECT *, 0 AS replies FROM alias"
            " UNION ALL SELECT message_id, copy_id, 1 FROM reply) ON copy_id = value",
            json.dumps(list(mail_of)),
        )
        mails_of_name: dict[str, set[int]] = {}
        names_of_mail: dict[int, set[str]] = {}
        # Two mails with one Message-ID are no thread by that alone.
        replied_to = {message_id for _, message_id, replies in named if replies}
        for copy_id, message_id, _ in named:
            if message_id not in replied_to:
                continue
            mails_of_name.setdefault(message_id, set()).add(mail_of[copy_id])
            names_of_mail.setdefault(mail_of[copy_id], set()).add(message_id)
        found, to_visit = {email_id}, [email_id]
        while to_visit:
            for name in names_of_mail.get(to_visit.pop(), ()):
                # Each name is followed once. Otherwise all mails that answer one would be looked at for each of them.
                new = mails_of_name.pop(name, set()) - found
                found |= new
                to_visit += new
        others = found - {email_id}
        return tuple(dict.fromkeys(own_id for own_id, _, _ in rows if own_id in others))

    def _best(
        self, sought: Sequence[str], limit: int, conditions: str, values: list[object]
    ) -> dict[int, tuple[float, str]]:
        """Return the highest-scoring mails that meet the conditions, best first: id -> (score, earliest copy)."""
        scores = self._scores(sought)
        query = _IN_TIME.format(conditions=conditions)
        found: list[tuple[float, str, int]] = []
        for batch in _batches(scores):
            rows = self._database.rows(query, json.dumps(batch), self._address_id, *values)
            found += sorted(((scores[email_id], copy, email_id) for email_id, copy in rows), reverse=True)
            if len(found) >= limit:
                break
        return {email_id: (score, copy) for score, copy, email_id in found[:limit]}

    def _scores(self, sought: Sequence[str]) -> dict[int, float]:
        """Map each mail of this mailbox that has any of the words to the sum of the weights of those words.

        The weight is the inverse document frequency within the inbox, as in BM25 (Robertson and Zaragoza 2009), plus the
        bonuses for the subject. Term frequency and document length did not improve the ranking of real questions, and
        for them SQLite's bm25 visits every mail of the database.
        """
        inbox = f'inbox : "i{self._address_id}" AND'
        matches = [f'{inbox} {of} : "{word}"' for word in sought for of in ("body", "subject")]
        senders = self._sender_words(sought)
        holding = self._holding([*matches, *(f'{inbox} sender : "{word}"' for word in senders)])
        scores: dict[int, float] = {}
        for number in range(0, len(matches), 2):
            in_body, in_subject = holding[number : number + 2]
            both = in_body & in_subject
            weight = self._weight(len(in_body) + len(in_subject) - len(both))
            for email_id in in_body:
                scores[email_id] = scores.get(email_id, 0.0) + weight
            for email_id in in_subject:
                bonus = _SUBJECT_BONUS + (_BOTH_BONUS if email_id in both else 1.0)
                scores[email_id] = scores.get(email_id, 0.0) + weight * bonus
        by_sender: dict[int, float] = {}
        for held in holding[len(matches) :]:
            weight = self._weight(len(held)) * _SENDER_SHARE
            for email_id in held - scores.keys():
                by_sender[email_id] = by_sender.get(email_id, 0.0) + weight
        return scores | by_sender

    def _sender_words(self, sought: Sequence[str]) -> list[str]:
        """Return the words that are part of any sender's name or address, so that no time is lost on others."""
        stems = {stem(word): word for word in sought}
        query = "SELECT stem FROM sender_word WHERE stem IN (SELECT value FROM json_each(?))"
        return [stems[known] for (known,) in self._database.rows(query, json.dumps(list(stems)))]

    def _holding(self, matches: Sequence[str]) -> list[frozenset[int]]:
        """Return the mails of this mailbox that meet each full-text query."""
        query = " UNION ALL ".join(_HOLDING.format(number=number) for number in range(len(matches)))
        return [
            self._email_ids.intersection(json.loads(ids)) for _, ids in sorted(self._database.rows(query, *matches))
        ]

    def _weight(self, count: int) -> float:
        """Return the inverse document frequency of a word that `count` mails of this mailbox have."""
        return math.log(1 + (len(self._email_ids) - count + 0.5) / (count + 0.5))

    @cached_property
    def _email_ids(self) -> frozenset[int]:
        """Ids of every mail of this mailbox. Later mail must not influence the weights of words."""
        rows = self._database.rows(
            "SELECT DISTINCT delivery.email_id FROM delivery JOIN copy ON copy.id = copy_id WHERE address_id = ? AND sent_at <= ?",
            self._address_id,
            self._latest,
        )
        return frozenset(row[0] for row in rows)

    def _results(self, best: dict[int, tuple[float, str]], stems: frozenset[str]) -> list[SearchResult]:
        """Return the mails of `best` in its order. Among equal scores, mails whose passage is a question come last."""
        rows = self._database.rows(
            "SELECT id, from_address, subject, body FROM email WHERE id IN (SELECT value FROM json_each(?))",
            json.dumps(list(best)),
        )
        copies = {email_id: copy.split("#") for email_id, (_, copy) in best.items()}
        message_ids = dict(
            self._database.rows(
                "SELECT id, message_id FROM copy WHERE id IN (SELECT value FROM json_each(?))",
                json.dumps([int(copy_id) for _, copy_id in copies.values()]),
            )
        )
        passages = {row[0]: passage(row[-1], stems) for row in rows}
        results = {
            email_id: SearchResult(
                id=email_id,
                message_id=message_ids[int(copies[email_id][1])],
                date=datetime.fromisoformat(copies[email_id][0]),
                from_address=sender,
                subject=subject,
                snippet=passages[email_id].shown,
            )
            for email_id, sender, subject, _ in rows
        }
        ranked = sorted(best, key=lambda email_id: (best[email_id][0], not passages[email_id].asks), reverse=True)
        return [results[email_id] for email_id in ranked]


def _batches(scores: dict[int, float]) -> Iterator[list[int]]:
    """Yield the keys of `scores`, highest scores first, in growing batches. Equal scores share a batch."""
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    begin, size = 0, _FIRST_BATCH
    while begin < len(ranked):
        end = min(begin + size, len(ranked))
        while end < len(ranked) and scores[ranked[end]] == scores[ranked[end - 1]]:
            end += 1
        yield ranked[begin:end]
        begin, size = end, size * 4


def _person(address: str) -> list[str]:
    """Return the values of `_IS_PERSON` for an address or its part before the @."""
    address = normalise_address(address)
    # "A" follows "@" in ASCII, so this range holds exactly the addresses that begin with `address` and an @.
    return [address, "", ""] if "@" in address else [address, f"{address}@", f"{address}A"]


def is_email_id(value: object) -> bool:
    """Return whether `value` can be the id of a mail: a positive integer that SQLite can store."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63
