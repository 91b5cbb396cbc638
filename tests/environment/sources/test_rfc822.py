from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environment.email_db import MailDatabase, build_database
from environment.models import DroppedMail, Email
from environment.sources import rfc822
from environment.sources.rfc822 import parse_mail
from tests.environment.raw_mails import raw_mail

ENRON = b"""Message-ID: <18782981.1075855378110.JavaMail.evans@thyme>
Date: Mon, 14 May 2001 16:39:00 -0700 (PDT)
From: phillip.allen@enron.com
To: tim.belden@enron.com, "Lee, Ann" <Ann.Lee@enron.com>,
\tjosey'.'scott@enron.com
Cc: undisclosed-recipients:;
Subject: Our
 forecast
Mime-Version: 1.0
Content-Type: text/plain; charset=us-ascii
Content-Transfer-Encoding: 7bit
X-FileName: pallen (Non-Privileged).pst

Here is our forecast

 """


def parsed(raw: bytes) -> Email:
    mail = parse_mail(raw, "inbox/1.")
    assert isinstance(mail, Email), mail
    return mail


def reason(raw: bytes) -> str:
    mail = parse_mail(raw, "inbox/1.")
    assert isinstance(mail, DroppedMail) and mail.where == "inbox/1.", mail
    return mail.reason


def part(kind: str, text: str, **headers: str) -> str:
    lines = [f"Content-Type: {kind}", *(f"Content-{name.title()}: {value}" for name, value in headers.items())]
    return "\n".join([*lines, "", text])


def multipart(kind: str, *parts: str) -> str:
    boundary = f"=={kind}=="
    inside = "".join(f"--{boundary}\n{part}\n" for part in parts)
    return f'Content-Type: multipart/{kind}; boundary="{boundary}"\n\n{inside}--{boundary}--\n'


def with_content(content: str) -> bytes:
    """A mail with `content`: its content headers, an empty line and the body."""
    return raw_mail(body="").rstrip(b"\n") + b"\n" + content.encode()


def test_a_mail_of_the_enron_corpus() -> None:
    assert parsed(ENRON) == Email(
        message_id="<18782981.1075855378110.JavaMail.evans@thyme>",
        subject="Our\n forecast",
        from_address="phillip.allen@enron.com",
        to_addresses=("tim.belden@enron.com", "Ann.Lee@enron.com", "josey'.'scott@enron.com"),
        date=datetime(2001, 5, 14, 23, 39),
        body="Here is our forecast\n\n ",
        file_name="inbox/1.",
    )


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("=?utf-8?Q?Caf=C3=A9?= at =?iso-8859-1?b?bm9vbg==?=", "Café at noon"),
        ("=?utf-8?b?Q2Fmw6k=?=\n =?utf-8?q?_noon?=", "Café noon"),
        ("=?utf-8*en?q?plain?=", "plain"),
        ("=?no-such-charset?q?Caf=C3=A9?=", "Café"),
        ("=?utf-8?b?a?= broken", "=?utf-8?b?a?= broken"),
        ("Café, as bytes", "Café, as bytes"),
        ("Café =?utf-8?q?=26?= more", "Café & more"),
        ("=?utf-8?b?w6k=?= =?utf-8?b?a?= =?utf-8?q?=C3=A9?=", "é =?utf-8?b?a?= é"),
        ("=?utf-8?q?open =?utf-8?q?closed?=", "=?utf-8?q?open closed"),
        ("=?utf-8?q?one two?=", "one two"),
        ("=?utf-8?q?Caf=E9?= =?utf-8?q?=C3?=\n =?utf-8?q?=A9?=", "Caféé"),
        ("=?gb2312?b?6EY=?=", b"\xe8F".decode("gb18030")),
    ],
)
def test_subjects(written: str, expected: str) -> None:
    assert parsed(raw_mail(subject=written)).subject == expected


