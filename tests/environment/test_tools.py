from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from datetime import datetime
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environment.email_db import MailDatabase
from environment.models import Email, FinalAnswer
from environment.tools import FINAL_ANSWER, READ, SEARCH, MailTools, tool_schemas
from tests.environment.sample_mails import OWNER, STRANGER, mail

NAMES = [SEARCH, READ, FINAL_ANSWER]
FOREIGN = 3
LIMITS = SimpleNamespace(max_results=5, read_chars=200, passage_chars=0)


@pytest.fixture
def tools(database_of: Callable[[Iterable[Email]], MailDatabase]) -> MailTools:
    """The owner's mails have the numbers and ids 1 and 2; the mail 3 is someone else's and 4 has not been sent yet."""
    database = database_of(
        [
            mail(
                1,
                subject="Heron kickoff",
                body="The kickoff now\n\n\n takes place in   Room 4B. \n" + "filler " * 300,
                to_addresses=(OWNER, *(f"p{i}@example.com" for i in range(5))),
                cc_addresses=(STRANGER,),
            ),
            mail(2, subject="", from_address=STRANGER, body="Lunch at noon?"),
            mail(3, to_addresses=(STRANGER,), body="Secret kickoff."),
            mail(4, date=datetime(2002, 1, 1), body="Later kickoff."),
        ]
    )
    tools = MailTools(database.mailbox(OWNER, datetime(2001, 2, 1)), LIMITS)
    assert [tools.number_of(email_id) for email_id in (1, 2)] == [1, 2]
    return tools


def test_the_schemas_name_the_three_tools() -> None:
    names = [schema["function"]["name"] for schema in tool_schemas()]
    assert names == ["search_inbox_tool", "read_email_tool", "return_final_answer_tool"]


def test_the_schemas_are_those_that_models_were_trained_with() -> None:
    """A changed byte here is another prompt: trained checkpoints and measured results stop to be comparable."""
    text = json.dumps(tool_schemas())
    trained_with = "76211dd0420f06ca9c66b23b8723fdc1d801d9b891d1c6135499977a59873c11"
    assert hashlib.sha256(text.encode()).hexdigest() == trained_with and len(text) < 800


def test_a_search_shows_a_line_per_hit(tools: MailTools) -> None:
    result = tools.call(SEARCH, {"keywords": ["kickoff", "room"]})
    assert result.observation.startswith("1 | 2 Jan | bob.ray | Heron kickoff | ")
    assert len(result.observation.splitlines()) == 1 and "Room 4B" in result.observation
    assert result.email_ids == [1] and not result.invalid
    assert (
        tools.call(SEARCH, {"keywords": "lunch"}).observation
        == f"2 | 3 Jan | {STRANGER} | (no subject) | Lunch at noon?"
    )
    assert tools.call(SEARCH, {"keywords": ["zeppelin"]}).observation == "No mails found."
    assert tools.call(SEARCH, {"keywords": []}).observation == "No mails found."


def test_a_read_shows_the_mail_cut_to_length(tools: MailTools) -> None:
    lines = tools.call(READ, {"email_id": 1}).observation.splitlines()
    assert lines[:4] == [
        "From: bob.ray",
        "Date: 2 Jan 09:30",
        "Subject: Heron kickoff",
        "",
    ]
    body = "\n".join(lines[4:])
    assert body.startswith("The kickoff now\n\ntakes place in Room 4B.\nfiller filler")
    assert body.endswith('filler …(cut; read on with "start": 195)') and len(body) <= 240


def test_a_read_of_a_long_mail_shows_the_passage_that_matches_the_search(
    database_of: Callable[[Iterable[Email]], MailDatabase],
) -> None:
    body = "\n".join([*["filler " * 5] * 20, "The caterer is Bluebird.", *["filler " * 5] * 20])
    tools = MailTools(database_of([mail(1, body=body), mail(2)]).mailbox(OWNER, datetime(2001, 12, 31)), LIMITS)
    tools.number_of(1)
    assert "Bluebird" not in tools.call(READ, {"email_id": 1}).observation, "nothing has been searched for yet"
    tools.call(SEARCH, {"keywords": ["caterers"]})
    shown = tools.call(READ, {"email_id": 1}).observation.splitlines()
    assert any("The caterer is Bluebird." in line for line in shown)
    assert shown[4].startswith('(cut; begins with "start": 0)… filler') and '…(cut; read on with "start": ' in shown[-1]
    assert "Bluebird" not in tools.call(READ, {"email_id": 1, "start": 0}).observation, "who says where, reads there"
    tools.call(SEARCH, {"keywords": ["caterers", "filler"]})
    assert "Bluebird" in tools.call(READ, {"email_id": 1}).observation, "most of the words, not most often"
    tools.call(SEARCH, {"keywords": ["is"]})
    assert "Bluebird" in tools.call(READ, {"email_id": 1}).observation, "a stop word counts where search has no other"


