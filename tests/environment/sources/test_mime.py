"""The text of a mail among its parts, of whatever type."""

from __future__ import annotations

from binascii import b2a_uu

import pytest

from environment.sources.transfer import decoded_content
from tests.environment.raw_mails import raw_mail
from tests.environment.sources.test_rfc822 import multipart, parsed, part, with_content


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (part("text/plain charset=utf-8", "Room 4B"), "Room 4B"),
        (part("text/html charset=us-ascii", "<p>Room 4B</p>"), "Room 4B"),
        (part("html", "<p>Room 4B</p>"), "Room 4B"),
        (part("text/plain", "Room 4B", disposition="attachment"), "Room 4B"),
        (part("text/x-anything", "Room 4B"), "Room 4B"),
        (part("text/enriched", "<bold>Room</bold> 4B << 5"), "Room 4B < 5"),
        (part("text/plain; format=flowed", "Room \n4B\n> a \n> b\n>> c\n-- \nEva"), "Room 4B\n> a b\n>> c\n-- \nEva"),
        (part("text/plain; format=flowed; delsp=yes", "Ro \nom"), "Room"),
        (multipart("alternative", part("text/html", "<p>x"), part("text/plain", "Room 4B")), "Room 4B"),
        (
            multipart(
                "alternative", part("text/plain", "Use a program that shows HTML."), part("text/html", "<p>Room 4B")
            ),
            "Room 4B",
        ),
        (
            multipart(
                "alternative",
                part("text/plain", "HTML is a language."),
                part("text/html", "<p>HTML is a language.<p>x"),
            ),
            "HTML is a language.",
        ),
        (
            part(
                "text/calendar",
                "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Budget\\, second round\nLOCATION:Room\n  4B\nDTSTART;TZID=Europe/Paris:"
                '20240304T100000\nORGANIZER;CN="Low, Eva":mailto:eva@x.example\nBEGIN:VALARM\nDESCRIPTION:alarm\nEND:VALARM\n'
                "END:VEVENT\nEND:VCALENDAR",
            ),
            "Budget, second round\nWhere: Room 4B\nWhen: 2024-03-04 10:00 (Europe/Paris)\nOrganizer: Low, Eva <eva@x.example>",
        ),
        (
            multipart(
                "mixed", part("message/rfc822", "From: Eva\nSubject: Keys\n\nIn drawer 7.", disposition="attachment")
            ),
            "From: Eva\nSubject: Keys\n\nIn drawer 7.",
        ),
        (
            multipart(
                "mixed", part("application/octet-stream; name=keys.eml", "From: Eva\n\nIn 7.", disposition="attachment")
            ),
            "From: Eva\n\nIn 7.",
        ),
        (part("application/xhtml+xml", "<p>Room 4B</p>"), "Room 4B"),
        (multipart("digest", "\nSubject: Keys\n\nIn drawer 7."), "Subject: Keys\n\nIn drawer 7."),
    ],
)
def test_text_of_every_kind_is_shown(content: str, expected: str) -> None:
    assert parsed(with_content(content)).body.strip() == expected


@pytest.mark.parametrize("label", ["win-1251", "win1251", "x-win-1251", "windows_1251", "ansi-1251", "ms-1251", "1251"])
def test_spellings_of_a_code_page(label: str) -> None:
    content = part(f"text/plain; charset={label}", "") + "\n"
    assert parsed(with_content(content) + "Привет".encode("cp1251")).body.strip() == "Привет"


INVITATION = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Review\nLOCATION:Room 4B\nEND:VEVENT\nEND:VCALENDAR"


@pytest.mark.parametrize(
    "kind",
    ["text/calendar", "application/ics", "application/octet-stream; name=invite.ics", "application/octet-stream"],
)
def test_an_attached_invitation_is_shown(kind: str) -> None:
    attached = part(kind, INVITATION, disposition="attachment; filename=Invite.ICS")
    assert parsed(with_content(multipart("mixed", attached))).body == "Review\nWhere: Room 4B"


