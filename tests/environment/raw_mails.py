"""Mails as they travel, to test with."""

from __future__ import annotations


def raw_mail(number: int = 1, body: str = "This is note number {}.", **headers: str | None) -> bytes:
    """Mail `number` as bytes; `headers` (message_id for Message-ID) replace its own or, where None, take them away."""
    given: dict[str, str | None] = {
        "Message-ID": f"<{number}.JavaMail@thyme>",
        "Date": f"Mon, {number % 28 + 1} May 2001 16:39:00 -0700 (PDT)",
        "From": "phillip.allen@enron.com",
        "To": "tim.belden@enron.com",
        "Subject": f"Note {number}",
    }
    given |= {name.replace("_", "-").title().replace("-Id", "-ID"): value for name, value in headers.items()}
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    return ("\n".join([*lines, "", body.replace("{}", str(number))]) + "\n").encode()
