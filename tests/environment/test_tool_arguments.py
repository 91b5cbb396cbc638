"""Arguments of tools: which spellings of a value are accepted, and which argument of a malformed call is named."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from pydantic import ValidationError

from environment.tool_arguments import AnswerArguments, ReadArguments, SearchArguments, faulty_option
from environment.tools import FINAL_ANSWER, READ, SEARCH
from tests.described_arguments import full_schemas


@pytest.mark.parametrize(
    ("given", "keywords"),
    [("budget review", ["budget review"]), (["budget", 4], ["budget", "4"]), ([], []), (["", "x"], ["", "x"])],
)
def test_keywords_are_a_list_or_one_text(given: object, keywords: list[str]) -> None:
    assert SearchArguments.model_validate({"keywords": given}).keywords == keywords


def test_empty_options_are_absent_and_others_are_parsed() -> None:
    empty = {"from_addr": "", "to_addr": None, "sent_after": "", "max_results": None, "junk": 1}
    assert SearchArguments.model_validate({"keywords": ["x"], **empty}) == SearchArguments(keywords=["x"])
    full = {"from_addr": " bob ", "sent_after": "2001-05-01", "sent_before": "2001-05-02", "max_results": "7"}
    asked = SearchArguments.model_validate({"keywords": ["x"], **full})
    assert (asked.from_addr, asked.max_results) == ("bob", 7)
    assert (asked.sent_after, asked.sent_before) == (datetime(2001, 5, 1), datetime(2001, 5, 1, 23, 59, 59))


def test_bounds_on_one_day_mean_that_day() -> None:
    asked = SearchArguments(keywords=["x"], sent_after="2001-05-01", sent_before="2001-05-01")  # type: ignore[arg-type]
    assert (asked.sent_after, asked.sent_before) == (datetime(2001, 5, 1), datetime(2001, 5, 1, 23, 59, 59))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, None),
        ({"keywords": 5, "max_results": "many"}, None),
        ({"keywords": ["x", None]}, None),
        ({"keywords": "x", "max_results": "many"}, ("max_results", "a number")),
        ({"keywords": "x", "sent_before": "May", "max_results": "many"}, ("sent_before", "a date, YYYY-MM-DD")),
        ({"keywords": "x", "to_addr": ["bob"]}, ("to_addr", "an address")),
    ],
)
def test_the_first_faulty_argument_is_named(given: dict[str, Any], named: tuple[str, str] | None) -> None:
    with pytest.raises(ValidationError) as caught:
        SearchArguments.model_validate(given)
    assert faulty_option(caught.value) == named


def test_numbers_may_be_text_and_sources_may_be_anything() -> None:
    assert ReadArguments.model_validate({"email_id": "3", "start": 400.0}) == ReadArguments(email_id=3, start=400)
    for unusable in (None, "x", 2.5, True):
        with pytest.raises(ValidationError):
            ReadArguments.model_validate({"email_id": unusable})
    given = AnswerArguments.model_validate({"answer": " 14:30 ", "source_ids": [1, "2", "x", None]})
    assert (given.answer, given.source_ids) == ("14:30", [1, 2, None, None])
    assert AnswerArguments.model_validate({"answer": 5, "source_ids": 1}).source_ids == [1]
    with pytest.raises(ValidationError):
        AnswerArguments.model_validate({"answer": "  "})


def test_the_schemas_describe_exactly_these_arguments() -> None:
    models = {SEARCH: SearchArguments, READ: ReadArguments, FINAL_ANSWER: AnswerArguments}
    for schema in full_schemas():
        function = schema["function"]
        assert function["parameters"]["properties"].keys() == models[function["name"]].model_fields.keys()
