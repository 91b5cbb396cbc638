from __future__ import annotations

import tracemalloc
from datetime import date, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.errors import BadMail
from environment.mail_text import (
    condensed,
    near_address,
    normalise_address,
    normalise_addresses,
    parse_query_date,
    split_quoted,
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("Ann.Lee@Example.COM ", "ann.lee@example.com"),
        ('"Lee, Ann" <ann.lee@example.com>', "ann.lee@example.com"),
        ("'ann.lee@example.com'", "ann.lee@example.com"),
        ("josey'.'scott@enron.com", "josey'.'scott@enron.com"),
        ("undisclosed-recipients", "undisclosed-recipients"),
        ("\x00\ud800 <>", ""),
    ],
)
def test_addresses_are_compared_in_one_form(address: str, expected: str) -> None:
    assert normalise_address(address) == expected


def test_long_addresses_are_not_kept() -> None:
    tracemalloc.start()
    for number in range(20):
        assert len(normalise_address(f"{number}" + "x" * 250_000)) == 254
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 250_000


@given(st.lists(st.text()))
def test_normalised_addresses_stay_as_they_are(addresses: list[str]) -> None:
    once = normalise_addresses(addresses)
    assert normalise_addresses(once) == once
    assert "" not in once


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2001-05-15", datetime(2001, 5, 15, 23, 59, 59)),
        (date(2001, 5, 15), datetime(2001, 5, 15, 23, 59, 59)),
        (" 2001-05-15T09:30 ", datetime(2001, 5, 15, 9, 30)),
        ("2001-05-15T09:30:00+02:00", datetime(2001, 5, 15, 7, 30)),
        ("2001-05-15T09:30:00Z", datetime(2001, 5, 15, 9, 30)),
        (datetime(2001, 5, 15, 9, 30, 1, 5, timezone(timedelta(hours=-5))), datetime(2001, 5, 15, 14, 30, 1)),
    ],
)
def test_query_dates(value: str | date, expected: datetime) -> None:
    assert parse_query_date(value) == expected


@pytest.mark.parametrize(
    "value", ["", "yesterday", "2001-13-01", "15.05.2001", None, 20010515, "0001-01-01T00:00+14:00", "9" * 100_000]
)
def test_a_malformed_query_date_is_one_clear_line(value: object) -> None:
    with pytest.raises(BadMail, match="YYYY-MM-DD") as caught:
        parse_query_date(value)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("body", "own"),
    [
        ("On Friday.\n\nOn 5 May 2001, Ann Lee wrote:\n> When?\n", "On Friday.\n\n"),
        ("> When?\nOn Friday.\n  > Where?\nIn 4B.", "On Friday.\nIn 4B."),
        ("Yes.\n -----Original Message-----\nFrom: Ann\nWhen?", "Yes.\n"),
        ("Yes.\n________________________________\nFrom: Ann\nWhen?", "Yes.\n"),
        ("Yes.\n________________________________\nAnn Lee", "Yes.\n________________________________\nAnn Lee"),
        ("On Friday Bob wrote:\nnothing", "On Friday Bob wrote:\nnothing"),
        ("Yes.\n\nOn 5 May 2001 at 10:00 Ann Lee <ann@x.example>\nwrote:\n\n> When?\n", "Yes.\n\n"),
        ("Yes.\n\nFrom: Ann\nSent: Monday\nTo: Bob\nSubject: Plan\n\nWhen?\n", "Yes.\n\n"),
        ("Yes.\n*From:* Ann\n*Date:* Monday\n*To:* Bob\n*Subject:* Plan\nWhen?\n", "Yes.\n"),
        ("See\n--- Forwarded message ---\nFrom: Ann\nSent: Monday\nTo: Bob\nSubject: Plan\nWhen?",) * 2,
        ("From: Ann\nSent: Monday\nTo: Bob\nSubject: Plan\n\nWhen?",) * 2,
        ("From: the desk of Ann\nTo: Bob", "From: the desk of Ann\nTo: Bob"),
        ("", ""),
    ],
)
def test_quotations_are_separated_from_the_senders_text(body: str, own: str) -> None:
    assert split_quoted(body)[0] == own