@pytest.mark.parametrize(
    ("charset", "body", "expected"),
    [
        ("utf-8", "Café".encode(), "Café"),
        ("us-ascii", "Café".encode(), "Café"),
        ("iso-8859-1", "it’s Café".encode("cp1252"), "it’s Café"),
        ("iso-8859-1", "Café".encode(), "Café"),
        ("utf-8", "Café".encode("latin-1"), "Café"),
        ("x-unknown", "Café".encode("latin-1"), "Café"),
        ("koi8-r", "Привет".encode("koi8-r"), "Привет"),
        ("iso-2022-jp", "こんにちは".encode("iso-2022-jp"), "こんにちは"),
        ("utf-16", "Hello".encode("utf-16"), "Hello"),
        ("base64", b"SGVsbG8=", "SGVsbG8="),
        ("idna", b"xn--caf-dma", "xn--caf-dma"),
        ("utf-7", b"a+2AA-b", "a?b"),
        ("a\x00b", b"nul\x00 inside", "nul inside"),
        ("utf-8", b"it\x92s 5\x80, caf\xc3\xa9", "it’s 5€, café"),
        ("us-ascii", "één bericht, één".encode() + b" \xe9", "één bericht, één é"),
        ("utf-16", b"Hello", "Hello"),
        ("gb2312", "镕㎡".encode("gb18030"), "镕㎡"),
        ("shift_jis", "①髙".encode("cp932"), "①髙"),
        ("ks_c_5601-1987", "똠".encode("cp949"), "똠"),
        ("tis-620", "สวัสดี".encode("cp874"), "สวัสดี"),
        ("x-sjis", "三階".encode("cp932"), "三階"),
        ("cp-437", "ü".encode("cp437"), "ü"),
        ("iso-2022-jp", b"\x1b$B2q5D<<-!\x7f\x7f;03,\x1b(B 3F", "会議室①\x7f\x7f三階 3F"),
        ("iso-2022-jp", b"\x1b(I6E\x1b(B", "ｶﾅ"),
    ],
)
def test_charsets_that_are_declared_missing_or_wrong(charset: str, body: bytes, expected: str) -> None:
    raw = with_content(f"Content-Type: text/plain; charset={charset}\nContent-Transfer-Encoding: 8bit\n\n") + body
    assert parsed(raw).body.strip() == expected


def test_transfer_encodings_and_line_ends() -> None:
    quoted = with_content(
        part("text/plain; charset=utf-8", "Caf=C3=A9 =\nnoon", **{"transfer-encoding": "quoted-printable"})
    )
    assert parsed(quoted).body == "Café noon"
    encoded = with_content(part("text/plain", "SGVsbG8=\n", **{"transfer-encoding": "base64"}))
    assert parsed(encoded).body == "Hello"
    assert parsed(ENRON.replace(b"\n", b"\r\n")).body == "Here is our forecast\n\n "


def test_the_text_among_the_parts() -> None:
    plain, html = part("text/plain", "plain words"), part("text/html", "<p>html &amp; words</p>")
    assert parsed(with_content(multipart("alternative", plain, html))).body.strip() == "plain words"
    assert parsed(with_content(multipart("alternative", part("text/plain", " "), html))).body == "html & words"
    assert parsed(with_content(html)).body == "html & words"
    attached = [
        part("text/plain", "an attachment", disposition="attachment; filename=a.txt"),
        part("application/pdf", "JVBERi0=", **{"transfer-encoding": "base64"}),
        part("message/rfc822", ENRON.decode()),
    ]
    mixed = multipart("mixed", multipart("alternative", plain, html), *attached, part("text/plain", "the footer"))
    text = parsed(with_content(mixed)).body
    attached_mail = "From: phillip.allen@enron.com\nDate: Mon, 14 May 2001 16:39:00 -0700 (PDT)\nSubject: Our forecast"
    assert text.split() == f"plain words {attached_mail} Here is our forecast the footer".split()
    without_boundary = with_content("Content-Type: multipart/mixed\n\nstill readable")
    assert parsed(without_boundary).body == "still readable"
    assert parsed(with_content(multipart("mixed", *attached[:2]))).body == ""


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("Mon, 14 May 2001 16:39:00 -0700 (PDT)", datetime(2001, 5, 14, 23, 39)),
        ("14 May 01 16:39 EST", datetime(2001, 5, 14, 21, 39)),
        ("Mon, 14 May 2001 16:39:00 -0000", datetime(2001, 5, 14, 16, 39)),
        ("=?utf-8?q?Mon=2C_14_May_2001_16:39:00_-0000?=", datetime(2001, 5, 14, 16, 39)),
        ("Mon, 14 May 2001 16:39:00", datetime(2001, 5, 14, 16, 39)),
        ("", None),
        (None, None),
    ],
)
def test_dates_are_utc(written: str | None, expected: datetime | None) -> None:
    assert parsed(raw_mail(date=written)).date == expected


