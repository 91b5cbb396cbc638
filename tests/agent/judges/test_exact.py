"""The exact judge accepts the same fact in another form, and rejects dumps, lists of candidates and other values."""

from __future__ import annotations

import asyncio
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.judges.exact import ExactJudge, count_words, judge_exactly, normalise

SAME = [
    ("3 years", "three years"),
    ("3 years", "3 yrs"),
    ("3 years", "3"),
    ("Building A", "building A"),
    ("Building A", "It is in building A."),
    ("Gate Palace", "the Gate Palace"),
    ("Gate Palace", "Hotel: Gate Palace"),
    ("Room Heron", "Heron"),
    ("The Brightleaf Catering", "Use Brightleaf Catering"),
    ("$48,200", "48200"),
    ("$48,200", "48,200.00 dollars"),
    ("$48,200", "The budget is USD 48,200."),
    ("$48,200", "$48.2k"),
    ("$3.5 million", "3,500,000 dollars"),
    ("40%", "40 percent"),
    ("14:30", "2:30 pm"),
    ("14:30", "at 2.30 p.m."),
    ("9:00am", "9:00"),
    ("Thursday at 2:00 pm", "2 pm on Thursday"),
    ("noon", "12:00"),
    ("14 March", "March 14"),
    ("14 March", "14 Mar 2024"),
    ("14 March", "the 14th of March"),
    ("14 March", "2024-03-14"),
    ("14 March", "Thursday, 14 March"),
    ("March 14, 2024", "14 March"),
    ("Friday, December 1, 2000", "1 December 2000"),
    ("May 23", "23 May"),
    ("555-0173", "Call 555 0173"),
    ("(713) 853-7408", "713-853-7408"),
    ("(713) 853-7408", "+1 713 853 7408"),
    ("853-7408", "(713) 853-7408"),
    ("713/853-7408", "(713) 853 7408"),
    ("ext. 4417", "extension 4417"),
    ("ext. 4417", "x4417"),
    ("ext. 4417", "4417"),
    ("Room 4B", "4b"),
    ("Room 4B", "In room 4B."),
    ("4B", "Room 4B"),
    ("B-17", "bay B17"),
    ("EB1962", "in EB-1962"),
    ("19th floor", "floor 19"),
    ("second floor", "Floor 2"),
    ("Dana Voss", "dana voss"),
    ("Dana Voss", "It is Dana Voss."),
    ("Dana Voss", "Contact Dana Voss"),
    ("Dana Voss", "Voss, Dana"),
    ("Dana Voss", "Dana Voss's"),
    ("José Núñez", "Jose Nunez"),
    ("Hewlett-Packard", "Hewlett Packard"),
    ("Brightleaf Catering", "the Brightleaf Catering"),
    ("an overhead projector", "overhead projectors"),
    ("weekly meetings", "a weekly meeting"),
    ("Yes", "Yes, it was moved"),
    ("dana.voss@kestrel.example", "It is Dana.Voss@kestrel.example."),
    ("two", "2"),
]
DIFFERENT = [
    ("3 years", "3 months"),
    ("30 days", "30 minutes"),
    ("three weeks", "three days"),
    ("10 miles", "10 minutes"),
    ("Building A", "the building"),
    ("Option A", "an option"),
    ("Gate Palace", "Root Palace"),
    ("Bay Inn", "Snow Inn"),
    ("Will Smith", "Jane Smith"),
    ("$48,200", "$48,300"),
    ("$48,200", "48,200 euros"),
    ("$5", "5%"),
    ("1.5", "15"),
    ("5", "-5"),
    ("$48,200", "$4,820.0"),
    ("14:30", "13:30"),
    ("14:30", "2:30 am"),
    ("9:30", "21:30"),
    ("14 March", "14 April"),
    ("14 March", "March"),
    ("14 March 2024", "14 March 2023"),
    ("Friday", "Thursday"),
    ("Friday, December 1", "Thursday, December 1"),
    ("555-0173", "555-0174"),
    ("(713) 853-7408", "(281) 853-7408"),
    ("Room 4B", "Bay 4B"),
    ("Room 4B", "Room 4C"),
    ("4B", "4"),
    ("Dana Voss", "Dana"),
    ("Dana Voss", "Dana Harlow"),
    ("Brightleaf Catering", "Thornfield Catering"),
    ("weekly meetings", "monthly meetings"),
    ("Yes", "No"),
    ("Yes", "Dana Voss"),
    ("Room 4B", "not Room 4B"),
    ("Dana Voss will not attend", "Dana Voss will attend"),
    ("Room 4B", "I don't know, Room 4B"),
    ("overhead projector", "unknown"),
]
CANDIDATES = [
    ("14:30", "14:30 or 15:00"),
    ("14:30", "14:30, 15:00"),
    ("14:30", "14:30 15:00"),
    ("14 March", "14 March, 15 March"),
    ("$48,200", "$48,200 and $51,000"),
    ("Room 4B", "Room 4B, Room 12"),
    ("Room 4B", "4B/12"),
    ("ext. 4417", "ext. 4417, ext. 4418"),
    ("555-0173", "555-0173; 555-0174"),
    ("Dana Voss", "Dana Voss or Piet Harlow"),
    ("Dana Voss", "Dana Voss, Piet Harlow"),
    ("Dana Voss", "Piet Harlow, Dana Voss"),
    ("Dana Voss", "Piet and Dana Voss"),
    ("Dana Voss", "Piet Voss, Dana Voss"),
    ("Dana Voss", "Piet Voss Dana Voss"),
    ("Dana Voss", "dana voss, piet harlow"),
    ("Dana Voss", "dana voss piet harlow"),
    ("Dana Voss", "Dana Voss, piet harlow"),
    ("Dana Voss", "DANA VOSS, PIET HARLOW"),
    ("Brightleaf Catering", "Brightleaf Catering / Thornfield Catering"),
    ("blue", "blue, red"),
    ("blue", "blue and red"),
    ("blue", "either blue"),
]


