"""No tool call, whatever its arguments, reveals anything beyond one inbox at one moment."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Iterator
from datetime import datetime
from types import SimpleNamespace
from typing import Any

import pytest

from environment.email_db import MailDatabase, build_database
from environment.models import Email
from environment.tools import FINAL_ANSWER, READ, SEARCH, MailTools, ToolResult
from serving.access import Caller
from serving.mail_tools import MailToolServer
from tests.environment.sample_mails import OWNER, STRANGER, mail

CALLS = 10_000
NOW = datetime(2001, 1, 20)
SECRET = "xyzzysecret"
MARK = "0wnm4il"
LIMITS = SimpleNamespace(max_results=5, read_chars=300, passage_chars=0)

HOSTILE = [
    "", " ", "\x00", "\ud800", "\u202e", "é", "ß", "İ", "\u0301", "𝒳", "🦅", "\n", "\t", "%", "_", "*", '"', "'", "''", "`",
    "\\", ";", "--", "/*", "?", ":x", "@x", "$x", "{", "}", "(", ")", "^", "+", "-", ":", ",", ".", "…",
    "AND", "OR", "NOT", "NEAR", "NEAR(a b, 3)", "inbox : i2", 'inbox : "i2"', "{subject body inbox} : i2", "subject:note",
    "note*", '" OR inbox : "i2', "i1", "i2", "i3", "' OR 1=1 --", "'; DROP TABLE email; --", "1 UNION SELECT body FROM email",
    ") OR (1=1", "%s", "{0}", "${x}", "../../etc/passwd", "<script>", "\x1b[2J", "NULL", "None", "nan", "1e999", "0x10",
    "note", "kickoff", "number", MARK, SECRET, OWNER, STRANGER, STRANGER.upper(), STRANGER.partition("@")[0],
    f"x <{STRANGER}>", f"{OWNER}, {STRANGER}", "<101@example.com>", "<1@example.com>", "2001-01-05", "2001-05", "0001-01-01",
    "9999-12-31T23:59:59-23:59", "2001-01-05T10:00+14:00", "last week", "a" * 5_000, "note " * 2_000,
]  # fmt: skip
ODD = [
    None, True, False, 0, -1, 1, 2, 3, 20, 21, 40, 41, 60, 61, 10**6, 2**63 - 1, 2**63, -(2**63), 10**5_000, 0.0, 1.0, 41.0,
    1.5, 1e300, float("nan"), float("inf"), -0.0, [], {}, [[]], [None], {"id": 41}, b"note", (1, 2), {1}, object(),
]  # fmt: skip
ARGUMENTS = (
    "keywords", "email_id", "start", "answer", "source_ids", "from_addr", "to_addr", "sent_after", "sent_before", "max_results",
    "inbox", "inbox_address", "query_date", "id", "message_id", "self", "\ud800",
)  # fmt: skip


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MailDatabase]:
    """1 to 20 are the owner's, 21 to 40 too but not sent yet, 41 to 60 a stranger's; 61 went to both, blindly to the stranger."""
    path = tmp_path_factory.mktemp("isolation") / "mails.sqlite"
    words = "note number kickoff AND OR NOT NEAR inbox i1 i2 i3 é 555-0173"
    build_database(
        [
            *(mail(n, date=datetime(2001, 1, 1 + n % 19), body=f"{n} {MARK} {words}") for n in range(1, 21)),
            *(mail(n, date=datetime(2001, 2, 1 + n % 20), body=f"{n} {SECRET} {words}") for n in range(21, 41)),
            *(mail(n, to_addresses=(STRANGER,), body=f"{n} {SECRET} {words}") for n in range(41, 61)),
            mail(61, date=datetime(2001, 1, 2), bcc_addresses=(STRANGER,), body=f"61 {MARK} {words}"),
        ],
        path,
    )
    database = MailDatabase(path)
    yield database
    database.close()


@pytest.fixture(params=[0, 80])
def tools(database: MailDatabase, request: pytest.FixtureRequest) -> MailTools:
    limits = SimpleNamespace(**{**vars(LIMITS), "passage_chars": request.param})
    return MailTools(database.mailbox(OWNER, NOW), limits)


def text(chance: random.Random) -> str:
    kind = chance.random()
    if kind < 0.6:
        return chance.choice(HOSTILE)
    if kind < 0.8:
        return " ".join(chance.choices(HOSTILE, k=chance.randint(2, 5)))
    if kind < 0.9:
        return "".join(chance.choices(string.printable, k=chance.randint(0, 40)))
    return "".join(chr(chance.randrange(0x110000)) for _ in range(chance.randint(0, 20)))


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.random()
    if kind < 0.45:
        return text(chance)
    if kind < 0.65:
        return chance.choice(ODD)
    if kind < 0.8:
        return chance.randint(-5, 70)
    if depth > 2:
        return None
    if kind < 0.97:
        return [value(chance, depth + 1) for _ in range(chance.randint(0, 6))]
    return {text(chance): value(chance, depth + 1)}


def call(chance: random.Random) -> tuple[Any, Any]:
    """A call as it should look in half of the cases, anything in the other half."""
    name: Any = chance.choice((SEARCH, READ, FINAL_ANSWER))
    required = {
        SEARCH: lambda: {"keywords": [text(chance) for _ in range(chance.randint(0, 25))]},
        READ: lambda: {"email_id": chance.choice((chance.randint(-5, 70), str(chance.randint(0, 70)), value(chance)))},
        FINAL_ANSWER: lambda: {
            "answer": text(chance),
            "source_ids": [value(chance) for _ in range(chance.randint(0, 9))],
        },
    }[name]()
    kind = chance.random()
    if kind < 0.4:
        return name, required
    if kind < 0.8:
        return name, required | {argument: value(chance) for argument in chance.sample(ARGUMENTS, chance.randint(1, 5))}
    if kind < 0.95:
        return name, {argument: value(chance) for argument in chance.sample(ARGUMENTS, chance.randint(0, 5))}
    return value(chance), value(chance)


def test_no_call_raises_or_shows_foreign_or_later_mail(database: MailDatabase, tools: MailTools) -> None:
    own = {n for n in range(1, 62) if tools.mailbox.read(n) is not None}
    assert len(own) == 21
    sources = {f"<{n}@example.com>" for n in (*range(1, 21), 61)}
    chance = random.Random(0)
    shown = answered = 0
    for number in range(CALLS):
        name, arguments = call(chance)
        try:
            result = tools.call(name, arguments)
        except Exception as error:
            pytest.fail(f"call {number} of {name!r}: {error!r}")
        assert isinstance(result, ToolResult) and result.observation
        result.observation.encode()
        assert SECRET not in result.observation and STRANGER not in result.observation
        assert set(result.email_ids) <= own
        shown += bool(result.email_ids)
        if result.final is not None:
            answered += 1
            result.final.model_dump_json()
            assert set(result.final.source_ids) <= sources
    assert shown > CALLS / 10 and answered > CALLS / 10, "most calls must get past the check of their arguments"
    assert database.email_count() == 61 and len(database.inboxes()) == 3


def test_foreign_mail_looks_absent(tools: MailTools) -> None:
    """Every id that is not readable gives one and the same result, read or cited, alone or among others."""
    foreign, later, nowhere = 41, 21, 999
    assert tools.mailbox.read(1) is not None
    for arguments in (
        lambda n: (READ, {"email_id": n}),
        lambda n: (READ, {"email_id": str(n)}),
        lambda n: (READ, {"email_id": float(n), "start": 100}),
        lambda n: (FINAL_ANSWER, {"answer": "42", "source_ids": [n]}),
        lambda n: (FINAL_ANSWER, {"answer": "42", "source_ids": n}),
        lambda n: (FINAL_ANSWER, {"answer": "42", "source_ids": [1, n, str(n), 2]}),
        lambda n: (SEARCH, {"keywords": [f"<{n}@example.com>", SECRET, str(n)]}),
    ):
        results = [tools.call(*arguments(n)) for n in (foreign, later, nowhere)]
        assert results[0] == results[1] == results[2]


def test_an_address_filter_tells_nothing_of_other_inboxes(database: MailDatabase, tools: MailTools) -> None:
    for name in ("from_addr", "to_addr"):
        known, unknown = (
            tools.call(SEARCH, {"keywords": ["note"], name: address}) for address in (STRANGER, "nobody@other.example")
        )
        assert known == unknown and known.email_ids == []


def test_a_blind_copy_is_known_to_its_sender_and_to_whom_it_went(database: MailDatabase) -> None:
    def found(inbox: str) -> list[int]:
        tools = MailTools(database.mailbox(inbox, datetime(2001, 1, 3)), LIMITS)
        return tools.call(SEARCH, {"keywords": ["61"], "to_addr": STRANGER, "sent_before": "2001-01-03"}).email_ids

    assert found(OWNER) == []
    assert 61 in found(STRANGER) and 61 in found("bob.ray@example.com")


BOB, CARL, DAVE, ZOE = "bob.ray@example.com", "carl@example.com", "dave@example.com", "zoe@example.com"


def test_a_copy_sent_to_someone_else_later_tells_nothing(tmp_path: Any) -> None:
    """The same text went to Ann in February and to Carl in June: two deliveries, each with its own date and recipients."""
    same = {"subject": "Budget", "body": "The budget is 5,000."}
    path = tmp_path / "mails.sqlite"
    build_database(
        [
            mail(1, **same, date=datetime(2001, 2, 1)),
            mail(2, **same, date=datetime(2001, 6, 1), to_addresses=(CARL,), bcc_addresses=(DAVE,)),
        ],
        path,
    )
    database = MailDatabase(path)

    def seen(who: str, day: str, **filters: str) -> list[tuple[int, str]]:
        tools = MailTools(database.mailbox(who, datetime.fromisoformat(day)), LIMITS)
        found = tools.call(SEARCH, {"keywords": ["budget"], **filters}).email_ids
        views = [tools.mailbox.read(email_id) for email_id in found]
        assert all(view is not None for view in views)
        return [(view.date.month, ",".join((*view.to_addresses, *view.cc_addresses))) for view in views]

    assert seen(OWNER, "2001-07-01") == [(2, OWNER)]
    assert seen(OWNER, "2001-07-01", to_addr=CARL) == seen(OWNER, "2001-07-01", sent_after="2001-03-01") == []
    assert seen(CARL, "2001-05-01") == [], "he gets it in June"
    assert seen(CARL, "2001-07-01") == seen(DAVE, "2001-07-01") == [(6, CARL)]
    assert seen(CARL, "2001-07-01", to_addr=OWNER) == seen(CARL, "2001-07-01", sent_before="2001-03-01") == []
    assert seen(CARL, "2001-07-01", to_addr=DAVE) == [] and len(seen(DAVE, "2001-07-01", to_addr=DAVE)) == 1
    assert seen(BOB, "2001-05-01", to_addr=CARL) == [] and len(seen(BOB, "2001-07-01", to_addr=CARL)) == 1
    assert len(seen(BOB, "2001-07-01", to_addr=DAVE)) == 1, "the sender knows of the blind copy"
    database.close()


def _any_mails(chance: random.Random) -> list[Email]:
    """Few texts, people, moments and Message-IDs, so that copies, aliases, blind copies and threads meet."""
    people = [OWNER, BOB, CARL, DAVE, ZOE]
    mails = []
    for number in range(60):
        text = chance.randrange(12)
        named = chance.sample(people, chance.randint(1, 4))
        mails.append(
            Email(
                message_id=f"<{chance.choice((number, chance.randrange(60)))}@example.com>",
                subject=f"note {text % 4}",
                body=f"heron budget number {text} " + "kickoff " * (text % 3),
                from_address=chance.choice(people[:2]),
                to_addresses=tuple(named[:1]),
                cc_addresses=tuple(named[1:2]),
                bcc_addresses=tuple(named[2:]),
                date=datetime(2001, chance.randint(1, 12), 1, chance.randint(0, 1)),
                replies_to=tuple(f"<{chance.randrange(60)}@example.com>" for _ in range(chance.choice((0, 0, 1, 2)))),
            )
        )
    return mails


@pytest.mark.parametrize("seed", range(6))
def test_mail_of_others_and_of_later_changes_nothing(tmp_path: Any, seed: int) -> None:
    """Every call has the result that it has in a database of only what the owner had sent or received by then."""
    mails, now = _any_mails(random.Random(seed)), datetime(2001, 7, 1)
    for owner in (OWNER, BOB, CARL, ZOE):

        def is_own(email: Email, owner: str = owner) -> bool:
            people = (email.from_address, *email.to_addresses, *email.cc_addresses, *email.bcc_addresses)
            return owner in people and email.date is not None and email.date <= now

        build_database(mails, tmp_path / "all.sqlite")
        build_database([email for email in mails if is_own(email)], tmp_path / "own.sqlite")
        results = []
        for name in ("all", "own"):
            database = MailDatabase(tmp_path / f"{name}.sqlite")
            mailbox = database.mailbox(owner, now)
            views = [view for number in range(1, 61) if (view := mailbox.read(number))]
            named = {view.id: f"{view.subject} {view.body} {view.from_address}" for view in views}
            shown = {
                named[view.id]: view.model_copy(
                    # Whose mail was first to have a Message-ID shows in what is cited, which no tool shows.
                    update={
                        "id": 0,
                        "thread": sorted(named[other] for other in view.thread),
                        "message_id": view.message_id.partition("#")[0],
                    }
                )
                for view in views
            }
            found = [
                sorted((hit.date, named[hit.id]) for hit in mailbox.search([word], max_results=20, **filters))
                for word in ("heron", "note", "kickoff 3")
                for filters in (
                    {},
                    {"to_addr": CARL},
                    {"to_addr": ZOE},
                    {"from_addr": BOB},
                    {"sent_after": datetime(2001, 4, 1)},
                    {"sent_before": datetime(2001, 4, 1), "to_addr": DAVE},
                )
            ]
            weights = {named[email_id]: score for email_id, score in mailbox._scores(["heron", "kickoff", "3"]).items()}
            results.append((shown, found, weights))
            database.close()
        assert results[0] == results[1]
        assert results[0][0]


def test_a_program_reads_its_own_mail_of_a_message_id_that_several_inboxes_have(tmp_path: Any) -> None:
    """A list sends one Message-ID with a personal footer to each."""
    path = tmp_path / "mails.sqlite"
    build_database([mail(n, message_id="<m@x>", to_addresses=(who,)) for n, who in ((1, ZOE), (2, OWNER))], path)
    database = MailDatabase(path)
    answering = SimpleNamespace(
        service=SimpleNamespace(database=database), mailbox=lambda caller, inbox, day: database.mailbox(inbox, NOW)
    )
    request = SimpleNamespace(state=SimpleNamespace(mail_of=Caller("any", None)))
    context: Any = SimpleNamespace(request_context=SimpleNamespace(request=request))

    def text(inbox: str) -> str:
        return asyncio.run(MailToolServer(answering).read_mail(context, "<m@x>", inbox)).text  # type: ignore[arg-type]

    assert (text(ZOE), text(OWNER)) == ("This is note number 1.", "This is note number 2.")
    database.close()