def test_a_long_mail_is_read_passage_by_passage(tools: MailTools) -> None:
    seen, start = "", 0
    for _ in range(20):
        passage = "\n".join(tools.call(READ, {"email_id": 1, "start": start}).observation.splitlines()[4:])
        text, _, rest = passage.partition(" …(cut; read on with ")
        seen = f"{seen} {text}".strip()
        if not rest:
            break
        start = json.loads("{" + rest.removesuffix(")") + "}")["start"]
    assert seen.split() == ("The kickoff now takes place in Room 4B. " + "filler " * 300).split()
    first = tools.call(READ, {"email_id": 1})
    assert all(tools.call(READ, {"email_id": 1, "start": same}) == first for same in (0, "0", -5, None, ""))
    assert tools.call(READ, {"email_id": 1, "start": 10**9}).observation.endswith(f"(the mail ends at {2140})")
    assert tools.call(READ, {"email_id": 1, "start": "middle"}).invalid


def test_search_filters_work_even_if_not_described(tools: MailTools) -> None:
    def found(**filters: object) -> list[int]:
        return tools.call(SEARCH, {"keywords": [], **filters}).email_ids

    assert found(from_addr="bob.ray") == found(from_addr="Bob <BOB.RAY@example.com>") == [1]
    assert found(from_addr=STRANGER) == [2] and found(from_addr="bob") == found(from_addr="%") == []
    assert found(to_addr=OWNER) == [2, 1] and found(to_addr="p3") == [1]
    assert found(sent_after="2001-01-03") == [2] and found(sent_before="2001-01-03") == [1]
    assert found(sent_after="2001-01-02T09:30", sent_before="2001-01-03T09:31:00Z") == [2, 1]
    assert found(to_addr=OWNER, max_results=1) == [2] == found(to_addr=OWNER, max_results=-3)
    assert tools.call(SEARCH, {"keywords": ["kickoff", "lunch"], "from_addr": "bob.ray"}).email_ids == [1]
    everything = tools.call(SEARCH, {"keywords": ["kickoff"]})
    blank = dict.fromkeys(("from_addr", "to_addr", "sent_after", "sent_before", "max_results"), None)
    assert tools.call(SEARCH, {"keywords": ["kickoff"], **blank}) == everything


def test_a_query_that_takes_too_long_is_an_observation(database_of: Callable[[Iterable[Email]], MailDatabase]) -> None:
    path = database_of([mail(n, body="kickoff " * 20) for n in range(3_000)]).path
    hurried = MailDatabase(path)
    tools = MailTools(hurried.mailbox(OWNER, datetime(2002, 1, 1)), LIMITS)
    hurried._query_seconds = -1.0
    result = tools.call(SEARCH, {"keywords": ["kickoff"]})
    assert result.observation == "That took too long. Try fewer or rarer words." and not result.invalid
    hurried._query_seconds = 60.0
    assert len(tools.call(SEARCH, {"keywords": ["kickoff"]}).email_ids) == 5, "the connection works on"
    hurried.close()


def test_foreign_later_and_missing_mails_read_the_same(tools: MailTools) -> None:
    results = [tools.call(READ, {"email_id": number}) for number in (FOREIGN, 4, 999, -1, 2**80)]
    assert all(result == results[0] for result in results)
    assert results[0].observation == "No mail with that number has been found yet."


def test_an_episode_numbers_the_mails_that_it_shows(tools: MailTools) -> None:
    episode = MailTools(tools.mailbox, LIMITS)
    unseen = episode.call(READ, {"email_id": 1})
    assert unseen.email_ids == [] and not unseen.invalid, "the mailbox has mails 1 and 2, but none was found"
    lines = episode.call(SEARCH, {"keywords": ["lunch"]})
    assert lines.observation.startswith("1 | ") and lines.email_ids == [2]
    assert episode.call(SEARCH, {"keywords": ["kickoff"]}).observation.startswith("2 | ")
    assert "Lunch at noon?" in episode.call(READ, {"email_id": 1}).observation
    assert "Room 4B" in episode.call(READ, {"email_id": 2}).observation
    final = episode.call(FINAL_ANSWER, {"answer": "noon", "source_ids": [1]}).final
    assert final is not None and final.source_ids == ("<2@example.com>",)