@pytest.mark.parametrize(("reference", "answer"), SAME)
def test_same_fact_in_another_form_is_right(reference: str, answer: str) -> None:
    verdict = judge_exactly("What is it?", reference, answer)
    assert verdict.correct, verdict.reason


@pytest.mark.parametrize(("reference", "answer"), DIFFERENT + CANDIDATES)
def test_other_facts_and_lists_of_candidates_are_wrong(reference: str, answer: str) -> None:
    verdict = judge_exactly("What is it?", reference, answer)
    assert not verdict.correct
    assert verdict.reason


def test_words_of_the_question_are_allowed_in_a_phrase_but_not_alone() -> None:
    question = "The 14:00 review of Project Heron was moved: to when, and who runs it for Piet Harlow?"
    assert judge_exactly(question, "15:30", "the 14:00 review is at 15:30").correct
    assert judge_exactly(question, "Dana Voss", "Dana Voss runs Project Heron").correct
    for answer in ("14:00, 15:30", "14:00 15:30", "15:30 and 14:00"):
        assert not judge_exactly(question, "15:30", answer).correct
    assert not judge_exactly(question, "Dana Voss", "Piet Harlow, Dana Voss").correct
    assert not judge_exactly("Blue or red?", "blue", "blue, red").correct


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("What time was my interview with Piet Harlow?", "Your interview with Piet Harlow was at 5pm.", "5pm"),
        ("Whom should Orla ask about the options?", "Orla should ask Dana Voss.", "Dana Voss"),
        ("Who sent the Heron invoice of 3 May?", "Dana Voss sent the Heron invoice of 3 May.", "Dana Voss"),
        ("Is it still at 14:30?", "Yes, 14:30", "Yes, at 2:30 pm"),
        ("What did Orla do with the resume?", "Orla sent it to Dana Voss of Quill.", "I sent it to Dana Voss of Quill"),
        (
            "What method did Orla use to project Marlow's giving?",
            "Orla used linear regression to project Marlow's giving.",
            "The method used is linear regression.",
        ),
        (
            "What method did Orla use to project Marlow's giving?",
            "Orla used linear regression to project Marlow's giving.",
            "Linear regression",
        ),
        (
            "Who is joining the Marlow research group as a new analyst?",
            "Dana Voss",
            "Dana Voss will be joining the Marlow research group as a new analyst.",
        ),
    ],
)
def test_an_answer_need_not_repeat_the_question(question: str, reference: str, answer: str) -> None:
    verdict = judge_exactly(question, reference, answer)
    assert verdict.correct, verdict.reason


@pytest.mark.parametrize(
    ("question", "reference", "answer"),
    [
        ("What time was my interview with Piet Harlow?", "Your interview with Piet Harlow was at 5pm.", "6pm"),
        ("Whom should Orla ask?", "Orla should ask Dana Voss.", "Orla"),
        ("Whom should Orla ask?", "Orla should ask Dana Voss.", "Dana"),
        # all of the reference is in the question
        ("Does Orla run Heron or Marlow?", "Heron", "Marlow"),
        ("What is the role of Quill?", "Quill is responsible for options.", "Quill"),
        ("What method did Orla use?", "Orla used linear regression.", "The method used is regression."),
        ("Did Orla use regression or a table?", "Orla used regression.", "a table"),
        ("What does Orla say about Marlow?", "Orla said that Marlow expresses exposures", "Orla about Marlow"),
        ("Is it still at 14:30?", "Yes, 14:30", "Yes"),
        ("Does Orla run the Heron review?", "Orla runs the Heron review", "the review"),
        # half of a name is none
        ("From whom do we buy the Fresh Quill brochures?", "Quill Supplies", "Supplies"),
        # the question offers a choice, or the answer makes one
        ("Who is it, Dana Voss or Piet Harlow, and when?", "Dana Voss, at 9:00", "9:00"),
        ("Which of Dana Voss and Piet Harlow runs it, and when?", "Dana Voss, at 9:00", "Piet Harlow at 9:00"),
        ("Is it on 3 May, on 4 May, and in which room?", "It is on 3 May in Room 4B", "on 4 May in Room 4B"),
    ],
)
def test_what_is_new_in_the_reference_must_be_said(question: str, reference: str, answer: str) -> None:
    assert not judge_exactly(question, reference, answer).correct


