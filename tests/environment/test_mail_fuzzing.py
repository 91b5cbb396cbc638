"""Random and hostile input for everything that reads mail: no exception, and no more than linear time.

Each nightly test runs for `SECONDS` with a new seed, which its failure names.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable

import pytest

from environment.mail_text import condensed, split_quoted
from environment.models import DroppedMail, Email
from environment.normal_form import indexed_form
from environment.snippets import densest_start, passage
from environment.sources.headers import decode_header
from environment.sources.mbox import mails_in, split_mbox
from environment.sources.rfc822 import parse_mail
from environment.words import query_words

SECONDS = 600
MAX_PIECES = 60
SHORT, LONG = 50_000, 200_000
"""Sizes whose times are compared: four times the text may take at most eight times as long."""
NOISE_SECONDS = 0.5
REPEATED_CHARS = 40

PIECES = [
    "From ", ">From ", "From: ", "To: ", "Cc: ", "Date: ", "Message-ID: ", "Subject: ", "Subject : ", "Received: x",
    "Delivered-To: a@b.example", "From a@b.example Mon Mar  4 10:00:00 2024\n", "X-Mozilla-Status: 0009",
    "Mon, 4 Mar 2024 10:00:00 +0100", "10:00 PM", "(", ")", "<", ">", '"', "\\", ",", ";", ":", "@", "<a@b.example>",
    "a@b.example", "=?", "?=", "=?utf-8?q?", "=?utf-8?b?", "=?iso-2022-jp?b?", "4pyT", "=E2=9C", "\x1b$B", "\x1b(B",
    "\n", "\n\n", "\r", "\r\n", " ", "\t", "\n ", "\x00", "ÿ", "é", "ï»¿", "Content-Type: ", "text/html",
    "text/calendar", "text/plain; charset=", "gb2312", "shift_jis", "utf-7", "utf-16", "multipart/mixed; boundary=b",
    'multipart/alternative; boundary="c"', "message/rfc822", "; format=flowed", "; delsp=yes", "\n--b\n", "\n--b--\n",
    "\n--c\n", "\n--c--\n", "Content-Transfer-Encoding: ", "base64", "quoted-printable", "uuencode", "begin 644 a\n",
    "Content-Disposition: attachment", "; filename=a.pdf", "; filename*0*=utf-8''%ff", " for ", "X-Gmail-Labels: Spam,",
    "<p>", "</p>", "<!--", "-->", "<div style='display:none'>", "</div>",
    "<table><td>", "<a href=http://x.example>", "</a>", "<sup>2", "<br>", "<![", "&#1", "<pre>\n", "<blockquote>",
    "BEGIN:VEVENT\n", "SUMMARY:x\n", 'DTSTART;TZID="', "To: Ann, Bob\n", "-----Original Message-----", "> ",
    "On 4 Mar Ann wrote:\n", "$31,000 at 2 pm ", "word ", "don't ",
]  # fmt: skip
UNICODE = [
    "é",
    "e\u0301",
    "\u0301",
    "ß",
    "ﬃ",
    "快乐",
    "会议室",
    "회의실",
    "สวัสดี",
    "\u00ad",
    "\u200b",
    "Ａ",
    "\ud800",
    "½",
    "™",
    "İ",
    "नमस्ते",
    "🦅",
]


def texts(chance: random.Random) -> str:
    """Pieces at random; in a third of the cases one of them many times."""
    if chance.random() < 0.33:
        unit = "".join(chance.choices(PIECES, k=chance.randint(1, 4)))[:REPEATED_CHARS]
        return "".join(chance.choices(PIECES, k=3)) + unit * (2_000 // len(unit))
    made = chance.choices(PIECES, k=chance.randint(0, MAX_PIECES))
    return "".join(piece if chance.random() < 0.97 else chr(chance.randrange(256)) for piece in made)


def raw(text: str) -> bytes:
    return text.encode("latin-1", "replace")


def read_mail(text: str) -> None:
    mail = parse_mail(raw(text), "1.")
    assert isinstance(mail, Email | DroppedMail)
    mail.model_dump_json()


def read_body(text: str) -> None:
    for kind in (
        "text/html",
        "text/calendar",
        "text/plain; format=flowed",
        "multipart/mixed; boundary=b",
        "message/rfc822",
    ):
        read_mail(f"From: a@b.example\nContent-Type: {kind}\n\n{text}")
    split_quoted(text)
    condensed(text, "s")


def split_mailbox(text: str) -> None:
    content = raw(text)
    assert sum(len(mail) for _, mail in split_mbox(io.BytesIO(content))) <= len(content)
    for mail in mails_in(io.BufferedReader(io.BytesIO(content)), "x"):  # type: ignore[arg-type]
        assert isinstance(mail, Email | DroppedMail)


def read_header(text: str) -> None:
    decode_header(raw(text)).encode()
    for name in ("From", "To", "Date", "Subject", "Content-Type"):
        read_mail(f"{name}: {text}\nMessage-ID: <1@x>\n\nx")


def search(text: str) -> None:
    chance = random.Random(len(text))
    text = "".join(chance.choice(UNICODE) if letter in "qx@" else letter for letter in text)
    sought = query_words([text])
    assert len(sought) <= 20
    indexed_form(text).encode("utf-8", "replace")
    stems = frozenset(sought.values())
    passage(text[:5_000], stems)
    densest_start(text[:5_000], stems, 300)


READERS: list[Callable[[str], None]] = [read_mail, read_body, split_mailbox, read_header, search]


def seconds(read: Callable[[str], None], text: str) -> float:
    begin = time.process_time()
    read(text)
    return time.process_time() - begin


def assert_linear(read: Callable[[str], None], unit: str) -> None:
    short, long = (unit * (size // len(unit)) for size in (SHORT, LONG))
    first = min(seconds(read, short) for _ in range(2))
    assert seconds(read, long) <= 8 * first + NOISE_SECONDS, f"{read.__name__} of {unit!r}"


@pytest.mark.parametrize("read", READERS)
def test_a_sample_of_hostile_input(read: Callable[[str], None]) -> None:
    chance = random.Random(0)
    for _ in range(60):
        read(texts(chance))


@pytest.mark.parametrize(("read", "letter"), [(read_body, "-"), (read_body, "="), (read_header, " "), (search, "1")])
def test_a_long_run_of_one_letter_takes_linear_time(read: Callable[[str], None], letter: str) -> None:
    short, long = (f"x{letter * size}x" for size in (6_000, 24_000))
    assert seconds(read, long) <= 8 * min(seconds(read, short) for _ in range(2)) + NOISE_SECONDS


@pytest.mark.nightly
@pytest.mark.timeout(SECONDS * 3)
@pytest.mark.parametrize("read", READERS)
def test_no_input_raises_or_takes_more_than_linear_time(read: Callable[[str], None]) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    end = time.monotonic() + SECONDS
    tried = 0
    while time.monotonic() < end:
        text = texts(chance)
        try:
            read(text)
            if tried % 200 == 0:
                assert_linear(read, "".join(chance.choices(PIECES, k=chance.randint(1, 4)))[:REPEATED_CHARS])
        except Exception as error:
            pytest.fail(f"seed {seed}, input {tried}: {error!r} for {text[:500]!r}")
        tried += 1
    assert tried > 10