def test_the_final_answer_cites_message_ids_of_readable_mails_only(tools: MailTools) -> None:
    result = tools.call(FINAL_ANSWER, {"answer": " Room 4B ", "source_ids": [1, "2", 1, FOREIGN, 999, "x", None]})
    assert result.final == FinalAnswer(answer="Room 4B", source_ids=("<1@example.com>", "<2@example.com>"))
    assert result.email_ids == [1, 2]
    assert tools.call(FINAL_ANSWER, {"answer": 14, "source_ids": []}).final == FinalAnswer(answer="14")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("send_email_tool", {}),
        (SEARCH, {}),
        (SEARCH, None),
        (SEARCH, {"keywords": None}),
        (SEARCH, {"keywords": [["nested"]]}),
        (SEARCH, {"keywords": [10**5_000]}),
        (SEARCH, {"keywords": ["a"], "from_addr": 5}),
        (SEARCH, {"keywords": ["a"], "sent_after": "last week"}),
        (SEARCH, {"keywords": ["a"], "sent_before": "0001-01-01"}),
        (SEARCH, {"keywords": ["a"], "sent_before": "0001-01-01T00:00+14:00"}),
        (SEARCH, {"keywords": ["a"], "max_results": "many"}),
        (READ, {}),
        (READ, {"email_id": "one"}),
        (READ, {"email_id": True}),
        (READ, {"email_id": 1.5}),
        (FINAL_ANSWER, {"source_ids": [1]}),
        (FINAL_ANSWER, {"answer": "  "}),
        (FINAL_ANSWER, {"answer": "\x00"}),
        (FINAL_ANSWER, {"answer": 10**5_000}),
        (FINAL_ANSWER, {"answer": ["Room 4B"]}),
    ],
)
def test_a_malformed_call_gets_the_expected_arguments(tools: MailTools, name: str, arguments: object) -> None:
    result = tools.call(name, arguments)
    assert result.invalid and result.final is None
    assert len(result.observation.splitlines()) == 1
    assert name in result.observation or result.observation.startswith("No such tool")


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = ANY_JSON | st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("keywords", "email_id", "answer", "source_ids"), ANY_JSON)
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES) | st.text(), arguments=ARGUMENTS)
def test_any_call_gets_text_and_only_mail_of_its_own_inbox(tools: MailTools, name: str, arguments: object) -> None:
    result = tools.call(name, arguments)
    assert result.observation and set(result.email_ids) <= {1, 2}
    assert "Secret" not in result.observation and "Later" not in result.observation
    if result.final is not None:
        assert set(result.final.source_ids) <= {"<1@example.com>", "<2@example.com>"}


def test_the_rest_of_the_thread_is_named(database_of: Callable[[Iterable[Email]], MailDatabase]) -> None:
    answers = [mail(number, replies_to=("<0@example.com>",)) for number in range(1, 9)]
    mailbox = database_of([mail(0), *answers]).mailbox(OWNER, datetime(2001, 2, 1))
    tools = MailTools(mailbox, LIMITS)
    tools.number_of(3)
    shown = tools.call(READ, {"email_id": 1})
    assert "Subject: Note 2\nThread: 2, 3, 4, 5, 6\n\n" in shown.observation
    assert [tools.call(READ, {"email_id": number}).email_ids for number in (1, 2, 6, 99)] == [[3], [5], [9], []]


def with_passages(mailbox: object, chars: int = 60) -> MailTools:
    return MailTools(mailbox, SimpleNamespace(**{**vars(LIMITS), "passage_chars": chars}))


def test_a_search_shows_the_matching_passages_of_its_first_three_hits(
    database_of: Callable[[Iterable[Email]], MailDatabase],
) -> None:
    told = "\n".join([*["filler " * 5] * 20, "The caterer is  Bluebird,", "as in May.", *["filler " * 5] * 20])
    bodies = [told, "The caterer is ill.", "The caterer, again. " + "word " * 30, "A caterer is late." + " word" * 30]
    database = database_of(mail(number, body=body) for number, body in enumerate(bodies, start=1))
    mailbox = database.mailbox(OWNER, datetime(2001, 12, 31))
    asked = {"keywords": ["caterer"]}
    plain, shown = MailTools(mailbox, LIMITS).call(SEARCH, asked), with_passages(mailbox).call(SEARCH, asked)
    assert plain.passage_ids == [] and shown.email_ids == plain.email_ids == [4, 3, 2, 1]
    assert shown.passage_ids == [4, 3, 2]
    lines = shown.observation.splitlines()
    assert lines[2] == "3 | 3 Jan | bob.ray | Note 2 | The caterer is ill.", "a short mail is shown whole"
    assert lines[1].endswith("word…") and len(lines[1]) <= len("2 | 4 Jan | bob.ray | Note 3 | ") + 61
    assert lines[3] == plain.observation.splitlines()[3], "a fourth hit keeps its eight words"
    found = with_passages(mailbox).call(SEARCH, {"keywords": ["bluebird"]}).observation
    assert found.endswith("| …filler filler filler filler filler The caterer is Bluebird,…")


def test_passages_of_a_mailbox_of_one_mail_and_of_a_mail_that_is_gone_by_then(
    database_of: Callable[[Iterable[Email]], MailDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    mailbox = database_of([mail(1, body="Lunch at noon?")]).mailbox(OWNER, datetime(2001, 2, 1))
    tools = with_passages(mailbox)
    hit = tools.call(SEARCH, {"keywords": ["lunch"]})
    assert (hit.observation, hit.passage_ids) == ("1 | 2 Jan | bob.ray | Note 1 | Lunch at noon?", [1])
    monkeypatch.setattr(mailbox, "read", lambda _: None)
    for gone in (tools.call(READ, {"email_id": 1}), tools.call(READ, {"email_id": 2})):
        assert gone.observation == "No mail with that number has been found yet." and not gone.email_ids
    again = tools.call(SEARCH, {"keywords": ["lunch"]})
    assert (again.observation, again.passage_ids) == (hit.observation, []), "the hit itself still has its eight words"
    answer = tools.call(FINAL_ANSWER, {"answer": "noon", "source_ids": [1]})
    assert answer.final == FinalAnswer(answer="noon", source_ids=())