MEETING = INVITATION.replace("LOCATION", "DTSTART:20240304T100000Z\nDESCRIPTION:Please bring\\n the plan.\nLOCATION")


@pytest.mark.parametrize("kind", ["text/plain", "text/html"])
def test_a_meeting_request_keeps_time_and_place(kind: str) -> None:
    request = multipart("alternative", part(kind, "Please bring\nthe plan."), part("text/calendar", MEETING))
    text = "Please bring the plan. Review When: 2024-03-04 10:00 UTC Where: Room 4B"
    assert parsed(with_content(request)).body.split() == text.split()
    twice = multipart("mixed", request, part("application/ics", MEETING, disposition="attachment; filename=invite.ics"))
    assert parsed(with_content(twice)).body.split() == text.split()


STUB = "View this message in your browser: https://x.example/" + "a" * 400


@pytest.mark.parametrize(
    ("plain", "html", "expected"),
    [
        (
            STUB,
            "<a href='https://x.example'>View this message in your browser</a>" + "<p>The lift is closed." * 30,
            "lift",
        ),
        (STUB, "<p>The lift is closed.", "lift"),
        ("View the plan online: https://x.example/plan", "<p>View the plan online: here<p>Jo, Head of Plans", "/plan"),
        ("See https://x.example/view.html", "<p>Something else", "view.html"),
    ],
)
def test_a_text_that_only_says_where_to_see_the_mail_is_ignored(plain: str, html: str, expected: str) -> None:
    alternatives = multipart("alternative", part("text/plain", plain), part("text/html", html))
    assert expected in parsed(with_content(alternatives)).body


def test_files_within_the_text_are_attached() -> None:
    block = f"begin 644 C:\\plans\\floor.txt\n{b2a_uu(b'x' * 45).decode()}{b2a_uu(b'Room 4B').decode()}`\nend\n"
    mail = parsed(with_content(part("text/plain", f"Here.\n\n{block}Bye\nbegin 644 open\nMABC\n")))
    assert mail.body.split("\n") == ["Here.", "", "Bye", "begin 644 open", "MABC", ""]
    [file] = mail.attachments
    assert file.name == "floor.txt" and decoded_content(file.encoded, file.encoding) == b"x" * 45 + b"Room 4B"
    inline = part("text/plain; name=a.log", "a log", disposition="inline; filename=a.log")
    mixed = parsed(with_content(multipart("mixed", inline, inline, part("text/plain", "the footer"))))
    assert mixed.body.split() == ["a", "log", "the", "footer"] and [file.name for file in mixed.attachments] == [
        "a.log"
    ]


@pytest.mark.timeout(60)  # against hours
@pytest.mark.parametrize("text", ["begin 644 a\nMABC\n" * 200_000, "begin 644 a\n" + f"M{'A' * 60}\n" * 200_000])
def test_files_that_never_end_take_linear_time(text: str) -> None:
    assert not parsed(with_content(part("text/plain", text))).attachments


def test_html_may_name_its_charset() -> None:
    html = "<meta http-equiv='Content-Type' content='text/html; charset=koi8-r'><p>Привет".encode("koi8-r")
    assert parsed(with_content("Content-Type: text/html\n\n") + html).body == "Привет"
    xhtml = '<?xml version="1.0" encoding="koi8-r"?><p>Привет'.encode("koi8-r")
    assert parsed(with_content("Content-Type: text/html\n\n") + xhtml).body == "Привет"
    assert parsed(with_content("Content-Type: text/html; charset=us-ascii\n\n") + html).body == "Привет"
    assert (
        parsed(with_content("Content-Type: text/html; charset=utf-8\n\n") + "<meta charset=koi8-r>é".encode()).body
        == "é"
    )


@pytest.mark.timeout(60)  # against half an hour
def test_carriage_returns_take_linear_time() -> None:
    assert parsed(raw_mail(body="a\r\r\nb" + "\r" * 1_000_000 + "c")).body.rstrip() == "a\nb" + "\n" * 1_000_000 + "c"