@given(
    st.lists(st.sampled_from(["> a\n", "b\n", "\n", "On 5 May, Ann wrote:\n", "-- Original Message --\n"]) | st.text())
)
def test_every_line_is_said_or_quoted(parts: list[str]) -> None:
    body = "".join(parts)
    own, quoted = split_quoted(body)
    assert sorted(own + quoted) == sorted(body)


def test_a_mail_is_shown_without_empty_lines_and_rules() -> None:
    body = """Ann,

    Room   4B it is.


    ---------------------- Forwarded by Bob Ray on 02/17/2001 05:55 PM ---------------------------

    Carl Low@EXAMPLE
    02/14/2001 03:48 PM
    To: Bob Ray/HOU/ECT@ECT, Dan
    Moe/LON/ECT@ECT
    cc: Ann Lee/HOU/ECT@ECT

    Subject: Re: Kickoff

    Which room?

    -----Original Message-----
    From: Bob Ray
    Sent: Wednesday, 14 February 2001
    To: Low, Carl
    Subject: FW: Parking

    To: whom it may concern
    *****
    Bring a badge.
    Subject: RE: kickoff
    """
    assert (
        condensed(body, "RE: Kickoff")
        == """Ann,

Room 4B it is.

Forwarded by Bob Ray on 02/17/2001 05:55 PM

Carl Low@EXAMPLE
02/14/2001 03:48 PM

Which room?

Original Message
From: Bob Ray
Sent: Wednesday, 14 February 2001
Subject: FW: Parking

To: whom it may concern

Bring a badge."""
    )


@pytest.mark.parametrize(
    "fact",
    [
        "To: All staff\nWhere: Room 7C, third floor\nSubject: Move",
        "To: call the plumber, 555-0100\nCost: $900, incl. tax\nSubject: Move",
        "To: confirm with the tenants, then sign\nSubject: Move",
        "Cc: 14 copies, please\nSubject: Move",
        "Importance: the rent is $500, due on Friday\nSubject: Move",
        "Sent by: courier at 9:30, to the back door\nSubject: Move",
    ],
)
def test_a_line_that_only_resembles_recipients_is_kept(fact: str) -> None:
    assert condensed(f"Plan\n{fact}\n\nBye", "Other").split() == f"Plan {fact} Bye".replace("To: All staff", "").split()


@given(st.lists(st.text(alphabet="ab \t:-", max_size=12)), st.text(max_size=8))
def test_text_that_resembles_headers_or_rules_is_kept(lines: list[str], subject: str) -> None:
    text = "\n".join(line.replace("--", "-") for line in lines)
    assert condensed(text, subject).split() == text.split()
    assert condensed(condensed(text, subject), subject) == condensed(text, subject)


@given(st.text(), st.text())
def test_nothing_is_shown_that_a_mail_does_not_say(body: str, subject: str) -> None:
    said = body.split()
    assert all(any(word in whole for whole in said) for word in condensed(body, subject).split())


@pytest.mark.parametrize(
    ("address", "near"),
    [
        ("nobody@x.example", ""),  # although rose.bond@x.example has most of its letters
        ("rose.bnd@x.example", "; did you mean rose.bond@x.example?"),
        ("rose.bond@x.exmaple", "; did you mean rose.bond@x.example?"),
        ("rose.bond", "; did you mean rose.bond@x.example?"),
        ("ann", "; did you mean ann@y.example?"),
        ("rose@x.example", "; did you mean rose.bond@x.example?"),
        ("rose.bond.x.example", "; did you mean rose.bond@x.example?"),
        ("ann@x.example", "; did you mean ann@y.example?"),
        ("", ""),
    ],
)
def test_a_similar_address_has_a_similar_name(address: str, near: str) -> None:
    assert near_address(address, ["rose.bond@x.example", "ann@y.example"]) == near
