from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.mail_text import normalise_addresses
from environment.sources.addresses import addresses_of, sender_of


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("Dunmore, Ltd. <info@x.example>", ("Dunmore, Ltd.", "info@x.example")),
        ("Eva Low, MD, MBA <eva@x.example>", ("Eva Low, MD, MBA", "eva@x.example")),
        ("Low, Eva <eva@x.example>", ("Low, Eva", "eva@x.example")),
        ("carl@y.example <eva@x.example>", ("carl@y.example", "eva@x.example")),
        ("carl@y.example, <eva@x.example>", ("", "carl@y.example")),
        ('"carl@y.example" <eva@x.example>', ("carl@y.example", "eva@x.example")),
        ('"The "Low, Eva" office" <eva@x.example>', ('The "Low, Eva" office', "eva@x.example")),
        ("Eva (at home <eva@x.example>", ("Eva (at home", "eva@x.example")),
        ('"Eva <eva@x.example>', ("Eva", "eva@x.example")),
        ("eva@x.example (Eva Low)", ("Eva Low", "eva@x.example")),
        ("Eva [mailto:eva@x.example]", ("", "eva@x.example")),
        ("<mailto:eva@x.example>", ("", "eva@x.example")),
        ("<@a.example,@b.example:eva@x.example>", ("", "eva@x.example")),
        ("Eva <eva@x.example", ("", "eva@x.example")),
        ("eva @ x.example", ("", "eva@x.example")),
        ("=?utf-8?q?Low=2C_Eva?= <eva@x.example>", ("Low, Eva", "eva@x.example")),
        ("=?utf-8?q?Low,_Eva?= <eva@x.example>", ("Low, Eva", "eva@x.example")),
        ("=?utf-8?q?Eva_=3Ceva=40x.example=3E?=", ("Eva", "eva@x.example")),
        ("root", ("", "root")),
        ("<>", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_sender_is_the_address_in_angle_brackets(field: str, expected: tuple[str, str]) -> None:
    assert sender_of(field) == expected


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            "eva@x.example, Dunmore, Ltd. <info@x.example>; carl@y.example",
            ["eva@x.example", "info@x.example", "carl@y.example"],
        ),
        ('"Low, Eva" <eva@x.example> "Roe, Carl" <carl@y.example>', ["eva@x.example", "carl@y.example"]),
        ("Friends: eva@x.example, Carl <carl@y.example>;", ["eva@x.example", "carl@y.example"]),
        ("undisclosed-recipients:;", []),
        ("Carl (eva@x.example, a friend) <carl@y.example>", ["carl@y.example"]),
        ("josey'.'scott@enron.com", ["josey'.'scott@enron.com"]),
        ("root, eva@x.example", ["root", "eva@x.example"]),
    ],
)
def test_recipients(field: str, expected: list[str]) -> None:
    assert normalise_addresses(addresses_of(field)) == expected


@given(st.text(alphabet='ab@<>"(),;:\\ =?', max_size=80) | st.text(max_size=80))
def test_no_field_is_too_malformed(field: str) -> None:
    addresses_of(field)
    sender_of(field)
