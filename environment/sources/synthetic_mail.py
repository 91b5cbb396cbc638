"""The mails of the synthetic company, and how one person's are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from random import Random

from environment.models import Email
from environment.sources.synthetic_names import day_month, text

DOMAIN = "kestrel-loam.example"
WORKING_DAYS = tuple(
    day for day in (date(2024, 1, 8) + timedelta(days=n) for n in range(182)) if day.weekday() < 5
)  # half a year
SENT_BY_OWNER = 0.12


def address_of(person: str) -> str:
    """`Dana Voss` writes from `dana.voss@…`; no two people with the same name have an address."""
    return f"{person.lower().replace(' ', '.')}@{DOMAIN}"


@dataclass
class Mail:
    """A mail with the names of its people; its Message-ID follows from its place in the inbox and is set last."""

    sent: datetime
    author: str
    readers: list[str]
    subject: str
    body: str
    cc: list[str] = field(default_factory=list)
    message_id: str = ""

    def number(self, place: str) -> None:
        """Set the Message-ID; `place` must differ for mails of the same day."""
        self.message_id = f"<{self.sent:%Y%m%d}.{place}@{DOMAIN}>"

    def quote(self, line: str) -> str:
        return f"On {day_month(self.sent.date())}, {self.author} wrote:\n> {line}"

    def email(self) -> Email:
        """Return the mail as a source delivers it."""
        return Email(
            message_id=self.message_id,
            subject=self.subject,
            from_address=address_of(self.author),
            to_addresses=tuple(address_of(p) for p in self.readers),
            cc_addresses=tuple(address_of(p) for p in self.cc),
            date=self.sent,
            body=self.body,
            file_name=f"synthetic/{self.message_id.strip('<>').partition('@')[0]}",
        )


class Letters:
    """The mails of one person, in the order in which they are written."""

    def __init__(self, rng: Random, owner: str, colleagues: Sequence[str]) -> None:
        self._rng, self._owner, self._colleagues = rng, owner, colleagues
        self.mails: list[Mail] = []
        self._written: set[tuple[str, str, str]] = set()

    def moment(self, day_index: int) -> datetime:
        """Return a time of the working day `day_index`."""
        minute = self._rng.randrange(7 * 60 + 30, 18 * 60 + 30)
        return datetime.combine(WORKING_DAYS[day_index], time(minute // 60, minute % 60, self._rng.randrange(60)))

    def _body(self, sentence: str, first_name: str, sender: str, below: str, padded: bool) -> str:
        frame, rng = text()["frame"], self._rng
        before = rng.sample(frame["openers"], rng.choice((0, 0, 1))) if padded else []
        after = rng.sample(frame["closers"], rng.choice((0, 0, 1, 1, 2))) if padded else []
        greeting = rng.choice(frame["greetings"]).format(first=first_name)
        closing = f"{rng.choice(frame['closings'])}\n{sender.partition(' ')[0]}".strip()
        paragraphs = [greeting, " ".join([*before, sentence, *after]), closing, below]
        return "\n\n".join(p for p in paragraphs if p)

    def letter(
        self, sent: datetime, subject: str, sentence: str, author: str = "", below: str = "", padded: bool = True
    ) -> Mail:
        """Add a mail with the sentence inside, to the owner or, now and then, from the owner to a colleague.

        `below` comes after the signature: a postscript, a quoted mail.

        No two mails of an inbox have subject, author and body in common: a database would take them for copies.
        """
        rng = self._rng
        while True:
            sender = author or (self._owner if rng.random() < SENT_BY_OWNER else rng.choice(self._colleagues))
            others = [p for p in self._colleagues if p != sender]
            reader = rng.choice(others) if sender == self._owner else self._owner
            cc = [p for p in rng.sample(others, rng.choice((0, 0, 1, 2))) if p != reader]
            body = self._body(sentence, reader.partition(" ")[0], sender, below, padded)
            if (subject, body, sender) not in self._written:
                break
            padded = True  # more to say, so that even a huge mailbox of small talk does not run out of words
        self._written.add((subject, body, sender))
        self.mails.append(Mail(sent, sender, [reader], subject, body, cc))
        return self.mails[-1]


def newsletter(rng: Random, readers: list[str], agenda: str = "") -> Mail:
    """Return a long mail of company news, with a line on the readers' own projects if there is one."""
    filler = text()["filler"]
    sentences = rng.sample(filler["newsletter"], rng.randrange(7, 14))
    sentences.insert(rng.randrange(len(sentences)), agenda)
    sent = datetime.combine(rng.choice(WORKING_DAYS), time(7, rng.randrange(60), rng.randrange(60)))
    body = "\n".join(sentence for sentence in sentences if sentence)
    return Mail(sent, "Post", readers, rng.choice(filler["newsletter_subjects"]), body)
