"""Recorded feedback: an event counts once, whoever reports it and how often, and shapes the next estimates."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tasks.outreach.events import EventStore, RecordedFeedback, UnknownMessage
from tasks.outreach.feedback import MEAN_REPLY_RATE
from tasks.outreach.synthetic import synthetic_scenarios
from tests.tasks.outreach.good_email import good
from training.errors import BadInput

SCENARIOS = synthetic_scenarios(0, 2, 2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EventStore]:
    found = EventStore(tmp_path / "feedback.sqlite")
    found.add_messages("run", 1, [(f"m{number}", "train-1", ["f1" if number % 2 else "f2"]) for number in range(500)])
    yield found


def test_1000_events_while_a_loop_writes_are_each_stored_once(store: EventStore, tmp_path: Path) -> None:
    events = [(f"m{number}", event) for number in range(500) for event in ("opened", "replied")]
    reported = [pair for pair in events for _ in range(2)]

    def loop() -> None:
        for iteration in range(2, 30):
            EventStore(tmp_path / "feedback.sqlite").add_messages(
                "run", iteration, [(f"n{iteration}", "train-2", ["f3"])]
            )

    with ThreadPoolExecutor(9) as pool:
        writing = pool.submit(loop)
        new = list(pool.map(lambda pair: EventStore(tmp_path / "feedback.sqlite").record(*pair), reported))
        writing.result()
    assert sum(new) == 1000
    assert store.rates_by_fact() == {"f1": (250, 250, 250), "f2": (250, 250, 250)}


def test_events_of_unknown_messages_and_kinds_are_refused(store: EventStore) -> None:
    with pytest.raises(UnknownMessage, match="no run has written a message 'x'"):
        store.record("x", "opened")
    with pytest.raises(BadInput, match="allowed are opened, replied, bounced"):
        store.record("m1", "loved")
    assert store.rates_by_fact() == {}


def test_estimates_follow_replies_from_the_next_refresh_on(store: EventStore) -> None:
    feedback = RecordedFeedback(store)
    before = feedback.send(SCENARIOS[0], good("f1"), 200, "new").reply_rate
    for number in range(1, 400, 2):
        store.record(f"m{number}", "replied")
    store.record("m0", "bounced")
    assert feedback.send(SCENARIOS[0], good("f1"), 200, "new").reply_rate == before == pytest.approx(MEAN_REPLY_RATE)
    feedback.refresh()
    assert feedback.send(SCENARIOS[0], good("f1"), 200, "new").reply_rate > 0.7
    assert feedback.send(SCENARIOS[0], good("f2"), 200, "new").reply_rate < before
    assert store.rates_by_fact()["f2"] == (249, 0, 0)


def test_messages_of_a_repeated_iteration_are_replaced_unless_somebody_got_them(store: EventStore) -> None:
    store.record("m1", "opened")
    store.add_messages("run", 1, [("again", "train-1", ["f1"])], announced=["m3"])
    assert store.record("m1", "replied") and store.record("again", "opened") and store.record("m3", "replied")
    with pytest.raises(UnknownMessage):
        store.record("m2", "opened")


@pytest.mark.parametrize("damage", [0, 4096], ids=["header", "page"])
def test_a_damaged_file_is_named_with_what_to_do(store: EventStore, tmp_path: Path, damage: int) -> None:
    file = tmp_path / "feedback.sqlite"
    with store._connected() as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(file.read_bytes())
    content[damage : damage + 100] = b"x" * 100
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"feedback\.sqlite is damaged \(.*\): restore it, or move it away"):
        EventStore(file).rates_by_fact()


def test_an_email_is_one_send_whether_it_states_a_fact_or_not(store: EventStore) -> None:
    feedback = RecordedFeedback(store)
    assert [feedback.send(SCENARIOS[0], good(*facts), 200, "m").sends for facts in ((), ("f1",))] == [1, 1]