MAIL = """Hi all, the Heron budget review will now take place in Room 4B at 14:30 on 14 March, not in Room 12.
Please bring the draft, Dana Voss will present. Lunch comes from Brightleaf Catering and costs $48,200. Regards, Piet"""


IN_THE_MAIL = ["Room 4B", "14:30", "14 March", "Dana Voss", "Brightleaf Catering", "$48,200", "draft"]


@pytest.mark.parametrize("reference", IN_THE_MAIL)
def test_a_whole_mail_or_its_best_sentence_is_no_answer(reference: str) -> None:
    assert not judge_exactly("Which one?", reference, MAIL).correct
    assert not judge_exactly("Which one?", reference, MAIL.split("\n")[0]).correct


def test_words_run_together_by_punctuation_count_one_by_one() -> None:
    assert count_words("Dana,Voss/Piet|Harlow;14:30") == 5
    assert count_words("$48,200 at 14:30, Room 4B.") == 5
    assert normalise("The Room—4B, please!") == "room 4b please"


def test_the_protocol_gives_the_same_verdict() -> None:
    assert asyncio.run(ExactJudge().judge("When?", "14:30", "2:30 pm")).correct


names = st.sampled_from(["Dana", "Piet", "Marlow", "Quill", "Voss", "Harlow", "Brisk", "Tamsin", "Orla", "Fenwick"])
people = st.tuples(names, names).filter(lambda pair: pair[0] < pair[1]).map(" ".join)
times = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda pair: f"{pair[0]:02}:{pair[1]:02}")
dates = st.dates(date(2024, 1, 1), date(2024, 12, 31)).map(lambda day: f"{day.day} {day:%B}")
amounts = st.integers(100, 9_999_999).map(lambda value: f"${value:,}")
phones = st.integers(0, 9999).map(lambda value: f"555-{value:04}")
extensions = st.integers(1000, 9999).map(lambda value: f"ext. {value}")
rooms = st.tuples(st.integers(1, 40), st.sampled_from("ABCD")).map(lambda pair: f"Room {pair[0]}{pair[1]}")
bays = st.tuples(st.sampled_from("ABCD"), st.integers(1, 99)).map(lambda pair: f"{pair[0]}-{pair[1]}")
kinds = [people, times, dates, amounts, phones, extensions, rooms, bays]
references = st.one_of(*kinds)
pairs = st.one_of(*(st.tuples(kind, kind).filter(lambda pair: pair[0] != pair[1]) for kind in kinds))
separators = st.sampled_from([", ", " or ", " and ", "; ", " / ", "\n", " - ", " ", " & ", ". "])


@given(references)
def test_a_fact_agrees_with_itself_in_a_phrase(reference: str) -> None:
    for answer in (reference, f"It is {reference}.", reference.lower(), f"the answer is {reference}"):
        verdict = judge_exactly("What is it?", reference, answer)
        assert verdict.correct, (answer, verdict.reason)


@given(st.text())
def test_any_reference_agrees_with_itself_unless_it_is_blank(reference: str) -> None:
    assert judge_exactly("What?", reference, reference).correct == bool(reference.strip())


@given(pairs)
def test_another_value_is_wrong(pair: tuple[str, str]) -> None:
    assert not judge_exactly("What is it?", *pair).correct


@given(pairs, separators, st.booleans())
def test_two_candidates_are_wrong(pair: tuple[str, str], separator: str, first: bool) -> None:
    right, other = pair
    answer = f"{right}{separator}{other}" if first else f"{other}{separator}{right}"
    assert not judge_exactly("What is it?", right, answer).correct


fillers = st.lists(
    st.sampled_from(["we", "will", "meet", "there", "soon", "once", "this", "is", "settled"]), min_size=12
)


@given(references, fillers)
def test_a_long_text_around_the_fact_is_wrong(reference: str, filler: list[str]) -> None:
    half = len(filler) // 2
    assert not judge_exactly("What?", reference, " ".join([*filler[:half], reference, *filler[half:]])).correct


@given(references, st.sampled_from(["", " ", "\n\t", "...", "-", "?"]))
def test_an_empty_answer_is_wrong(reference: str, answer: str) -> None:
    assert not judge_exactly("What?", reference, answer).correct


@given(st.text(max_size=200), st.text(max_size=60), st.text(max_size=120))
def test_no_text_makes_it_fail(question: str, reference: str, answer: str) -> None:
    verdict = judge_exactly(question, reference, answer)
    assert verdict == judge_exactly(question, reference, answer)
    assert "\n" not in verdict.reason
