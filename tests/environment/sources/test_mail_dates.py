from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.errors import BadMail
from environment.sources.mail_dates import parse_mail_date


def utc(written: str) -> str:
    return f"{parse_mail_date(written).astimezone(UTC):%Y-%m-%d %H:%M:%S}"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        # Zones
        ("Tue, 5 Mar 2019 18:00:00 GMT+02:00", "2019-03-05 16:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 +02:00", "2019-03-05 16:00:00"),
        ("Tue Mar 5 2019 18:00:00 GMT-0330 (NST)", "2019-03-05 21:30:00"),
        ("Tue, 5 Mar 2019 18:00:00 UTC-3", "2019-03-05 21:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 UTC +05:30", "2019-03-05 12:30:00"),
        ("Tue, 5 Mar 2019 18:00:00 --0500", "2019-03-05 23:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 EST-0500", "2019-03-05 23:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 -0500 (EST)", "2019-03-05 23:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 (PST)", "2019-03-06 02:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 PST8PDT", "2019-03-06 02:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 MESZ", "2019-03-05 16:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 JST", "2019-03-05 09:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 BST", "2019-03-05 17:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 Pacific Daylight Time", "2019-03-06 01:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 XYZT", "2019-03-05 18:00:00"),
        ("Tue Mar  5 18:00:00 CET 2019", "2019-03-05 17:00:00"),
        ("Sun Oct 24 23:57:07 1999", "1999-10-24 23:57:07"),
        ("Sun Oct 24 23:57:07 1999 -0400", "1999-10-25 03:57:07"),
        ("Tue, 5 Mar 2019 18:00:00 0530", "2019-03-05 12:30:00"),
        ('Tue, 5 Mar 2019 18:00:00 "PST"', "2019-03-06 02:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 \u22120500", "2019-03-05 23:00:00"),
        ("Tue,5Mar2019 18:00:00 +0000", "2019-03-05 18:00:00"),
        ("Tuesday, 5 March 2019 at 18:00:00 GMT", "2019-03-05 18:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 +01000", "2019-03-05 17:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 -01:30:00", "2019-03-05 19:30:00"),
        ("Tue, 5 Mar 2019 18:00:00 +0100CET", "2019-03-05 17:00:00"),
        ("Tue, 5 Mar 2019 18:00:00 +100", "2019-03-05 17:00:00"),
        # Times
        ("Tue, 5 Mar 2019 18h07 +0000", "2019-03-05 18:07:00"),
        ("mardi 5 mars 2019 à 18h07", "2019-03-05 18:07:00"),
        ("5. März 2019 um 18:07 Uhr", "2019-03-05 18:07:00"),
        ("tis den 5 mars 2019 kl. 18:07", "2019-03-05 18:07:00"),
        ("Tuesday, March 5, 2019 6:07 PM", "2019-03-05 18:07:00"),
        ("5 Mar 2019 12:10 am", "2019-03-05 00:10:00"),
        ("5 Mar 2019 18.07.30 +0100", "2019-03-05 17:07:30"),
        ("Tue, 5 Mar 2019 18:00:00.250 +0000", "2019-03-05 18:00:00"),
        ("Tue, 5 Mar 2019 23:59:60 +0000", "2019-03-05 23:59:59"),
        ("Tue, 5 Mar 2019 24:00:00 +0000", "2019-03-06 00:00:00"),
        ("5 Mar 2019", "2019-03-05 00:00:00"),
        # Days
        ("2019-03-05T18:00:00.5+01:00", "2019-03-05 17:00:00"),
        ("2019-03-05 18:00:00 +0100", "2019-03-05 17:00:00"),
        ("2019-03-05 18:00 CET", "2019-03-05 17:00:00"),
        ("05-Mar-19 18:00:00 GMT", "2019-03-05 18:00:00"),
        ("Tue, 5 Mar 102 18:00:00 GMT", "2002-03-05 18:00:00"),
        ("Tue, 5 Mar (a (nested) comment) 2019 18:00:00 GMT", "2019-03-05 18:00:00"),
        ("tis, 5 maj 2019 18:00:00 +0200", "2019-05-05 16:00:00"),
        ("mar. 5 févr. 2019 18:00:00 +0100", "2019-02-05 17:00:00"),
        ("Di, 5 Mär 2019 18:00:00 +0100", "2019-03-05 17:00:00"),
        ("Di, 5. Mrz 2019 18:00:00 +0100", "2019-03-05 17:00:00"),
        ("5 de marzo de 2019 18:00", "2019-03-05 18:00:00"),
        ("25.03.2019 18:00", "2019-03-25 18:00:00"),
        ("5.3.2019 18:00", "2019-03-05 18:00:00"),
        ("3/25/2019 6:00 PM", "2019-03-25 18:00:00"),
    ],
)
def test_dates_as_programs_write_them(written: str, expected: str) -> None:
    assert utc(written) == expected


@pytest.mark.parametrize(
    "written",
    [
        "",
        "tomorrow",
        "10:00",
        "31 Feb 2019 10:00",
        "3/4/2019 10:00",
        "5 Mar 2019 at ten",
        "5 Mar 2019 10:00 -9900",
        "9" * 9_999,
    ],
)
def test_dates_that_have_no_or_two_meanings(written: str) -> None:
    with pytest.raises(BadMail):
        parse_mail_date(written)


@given(st.text(max_size=60) | st.text(alphabet="0123456789:+- ,()MarPT./", max_size=60))
def test_any_text_is_a_date_or_none(written: str) -> None:
    with suppress(BadMail):
        assert isinstance(parse_mail_date(written), datetime)