@pytest.mark.parametrize(
    "written",
    ["soon", "32 May 2001 10:00", "Mon, 14 May 2001 16:39:00 +9999999999", "31 Dec 9999 23:59:00 -1400", "9" * 5_000],
)
def test_a_date_that_cannot_be_read(written: str) -> None:
    assert reason(raw_mail(date=written)) == "bad_date"


def test_a_date_with_a_named_zone_keeps_its_hour() -> None:
    assert parsed(raw_mail(date="Mon, 4 Mar 2024 10:00:00 CEST")).date == datetime(2024, 3, 4, 8)


@pytest.mark.parametrize(
    "change",
    [
        lambda raw: b"\xef\xbb\xbf\n \n" + raw,
        lambda raw: b">From bob Mon May 14 16:39:00 2001\n" + raw,
        lambda raw: raw.replace(b": ", b" : ", 5),
        lambda raw: raw.replace(b"\n", b"\r\r\n"),
        lambda raw: raw.replace(b"\n", b"\r"),
        lambda raw: raw.replace(b"From:", b"Internet Headers Version 2.0\nFrom:"),
        lambda raw: b"Received: x\n\n" + raw,
        lambda raw: b'%d\n%b<?xml version="1.0"?><plist></plist>' % (len(raw), raw),
    ],
)
def test_damaged_headers_lose_nothing(change: Callable[[bytes], bytes]) -> None:
    raw = raw_mail(body="Room 4B\nNote: bring a badge")
    mail, whole = parsed(change(raw)), parsed(raw)
    assert mail.model_copy(update={"body": mail.body.strip()}) == whole.model_copy(update={"body": whole.body.strip()})


def test_text_after_a_header_without_an_empty_line_is_kept() -> None:
    raw = raw_mail(body="x").replace(b"\n\nx", b"\nRoom 4B is free.\nNote: bring a badge\n\nBye")
    assert parsed(raw).body.strip() == "Room 4B is free.\nNote: bring a badge\n\nBye"


def test_only_the_last_mail_server_says_who_got_a_mail() -> None:
    raw = raw_mail(to="team@lists.example")
    trusted = b"Delivered-To: eva@x.example\nX-Original-To: e.low@x.example\nReceived: by mx.x.example\n"
    forged = b"Received: by mx.x.example\nDelivered-To: victim@x.example\n"
    assert parsed(trusted + raw).bcc_addresses == ("eva@x.example", "e.low@x.example")
    assert parsed(forged + raw).bcc_addresses == ()
    inside = with_content(multipart("mixed", part("message/rfc822", (trusted + raw).decode())))
    assert parsed(inside).bcc_addresses == ()


@pytest.mark.parametrize(
    "sender",
    [
        b"Dana Voss <x17@y.example>",
        b"x17@y.example (Dana Voss)",
        b'"Voss, Dana" <x17@y.example>',
        b"=?utf-8?q?Dana_Voss?= <x17@y.example>",
    ],
)
def test_a_mail_is_found_by_the_name_of_its_sender(sender: bytes, tmp_path: Path) -> None:
    mail = parsed(b"Date: 4 Mar 2024\nFrom: " + sender + b"\nTo: ann@x.example\nSubject: Keys\n\nIn drawer 7.")
    build_database([mail], tmp_path / "mails.sqlite")
    mailbox = MailDatabase(tmp_path / "mails.sqlite").mailbox("ann@x.example", datetime(2039, 1, 1))
    assert [hit.subject for hit in mailbox.search(["Voss"])] == ["Keys"]


