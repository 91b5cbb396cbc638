"""Write one inbox of the synthetic company: mails that state facts, mails that distract, and questions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from itertools import cycle
from random import Random

from environment.models import Scenario
from environment.sources.synthetic_mail import WORKING_DAYS, Letters, Mail, address_of, newsletter
from environment.sources.synthetic_names import Names, Split, text

LAST_FACT_DAY = 95  # index into WORKING_DAYS: leaves room for corrections and for questions that come later

TWO_MAIL_SHARE: dict[Split, float] = {"train": 0.34, "test": 0.28}
"""Higher in training, because it is hard to learn when to search again."""
CORRECTED_SHARE = 0.25
HIDDEN_CORRECTION = 0.1  # share of corrections without the fact in their subject, so that the old mail ranks first
CALLED_OFF = 0.2  # share of corrected facts with a mail in between: the old value is cancelled, and no new one is known
ASKED_SHARE = 0.3  # share of questions that a colleague also asks by mail
ASKED_IN_THE_SAME_WORDS = 0.75  # so a search for all words of the question finds that mail first
LAST_YEAR_SHARE = 0.25  # share of questions with a mail of the year before that states another value
FIRST_MAIL_CORRECTED = 0.3  # share of corrected two-mail questions whose first, not second, mail is corrected
ASKED_BEFORE_CORRECTION = 0.2  # share of corrected facts asked about before the correction
MENTIONS_THE_ASKED = 0.3  # share of mentions that name the subject of a question; the others name something similar
SECOND_VALUE_SHARE = 0.15  # share of mails with a fact that also name another value of the same kind


@dataclass
class _Fact:
    """What a mail says about an entity and, if there is one, what its correction says instead."""

    original: Mail
    value: str
    correction: Mail | None = None
    corrected_value: str = ""


@dataclass
class _Question:
    kind: str
    entity: str
    text: str
    answer: str
    mails: list[Mail]
    asked: datetime


class Inbox:
    """One person's mails, sorted by date in `mails`, and the questions that they answer.

    `mails` counts what is written; it must leave room for what the questions need.
    """

    def __init__(self, seed: int, split: Split, index: int, owner: str, mails: int, questions: int) -> None:
        self.rng = Random(f"{seed}/{split}/{index}")
        self.split: Split = split
        self.index = index
        self.owner = owner
        self._questions: list[_Question] = []
        self._names = Names(self.rng, split, projects=max(4, questions * 3 // 4))
        self._colleagues = [self._names.person() for _ in range(14)]
        self._letters = Letters(self.rng, owner, self._colleagues)
        self.mails = self._letters.mails
        self._other_teams = [self._names.firm("team_kind") for _ in range(6)]
        self._topics: list[str] = []
        self._contacts: list[str] = []
        self._wordings: dict[str, Iterator[str]] = {}

        self._write_questions(questions)
        self._write_filler(mails)
        self.mails.sort(key=lambda mail: (mail.sent, mail.subject, mail.body))
        for n, mail in enumerate(self.mails):
            mail.number(f"{split}{index:04d}.{n:04d}")
        self.rng.shuffle(self._questions)

    def scenarios(self) -> list[Scenario]:
        """Return the questions in random order, so that any first part of them is a fair sample."""
        return [
            Scenario(
                id=f"{self.split}-{self.index:04d}-{n:03d}",
                question=question.text,
                answer=question.answer,
                message_ids=tuple(mail.message_id for mail in question.mails),
                inbox_address=address_of(self.owner),
                query_date=question.asked,
                split=self.split,
                kind=question.kind,
            )
            for n, question in enumerate(self._questions)
        ]

    # Facts

    def _fill(self, template: str, sort: str, day: date, entity: str, value: str, old: str = "") -> str:
        other = self._names.value(sort, day, (value, old)) if "{o}" in template else ""
        avoid = (value, old, other)
        room, clock = self._names.value("room", day, avoid), self._names.value("time", day, avoid)
        return template.format(e=entity, v=value, o=other, old=old, time=clock, room=room)

    def _state(
        self,
        kind: str,
        entity: str,
        day_index: int,
        corrected_after: int = 0,
        pointer: str = "",
        may_call_off: bool = False,
    ) -> _Fact:
        """Write the mail that states the fact, and its correction `corrected_after` working days later.

        `pointer` is a remark on where more is to be found; {v} in it is the fact's value. With `may_call_off` a mail between the
        two may say that the first value is off.
        """
        spec, frame, rng = text()["mail"][kind], text()["frame"], self.rng
        sort, day = spec["value"], WORKING_DAYS[day_index]
        value = self._names.value(sort, day)
        ambiguous = rng.random() < SECOND_VALUE_SHARE
        templates = [template for template in spec["statements"] if ("{o}" in template) == ambiguous]
        statement = self._fill(rng.choice(templates), sort, day, entity, value)
        subject = rng.choice(spec["subjects"]).format(e=entity)
        original = self._letters.letter(
            self._letters.moment(day_index), subject, statement, below=pointer.format(v=value)
        )
        if not corrected_after:
            return _Fact(original, value)

        new_value = self._names.value(sort, day, (value,))
        if may_call_off and rng.random() < CALLED_OFF:
            self._call_off(kind, entity, value, day_index + rng.randrange(1, corrected_after))
        sentence = self._fill(rng.choice(spec["corrections"]), sort, day, entity, new_value, old=value)
        below = pointer.format(v=new_value)
        if rng.random() < HIDDEN_CORRECTION:
            subject = rng.choice(frame["vague_subjects"])
        elif rng.random() < 0.3:
            subject = f"Re: {subject}"
            if rng.random() < 0.5:
                below = f"{below}\n\n{original.quote(statement)}".strip()
        else:
            subject = rng.choice(frame["correction_subjects"]).format(e=entity)
        author = original.author if rng.random() < 0.7 else ""
        correction = self._letters.letter(
            self._letters.moment(day_index + corrected_after), subject, sentence, author, below, padded=False
        )
        return _Fact(original, value, correction, new_value)

    def _call_off(self, kind: str, entity: str, value: str, day_index: int) -> None:
        """Write that `value` no longer holds, without saying what does."""
        frame, rng = text()["frame"], self.rng
        named = f"the {entity}" if text()["mail"][kind]["entity"] in text()["aspects"] else entity
        sentence = rng.choice(frame["called_off"]).format(e=named, old=value)
        subject = rng.choice(frame["correction_subjects"]).format(e=entity)
        self._letters.letter(self._letters.moment(day_index), subject, sentence, padded=False)

    def _state_last_year(self, kind: str, entity: str, day_index: int, value: str) -> None:
        """Write what the same thing was a year before the working day `day_index`: anything but `value`."""
        spec, rng = text()["mail"][kind], self.rng
        sent = self._letters.moment(day_index) - timedelta(weeks=52)
        old = self._names.value(spec["value"], sent.date(), (value,))
        statement = self._fill(rng.choice(spec["statements"]), spec["value"], sent.date(), entity, old)
        subject = rng.choice(spec["subjects"]).format(e=entity)
        self._letters.letter(sent, subject, statement, padded=rng.random() < 0.5)

    # Questions

    def _write_questions(self, count: int) -> None:
        two = round(TWO_MAIL_SHARE[self.split] * count)
        kinds = self._kinds(count - two, mails=1) + self._kinds(two, mails=2)
        corrected, asked, last_year = (
            set(self.rng.sample(range(count), round(share * count)))
            for share in (CORRECTED_SHARE, ASKED_SHARE, LAST_YEAR_SHARE)
        )
        namesakes: list[str] = []
        if kinds.count("phone") > 1:
            person = self._names.person()
            namesakes = [f"{person} in {d}" for d in self.rng.sample(text()["names"]["departments"], 2)]
        for n, kind in enumerate(kinds):
            entity = namesakes.pop() if kind == "phone" and namesakes else ""
            self._write_question(kind, n in corrected, n in last_year, entity)
            if n in asked:
                self._ask(self._questions[-1])

    def _kinds(self, count: int, mails: int) -> list[str]:
        """Return `count` kinds of questions that need that many mails, in turn. Test-only kinds come half as often as
        the others.
        """
        specs = {kind: spec for kind, spec in text()["question"].items() if len(spec["mails"]) == mails}
        turn = [kind for kind, spec in specs.items() if spec["train"]]
        if self.split == "test":
            turn = turn + turn + [kind for kind, spec in specs.items() if not spec["train"]]
        start = self.index * count  # continues where the previous inbox stopped
        return [turn[(start + n) % len(turn)] for n in range(count)]

    def _wording(self, kind: str) -> str:
        if kind not in self._wordings:
            wordings = text()["question"][kind][self.split]
            self._wordings[kind] = cycle(self.rng.sample(wordings, len(wordings)))
        return next(self._wordings[kind])

    def _write_question(self, kind: str, corrected: bool, last_year: bool, entity: str) -> None:
        """Write the mails that answer a question of this kind, about `entity` or something new, and ask it."""
        rng, specs = self.rng, text()["mail"]
        mail_kinds = text()["question"][kind]["mails"]
        sort = specs[mail_kinds[0]]["entity"]
        topic = entity = entity or self._names.entity(sort)
        place = -1
        if corrected:
            place = 0 if len(mail_kinds) == 2 and rng.random() < FIRST_MAIL_CORRECTED else len(mail_kinds) - 1
        early = corrected and rng.random() < ASKED_BEFORE_CORRECTION
        day, gap = rng.randrange(1, LAST_FACT_DAY), rng.randrange(3, 15)

        mails: list[Mail] = []
        repeated = rng.randrange(len(mail_kinds)) if last_year else -1
        for n, mail_kind in enumerate(mail_kinds):
            pointer = rng.choice(text()["frame"]["pointers"]) if n + 1 < len(mail_kinds) else ""
            if n == place:
                fact = self._state(mail_kind, topic, day, gap, pointer, may_call_off=not early)
            else:
                fact = self._state(mail_kind, topic, rng.randrange(day if early else LAST_FACT_DAY), pointer=pointer)
            if n == repeated:
                self._state_last_year(mail_kind, topic, day, fact.value)
            if specs[mail_kind]["value"] == "person":
                self._contacts.append(fact.value)
            if fact.correction is None or early:
                mails.append(fact.original)
                topic = fact.value
            else:
                mails.append(fact.correction)
                topic = fact.corrected_value
        if sort in text()["aspects"]:
            self._topics.append(entity)
        elif kind == "phone":
            self._contacts.append(entity)

        if early:
            asked = self._letters.moment(rng.randrange(day + 1, day + gap))
        else:
            latest = max(mail.sent for mail in mails).date()
            asked = self._letters.moment(rng.randrange(WORKING_DAYS.index(latest) + 1, len(WORKING_DAYS)))
        wording = self._wording(kind).format(e=entity)
        self._questions.append(_Question(kind, entity, wording, topic, mails, asked))

    # Mails without answers

    def _write_filler(self, end: int) -> None:
        """Add mails without facts until there are `end`."""
        fact_mails = list(self.mails)
        writers = (
            self._mention, lambda: self._acknowledge(fact_mails), self._chat, self._mention_contact, self._repeat,
            self._mention, self._chat, lambda: self._ask(self.rng.choice(self._questions)), self._mention, self._chat,
        )  # fmt: skip
        turn = 0
        while len(self.mails) < end:
            if turn % 25 == 24:
                agenda = "This month people talk most about {}, {} and {}."
                self.mails.append(
                    newsletter(self.rng, [self.owner], agenda.format(*self.rng.sample(self._names.projects, 3)))
                )
            else:
                writers[turn % len(writers)]()
            turn += 1

    def _any_day(self) -> datetime:
        return self._letters.moment(self.rng.randrange(len(WORKING_DAYS)))

    def _acknowledge(self, fact_mails: list[Mail]) -> None:
        """A reply under the subject of a mail with a fact; what it quotes is not the fact."""
        rng, mail = self.rng, self.rng.choice(fact_mails)
        sent = mail.sent + timedelta(minutes=rng.randrange(4, 300))
        author = rng.choice([p for p in [*self._colleagues, self.owner] if p != mail.author])
        quoted = mail.quote(rng.choice(text()["frame"]["openers"])) if rng.random() < 0.4 else ""
        subject = mail.subject if mail.subject.startswith("Re: ") else f"Re: {mail.subject}"
        self._letters.letter(
            sent, subject, rng.choice(text()["filler"]["acknowledgements"]), author, quoted, padded=False
        )

    def _ask(self, question: _Question) -> None:
        """Write a mail in which somebody asks the same as `question`, often in the same words, without answering it."""
        rng, filler, wordings = self.rng, text()["filler"], text()["question"][question.kind]
        sent = self._letters.moment(rng.randrange(WORKING_DAYS.index(question.asked.date()) + 1))
        same = rng.random() < ASKED_IN_THE_SAME_WORDS
        asked = question.text if same else rng.choice(wordings[self.split]).format(e=question.entity)
        subject = rng.choice(filler["ask_subjects"]).format(e=question.entity)
        self._letters.letter(sent, subject, rng.choice(filler["asks"]).format(q=asked))

    def _mention(self) -> None:
        asked = self._topics and self.rng.random() < MENTIONS_THE_ASKED
        self._remark("mentions", "mention_subjects", self._topics if asked else self._names.projects)

    def _mention_contact(self) -> None:
        asked = self._contacts and self.rng.random() < MENTIONS_THE_ASKED
        self._remark("contact_mentions", "contact_mention_subjects", self._contacts if asked else self._colleagues)

    def _remark(self, lines: str, subjects: str, entities: list[str]) -> None:
        rng, filler = self.rng, text()["filler"]
        entity = rng.choice(entities)
        line, subject = rng.choice(filler[lines]).format(e=entity), rng.choice(filler[subjects]).format(e=entity)
        self._letters.letter(self._any_day(), subject, line, padded=rng.random() < 0.5)

    def _repeat(self) -> None:
        """Write about a regular meeting of another team that has the same name as one of ours."""
        rng, filler, sent = self.rng, text()["filler"], self._any_day()
        names = {"a": rng.choice(text()["aspects"]["meeting"]), "team": rng.choice(self._other_teams)}
        names |= {sort: self._names.value(sort, sent) for sort in ("time", "room")}
        subject = rng.choice(filler["repeat_subjects"]).format(**names)
        self._letters.letter(sent, subject[0].upper() + subject[1:], rng.choice(filler["repeats"]).format(**names))

    def _chat(self) -> None:
        filler = text()["filler"]
        self._letters.letter(self._any_day(), self.rng.choice(filler["chat_subjects"]), self.rng.choice(filler["chat"]))
