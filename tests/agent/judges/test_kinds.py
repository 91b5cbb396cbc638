"""Kinds of notations, inversions and candidates, as `reference <- answer`; and their properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.judges.exact import judge_exactly

SAME = r"""
10-11 am <- 10am to 11am ;; 10-11 am <- from 10 to 11 am ;; 11-1 pm <- 11 am - 1 pm
9:30-10:30 <- from 9:30 to 10:30 ;; April 9-12 <- 9 to 12 April ;; April 9-12, 2001 <- April 9 - April 12, 2001
Tue-Thu <- Tuesday through Thursday ;; Mon - Fri <- Monday to Friday
$5-10 million <- $5 million to $10 million ;; 20-30 km <- 20 km to 30 km ;; 2-4 weeks <- two to four weeks
no later than Monday <- by Monday ;; not later than 3 pm <- by 3 pm ;; no more than 5 <- at most 5
no fewer than 5 <- at least 5 ;; at least 5 people <- 5 or more people ;; ≥ 10 <- at least 10
> $500 <- more than $500 ;; <5 <- less than 5 ;; No. 5 <- #5 ;; No. 5 <- 5 ;; number 12 <- No. 12
twelve <- 12 ;; sixteen hours <- 16 hours ;; forty-two <- 42 ;; one hundred and five <- 105
three hundred thousand <- 300,000 ;; 1¼ hours <- 1.25 hours ;; 3¾ miles <- 3.75 miles
$3MM <- 3 million dollars ;; $2.5 bn <- $2.5 billion ;; €5m <- 5 million euros ;; 21.06.2023 <- June 21, 2023
21/06/2023 <- 21 June 2023 ;; 3-Jul-19 <- July 3, 2019 ;; 2019/07/03 <- 3 July 2019 ;; Sun <- Sunday
Sun, May 6 <- Sunday, May 6 ;; Thurs <- Thursday ;; 45min <- 45 minutes ;; 2hrs <- 2 hours ;; 1.5h <- 1.5 hours
7am <- 7:00 a.m. ;; 19:45 <- 7:45pm ;; 12 pm <- noon ;; 1) Room 5\n2) Room 6 <- Room 5 and Room 6
Dana and Piet <- 1. Dana\n2. Piet ;; Houston, Austin and Dallas <- Dallas, Houston, Austin
- red\n- blue <- red and blue ;; van der Berg <- Van der Berg ;; Ludwig van Beethoven <- ludwig van beethoven
Nobody <- No one ;; No one <- nobody. ;; will not come <- won't come ;; can't come <- cannot come
70°F <- 70 degrees F ;; 100 MB <- 100mb ;; $30/hour <- $30 an hour ;; $1,000 a month <- $1,000 per month
three times a week <- 3 times per week ;; €20 <- 20 euros ;; £30 <- 30 pounds ;; ₹500 <- 500 rupees
500 CHF <- CHF 500 ;; Section 2(a) <- section 2(a) ;; C++ <- c++ ;; x4411 <- extension 4411
Suite 200 <- suite #200 ;; +1 (713) 853-7408 <- 713-853-7408 ;; report.pdf <- The file is report.pdf
https://x.example/b/ <- x.example/b ;; PO-4417 <- PO4417 ;; Q3 <- q3 ;; the red door <- red door
a projector <- It is a projector. ;; pizza <- Pizza! ;; Dana Voss <- It was Dana Voss.
Dana Voss <- Ask Dana Voss ;; Dana Voss <- Dana Voss is responsible. ;; May 5 at 3 pm <- 3 pm on May 5
Friday at noon <- noon on Friday ;; 2:30 pm CST <- 14:30 CST ;; 15% <- 15 pct ;; 0.75 <- .75 ;; 1,500 <- 1500
$1,500.00 <- $1,500 ;; two-thirds <- two thirds ;; weekly <- weekly ;; second floor <- 2nd floor
Flight 22 <- flight 22 ;; between 5 and 10 <- 5-10 ;; 5th <- the 5th ;; before noon <- before 12:00
after 5 pm <- after 17:00 ;; up 3% <- 3% up ;; more than 5 <- over 5 ;; less than 10 <- under 10
Tom & Jerry <- Tom and Jerry ;; Building C <- building C ;; Part II <- part II ;; July 4 <- 4th of July
2024-07-04 <- July 4, 2024 ;; Dr. Voss <- Voss ;; Mrs. Voss <- Ms Voss ;; 1st place <- first place
seventeen <- 17 ;; $20k <- $20,000 ;; 10000 <- 10 000 ;; $1,045,500 <- $1 045 500 ;; Dana Voss <- <b>Dana Voss</b>
 1.2 million <- 1,200,000 ;; 30 people <- thirty people
