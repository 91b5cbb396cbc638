"""Replay small inputs in the manner of public bug reports of mail programs and parsers, and count the right values.

  python -m benchmarks.cases_mail FOLDER        FOLDER holds mail.jsonl

Each line of the file has an id, an area, an input and the expected value. Headers and bodies of the inputs are bytes in
Latin-1. An expected value is compared as it is; of an object every named field must be right, `contains` and `lacks` are
lists of texts, and `any_of` lists several right values. The last line of the output is JSON.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agent.question_writing.checks import is_said
from benchmarks.output import show
from environment.email_db import MailDatabase, build_database, parse_query_date
from environment.errors import BadMail
from environment.mail_text import split_quoted
from environment.models import DroppedMail, Email
from environment.sources.detection import mail_source
from environment.sources.html_text import html_to_text
from environment.sources.mbox import mails_in
from environment.sources.rfc822 import parse_mail
from environment.tools import READ, SEARCH, MailTools

_OWNER = "ann@x.example"
_DAY = "2024-03-04 10:00:00"
_LAST = datetime(2039, 12, 31)
_LIMITS = SimpleNamespace(max_results=5, read_chars=5_000, optional_arguments=True, passage_chars=0)


def main() -> int:
    """Replay all cases. Return the exit code: 0 done, 2 if there is no such file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder with mail.jsonl")
    path = parser.parse_args().folder / "mail.jsonl"
    if not path.is_file():
        print(f"error: there is no file {path}", file=sys.stderr)
        return 2
    failed: dict[str, list[str]] = {}
    total: dict[str, int] = {}
    for line in filter(None, path.read_text("utf-8").split("\n")):
        case = json.loads(line)
        area = case["area"]
        total[area] = total.get(area, 0) + 1
        failed.setdefault(area, [])
        actual = _actual(case["input"])
        if not _is(actual, case["expected"]):
            failed[area].append(case["id"])
            print(f"{case['id']}: {_clipped(actual)}, expected {_clipped(case['expected'])}", file=sys.stderr)
    rows = [(area, total[area] - len(ids), total[area], " ".join(ids)) for area, ids in failed.items()]
    show("cases", ("", "right", "of", "failing"), rows)
    right = {area: [total[area] - len(ids), total[area]] for area, ids in failed.items()}
    print(json.dumps({"right": sum(r for r, _ in right.values()), "cases": sum(total.values()), "areas": right}))
    return 0


def _actual(given: dict[str, Any]) -> object:
    try:
        return _KINDS[given["kind"]](given)
    except BadMail as error:
        return {"raised": str(error)}


def _is(actual: Any, expected: Any) -> bool:
    """Return whether `actual` meets `expected`."""
    if isinstance(expected, dict):
        if "any_of" in expected:
            return any(_is(actual, one) for one in expected["any_of"])
        if "contains" in expected or "lacks" in expected:
            text = str(actual)
            return all(part in text for part in expected.get("contains", ())) and not any(
                part in text for part in expected.get("lacks", ())
            )
        return isinstance(actual, dict) and all(_is(actual.get(name), value) for name, value in expected.items())
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(actual) == len(expected)
            and all(_is(one, other) for one, other in zip(actual, expected, strict=True))
        )
    if isinstance(expected, str) and isinstance(actual, str):
        return actual.strip() == expected.strip()
    return bool(actual == expected)


def _described(mail: Email | DroppedMail) -> dict[str, Any]:
    if isinstance(mail, DroppedMail):
        return {"dropped": mail.reason}
    return {
        "message_id": mail.message_id,
        "subject": " ".join(mail.subject.split()),
        "from": mail.from_address,
        "to": list(mail.to_addresses),
        "cc": list(mail.cc_addresses),
        "date": str(mail.date) if mail.date else None,
        "body": mail.body,
    }


def _raw(text: str) -> bytes:
    return text.encode("latin-1")


def _mbox(given: dict[str, Any]) -> object:
    found = [_described(mail) for mail in mails_in(io.BufferedReader(io.BytesIO(_raw(given["raw"]))), "x.mbox")]
    dropped = [mail for mail in found if "dropped" in mail]
    return dropped if dropped and len(dropped) == len(found) else {"mails": len(found), "as": found}


def _source(given: dict[str, Any]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in given["files"].items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_raw(text))
        return [_described(mail) for mail in mail_source(str(Path(folder, given["path"])))]


def _mail(given: Any, number: int) -> Email | DroppedMail:
    if isinstance(given, str):
        return parse_mail(_raw(given), f"{number}.eml")
    return Email(
        message_id=given.get("message_id", f"<{number}@x.example>"),
        subject=given.get("subject", ""),
        from_address=given.get("from_address", "bob@x.example"),
        to_addresses=tuple(given.get("to_addresses", [_OWNER])),
        date=datetime.fromisoformat(given.get("date", _DAY)),
        body=given["body"],
    )


def _build(given: dict[str, Any]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        mails = [_mail(mail, number) for number, mail in enumerate(given["mails"])]
        return build_database(mails, Path(folder, "mails.sqlite")).model_dump()


def _with_tools(given: dict[str, Any], use: Callable[[MailTools], object]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mails.sqlite")
        build_database([_mail(mail, number) for number, mail in enumerate(given["mails"])], path)
        database = MailDatabase(path)
        try:
            now = parse_query_date(given["date"]) if "date" in given else _LAST
            return use(MailTools(database.mailbox(given.get("inbox", _OWNER), now), _LIMITS))
        finally:
            database.close()


def _search(given: dict[str, Any]) -> object:
    def use(tools: MailTools) -> object:
        result = tools.call(SEARCH, given["arguments"])
        views = [tools.mailbox.read(email_id) for email_id in result.email_ids]
        return {"invalid": result.invalid, "subjects": [view.subject for view in views if view]}

    return _with_tools(given, use)


def _read(given: dict[str, Any]) -> object:
    def use(tools: MailTools) -> object:
        found = tools.call(SEARCH, given["arguments"]).email_ids
        return tools.call(READ, {"email_id": 1}).observation if found else "nothing found"

    return _with_tools(given, use)


def _clipped(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}…"


_KINDS: dict[str, Callable[[dict[str, Any]], object]] = {
    "parse": lambda given: _described(parse_mail(_raw(given["raw"]), "1.eml")),
    "mbox": _mbox,
    "source": _source,
    "build": _build,
    "search": _search,
    "read": _read,
    "html": lambda given: html_to_text(given["html"]),
    "split": lambda given: list(split_quoted(given["body"])),
    "query_date": lambda given: str(parse_query_date(given["value"])),
    "said": lambda given: is_said(given["answer"], given["text"]),
}

if __name__ == "__main__":
    sys.exit(main())
