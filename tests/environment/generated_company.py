"""A generated company with what its tests look up, and what holds for every one of its questions."""

from __future__ import annotations

import re
from collections import defaultdict

from environment.models import Email, Scenario
from environment.sources.synthetic import SyntheticCompany
from environment.sources.synthetic_names import text

VALUE_FORMS = {
    "time": r"\d\d:\d\d",
    "room": r"Room \d[A-H]",
    "date": r"\d{1,2} (?:January|February|March|April|May|June|July|August|September|October|November|December)",
    "amount": r"\$\d{1,3}(?:,\d{3})*",
    "bill": r"\$\d{1,3}(?:,\d{3})*",
    "phone": r"555-01\d\d",
    "floor": r"Floor \d{1,2}",
    "badge": r"B-\d{4}",
    "bay": r"Bay \d\d",
    "person": r"[A-Z][a-z]+ [A-Z][a-z]+",
}
NAME_FORM = r"[A-Z][a-z]+ [A-Z][a-z]+"


class Company:
    """One generated company with the look-ups that the tests need."""

    def __init__(self, company: SyntheticCompany) -> None:
        self.emails = list(company.emails())
        self.scenarios = company.scenarios()
        self.by_id = {email.message_id: email for email in self.emails}
        self.inboxes: dict[str, list[Email]] = defaultdict(list)
        for email in self.emails:
            for address in dict.fromkeys((email.from_address, *email.to_addresses, *email.cc_addresses)):
                self.inboxes[address].append(email)

    def gold(self, scenario: Scenario) -> list[Email]:
        return [self.by_id[message_id] for message_id in scenario.message_ids]

    def visible(self, scenario: Scenario) -> list[Email]:
        return [email for email in self.inboxes[scenario.inbox_address] if email.date <= scenario.query_date]


def text_of(email: Email) -> str:
    return f"{email.subject}\n{email.body}"


def spec_of(scenario: Scenario) -> dict:
    return text()["question"][scenario.kind]


def entity_of(scenario: Scenario) -> str:
    """What the question is about, recovered from its wordings."""
    for wording in spec_of(scenario)[scenario.split]:
        before, after = wording.split("{e}")
        if scenario.question.startswith(before) and scenario.question.endswith(after):
            return scenario.question[len(before) : len(scenario.question) - len(after)]
    raise AssertionError(f"no {scenario.split} wording of {scenario.kind} fits: {scenario.question}")


def check_answerable(company: Company, scenario: Scenario) -> None:
    """What holds for every question, whatever the size and the seed."""
    gold = company.gold(scenario)
    visible = company.visible(scenario)
    mail_kinds = spec_of(scenario)["mails"]
    assert len(gold) == len(mail_kinds)
    assert scenario.answer in gold[-1].body
    assert scenario.answer not in scenario.question
    assert 1 <= len(scenario.answer.split()) <= 4
    topic = entity_of(scenario)
    for place, (email, kind) in enumerate(zip(gold, mail_kinds, strict=True)):
        last = place == len(gold) - 1
        assert email in visible
        assert topic in email.body
        value = scenario.answer
        if not last:
            assert scenario.answer not in text_of(email)
            assert topic not in text_of(gold[-1])
            shared = set(re.findall(NAME_FORM, text_of(email))) & set(re.findall(NAME_FORM, text_of(gold[-1])))
            (value,) = {name for name in shared if name not in scenario.question}
        # Other mails that state such a fact about the topic are older: what the gold mail says is the last word.
        form = VALUE_FORMS.get(text()["mail"][kind]["value"], NAME_FORM)
        rivals = [
            rival
            for rival in visible
            if topic in rival.body
            and set(re.findall(form, rival.body.replace(topic, ""))) - {value}
            and states(rival, kind)
        ]
        assert all(rival.date <= email.date for rival in rivals)
        assert len(rivals) <= 3
        assert not [mail for mail in visible if mail.date > email.date and topic in mail.body and _calls_off(mail)]
        topic = value


def states(email: Email, kind: str) -> bool:
    """Is one of the sentences that state this kind of fact in the mail?"""
    templates = [*text()["mail"][kind]["statements"], *text()["mail"][kind]["corrections"]]
    return any(re.search(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(template)), email.body) for template in templates)


def _calls_off(email: Email) -> bool:
    """Does the mail say that a value no longer holds, without a new one?"""
    return any(
        re.search(re.sub(r"\\\{\w+\\\}", ".+?", re.escape(line)), email.body) for line in text()["frame"]["called_off"]
    )