every Monday <- Mondays ;; Saturday and Sunday <- Sat and Sun ;; Ferro Rouge <- ferro rouge ;; yes <- Yes, it is
no <- No, it is not ;; 7 to 9 <- 7-9 ;; 5 miles <- 5 mi ;; 10 kg <- 10 kilograms ;; 6 ft <- 6 feet
March 3 to March 5 <- March 3-5 ;; 8 a.m. <- 8am ;; Room 12 <- room no. 12 ;; Weds <- Wednesday ;; a week <- one week
3½ hours <- three and a half hours ;; $3.5MM <- three and a half million dollars ;; every other day <- every second day
Dana hired Piet <- Piet was hired by Dana ;; 10^-3 <- 10⁻³ ;; March 5 <- Sunday, March 5, 3 pm ;; 3 pm <- 3 pm, please call
Yes <- Yes, it was moved ;; the first <- 1st ;; third <- 3rd ;; he'll call <- he will call ;; 3 pm <- According to the mail, 3 pm
Dana Voss <- Dana Voss, as stated in the message. ;; $500 <- $500. I hope this helps. ;; red <- I checked the emails. red
Dana - 5, Piet - 6 <- Piet has 6 and Dana has 5 ;; Dana Marie Voss <- Voss, Dana Marie
Room 4B - Friday - 3 pm <- Friday, 3 pm, Room 4B ;; Dana: 5; Piet: 6 <- Piet: 6, Dana: 5
"""
DIFFERENT = r"""
10-11 am <- 10 am ;; 10 am <- 10-11 am ;; 10-11 am <- 10-12 am ;; April 9-12 <- April 9-13 ;; Mon-Wed <- Mon-Thu
5-10 <- 5 ;; 10 <- 5-10 ;; 20-30% <- 20% ;; 1 km <- 1 mile ;; 5 kg <- 5 pounds ;; 5 ft <- 5 yards
10 GB <- 10 TB ;; $500 <- 500 pesos ;; $500 <- A$500 ;; $500 <- 500 yuan ;; $500 <- SEK 500 ;; €500 <- $500
£5 <- 5 euros ;; 5% <- 5 dollars ;; 5 hours <- 5 h, 5 days ;; 2 days <- 2 weeks ;; 2 days <- 2 days, 2 weeks
12 boxes <- 12 crates ;; before Monday <- after Monday ;; until 5 pm <- after 5 pm ;; at least 10 <- at most 10
more than 10 <- less than 10 ;; ≥10 <- ≤10 ;; >10 <- 10 ;; up 10% <- down 10%
an increase of $5 <- a decrease of $5 ;; rose 5% <- fell 5% ;; $500 per month <- $500 per year
$20/hr <- $20/day ;; 3 times a week <- 3 times a day ;; turn off <- turn on ;; turn it off <- turn it on
above the window <- below the window ;; in the box <- outside the box ;; with sugar <- without sugar
everyone <- everyone except Dana ;; Dana Voss <- all but Dana Voss ;; Dana Voss <- anyone besides Dana Voss
Dana hired Piet <- Piet hired Dana ;; Dana Voss reports to Piet Harlow <- Piet Harlow reports to Dana Voss
from Oslo to Rome <- from Rome to Oslo
Room 1 on Monday and Room 2 on Tuesday <- Room 2 on Monday and Room 1 on Tuesday
Dana: 5, Piet: 6 <- Dana: 6, Piet: 5 ;; Dana Voss and Piet Harlow <- Dana Harlow and Piet Voss
10 May 2015 <- 10-May-2000 ;; 14 March 2024 <- 14.03.2023 ;; 2024-03-14 <- 2024-04-13 ;; red <- red green
red <- red, green ;; red <- red and green ;; red <- red or green ;; red <- red then green ;; red <- red / green
red <- red\ngreen ;; random forest <- random forest, gradient boosting
ridge regression <- lasso ridge regression ;; pizza <- pizza pasta ;; Dana Voss <- Dana Voss Orla Quill
Dana Voss <- Dana Voss (or Orla Quill) ;; Dana Voss <- either Dana Voss or Orla Quill
Dana Voss <- not Dana Voss ;; 9:00 <- 9:00, 10:00 ;; 9:00 <- 9:00 10:00 ;; 9:00 <- nine am ten am
Room 5 <- Room 5, 6 ;; Room 5 <- 5 6 ;; Monday <- Monday Tue ;; Monday <- Monday, Sun ;; 4(a) <- 4(b)
Section 2.1 <- Section 2.2 ;; b.doc <- c.doc ;; F# <- F ;; A+ <- A ;; B- <- B ;; 10³ <- 103 ;; 2⁸ <- 28
¾ <- 34 ;; 1½ <- 11 ;; ½ <- 2 ;; C:\x\a.doc <- C:\x\b.doc ;; Item a <- Item b ;; Type I <- Type II
Annex V <- Annex IV ;; group 1 <- group 2 ;; plan c <- plan d ;; abc-1 <- abd-1 ;; ABC 12 <- ABD 12
00421 <- 421 ;; 007 <- 7 ;; 1/4 <- 14 ;; 5:4 <- 4:5 ;; Friday morning <- Friday afternoon
early June <- late June ;; last week <- next week ;; 2 weeks ago <- in 2 weeks
5 minutes early <- 5 minutes late ;; approved <- rejected ;; accepted it <- declined it
available Monday <- unavailable Monday ;; can attend <- can't attend ;; attended <- did not attend
all of them <- none of them ;; he agreed <- she agreed ;; his car <- her car ;; 10% bonus <- 10% penalty
32 °C <- 32 °F ;; 5 cents <- 5 euros ;; noon <- midnight ;; 6 am <- 6 pm ;; 17:00 <- 5 am ;; yes <- no
yes <- maybe ;; no <- yes, no ;; more sugar <- less sugar ;; Dana Voss <- Dana ;; Dana Voss <- Dana Vosse
x4411 <- x4412 ;; 555-0173 <- 555-0174 ;; v2.1 <- v2.2 ;; 192.168.0.1 <- 192.168.0.2 ;; Q1 <- Q2
FY2001 <- FY2002 ;; EB1962 <- EB1963 ;; $5 million <- $5 billion ;; $5M <- $5k ;; 5 <- five six ;; 3 <- III, 4
minus 5 <- 5 ;; -5 <- 5 ;; the 3rd <- the 4th ;; third <- fourth ;; first <- second ;; June 2001 <- July 2001
3rd floor <- first second third floor
April <- March April May ;; June 2001 <- June 2002 ;; June 2001 <- June 1 ;; twice a day <- once a day ;; every day <- every week
daily <- weekly ;; under the table <- on the table ;; off the record <- on the record ;; inside <- outside
5 pm <- before 5 pm ;; Monday <- the day before Monday ;; not before May <- before May
three quarters <- three halves ;; Houston <- Houston austin ;; Houston <- austin houston
blue <- blue with red ;; blue <- blue plus red ;; 14:30 <- not 14:30 ;; 14:30 <- 14:30 and half past four
$500 <- HK$500 ;; $500 <- NZ$500 ;; $500 <- 500 kr ;; 5% <- 5 ‰ ;; 10⁻³ <- 10³ ;; Dana, not Piet <- Piet, not Dana
Oslo, not Rome <- not Oslo, Rome ;; starts at 5 pm <- ends at 5 pm ;; this Friday <- next Friday
every day <- every other day ;; confirmed for Friday <- postponed to Friday ;; Friday <- any day but Friday
Dana hired Piet <- Dana was hired by Piet ;; Dana was hired by Piet <- Piet was hired by Dana
gas is cheaper than oil <- oil is cheaper than gas ;; 14:30 <- 14:30, Room 4B ;; $500 <- $500, March 5
Bandit <- Bandit, (713) 348-3313 ;; x@y.example <- x@y.example. Dana starts on Monday. ;; $500 <- $500. Position mapping can matter.
March 5 <- March 5. Dana Voss stays at Quill. ;; Dana agreed <- Dana agreed, 3 weeks ;; 40 km <- 40 km; all of us are invited
he moved from Oslo to Rome to study <- he moved to Oslo from Rome to study ;; on Monday, off Tuesday <- off Monday, on Tuesday
starts at 5, ends at 6 <- ends at 5, starts at 6 ;; before May and after June <- after May and before June
Dana - 5, Piet - 6 <- Dana - 6, Piet - 5 ;; Dana: March 5, 3 pm; Piet: March 5, 4 pm <- Piet: March 5, 3 pm; Dana: March 5, 4 pm
Dana Voss, reporting to Piet Harlow, is responsible <- Piet Harlow, reporting to Dana Voss, is responsible
9 am - Dana - gas; 10 am - Piet - oil <- 9 am - Piet - gas; 10 am - Dana - oil
Westin William Penn Hotel <- Penn Hotel Westin William ;; end of March <- March ;; June <- mid June ;; No <- No, yes
10 <- 10 000 ;; 000 <- 10 000 ;; 100 <- 100 200
"""


def cases(block: str) -> list[list[str]]:
    pairs = block.strip().replace("\n", " ;; ").split(" ;; ")
    return [pair.replace(r"\n", "\n").split(" <- ") for pair in pairs]


@pytest.mark.parametrize(("reference", "answer"), cases(SAME))
def test_another_notation_is_right(reference: str, answer: str) -> None:
    verdict = judge_exactly("What is it?", reference, answer)
    assert verdict.correct, verdict.reason


@pytest.mark.parametrize(("reference", "answer"), cases(DIFFERENT))
def test_another_value_or_meaning_is_wrong(reference: str, answer: str) -> None:
    assert not judge_exactly("What is it?", reference, answer).correct


@pytest.mark.parametrize(
    ("question", "reference", "answer", "right"),
    [
        ("Who replaces Dana Voss?", "Piet Harlow", "Piet Harlow replaces Dana Voss.", True),
        ("Who replaces Dana Voss?", "Piet Harlow", "Dana Voss is replaced by Piet Harlow.", True),
        ("Who replaces Dana Voss?", "Piet Harlow", "Dana Voss replaces Piet Harlow.", False),
        ("Who replaces Dana Voss?", "Piet Harlow", "Piet Harlow is replaced by Dana Voss.", False),
        ("Is it due before or after the audit?", "before the audit", "after the audit", False),
        ("Did prices go up or down?", "They went up", "They went down", False),
        ("How much is the fee per month?", "$500", "It is $500 a month.", True),
        ("How much is the fee per month?", "$500", "It is $500 a year.", False),
        ("When does it begin?", "Friday", "It ends on Friday.", False),
        ("Did Dana agree?", "Yes", "Yes, Dana agreed.", True),
        ("Which is cheaper, gas or oil?", "gas is cheaper than oil", "oil is cheaper than gas", False),
    ],
)
def test_a_question_is_no_licence_for_the_opposite(question: str, reference: str, answer: str, right: bool) -> None:
    assert judge_exactly(question, reference, answer).correct == right


_UNITS = (
    "km miles kg tons hours days weeks months years dollars euros rupees percent GB MB pages boxes people inches feet"
)
UNITS = _UNITS.split()
ONE, OTHER = st.sampled_from(UNITS), st.sampled_from(UNITS)
OPPOSITES = [
    "before after",
    "above below",
    "up down",
    "more less",
    "from to",
    "with without",
    "early late",
    "at_least at_most",
    "all none",
]
people = st.sampled_from(["Dana Voss", "Piet Harlow", "Orla Quill", "Tamsin Brisk"])


@given(st.integers(2, 9_999), ONE, OTHER, st.sampled_from([", ", " ", " or ", " and ", "; ", " then ", " (was ", "\n"]))
def test_another_unit_is_wrong_instead_and_beside(number: int, one: str, other: str, joint: str) -> None:
    reference = f"{number} {one}"
    assert judge_exactly("How much?", reference, f"It is {reference}.").correct
    if one != other:
        assert not judge_exactly("How much?", reference, f"{number} {other}").correct
        assert not judge_exactly("How much?", reference, f"{number} {one}{joint}{number + 1} {other}").correct
        assert not judge_exactly("How much?", reference, f"{number} {other}{joint}{number} {one}").correct


@given(
    st.sampled_from(OPPOSITES), st.sampled_from(["Friday", "5 pm", "March 5", "$500", "the door", "lunch", "Dana Voss"])
)
def test_an_opposite_is_wrong(pair: str, value: str) -> None:
    one, other = (word.replace("_", " ") for word in pair.split())
    for ours, theirs in ((one, other), (other, one)):
        assert judge_exactly("What is it?", f"{ours} {value}", f"{ours} {value}!").correct
        assert not judge_exactly("What is it?", f"{ours} {value}", f"{theirs} {value}").correct


@given(people, people, st.sampled_from(["replaces", "reports to", "sold it to", "is the deputy of", "pays"]))
def test_exchanged_roles_are_wrong(one: str, other: str, relation: str) -> None:
    if one != other:
        assert not judge_exactly("Who is what?", f"{one} {relation} {other}", f"{other} {relation} {one}").correct


@given(st.lists(people, min_size=2, max_size=4, unique=True))
def test_a_list_may_be_in_any_order_but_not_longer_or_shorter(names: list[str]) -> None:
    reference = ", ".join(names)
    assert judge_exactly("Who?", reference, " and ".join(reversed(names))).correct
    assert not judge_exactly("Who?", reference, ", ".join(names[1:])).correct
    assert not judge_exactly("Who?", reference, ", ".join([*names, "Marlow Fenwick"])).correct


@given(st.integers(0, 22), st.integers(1, 23))
def test_a_range_is_not_one_of_its_ends(first: int, last: int) -> None:
    if first < last:
        reference = f"{first}:00-{last}:00"
        assert judge_exactly("When?", reference, f"from {first:02}:00 to {last:02}:00").correct
        for answer in (f"{first}:00", f"{last}:00", f"{last}:00-{first}:00", f"{first}:00-{last}:30"):
            assert not judge_exactly("When?", reference, answer).correct
        assert not judge_exactly("When?", f"{first}:00", reference).correct
