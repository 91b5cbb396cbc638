"""Search a mailbox from the terminal, as the agent does.

python -m environment.search_cli --inbox ann@example.com --query "budget review"
python -m environment.search_cli --inbox ann@example.com --read 17
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from environment.email_db import Mailbox, MailDatabase, parse_query_date
from environment.errors import BadMail
from environment.home import HOME
from environment.mail_text import split_quoted
from environment.models import EmailView, SearchResult
from environment.search import MAX_RESULTS

NEWEST_DATABASE = HOME / "data" / "mail_database.sqlite"
"""Where the data pipeline builds. The artifact store holds a copy of this file."""


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadMail(f"{message}; `{self.prog} --help` explains every option")


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line. Raise BadMail when it asks for nothing or for too many results."""
    parser = _Arguments(
        prog="python -m environment.search_cli",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--inbox", required=True, metavar="ADDRESS", help="whose mail to search")
    add("--query", metavar="WORDS", help="words to look for; any of them may match")
    add("--read", type=int, metavar="ID", help="show this mail instead, in full")
    add("--before", metavar="DATE", help="only mail up to the end of this day (YYYY-MM-DD), as the agent sees it")
    add("--after", metavar="DATE", help="only mail from this day on")
    add("--from-addr", default="", metavar="ADDRESS", help="only mail of this sender; the part before the @ is enough")
    add("--to-addr", default="", metavar="ADDRESS", help="only mail to this address")
    add(
        "--limit", type=int, default=10, metavar="N", help=f"how many mails to list, at most {MAX_RESULTS} (default 10)"
    )
    add("--database", type=Path, metavar="FILE", help="default: what the data pipeline built last, in data/")
    arguments = parser.parse_args(words)
    if arguments.read is None and not any((arguments.query, arguments.after, arguments.from_addr, arguments.to_addr)):
        raise BadMail("say what to look for: --query WORDS, --from-addr, --to-addr, --after, or --read ID")
    if not 1 <= arguments.limit <= MAX_RESULTS:
        raise BadMail(f"--limit {arguments.limit}: must be 1 to {MAX_RESULTS}")
    return arguments


def main(words: list[str] | None = None) -> int:
    """Run the command line. Return the exit code: 0 whether or not mails were found, 2 for bad input."""
    try:
        arguments = parse_arguments(sys.argv[1:] if words is None else words)
        database = MailDatabase(arguments.database or NEWEST_DATABASE)
        try:
            _show(arguments, database, Console(highlight=False))
        finally:
            database.close()
    except BadMail as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def _show(arguments: argparse.Namespace, database: MailDatabase, console: Console) -> None:
    mailbox = database.mailbox(
        arguments.inbox, parse_query_date(arguments.before) if arguments.before else datetime.max
    )
    if arguments.read is not None:
        mail = mailbox.read(arguments.read)
        if mail is None:
            raise BadMail(f"there is no mail {arguments.read} in this mailbox")
        console.print(_mail(mail))
        return
    after = parse_query_date(arguments.after).replace(hour=0, minute=0, second=0) if arguments.after else None
    hits = mailbox.search(
        [arguments.query or ""],
        max_results=arguments.limit,
        sent_after=after,
        from_addr=arguments.from_addr,
        to_addr=arguments.to_addr,
    )
    console.print(_table(hits, mailbox) if hits else "No mails found.")


def _table(hits: list[SearchResult], mailbox: Mailbox) -> Table:
    caption = Text(f"{len(hits)} of the mails of {mailbox.address}, best first; --read ID shows one")
    table = Table(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    table.add_column("id", justify="right")
    table.add_column("date", no_wrap=True)
    for name in ("from", "subject", "passage"):
        table.add_column(name, overflow="fold")
    for hit in hits:
        table.add_row(str(hit.id), f"{hit.date:%Y-%m-%d}", *map(_shown, (hit.from_address, hit.subject, hit.snippet)))
    return table


def _mail(mail: EmailView) -> Text:
    head = {
        "From": f"{mail.from_name} <{mail.from_address}>" if mail.from_name else mail.from_address,
        "To": ", ".join(mail.to_addresses),
        "Cc": ", ".join(mail.cc_addresses),
        "Date": f"{mail.date:%Y-%m-%d %H:%M} UTC",
        "Subject": mail.subject,
        "Message-ID": mail.message_id,
    }
    lines = [f"{name}: {value}" for name, value in head.items() if value]
    own, quoted = split_quoted(mail.body)
    text = _shown("\n".join([*lines, "", own]))
    return text.append("\n").append(_shown(quoted).plain, style="dim") if quoted else text


def _shown(text: str) -> Text:
    """Return text of a mail that is safe on a terminal: without control characters and never parsed as rich markup."""
    return Text("".join(c if c == "\n" or c.isprintable() else " " if c.isspace() else "�" for c in text))


if __name__ == "__main__":
    sys.exit(main())
