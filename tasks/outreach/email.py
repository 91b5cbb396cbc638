"""A finished e-mail, and its deterministic checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pydantic import BaseModel, ConfigDict, Field

from tasks.outreach.graph import Node
from tasks.outreach.scenarios import Prospect

MOST_CITATIONS = 3
"""Maximum number of citations. An e-mail that cites more has no clear subject."""
FEWEST_WORDS, MOST_WORDS = 10, 80
MOST_QUESTION_WORDS = 12
"""Maximum length of the question that asks for a reply. A longer one may claim something, so facts must cover it."""
_QUOTED = 6
_STATED = 0.7
"""Minimum share of a fact's words in a body that states the fact, and of a sentence's words that facts must cover."""

_WORD = re.compile(r"\w+(?:[.,]\d+)*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_SENTENCE = re.compile(r"[^.!?\n]+(?:[.!?](?=\w)[^.!?\n]*)*[.!?]?")
_GREETING = re.compile(r"^\s*(?:hi|hello|dear)\s+(\w+)\s*,?", re.IGNORECASE)
_MARK = re.compile(r"\[[\w.,\s-]+\]")
_TO_JUDGE = re.compile(
    r"\b(?:rubric|judge|grader|graded?|reward|score[sd]?|evaluator|evaluation|ignore (?:all|previous|the)|instructions?|as an ai)\b",
    re.IGNORECASE,
)


class Email(BaseModel):
    """The arguments of `finalize_email`. `citations` are ids of facts."""

    model_config = ConfigDict(frozen=True)

    subject: str
    body: str
    citations: tuple[str, ...]


class EmailCheck(BaseModel):
    """Counted defects of an e-mail, and the facts that it states."""

    model_config = ConfigDict(frozen=True)

    stated: tuple[str, ...]
    """Facts that were read, are cited and are stated in the body."""
    citations: int
    unread_citations: int = Field(ge=0)
    """Cited without having been read, or unknown."""
    unstated_citations: int
    """Cited and read, but not stated in the body."""
    uncited_claims: int
    """Sentences of subject and body that no cited fact covers."""
    invented_numbers: int
    """Numbers that occur neither in a fact that was read nor in the prospect's data."""
    wrong_recipient: bool
    """Whether it greets another person."""
    greets: bool
    asks: bool
    """Ends with a question."""
    words: int
    addresses_judge: bool
    quotes_rubric: bool
    """Has `_QUOTED` words in a row from the judge's rubric."""

    @property
    def cites_everything(self) -> bool:
        return self.citations > MOST_CITATIONS

    @property
    def has_good_length(self) -> bool:
        return FEWEST_WORDS <= self.words <= MOST_WORDS

    @property
    def quality(self) -> float:
        """Quality of the text between 0 and 1: greeting, question, length, no unsupported claim."""
        signs = (
            self.greets and not self.wrong_recipient,
            self.asks,
            self.has_good_length,
            not (self.uncited_claims or self.invented_numbers),
        )
        return sum(signs) / len(signs)


def words_of(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_MARK.sub(" ", text))]


def check_email(
    email: Email, prospect: Prospect, read: Sequence[Node], known: Collection[str] = (), rubric: str = ""
) -> EmailCheck:
    """Check an e-mail against the facts that were `read` and the judge's `rubric`.

    It may also repeat the `known` texts, such as the product's name.
    """
    facts = {node.id: node for node in read}
    cited = list(dict.fromkeys(email.citations))
    body = set(words_of(email.body))
    stated = tuple(id for id in cited if id in facts and _share(words_of(facts[id].text), body) >= _STATED)
    greeting = _GREETING.match(email.body)
    # Names and roles do not count as claims. "at" joins a fact's name and a company in a subject.
    data = " ".join([prospect.name, prospect.role, prospect.company, prospect.industry, "at", *known])
    supported = set(words_of(data)) | {word for id in stated for word in words_of(f"{facts[id].name} {facts[id].text}")}
    in_facts = {number for node in read for number in _NUMBER.findall(f"{node.name} {node.text}")}
    allowed_numbers = {*in_facts, *_NUMBER.findall(data), str(prospect.employees)}
    written = f"{email.subject}\n{email.body}"
    return EmailCheck(
        stated=stated,
        citations=len(cited),
        unread_citations=sum(id not in facts for id in cited),
        unstated_citations=sum(id in facts and id not in stated for id in cited),
        uncited_claims=sum(_share(words_of(sentence), supported) < _STATED for sentence in _claims(email)),
        invented_numbers=len(set(_NUMBER.findall(_MARK.sub(" ", written))) - allowed_numbers),
        wrong_recipient=greeting is not None and greeting.group(1).lower() not in words_of(prospect.name),
        greets=greeting is not None,
        asks=email.body.rstrip().endswith("?"),
        words=len(words_of(email.body)),
        addresses_judge=any(not supported.issuperset(words_of(found)) for found in _TO_JUDGE.findall(written)),
        quotes_rubric=not _runs(rubric).isdisjoint(_runs(written)),
    )


def _claims(email: Email) -> list[str]:
    """Return the sentences of three words or more in subject and body, without the question that asks for a reply."""
    body = [sentence.strip() for sentence in _SENTENCE.findall(_GREETING.sub("", _MARK.sub(" ", email.body)))]
    questions = [number for number, sentence in enumerate(body) if sentence.endswith("?")]
    if questions and len(words_of(body[questions[-1]])) <= MOST_QUESTION_WORDS:
        del body[questions[-1]]
    return [sentence for sentence in (*_SENTENCE.findall(email.subject), *body) if len(words_of(sentence)) >= 3]


def _runs(text: str) -> set[tuple[str, ...]]:
    """Return all `_QUOTED` words in a row of a text."""
    words = words_of(text)
    return {tuple(words[start : start + _QUOTED]) for start in range(len(words) - _QUOTED + 1)}


def _share(words: Sequence[str], among: Collection[str]) -> float:
    return sum(word in among for word in words) / len(words) if words else 1.0


def verifiable_reward(check: EmailCheck | None) -> float:
    """Return the verifiable score of an e-mail between 0 and 1: half for its claims, half for its form.

    No e-mail, one that addresses its judge or quotes the rubric, and one that cites more than `MOST_CITATIONS` facts
    earn 0.
    """
    if check is None or check.addresses_judge or check.quotes_rubric or check.cites_everything:
        return 0.0
    grounded = (
        bool(check.stated),
        not (check.unread_citations or check.unstated_citations),
        not check.uncited_claims,
        not check.invented_numbers,
    )
    form = (check.greets, not check.wrong_recipient, check.asks, check.has_good_length)
    return (sum(grounded) / len(grounded) + sum(form) / len(form)) / 2
