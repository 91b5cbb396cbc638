"""A model on loopback that writes the questions chosen by a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from environment.models import Email
from tests.fakes.language_model import LanguageModel, Reply

OWNER = "ann.lee@example.com"
THINGS = ("Heron", "Falcon", "Osprey", "Kestrel", "Merlin", "Harrier", "Plover", "Curlew", "Dunlin", "Avocet")


class QuestionModel(LanguageModel):
    """Calls `reply` with what it was asked (`{"owner", "questions", "mails"}`)."""

    def __init__(self) -> None:
        super().__init__()
        self.reply: Callable[[dict[str, Any]], Reply] = good_reply

    def answer(self, request: dict[str, Any]) -> Reply:
        return self.reply(case_of(request))


def case_of(request: dict[str, Any]) -> dict[str, Any]:
    return json.loads(request["messages"][1]["content"])


def room_mails(count: int) -> list[Email]:
    """Mail `n` gives the room of one review; no two have the same thing and number."""
    return [
        Email(
            message_id=f"<{number}@example.com>",
            subject=f"{THINGS[number % 10]} review {number}",
            from_address="bob.ray@example.com",
            to_addresses=(OWNER,),
            date=datetime(2001, 1, 1, 9) + timedelta(hours=7 * number),
            body=f"The {THINGS[number % 10]} review number {number} is in room {room(number)}, please be on time.",
        )
        for number in range(1, count + 1)
    ]


def room(number: int) -> str:
    return f"B{100 + number}"


def written(mail: dict[str, Any], **fields: object) -> dict[str, Any]:
    """A good question about one of `room_mails` as it was shown, unless `fields` say otherwise."""
    number = int(mail["text"].partition("review number ")[2].split()[0])
    return {
        "question": f"In which room do I find the {THINGS[number % 10]} review number {number}?",
        "answer": room(number),
        "mail_ids": [mail["id"]],
        "how_realistic": 0.8,
    } | fields


def good_reply(case: dict[str, Any]) -> str:
    return json.dumps({"questions": [written(mail) for mail in case["mails"]]})
