from __future__ import annotations

from base64 import b64encode
from binascii import b2a_uu

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environment.sources.transfer import decoded_content, from_base64

HELLO = b64encode(b"Hello, the lift is out of order.")


@pytest.mark.parametrize(
    "encoding",
    [
        "base64",
        "BASE64 ",
        "base64 (by a gateway)",
        "base64;",
        '"base64"',
        "base-64",
        " base64, 8bit",
        "(7bit) base64",
        "base64 charset=utf-8",
        "b64",
        "B",
    ],
)
def test_the_name_of_an_encoding_may_be_decorated(encoding: str) -> None:
    assert decoded_content(HELLO, encoding) == b"Hello, the lift is out of order."


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b64encode(b"one") + b"\n" + b64encode(b"four"), b"onefour"),
        (b64encode(b"four") + b"\n" + b64encode(b"one"), b"fourone"),
        (b64encode(b"four").rstrip(b"="), b"four"),
        (b64encode(b"four") + b"\n----\nlist@x.example: the list\n", b"four\n----\nlist@x.example: the list\n"),
        (b"not encoded at all", b"not encoded at all"),
        (b"", b""),
    ],
)
def test_base64(content: bytes, expected: bytes) -> None:
    assert decoded_content(content, "base64") == expected


def test_quoted_printable_and_uuencode() -> None:
    assert decoded_content(b"Caf=C3=A9 at =  \nnoon=3D12", "quoted-printable;") == "Café at noon=12".encode()
    assert decoded_content(b"Caf=C3=A9", "QP") == decoded_content(b"Caf=C3=A9", "Q") == "Café".encode()
    assert decoded_content(b"begin 644 a.txt\n" + b2a_uu(b"Hello") + b"`\nend\n", "x-uuencode") == b"Hello"
    assert decoded_content(b"as it is", "8bit") == b"as it is"


@given(st.binary())
def test_anything_encoded_is_decoded(content: bytes) -> None:
    assert from_base64(b64encode(content)) == content
    for encoding in ("base64", "quoted-printable", "uuencode"):
        decoded_content(content, encoding)