def test_mails_that_thunderbird_deleted_are_left_out() -> None:
    assert reason(b"X-Mozilla-Status: 0009\n" + raw_mail()) == "deleted"
    assert parsed(b"X-Mozilla-Status: 0001\n" + raw_mail()).body == parsed(raw_mail()).body


def test_addresses_and_message_ids() -> None:
    mail = parsed(
        raw_mail(
            to='=?utf-8?q?Z=C3=B6e?= <zoe@x.example>, "a, b" <ab@x.example>, broken <, ann@x.example (Ann)',
            cc="Friends: bob@x.example, carl@x.example;",
            bcc="dora@x.example",
            **{"from": None},
            sender="Eve <eve@x.example>",
            message_id=" (added by x) <1@x.example> ",
        )
    )
    assert {"zoe@x.example", "ab@x.example"} <= set(mail.to_addresses)
    assert mail.cc_addresses == ("bob@x.example", "carl@x.example") and mail.bcc_addresses == ("dora@x.example",)
    assert mail.from_address == "eve@x.example" and mail.message_id == "<1@x.example>"
    assert parsed(raw_mail(message_id="1@x.example")).message_id == "1@x.example"


@pytest.mark.parametrize(
    ("references", "in_reply_to", "expected"),
    [
        ("<1@x> <2@x>\n <3@x>", "<3@x>", ("<1@x>", "<3@x>")),
        ("<1@x> <2@x>", None, ("<1@x>", "<2@x>")),
        (None, "Ann's mail of Monday <1@x>", ("<1@x>",)),
        ("nonsense", "", ()),
    ],
)
def test_the_thread_is_known(references: str | None, in_reply_to: str | None, expected: tuple[str, ...]) -> None:
    assert parsed(raw_mail(references=references, in_reply_to=in_reply_to)).replies_to == expected


def test_reasons_why_a_mail_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reason(b"") == reason(b"\x89PNG\r\n\x1a\n") == reason(b"key: value\n\nnot a mail") == "no_headers"
    monkeypatch.setattr(rfc822, "MAX_MAIL_BYTES", 1_000)
    assert reason(raw_mail(body="x" * 1_000)) == "oversized"


@pytest.mark.parametrize("header", ["a:\n" * 10_001, "a:\n" + " x\n" * 350_000, f"a: {'x' * (1 << 20)}\n"])
def test_a_header_without_end_is_reported(header: str) -> None:
    dropped = parse_mail(header.encode() + raw_mail(), "inbox/1.")
    assert isinstance(dropped, DroppedMail) and dropped.reason == "unparsable"
    assert "over 10,000 fields or 1 MiB" in dropped.detail
    assert parsed(raw_mail(body="x" * (2 << 20))).body and parsed(b"a:\n" * 9_000 + raw_mail()).subject == "Note 1"


def test_nesting_without_end_is_reported() -> None:
    nested = "".join(f'Content-Type: multipart/mixed; boundary="{n}"\n\n--{n}\n' for n in range(2_000))
    assert reason(with_content(nested)) == "unparsable"


FRAGMENTS = [
    b"From: ", b"To: ", b"Date: ", b"Message-ID: ", b"Subject: ", b"Mon, 14 May 2001 16:39:00 -0700", b"<a@b>", b"\n", b"\r\n",
    b"\n\n", b" ", b"Content-Type: ", b"text/html", b"multipart/mixed; boundary=b", b"; charset=", b"utf-7", b"punycode",
    b"--b\n", b"--b--", b"Content-Transfer-Encoding: ", b"base64", b"quoted-printable", b"uuencode", b"=?utf-8?b?", b"?=",
    b"=?utf-16?q?=D8?=", b"(", b'"', b"<", b":;", b"\x00", b"\xff", b"Content-Disposition: attachment; filename*=x''%ff",
]  # fmt: skip


@settings(max_examples=300)
@given(
    st.one_of(
        st.binary(), st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=8)), max_size=60).map(b"".join)
    )
)
def test_any_bytes_are_a_mail_or_a_reported_defect(raw: bytes) -> None:
    mail = parse_mail(raw, "f\udcff\n1")
    assert isinstance(mail, Email | DroppedMail)
    mail.model_dump_json()
    assert isinstance(mail, Email) or (mail.reason and mail.where == "f? 1")
