"""A synthetic company: mailboxes of any size with questions that take search, reading and judgement to answer.

Everything is made up from the word lists in `synthetic_text.toml` and follows from the seed alone. Each inbox is written
by itself: facts about projects, people and firms that only its owner's mails contain, some of them corrected by a later
mail (the earlier one stays as a trap), replies that quote without answering, mails that only mention what is asked for,
and newsletters. Names of train and test inboxes come from disjoint parts of the word lists, test questions use wordings
of their own, and some kinds of question occur in test only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any, Literal

from environment.errors import BadInput
from environment.models import Email, Scenario

Split = Literal["train", "test"]

DOMAIN = "kestrel-loam.example"
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WORKING_DAYS = tuple(
    day for day in (date(2024, 1, 8) + timedelta(days=n) for n in range(182)) if day.weekday() < 5
)  # half a year
LAST_FACT_DAY = 95  # index into WORKING_DAYS: leaves room for corrections and for questions that come later

TWO_MAIL_SHARE = 0.32
CORRECTED_SHARE = 0.3
FIRST_MAIL_CORRECTED = 0.3  # of the corrected two-mail questions; in the others the second mail is corrected
ASKED_BEFORE_CORRECTION = 0.2  # of the corrected ones: the original is still right
SENT_BY_OWNER = 0.12
SIBLING_NAME = 0.35

SHARED_GROUP = 8  # inboxes that receive the same newsletters
SHARED_MAILS = 2
FILLER_SHARE = 0.1  # of the mails at least, beside those that state facts
MAX_QUESTIONS = 400  # per inbox: what the word lists can tell apart


@cache
def _text() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("synthetic_text.toml").read_text(encoding="utf-8"))


@cache
def _names(split: Split) -> dict[str, list[str]]:
    """The words that names in inboxes of `split` are made of; no two-word name can occur in both splits."""
    names = _text()["names"]
    test = split == "test"

    def joined(stems: Sequence[str], ends: Sequence[str], shares: Sequence[int], of: int) -> list[str]:
        return [s + e for i, s in enumerate(stems) for j, e in enumerate(ends) if (i + j) % of in shares]

    stem, end = names["person_last_stem"], names["person_last_end"]
    return {
        "project_second": [n for i, n in enumerate(names["project_second"]) if (i % 3 == 0) == test],
        "brand": joined(names["brand_stem"], names["brand_end"], (0,) if test else (1, 2), 3),
        "person_last": joined(stem, end, (0, 1, 2) if test else (5, 6, 7, 8, 9), 10),
        "owner_last": joined(stem, end, (3,) if test else (4,), 10),
    }


def _day_month(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]}"


def _address(person: str) -> str:
    return f"{person.lower().replace(' ', '.')}@{DOMAIN}"


@dataclass
class _Mail:
    """A mail before it gets its Message-ID, which follows from its place in the inbox."""

    sent: datetime
    sender: str
    recipients: list[str]
    subject: str
    body: str
    cc: list[str] = field(default_factory=list)
    message_id: str = ""

    def email(self) -> Email:
        return Email(
            message_id=self.message_id,
            subject=self.subject,
            from_address=self.sender,
            to_addresses=tuple(self.recipients),
            cc_addresses=tuple(self.cc),
            date=self.sent,
            body=self.body,
            file_name=f"synthetic/{self.message_id.strip('<>').partition('@')[0]}",
        )


@dataclass
class _Fact:
    """What one or two mails say about an entity: the original and, if there is one, the correction."""

    kind: str
    entity: str
    original: _Mail
    first_value: str
    correction: _Mail | None = None
    value: str = ""


@dataclass
class _Question:
    kind: str
    entity: str
    text: str
    answer: str
    mails: list[_Mail]
    asked: datetime


class _Inbox:
    """Writes one inbox: `mails` sorted by date and `questions` in random order."""

    def __init__(self, company: SyntheticCompany, split: Split, index: int, budget: int) -> None:
        self.split: Split = split
        self.rng = Random(f"{company.seed}/{split}/{index}")
        self.owner = company.owner(split, index)
        self.owner_address = _address(self.owner)
        self.mails: list[_Mail] = []
        self.questions: list[_Question] = []
        self._written: set[tuple[str, str, str]] = set()
        self._taken: set[str] = set()
        self._people_first: list[str] = []
        self._phones = cycle(self.rng.sample([f"555-01{n:02d}" for n in range(100)], 100))
        self._question_wordings: dict[str, Iterator[str]] = {}
        self._colleagues = [self._person() for _ in range(14)]
        self._projects = [self._project() for _ in range(max(4, company.questions_per_inbox // 4))]
        self._entities: list[str] = []
        self._contacts: list[str] = []
        self._other_teams = [self._firm("team_kind") for _ in range(6)]
        self._used_projects: dict[str, list[str]] = {}

        self._write_questions(company.questions_per_inbox, index)
        self._write_filler(budget - len(self.mails))
        self.mails.sort(key=lambda mail: (mail.sent, mail.subject, mail.body))
        for n, mail in enumerate(self.mails):
            mail.message_id = f"<{mail.sent:%Y%m%d}.{split}{index:04d}.{n:04d}@{DOMAIN}>"
        self.rng.shuffle(self.questions)

    # Names and values

    def _unused(self, make: Callable[[], str]) -> str:
        name = make()
        while name in self._taken:
            name = make()
        self._taken.add(name)
        return name

    def _person(self) -> str:
        def make() -> str:
            sibling = self._people_first and self.rng.random() < SIBLING_NAME
            first = self.rng.choice(self._people_first if sibling else _text()["names"]["person_first"])
            return f"{first} {self.rng.choice(_names(self.split)['person_last'])}"

        name = self._unused(make)
        self._people_first.append(name.partition(" ")[0])
        return name

    def _project(self) -> str:
        pool = _names(self.split)["project_second"]
        return self._unused(
            lambda: f"{self.rng.choice(_text()['names']['project_first'])} {self.rng.choice(pool)}"
        )

    def _firm(self, kinds: str) -> str:
        pool = _names(self.split)["brand"]
        return self._unused(lambda: f"{self.rng.choice(pool)} {self.rng.choice(_text()['names'][kinds])}")

    def _value(self, sort: str, day: date, avoid: Sequence[str] = ()) -> str:
        value = self._any_value(sort, day)
        while value in avoid:
            value = self._any_value(sort, day)
        return value

    def _any_value(self, sort: str, day: date) -> str:
        rng = self.rng
        match sort:
            case "time":
                return f"{rng.randrange(8, 18):02d}:{rng.choice((0, 10, 15, 20, 30, 40, 45, 50)):02d}"
            case "room":
                return f"Room {rng.randrange(1, 7)}{rng.choice('ABCDEFGH')}"
            case "date":
                return _day_month(day + timedelta(days=rng.randrange(8, 75)))
            case "amount":
                return f"${rng.randrange(120, 970) * 100:,}"
            case "bill":
                return f"${rng.randrange(105, 990) * 10:,}"
            case "phone":
                return next(self._phones)
            case "floor":
                return f"Floor {rng.randrange(1, 15)}"
            case "badge":
                return f"B-{rng.randrange(1000, 10000)}"
            case "bay":
                return f"Bay {rng.randrange(11, 100)}"
            case "person":
                return self._person()
            case "vendor" | "caterer":
                return self._firm(f"{sort}_trade")
            case "venue" | "hotel" | "team":
                return self._firm(f"{sort}_kind")
            case _:
                raise KeyError(sort)

    def _entity(self, sort: str) -> str:
        """A new thing to state a fact about; projects repeat with other aspects, so that names resemble each other."""
        if sort in ("contact", "newcomer"):
            return self._person()
        if sort == "client":
            return self._firm("client_trade")
        used = self._used_projects.setdefault(sort, [])
        near = list(dict.fromkeys(used))
        projects = near if near and self.rng.random() < SIBLING_NAME else self._projects
        for pool in (projects, self._projects):
            free = [f"{p} {a}" for p in pool for a in _text()["aspects"][sort] if f"{p} {a}" not in self._taken]
            if free:
                break
        entity = self.rng.choice(free)
        self._taken.add(entity)
        used.append(" ".join(entity.split()[:2]))
        return entity

    # Mails

    def _moment(self, day_index: int) -> datetime:
        minute = self.rng.randrange(7 * 60 + 30, 18 * 60 + 30)
        return datetime.combine(WORKING_DAYS[day_index], time(minute // 60, minute % 60, self.rng.randrange(60)))

    def _body(self, sentence: str, first_name: str, sender: str, quoted: str = "", padded: bool = True) -> str:
        frame, rng = _text()["frame"], self.rng
        before = rng.sample(frame["openers"], rng.choice((0, 1, 1))) if padded else []
        after = rng.sample(frame["closers"], rng.choice((0, 1, 1, 2, 3))) if padded else []
        greeting = rng.choice(frame["greetings"]).format(first=first_name)
        closing = f"{rng.choice(frame['closings'])}\n{sender.partition(' ')[0]}".strip()
        paragraphs = [greeting, " ".join([*before, sentence, *after]), closing, quoted]
        return "\n\n".join(p for p in paragraphs if p)

    def _add(self, mail: _Mail) -> _Mail | None:
        """Keeps the mail, unless the inbox has the same subject, body and sender already."""
        key = (mail.subject, mail.body, mail.sender)
        if key in self._written:
            return None
        self._written.add(key)
        self.mails.append(mail)
        return mail

    def _letter(
        self, sent: datetime, subject: str, sentence: str, sender: str | None = None, quoted: str = "", padded: bool = True
    ) -> _Mail:
        """A mail to the owner, or from the owner to a colleague, with the sentence inside."""
        rng = self.rng
        while True:
            by_owner = sender is None and rng.random() < SENT_BY_OWNER
            author = self.owner if by_owner else sender or rng.choice(self._colleagues)
            others = [p for p in self._colleagues if p != author]
            reader = rng.choice(others) if author == self.owner else self.owner
            cc = [_address(p) for p in rng.sample(others, rng.choice((0, 0, 1, 2))) if p != reader]
            body = self._body(sentence, reader.partition(" ")[0], author, quoted, padded)
            mail = self._add(_Mail(sent, _address(author), [_address(reader)], subject, body, cc))
            if mail is not None:
                return mail
            padded = True  # more to say, so that even a huge mailbox of small talk does not run out of words

    def _name_of(self, address: str) -> str:
        return address.partition("@")[0].replace(".", " ").title()

    def _fill(self, template: str, spec: dict[str, Any], day: date, entity: str, value: str, old: str = "") -> str:
        other = self._value(spec["value"], day, (value, old)) if "{o}" in template else ""
        avoid = (value, old, other)
        return template.format(
            e=entity, v=value, o=other, old=old,
            time=self._value("time", day, avoid), room=self._value("room", day, avoid),
        )  # fmt: skip

    def _state(self, kind: str, entity: str, day_index: int, corrected_after: int = 0) -> _Fact:
        """Writes the mail that states the fact and, `corrected_after` working days later, its correction."""
        spec, rng = _text()["mail"][kind], self.rng
        day = WORKING_DAYS[day_index]
        value = self._value(spec["value"], day)
        statement = self._fill(rng.choice(spec["statements"]), spec, day, entity, value)
        subject = rng.choice(spec["subjects"]).format(e=entity)
        original = self._letter(self._moment(day_index), subject, statement)
        fact = _Fact(kind, entity, original, value, value=value)
        if corrected_after:
            fact.value = self._value(spec["value"], day, (value,))
            sentence = self._fill(rng.choice(spec["corrections"]), spec, day, entity, fact.value, old=value)
            author = self._name_of(original.sender) if rng.random() < 0.7 else None
            quoted = ""
            if rng.random() < 0.5:
                subject = f"Re: {subject}"
                if rng.random() < 0.4:
                    quoted = self._quote(original, statement)
            else:
                subject = rng.choice(_text()["frame"]["correction_subjects"]).format(s=entity)
            fact.correction = self._letter(self._moment(day_index + corrected_after), subject, sentence, author, quoted)
        return fact

    def _quote(self, mail: _Mail, line: str) -> str:
        return f"On {_day_month(mail.sent.date())} {self._name_of(mail.sender)} wrote:\n> {line}"

    # Questions

    def _write_questions(self, count: int, index: int) -> None:
        two = round(TWO_MAIL_SHARE * count)
        kinds = self._kinds(count - two, 1, index) + self._kinds(two, 2, index)
        corrected = set(self.rng.sample(range(count), round(CORRECTED_SHARE * count)))
        namesakes: list[str] = []
        if kinds.count("phone") > 1:
            person = self._person()
            namesakes = [f"{person} in {d}" for d in self.rng.sample(_text()["names"]["departments"], 2)]
        for n, kind in enumerate(kinds):
            entity = namesakes.pop() if kind == "phone" and namesakes else None
            self._write_question(kind, n in corrected, entity)

    def _kinds(self, count: int, mails: int, offset: int) -> list[str]:
        """`count` kinds that take that many mails, in turn; those only tested come half as often as the others."""
        specs = {k: s for k, s in _text()["question"].items() if len(s["mails"]) == mails}
        known = [k for k, s in specs.items() if not s.get("test_only")]
        unseen = [k for k, s in specs.items() if s.get("test_only")]
        turn = known + known + unseen if self.split == "test" else known
        start = offset * count  # the next inbox goes on where this one stops
        return [turn[(start + n) % len(turn)] for n in range(count)]

    def _wording(self, kind: str) -> str:
        wordings = _text()["question"][kind][self.split]
        if kind not in self._question_wordings:
            self._question_wordings[kind] = cycle(self.rng.sample(wordings, len(wordings)))
        return next(self._question_wordings[kind])

    def _write_question(self, kind: str, corrected: bool, entity: str | None) -> None:
        rng = self.rng
        mail_kinds = _text()["question"][kind]["mails"]
        entity = entity or self._entity(_text()["mail"][mail_kinds[0]]["entity"])
        topic = entity
        place = None
        if corrected:
            place = 0 if len(mail_kinds) == 2 and rng.random() < FIRST_MAIL_CORRECTED else len(mail_kinds) - 1
        early = corrected and rng.random() < ASKED_BEFORE_CORRECTION
        corrected_day, gap = rng.randrange(LAST_FACT_DAY), rng.randrange(3, 15)

        mails: list[_Mail] = []
        for n, mail_kind in enumerate(mail_kinds):
            if n == place:
                fact = self._state(mail_kind, topic, corrected_day, gap)
            else:
                fact = self._state(mail_kind, topic, rng.randrange(max(1, corrected_day) if early else LAST_FACT_DAY))
            use_original = early or fact.correction is None
            topic = fact.first_value if use_original else fact.value
            mails.append(fact.original if use_original else fact.correction)
            if _text()["mail"][mail_kind]["value"] == "person":
                self._contacts.append(fact.first_value)
        if kind == "phone":
            self._contacts.append(entity)
        elif _text()["mail"][mail_kinds[0]]["entity"] in _text()["aspects"]:
            self._entities.append(entity)

        if early:
            asked = self._moment(corrected_day + 1 + rng.randrange(gap - 1))
        else:
            latest = max(mail.sent for mail in mails)
            after = next(n for n, day in enumerate(WORKING_DAYS) if day > latest.date())
            asked = self._moment(rng.randrange(after, len(WORKING_DAYS)))
        self.questions.append(_Question(kind, entity, self._wording(kind).format(e=entity), topic, mails, asked))

    # Mails that answer nothing

    def _write_filler(self, count: int) -> None:
        writers = [self._ask, self._acknowledge, self._mention, self._ask, self._mention_contact,
                   self._ask, self._acknowledge, self._repeat, self._ask, self._chat]  # fmt: skip
        end = len(self.mails) + count
        fact_mails = list(self.mails)
        turn = 0
        while len(self.mails) < end:
            if turn % 25 == 24:
                self._newsletter()
            else:
                writers[turn % len(writers)](fact_mails)
            turn += 1

    def _any_day(self) -> datetime:
        return self._moment(self.rng.randrange(len(WORKING_DAYS)))

    def _acknowledge(self, fact_mails: list[_Mail]) -> None:
        """A reply under the subject of a mail with a fact, which quotes at most its first words."""
        rng = self.rng
        mail = rng.choice(fact_mails)
        sent = mail.sent + timedelta(minutes=rng.randrange(4, 300))
        author = rng.choice([p for p in [*self._colleagues, self.owner] if _address(p) != mail.sender])
        quoted = self._quote(mail, rng.choice(_text()["frame"]["openers"])) if rng.random() < 0.4 else ""
        subject = mail.subject if mail.subject.startswith("Re: ") else f"Re: {mail.subject}"
        self._letter(sent, subject, rng.choice(_text()["filler"]["acknowledgements"]), author, quoted, padded=False)

    def _ask(self, fact_mails: list[_Mail]) -> None:
        """Somebody else wonders about what a question of ours is about, in the words of a train question."""
        known = [q for q in self.questions if _text()["question"][q.kind]["train"]]
        if not known:
            return self._mention(fact_mails)
        question = self.rng.choice(known)
        line = self.rng.choice(_text()["question"][question.kind]["train"])
        latest = next(n for n, day in enumerate(WORKING_DAYS) if day >= question.asked.date())
        subject = self.rng.choice(_text()["filler"]["ask_subjects"]).format(e=question.entity)
        ask = self.rng.choice(_text()["filler"]["asks"]).format(q=line.format(e=question.entity))
        self._letter(self._moment(self.rng.randrange(latest + 1)), subject, ask, padded=False)

    def _mention(self, fact_mails: list[_Mail]) -> None:
        self._remark("mentions", "mention_subjects", self._entities or self._projects)

    def _mention_contact(self, fact_mails: list[_Mail]) -> None:
        self._remark("contact_mentions", "contact_mention_subjects", self._contacts or self._colleagues)

    def _remark(self, lines: str, subjects: str, entities: list[str]) -> None:
        filler, entity = _text()["filler"], self.rng.choice(entities)
        line, subject = self.rng.choice(filler[lines]), self.rng.choice(filler[subjects])
        self._letter(self._any_day(), subject.format(e=entity), line.format(e=entity), padded=self.rng.random() < 0.5)

    def _repeat(self, fact_mails: list[_Mail]) -> None:
        """A regular meeting of another team, called like one of ours."""
        filler, day = _text()["filler"], self._any_day()
        names = {"a": self.rng.choice(_text()["aspects"]["meeting"]), "team": self.rng.choice(self._other_teams)}
        names |= {"time": self._value("time", day), "room": self._value("room", day)}
        subject, line = self.rng.choice(filler["repeat_subjects"]), self.rng.choice(filler["repeats"])
        subject = subject.format(**names)
        self._letter(day, subject[0].upper() + subject[1:], line.format(**names))

    def _chat(self, fact_mails: list[_Mail]) -> None:
        filler = _text()["filler"]
        self._letter(self._any_day(), self.rng.choice(filler["chat_subjects"]), self.rng.choice(filler["chat"]))

    def _newsletter(self) -> None:
        topics = self.rng.sample(self._projects, 3)
        agenda = f"This month people talk most about {topics[0]}, {topics[1]} and {topics[2]}."
        self._add(_newsletter(self.rng, [self.owner_address], agenda))


def _newsletter(rng: Random, recipients: list[str], agenda: str = "") -> _Mail:
    filler = _text()["filler"]
    sentences = rng.sample(filler["newsletter"], rng.randrange(7, 14))
    sentences.insert(rng.randrange(len(sentences)), agenda)
    sent = datetime.combine(rng.choice(WORKING_DAYS), time(7, rng.randrange(60)))
    body = "\n".join(s for s in sentences if s)
    return _Mail(sent, f"post@{DOMAIN}", recipients, rng.choice(filler["newsletter_subjects"]), body)


@dataclass(frozen=True)
class SyntheticCompany:
    """A company that exists only as mails and questions; see `synthetic_company`."""

    seed: int
    train_inboxes: int
    test_inboxes: int
    mails_per_inbox: int
    questions_per_inbox: int

    def emails(self) -> Iterator[Email]:
        """Every mail once, inbox by inbox; newsletters that several inboxes share come before those inboxes."""
        for split, index in self._inbox_indices():
            if index % SHARED_GROUP == 0:
                yield from (mail.email() for mail in self._shared_mails(split, index // SHARED_GROUP))
            yield from (mail.email() for mail in self._inbox(split, index).mails)

    def scenarios(self) -> list[Scenario]:
        """The questions of all inboxes, in random order within each."""
        return [
            Scenario(
                id=f"{split}-{index:04d}-{n:03d}",
                question=question.text,
                answer=question.answer,
                message_ids=tuple(mail.message_id for mail in question.mails),
                inbox_address=inbox.owner_address,
                query_date=question.asked,
                split=split,
                kind=question.kind,
            )
            for split, index in self._inbox_indices()
            for inbox in [self._inbox(split, index)]
            for n, question in enumerate(inbox.questions)
        ]

    def owner(self, split: Split, index: int) -> str:
        """Full name of the person whose inbox it is; owners appear in no other inbox but in shared recipient lists."""
        firsts, lasts = _text()["names"]["person_first"], _names(split)["owner_last"]
        start = Random(f"{self.seed}/{split}/owners").randrange(len(firsts) * len(lasts))
        # Neighbours in this order share neither name; the step is prime, so that every pair comes up once.
        pair = (start + index * 7919) % (len(firsts) * len(lasts))
        return f"{firsts[pair % len(firsts)]} {lasts[pair // len(firsts)]}"

    def _inbox_indices(self) -> Iterator[tuple[Split, int]]:
        yield from (("train", n) for n in range(self.train_inboxes))
        yield from (("test", n) for n in range(self.test_inboxes))

    def _inbox(self, split: Split, index: int) -> _Inbox:
        return _Inbox(self, split, index, self.mails_per_inbox - SHARED_MAILS)

    def _shared_mails(self, split: Split, group: int) -> Iterator[_Mail]:
        rng = Random(f"{self.seed}/{split}/group/{group}")
        count = self.train_inboxes if split == "train" else self.test_inboxes
        members = range(group * SHARED_GROUP, min(count, (group + 1) * SHARED_GROUP))
        for n in range(SHARED_MAILS):
            mail = _newsletter(rng, [_address(self.owner(split, m)) for m in members])
            mail.message_id = f"<{mail.sent:%Y%m%d}.{split}{group:04d}.post{n}@{DOMAIN}>"
            yield mail


def mails_needed(questions_per_inbox: int) -> int:
    """Smallest `mails_per_inbox` that holds that many questions: their facts, the corrections and some filler."""
    facts = sum(round(share * questions_per_inbox) for share in (1, TWO_MAIL_SHARE, CORRECTED_SHARE))
    return SHARED_MAILS + round(facts * (1 + FILLER_SHARE)) + 1


def synthetic_company(
    seed: int = 0,
    train_inboxes: int = 8,
    test_inboxes: int = 4,
    mails_per_inbox: int = 130,
    questions_per_inbox: int = 64,
) -> SyntheticCompany:
    """A company whose mails and questions follow from these numbers alone, on every Python version.

    Raises `BadInput` when a number is out of range or the mails cannot hold the facts that the questions need.
    """
    most = min(
        len(_text()["names"]["person_first"]) * len(_names(split)["owner_last"]) for split in ("train", "test")
    )
    for name, count in (("train_inboxes", train_inboxes), ("test_inboxes", test_inboxes)):
        if not 0 <= count <= most:
            raise BadInput(f"{name} is {count}, but must be between 0 and {most}")
    if train_inboxes + test_inboxes == 0:
        raise BadInput("train_inboxes and test_inboxes are both 0: ask for at least one inbox")
    if not 1 <= questions_per_inbox <= MAX_QUESTIONS:
        raise BadInput(f"questions_per_inbox is {questions_per_inbox}, but must be between 1 and {MAX_QUESTIONS}")
    if mails_per_inbox < (needed := mails_needed(questions_per_inbox)):
        raise BadInput(
            f"mails_per_inbox is {mails_per_inbox}, but {questions_per_inbox} questions per inbox need at least {needed}"
        )
    return SyntheticCompany(seed, train_inboxes, test_inboxes, mails_per_inbox, questions_per_inbox)
