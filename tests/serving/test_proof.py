from __future__ import annotations

import time

import pytest

from serving.proof import find_proof


def proof(question: str, answer: str, body: str, subject: str = "Hello") -> tuple[bool, list[str]]:
    fields = {"subject": subject, "from_address": "bo@kestrel.example", "body": body}
    found = find_proof(question, answer, fields)
    return found.found, [fields[mark.field][mark.start : mark.end] for mark in found.marks]


@pytest.mark.parametrize(
    ("question", "answer", "body", "marked"),
    [
        ("Where is it?", "room 4B", "The review is in Room 4B.", ["Room 4B"]),
        ("When is it?", "3 pm on March 4", "Let us meet on 4 March at 15:00 😀", ["4 March", "15:00"]),
        ("What is Jack's number?", "Jack is available under 555-0199", "😀😀 call Jack: 555-0199", ["555-0199"]),
        ("Where do we meet?", "In the old mill.", "We meet at the old mill, not in town", ["old", "mill"]),
        ("How much is it?", "$1,200", "we pay 1200 dollars", ["1200 dollars"]),
        (
            "What do we do on 5 March?",
            "On 5 March we visit Rook Hall",
            "On Friday we visit Rook Hall",
            ["Rook", "Hall"],
        ),
        ("Who wrote?", "bo@kestrel.example", "…", ["bo@kestrel.example"]),
    ],
)
def test_a_value_that_is_there_is_marked(question: str, answer: str, body: str, marked: list[str]) -> None:
    assert proof(question, answer, body) == (True, marked)


@pytest.mark.parametrize(
    ("question", "answer", "body"),
    [
        ("Where is it?", "room 4B", "The review is in room 4C, not 14B."),
        ("When is it?", "3 pm on March 4", "Let us meet on 5 March at 15:00"),
        ("Who is it?", "Jill Higgins", "ask Jack Higgins"),
        ("Is it on?", "yes", "it is on"),
        ("How many?", "12", "we counted 120 and 1.2"),
        ("Where?", "room 4B", ""),
    ],
)
def test_a_value_that_is_not_there_is_not_found(question: str, answer: str, body: str) -> None:
    assert not proof(question, answer, body)[0]


def test_marks_do_not_overlap_and_are_bounded() -> None:
    found = find_proof(
        "Where?", "the old mill", {"subject": "", "from_address": "", "body": "the mill was old. " * 200}
    )
    assert found.found and len(found.marks) == 40
    assert all(first.end <= second.start for first, second in zip(found.marks, found.marks[1:], strict=False))


def test_a_value_in_many_spellings_takes_no_longer_than_in_one() -> None:
    link, count = "https://kestrel.example/programme", 400
    many = [
        "".join(letter.upper() if number >> place & 1 else letter for place, letter in enumerate(link))
        for number in range(256, 256 + count)
    ]

    def seconds(links: list[str]) -> float:
        begin = time.process_time()
        assert proof("Where is the programme?", f"It is at {link}.", "\n".join(links))[0]
        return time.process_time() - begin

    one, all_different = (min(seconds(links) for _ in range(3)) for links in ([link] * count, many))
    assert all_different < 4 * one
