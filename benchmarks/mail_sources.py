"""Compare our mail readers with the standard library's `mailbox` and `email`: rate, memory and planted defects.

  python -m benchmarks.mail_sources                                   100,000 files and an mbox of 1 GB
  python -m benchmarks.mail_sources --files 2000 --megabytes 20       a quick look

The mails are generated first from invented words; one in a hundred has a defect that a report must name. Both readers
feed the same database builder. The standard library is slow, so it reads only --alternative of the mails. Figures go to
stdout, the last line is JSON. The exit code is 1 if a defect was missed or misreported.
"""

from __future__ import annotations

import argparse
import email.policy
import email.utils
import json
import mailbox
import multiprocessing
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC
from email.message import EmailMessage
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from benchmarks.output import progress, show
from environment.email_db import build_database
from environment.models import Email
from environment.sources.detection import mail_source
from environment.sources.rfc822 import MAX_MAIL_BYTES

WORDS = 20_000
MAILS_PER_FOLDER = 1_000
MAILS_PER_DEFECT = 100
OVERSIZED = 3
"""Number of oversized mails of 26 MB each. At one per hundred mails they would fill the disk."""


def main() -> int:
    """Write the mails, read them in both ways, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--files", type=int, default=100_000, help="mails in the folder (default 100,000)")
    add("--megabytes", type=int, default=1_000, help="size of the mbox (default 1,000)")
    add("--alternative", type=int, default=20_000, help="mails that the standard library reads (default 20,000)")
    add("--scratch", type=Path, help="folder for mails and databases, 4 GB; default: the system's")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        for kind, write in (("folder", write_folder), ("mbox", write_mbox)):
            progress(f"writing: {kind}")
            path = Path(scratch) / kind
            size = arguments.files if kind == "folder" else arguments.megabytes * 1_000_000
            written, planted = write(path, size)
            figures[kind] = measure(path, Path(scratch), written, planted, arguments.alternative)
    print(json.dumps(figures))
    return 0 if all(figure["defects_found"] for figure in figures.values()) else 1


def measure(path: Path, scratch: Path, written: int, planted: Counter[str], alternative: int) -> dict[str, Any]:
    """Measure mails per second and peak memory in MB of both ways to read `path`, and compare the report with the
    planted defects.
    """
    rates: dict[str, float] = {}
    figures: dict[str, Any] = {"mails": written, "planted": dict(sorted(planted.items()))}
    for way, mails in (("ours", written), ("standard library", min(written, alternative))):
        progress(f"reading: {path.name}, {way}")
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            report, seconds, peak = process.submit(_build, way, path, scratch / "mails.sqlite", mails).result()
        rates[way] = mails / seconds
        figures[way] = {"mails_per_second": round(rates[way]), "peak_memory_mb": round(peak / 1e6)}
        if way == "ours":
            found = Counter(report["dropped"]) + Counter(duplicates=report["duplicates"])
            figures |= {"reported": dict(sorted(found.items())), "kept": report["kept"], "read": report["read"]}
            listed = Counter(mail["reason"] for mail in report["listed"])
            figures["defects_found"] = found == planted and listed + Counter(duplicates=found["duplicates"]) == found
    figures["ratio"] = round(rates["ours"] / rates["standard library"], 2)
    show(
        f"{path.name}: {written:,} mails; ratio: ours / standard library",
        ("", "ours", "standard library", "ratio"),
        [
            (name, figures["ours"][name], figures["standard library"][name], ratio)
            for name, ratio in (("mails_per_second", figures["ratio"]), ("peak_memory_mb", None))
        ],
    )
    show(
        "planted defects",
        ("", "planted", "reported"),
        [(n, planted[n], figures["reported"].get(n, 0)) for n in planted],
    )
    return figures


def _build(way: str, source: Path, path: Path, mails: int) -> tuple[dict[str, Any], float, int]:
    started = time.perf_counter()
    emails: Iterable[Any] = mail_source(str(source)) if way == "ours" else islice(_standard(source), mails)
    report = build_database(emails, path)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return report.model_dump(), time.perf_counter() - started, peak


def _standard(source: Path) -> Iterator[Email]:
    """Yield the mails as the standard library parses them, without protection against malformed ones."""
    if source.is_dir():
        files = (Path(folder) / name for folder, _, names in os.walk(source) for name in names)
        messages: Iterable[Any] = (
            email.message_from_bytes(file.read_bytes(), policy=email.policy.default) for file in files if file.is_file()
        )
    else:
        read: Any = (
            email.message_from_binary_file
        )  # typeshed's factory gets an object that typeshed does not consider a binary file
        messages = mailbox.mbox(source, factory=lambda file: read(file, policy=email.policy.default), create=False)
    for message in messages:
        body = message.get_body(("plain", "html"))
        try:
            date = email.utils.parsedate_to_datetime(message["date"])
        except (TypeError, ValueError):
            continue
        yield Email(
            message_id=message["message-id"] or "",
            subject=message["subject"] or "",
            from_address=message["from"] or "",
            to_addresses=tuple(str(to.addr_spec) for to in message["to"].addresses) if message["to"] else (),
            date=date.astimezone(UTC),
            body=body.get_content() if body else "",
        )


# The mails


def write_folder(path: Path, count: int) -> tuple[int, Counter[str]]:
    """Write `count` files in folders of a thousand, like the original Enron archive. Return count and planted defects."""
    planted: Counter[str] = Counter()
    for number, (raw, defect) in enumerate(islice(mails(in_mbox=False), count)):
        folder = path / f"person-{number // MAILS_PER_FOLDER}" / "inbox"
        if number % MAILS_PER_FOLDER == 0:
            folder.mkdir(parents=True)
        file = folder / f"{number % MAILS_PER_FOLDER}."
        if defect == "no_file":
            file.symlink_to("/etc/passwd")
        else:
            file.write_bytes(raw)
        planted[defect] += 1
    del planted[""]
    return count, planted


def write_mbox(path: Path, size: int) -> tuple[int, Counter[str]]:
    """Write an mbox of at least `size` bytes. Return the number of its mails and the planted defects."""
    planted: Counter[str] = Counter()
    with path.open("wb") as file:
        for raw, defect in mails(in_mbox=True):
            _append(file, raw)
            planted[defect] += 1
            if file.tell() >= size:
                break
    written = planted.total()
    del planted[""]
    return written, planted


def _append(file: BinaryIO, raw: bytes) -> None:
    file.write(b"From someone@example.com Mon May  7 16:39:00 2001\n")
    file.write(raw.replace(b"\nFrom ", b"\n>From "))
    file.write(b"\n")


def mails(*, in_mbox: bool) -> Iterator[tuple[bytes, str]]:
    """Yield endlessly a mail and the expected reason for dropping it, empty for a good one."""
    chance = random.Random(0)
    words = ["".join(chance.choices("aeioubcdfglmnprst", k=chance.randint(3, 10))) for _ in range(WORDS)]
    defects = [
        "absurd_date", "bad_date", "body_too_long", "duplicates", "no_body", "no_date",
        "no_message_id", "oversized", "too_many_recipients", *([] if in_mbox else ["no_file", "no_headers"]),
    ]  # fmt: skip
    last, number, oversized = b"", 0, 0
    while True:
        number += 1
        defect = defects[number // MAILS_PER_DEFECT % len(defects)] if number % MAILS_PER_DEFECT == 0 else ""
        if defect == "oversized":
            oversized += 1
            defect = defect if oversized <= OVERSIZED else ""
        raw = last if defect == "duplicates" else _mail(chance, words, number, defect)
        last = last if defect else raw
        yield raw, defect


def _mail(chance: random.Random, words: list[str], number: int, defect: str) -> bytes:
    text = "\n".join(" ".join(chance.choices(words, k=12)) for _ in range(chance.randint(3, 40)))
    message = EmailMessage(policy=email.policy.SMTP.clone(linesep="\n"))
    people = [f"{chance.choice(words)}@example.com" for _ in range(2)]
    message["Message-ID"] = f"<{number}@example.com>"
    message["Date"] = f"{number % 28 + 1} May 2001 16:39:{number % 60:02} -0700"
    message["From"], message["To"] = people[0], people[1]
    message["Subject"] = f"{chance.choice(words)} é {number}" if number % 7 == 0 else f"{chance.choice(words)} {number}"
    if defect == "body_too_long":
        text = text * 40
    if defect == "oversized":
        text = ("x" * 70 + "\n") * (MAX_MAIL_BYTES // 70)
    if number % 5 == 0 and not defect:
        message.set_content(f"<p>{text}</p><blockquote>{words[number % WORDS]}</blockquote>", subtype="html")
    else:
        message.set_content(text if defect != "no_body" else "")
    if number % 11 == 0 and not defect:
        message.add_attachment(chance.randbytes(500), maintype="application", subtype="pdf", filename="a.pdf")
    if defect == "too_many_recipients":
        message.replace_header("To", ", ".join(f"p{n}@example.com" for n in range(40)))
    raw = message.as_bytes()
    date = next(line for line in raw.split(b"\n") if line.startswith(b"Date: "))
    if defect in ("absurd_date", "bad_date"):
        raw = raw.replace(date, b"Date: 5 May 1901 10:00:00 +0000" if defect == "absurd_date" else b"Date: soon")
    if defect == "no_date":
        raw = raw.replace(date + b"\n", b"")
    if defect == "no_message_id":
        raw = raw.replace(f"Message-ID: <{number}@example.com>\n".encode(), b"")
    return text.encode() if defect == "no_headers" else raw


if __name__ == "__main__":
    sys.exit(main())
