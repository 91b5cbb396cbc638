"""A synthetic company: mailboxes of any size with questions that take search, reading and judgement to answer.

Everything is made up from the word lists in `synthetic_text.toml` and follows from the seed alone. Each inbox is
generated separately. Some mails state facts about projects, people and firms that no other inbox contains. Others
mislead an agent that opens the first hit of a search:

* A colleague asks the same question, often in the same words.
* A later mail corrects a fact, sometimes under a subject that does not name it.
* A mail says that a value no longer holds, before the new value is known.
* A mail of the year before says something else.
* Replies quote without answering.

So the first hit of a search for all content words is right for three questions in four, and the first five hits hold
the right mail for nearly all, as in real mail. Train and test inboxes have the same traps. Their names come from
disjoint parts of the word lists, test questions use wordings of their own, and some kinds of question occur in test
only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from environment.errors import BadMail
from environment.models import Email, Scenario
from environment.sources.synthetic_inbox import (
    ASKED_SHARE,
    CORRECTED_SHARE,
    LAST_YEAR_SHARE,
    TWO_MAIL_SHARE,
    Inbox,
)
from environment.sources.synthetic_mail import Mail, newsletter
from environment.sources.synthetic_names import Split, split_names, text

SHARED_GROUP = 8  # inboxes that receive the same newsletters
SHARED_MAILS = 2
FILLER_SHARE = 0.1  # minimum, in addition to the mails that state facts
MAX_QUESTIONS = 400  # per inbox: as many as the word lists can distinguish


@dataclass(frozen=True)
class SyntheticCompany:
    """A generated company: its mails and questions; see `synthetic_company`."""

    seed: int
    train_inboxes: int
    test_inboxes: int
    mails_per_inbox: int
    questions_per_inbox: int

    def emails(self) -> Iterator[Email]:
        """Yield every mail once, inbox by inbox. Newsletters shared by several inboxes come before these inboxes."""
        for split, index in self._inbox_indices():
            if index % SHARED_GROUP == 0:
                yield from (mail.email() for mail in self._shared_mails(split, index // SHARED_GROUP))
            yield from (mail.email() for mail in self._inbox(split, index).mails)

    def scenarios(self) -> list[Scenario]:
        """Return the questions of all inboxes, in random order within each."""
        return [scenario for place in self._inbox_indices() for scenario in self._inbox(*place).scenarios()]

    def owner(self, split: Split, index: int) -> str:
        """Return the full name of the inbox's owner. An owner occurs in no other inbox."""
        firsts, lasts = text()["names"]["person_first"], split_names(split)["owner_last"]
        pairs = len(firsts) * len(lasts)
        # A large prime step spreads neighbours over the names and meets every pair once.
        pair = (Random(f"{self.seed}/{split}/owners").randrange(pairs) + index * 7919) % pairs
        return f"{firsts[pair % len(firsts)]} {lasts[pair // len(firsts)]}"

    def _inbox_indices(self) -> Iterator[tuple[Split, int]]:
        yield from (("train", n) for n in range(self.train_inboxes))
        yield from (("test", n) for n in range(self.test_inboxes))

    def _inbox(self, split: Split, index: int) -> Inbox:
        own_mails = self.mails_per_inbox - SHARED_MAILS
        return Inbox(self.seed, split, index, self.owner(split, index), own_mails, self.questions_per_inbox)

    def _shared_mails(self, split: Split, group: int) -> Iterator[Mail]:
        rng = Random(f"{self.seed}/{split}/group/{group}")
        inboxes = self.train_inboxes if split == "train" else self.test_inboxes
        members = range(group * SHARED_GROUP, min(inboxes, (group + 1) * SHARED_GROUP))
        for n in range(SHARED_MAILS):
            mail = newsletter(rng, [self.owner(split, member) for member in members])
            mail.number(f"{split}{group:04d}.post{n}")
            yield mail


def mails_needed(questions_per_inbox: int) -> int:
    """Return the smallest `mails_per_inbox` for that many questions: mails with facts, misleading mails and some
    filler.
    """
    per_question = (1, max(TWO_MAIL_SHARE.values()), 2 * CORRECTED_SHARE, ASKED_SHARE, LAST_YEAR_SHARE)
    written = sum(round(share * questions_per_inbox) for share in per_question)
    return SHARED_MAILS + round(written * (1 + FILLER_SHARE)) + 1


def synthetic_company(
    seed: int = 0,
    train_inboxes: int = 8,
    test_inboxes: int = 4,
    mails_per_inbox: int | None = None,
    questions_per_inbox: int = 64,
) -> SyntheticCompany:
    """Return a company whose mails and questions follow from these numbers alone, on every Python version.

    By default an inbox has 180 mails for 64 questions, in proportion for other numbers, and at least 60.

    Raises `BadMail` when a number is out of range or the mails cannot hold the facts that the questions need.
    """
    for name, count, split in (("train_inboxes", train_inboxes, "train"), ("test_inboxes", test_inboxes, "test")):
        most = len(text()["names"]["person_first"]) * len(split_names(split)["owner_last"])
        if not 0 <= count <= most:
            raise BadMail(f"{name} is {count}, but must be between 0 and {most}")
    if train_inboxes + test_inboxes == 0:
        raise BadMail("train_inboxes and test_inboxes are both 0: ask for at least one inbox")
    if not 1 <= questions_per_inbox <= MAX_QUESTIONS:
        raise BadMail(f"questions_per_inbox is {questions_per_inbox}, but must be between 1 and {MAX_QUESTIONS}")
    if mails_per_inbox is None:
        mails_per_inbox = max(60, math.ceil(questions_per_inbox * 180 / 64))
    if mails_per_inbox < (needed := mails_needed(questions_per_inbox)):
        raise BadMail(
            f"mails_per_inbox is {mails_per_inbox}, but {questions_per_inbox} questions per inbox need at least {needed}"
        )
    return SyntheticCompany(seed, train_inboxes, test_inboxes, mails_per_inbox, questions_per_inbox)
