"""The share of the reference's facts that an answer states."""

from __future__ import annotations

import pytest

from agent.judges.exact import judge_exactly
from agent.judges.stated import share_of_facts

QUESTION = "When and where is the review, and who comes?"
REFERENCE = "Tuesday at 3 pm in Houston with Dana Voss"


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        (REFERENCE, 1.0),
        ("Tuesday 15:00, Houston, Dana Voss", 1.0),
        ("Tuesday at 3 pm in Houston", 0.75),
        ("Tuesday at 3 pm", 0.5),
        ("Dana Voss", 0.25),
        ("Dana", 0.0),
        ("Tuesday at 4 pm in Houston", 0.25),
        ("Tuesday at 3 pm in Dallas", 0.25),
        ("Wednesday at 4 pm in Dallas", 0.0),
        ("soon", 0.0),
        ("", 0.0),
    ],
)
def test_each_fact_counts_and_each_contradiction_takes_one_away(answer: str, share: float) -> None:
    assert share_of_facts(QUESTION, REFERENCE, answer) == pytest.approx(share)


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        ("3 pm", "2 pm, 3 pm"),
        ("3 pm", "3 pm, 4 pm, 5 pm"),
        ("3 pm", "3 pm or 4 pm"),
        ("3 pm", "not 3 pm"),
        ("by 3 pm", "after 3 pm"),
        ("from 2 pm to 3 pm", "from 3 pm to 2 pm"),
        ("Dana Voss", "Dana Voss, Piet Harlow, Orla Quill"),
        ("Dana Voss", "dana voss piet harlow orla quill"),
        ("Berlin, Madrid, Paris", "Berlin Madrid Lima Paris Oslo Rome Kyiv"),
        ("Berlin, Madrid, Paris", "Berlin, Oslo Rome Kyiv"),
        ("April", "March April May"),
        ("3rd floor", "first second third floor"),
        ("3rd", "first second third fourth"),
        ("$5,000", "$5,000, $6,000"),
        ("555-0173", "555-0173 555-0174"),
        ("Yes, on Monday", "No, on Monday"),
        ("Dana and Piet come", "Dana and Piet do not come"),
        ("3 pm", "3 pm " + "and so on " * 9),
        ("the blue one", "the blue and green one"),
    ],
)
def test_lists_of_candidates_and_turned_answers_gain_nothing(reference: str, answer: str) -> None:
    assert not judge_exactly("What is it?", reference, answer).correct
    assert share_of_facts("What is it?", reference, answer) == 0


@pytest.mark.parametrize("more", [", Lima", ", Oslo, Rome", ", Kyiv, Lima, Oslo, Rome"])
def test_further_candidates_never_raise_the_share_of_a_partial_answer(more: str) -> None:
    partial = share_of_facts("Which offices?", "Berlin, Madrid, Paris", "Berlin, Madrid")
    assert share_of_facts("Which offices?", "Berlin, Madrid, Paris", f"Berlin, Madrid{more}") < partial < 1
    swapped = share_of_facts("When?", "Dana at 9:00 and Piet at 10:00", "Dana at 10:00 and Piet at 9:00")
    assert swapped <= share_of_facts("When?", "Dana at 9:00 and Piet at 10:00", "Dana and Piet")


@pytest.mark.parametrize(
    ("question", "reference"),
    [
        ("Where does Dana Voss of Kestrel sit?", "Dana Voss sits in Room 4B, Oslo"),
        (
            "What did Orla Quill tell Piet Harlow about the Tuesday 3 pm meeting with Kestrel?",
            "Piet Harlow should bring the 2001 budget to the Tuesday 3 pm meeting.",
        ),
        ("Is the review with Dana in London or Houston?", "Dana prefers Houston"),
        (
            "What is the status of Bill AB 18X in the Kestrel plan?",
            "Bill AB 18X is effectively dead from lack of support.",
        ),
        ("What did Orla reply to Dana about the review on April 11?", "Orla will be delighted on April 11."),
    ],
)
def test_repeating_the_question_gains_nothing(question: str, reference: str) -> None:
    assert not judge_exactly(question, reference, question).correct
    assert share_of_facts(question, reference, question) == 0
    assert share_of_facts(question, reference, " ".join(question.split()[2:])) == 0
    assert judge_exactly(question, reference, reference.rstrip(".") + ", it says").correct


@pytest.mark.parametrize(
    "answer", ["12 chairs, 30 lamps, $400", "12 chairs 30 lamps $400", "12 chairs, 30 lamps, Oslo"]
)
def test_a_wrong_value_costs_one_fact_also_as_an_item_of_its_own(answer: str) -> None:
    assert share_of_facts("What did Dana order?", "12 chairs, 30 lamps, $500", answer) == pytest.approx(1 / 3)


def test_what_the_question_says_is_no_new_fact() -> None:
    assert share_of_facts("Where does Dana Voss sit?", "Dana Voss sits in Room 4B, Oslo", "Dana Voss") == 0
    assert share_of_facts("Where does Dana Voss sit?", "Dana Voss sits in Room 4B, Oslo", "Dana Voss, Room 4B") == 0.5
