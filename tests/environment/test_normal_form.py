from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.normal_form import BREAK_POINT, indexed_form, normal_form, sought_form, with_break_points


@pytest.mark.parametrize(
    ("written", "sought"),
    [
        ("Trần Phú", "Tran Phu"),
        ("Łódź", "lodz"),
        ("Þór Ægisson", "thor aegisson"),
        ("Straße", "STRASSE"),
        ("ΟΔΟΣ οδός", "οδος"),
        ("co\u00adoper\u00adation", "cooperation"),
        ("meet\u200bing ro\u2060om", "meeting room"),
        ("eﬃcient ﬂow", "efficient flow"),
        ("Ｒｏｏｍ １２", "room 12"),
        ("Enron™ pays", "Enron pays"),
        ("2½ hours", "2"),
        ("東京都で会議", "会議"),
        ("ミーティングは三階", "ミーティング"),
        ("ประชุมพรุ่งนี้", "พรุ่งนี้"),
        ("회의실에서 만나요", "회의실"),
        ("階", "階"),
        ("costs $45,500 in all", "45500"),
        ("costs 45 500 € in all", "45500"),
        ("costs 1\u202f045\xa0500 € in all", "1045500"),
        ("at 3 pm", "3pm"),
        ("at 3pm", "3 pm"),
        ("\u0928\u092e\u0938\u094d\u0924\u0947", "नमस्ते"),
    ],
)
def test_what_is_written_in_one_way_is_found_in_another(written: str, sought: str) -> None:
    for spelling in ("NFC", "NFD"):
        indexed = indexed_form(unicodedata.normalize(spelling, written)).lower().replace("$", " ").split()
        for other in ("NFC", "NFD"):
            assert set(sought_form(unicodedata.normalize(other, sought)).lower().split()) <= set(indexed)


@pytest.mark.parametrize(
    ("text", "foreign"),
    [("が", "か"), ("東京都", "京東"), ("room 131,000", "31000"), ("1,0000", "10000"), ("in 2001 500", "2001500")],
)
def test_what_differs_stays_different(text: str, foreign: str) -> None:
    assert not set(sought_form(foreign).split()) <= set(indexed_form(text).split())


@given(st.text())
def test_the_form_is_final_and_ascii_text_keeps_its_own(text: str) -> None:
    once = normal_form(text)
    assert text.isascii() is False or once is text
    assert normal_form(once).split() == once.split() or not once.isascii()
    indexed_form(text), sought_form(text)
    assert with_break_points(text).replace(BREAK_POINT, "") == text.replace(BREAK_POINT, "")
