"""What every page promises: no request to anywhere, and no text that can become markup or code."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from reports.page import embed_json, page
from reports.viewer import questions_section

REPORTS = Path(__file__).parents[2] / "reports"


@given(st.text())
def test_embedded_data_survives_and_cannot_end_its_element(text: str) -> None:
    embedded = embed_json({"text": [text]})
    assert json.loads(embedded) == {"text": [text]}
    assert not set("<>&\u2028\u2029") & set(embedded)


@given(st.text())
def test_escaped_text_holds_no_markup(text: str) -> None:
    title = page(text, Markup()).partition("<title>")[2].partition("</title>")[0]
    assert not set("<>\"'") & set(title)
    title.encode("utf-8")


@given(st.text())
def test_a_body_without_markup_is_escaped(text: str) -> None:
    body = page("Title", text).partition("<main>")[2].partition("</main>")[0]
    assert not set("<>\"'") & set(body)


def test_numbers_that_json_lacks_become_null() -> None:
    assert (
        embed_json({"a": [float("nan"), float("inf"), 1.5], "b": {"c": -float("inf")}})
        == '{"a":[null,null,1.5],"b":{"c":null}}'
    )


def test_a_lone_surrogate_does_not_break_the_file() -> None:
    text = page(
        "\ud800", questions_section("\udfff", "policy", "every kind"), scripts=("training.js",), data={"x": "\ud800"}
    )
    assert text.encode("utf-8")


def test_the_page_asks_for_nothing_from_outside() -> None:
    for script in ("viewer.js", "training.js"):
        text = page("Title", Markup("<p>body</p>"), scripts=(script,), data={})
        assert "default-src 'none'" in text
        assert " src=" not in text
        assert "<link" not in text
        assert "@import" not in text
        assert "innerHTML" not in text
        assert [
            line
            for line in text.splitlines()
            if "http" in line and "w3.org/2000/svg" not in line and "http-equiv" not in line
        ] == []


def test_every_result_of_an_answer_can_be_chosen() -> None:
    script = (REPORTS / "assets" / "viewer.js").read_text()
    badges = re.search(r"BADGES = \{(.*?)\}", script)
    assert badges
    form = (REPORTS / "templates" / "questions.html.jinja").read_text()
    assert [name for name in re.findall(r'(\w+): "', badges[1]) if f'value="{name}"' not in form] == []
