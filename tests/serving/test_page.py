"""The page in a real browser, against the service with a scripted policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import Tab, browser
from tests.chromium import BROWSER
from tests.fakes.policy import MailPolicy
from tests.serving.scripted_service import scripted_app, served

pytestmark = [pytest.mark.service, pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")]
KEY = "a key of this service"
DONE = "document.querySelector('article:first-of-type :is(.rating, .problem)')"


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(policy: MailPolicy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    app = scripted_app(policy, tmp_path_factory.mktemp("page"), key=KEY)
    with served(app) as url:
        yield url, app.settings.feedback_folder


def open_page(tab: Tab, url: str, key: str, width: int = 1100, height: int = 800) -> None:
    """The page as it is opened with this key, or none, in the tab."""
    tab.open(f"{url}/health", width, height)
    tab.wait("document.body?.innerText.includes('healthy')")
    tab.run(f"sessionStorage.setItem('key', '{key}')")
    tab.open(url, width, height)


@pytest.mark.parametrize(("width", "height"), [(1100, 800), (360, 740)])
def test_from_opening_the_page_to_a_proven_answer(
    tab: Tab, policy: MailPolicy, page: tuple[str, Path], width: int, height: int
) -> None:
    policy.calm()
    url, feedback = page
    open_page(tab, url, "", width, height)
    tab.wait("document.activeElement?.id === 'key'")
    tab.type("not the key at all")
    tab.press("Enter", 13, text="\r")
    tab.wait("document.body.innerText.includes('This key is not known')")
    tab.run("document.getElementById('key').select()")
    tab.type(KEY)
    tab.press("Enter", 13, text="\r")
    tab.wait("document.querySelector('#examples li')")
    assert (
        tab.run("document.getElementById('access').hidden && document.querySelector('[name=inbox_address]').value")
        == "ann@kestrel.example"
    )
    assert "scripted model, after 3 GRPO steps of training run r123456789" in tab.run(
        "document.getElementById('about').textContent"
    )
    tab.run("document.querySelector('[name=question]').focus()")
    tab.run("document.querySelector('[name=query_date]').value = '2024-05-15'")
    tab.type("Where do we review the budget?")
    tab.press("Enter", 13, text="\r")
    tab.wait(DONE)
    # The answer is on the screen, without scrolling.
    assert tab.run("document.querySelector('article .badge').getBoundingClientRect().bottom <= innerHeight")
    assert not tab.run("document.getElementById('examples').open")
    shown = tab.run("document.querySelector('article').innerText")
    for step in (
        "Searched for budget, review: 1 mail",
        "Read “Budget review” from bo@kestrel.example",
        "Found in the cited mail",
    ):
        assert step in shown, shown
    assert tab.run("document.querySelector('.answer').textContent") == "room 4B"
    assert tab.run("[...document.querySelectorAll('pre mark')].map((mark) => mark.textContent)") == ["room 4B"]
    assert "<img src=x" in shown and tab.run("document.title") == "E-mail search agent", "mail stays text"
    assert tab.run("document.documentElement.scrollWidth <= innerWidth"), "no sideways scrolling"
    before = len(list(feedback.glob("*.yaml"))) if feedback.exists() else 0
    tab.run("document.querySelector('.rating .down').click()")
    tab.wait("document.activeElement?.name === 'correct_answer'")
    tab.type("room 5")
    tab.press("Enter", 13, text="\r")
    tab.wait("document.querySelector('.rating').innerText.includes('Thank you')")
    assert len(list(feedback.glob("*.yaml"))) == before + 1
    assert tab.errors == []


def test_an_answer_that_is_not_in_the_mail_says_so(tab: Tab, policy: MailPolicy, page: tuple[str, Path]) -> None:
    policy.calm()
    open_page(tab, page[0], KEY)
    tab.wait("document.querySelector('#examples li')")
    for answer, change, badge in (
        ("room 77", {}, "Not found in the cited mail"),
        ("room 4B", {"reads": False}, "Cites a mail that was not read"),
        ("room 4B", {"cites": False}, "No mail cited"),
    ):
        policy.calm()
        policy.__dict__.update({"answer": answer, **change})
        count = tab.run("document.querySelectorAll('article').length")
        tab.run("document.querySelector('#examples button').click()")
        tab.wait(f"document.querySelectorAll('article').length === {count + 1} && {DONE}")
        assert badge in tab.run("document.querySelector('article').innerText")


def test_the_page_reports_stopped_and_failed_questions(tab: Tab, policy: MailPolicy, page: tuple[str, Path]) -> None:
    policy.calm()
    policy.go_on.clear()
    open_page(tab, page[0], KEY)
    tab.wait("document.querySelector('#examples li')")
    tab.run("document.querySelector('#examples button').click()")
    tab.wait("!document.getElementById('stop').hidden && document.querySelector('.now')")
    tab.press("Escape", 27)
    tab.wait("document.querySelector('article .problem')?.textContent === 'Stopped.'")
    policy.calm()
    policy.up = False
    tab.run("document.querySelector('#examples button').click()")
    tab.wait(
        "document.querySelectorAll('article').length === 2 && document.querySelector('article:first-of-type .problem')"
    )
    assert "being started again" in tab.run("document.querySelector('article .problem').textContent")
    policy.up = True


def ask(tab: Tab, text: str) -> None:
    count = tab.run("document.querySelectorAll('article').length")
    tab.run("document.querySelector('[name=query_date]').value = '2024-05-15'")
    tab.run("document.querySelector('[name=question]').select()")
    tab.type(text)
    tab.press("Enter", 13, text="\r")
    tab.wait(f"document.querySelectorAll('article').length === {count + 1} && {DONE}")


def asked_of(policy: MailPolicy) -> str:
    return str(next(message["content"] for message in policy.requests[-1]["messages"] if message["role"] == "user"))


def test_a_follow_up_has_the_exchange_before_it(tab: Tab, policy: MailPolicy, page: tuple[str, Path]) -> None:
    policy.calm()
    open_page(tab, page[0], KEY)
    tab.wait("document.querySelector('#examples li')")
    assert tab.run("document.getElementById('follow-up').hidden"), "nothing was asked yet"
    ask(tab, "Where do we review the budget?")
    ask(tab, "Who reviews it?")
    assert "Before:" not in asked_of(policy), "only where the user says so"
    tab.run("document.querySelector('[name=follow_up]').click()")
    ask(tab, "And when?")
    assert "Before: Who reviews it? Answer: room 4B Now: And when?" in asked_of(policy)
    assert "after “Who reviews it?”" in tab.run("document.querySelector('article').innerText")
    tab.run(
        "const box = document.querySelector('[name=inbox_address]'); box.value = 'bo@kestrel.example'; "
        "box.dispatchEvent(new Event('input'))"
    )
    assert tab.run("document.getElementById('follow-up').hidden"), "another inbox knows nothing of the answer"
    assert tab.errors == []


def test_earlier_questions_stay_in_this_browser_and_are_shown_to_keys_of_their_inbox(
    tab: Tab, policy: MailPolicy, page: tuple[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    policy.calm()
    url = page[0]
    open_page(tab, url, KEY)
    tab.run("localStorage.clear()")
    tab.wait("document.querySelector('#examples li')")
    ask(tab, "Where do we review the budget?")
    kept = tab.run("localStorage.getItem('history')")
    assert "room 4B" in kept and "Hello Ann" not in kept, "no mail is kept"
    foreign = {"question": "Lunch?", "inbox_address": "eve@else.example", "query_date": "2024-05-15", "answer": "no"}
    tab.run(
        f"localStorage.setItem('history', JSON.stringify([{json.dumps(foreign)}, ...JSON.parse({json.dumps(kept)})]))"
    )
    open_page(tab, url, KEY)
    tab.wait("document.getElementById('history')?.hidden === false")
    shown = tab.run("[...document.querySelectorAll('#history li button')].map((button) => button.textContent)")
    assert shown == ["Where do we review the budget?"], "not what another key asked about another inbox"
    tab.run("document.querySelector('#history li button').click()")
    assert tab.run("document.querySelector('[name=question]').value") == shown[0]
    tab.run("document.getElementById('forget').click()")
    assert tab.run("localStorage.getItem('history')") is None and tab.run("document.getElementById('history').hidden")
    assert tab.errors == []


@pytest.mark.parametrize("kept", ["not JSON", "{}", '[{"question": "<img src=x onerror=alert(1)>"}]', "[null]"])
def test_a_damaged_history_does_not_stop_the_page(
    tab: Tab, policy: MailPolicy, page: tuple[str, Path], kept: str
) -> None:
    policy.calm()
    open_page(tab, page[0], KEY)
    tab.run(f"localStorage.setItem('history', {json.dumps(kept)})")
    open_page(tab, page[0], KEY)
    tab.wait("document.querySelector('#examples li')")
    ask(tab, "Where do we review the budget?")
    assert tab.run("document.querySelector('.answer').textContent") == "room 4B" and tab.errors == []
    tab.run("localStorage.clear()")
