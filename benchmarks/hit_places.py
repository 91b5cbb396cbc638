"""Measure where a search shows the right mail, what its passage says, and what policies made of it. No model is asked.

  python -m benchmarks.hit_places MAILS QUESTIONS [--predictions FILE]

MAILS and QUESTIONS are folders of parquet. `--limit` questions with one source mail are taken from the held-out part
of a run with the same `held_out_fraction` and `data_seed`. Each is searched for as typed. The first table says at which
place its mail is, how many of the reference's facts and names the passage of that hit states, and how often the first
hit states all of them: by these, no reader can tell it from the right one. FILE is a finished evaluation: predictions
as JSON Lines, or as a JSON list. The second table divides the correct answers of each policy into "cites the right
mail" and "is correct given the right mail". The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from agent.judges.stated import count_stated, share_of_facts
from agent.metrics import Prediction, source_recall_of
from agent.settings import AgentSettings
from benchmarks.output import show
from environment.email_db import MailDatabase, build_database, parse_query_date
from environment.errors import BadMail
from environment.models import Scenario
from environment.scenarios import load_scenarios, open_scenario
from environment.sources.parquet import parquet_emails
from environment.tools import PASSAGE_HITS, READ, SEARCH, MailTools

ALL, ELSEWHERE = "all", "elsewhere"


def main() -> int:
    """Return the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("mails", type=Path)
    add("questions", type=Path)
    add("--predictions", type=Path, help="a finished evaluation of such questions")
    add("--limit", type=int, default=400, help="questions (default 400)")
    add("--held-out-fraction", type=float, default=0.5, help="as in the run (default 0.5)")
    add("--data-seed", type=int, default=42, help="as in the run (default 42)")
    add("--passage-chars", type=int, default=350, help="characters of a passage (default 350)")
    add("--read-chars", type=int, default=1500, help="characters of a read (default 1500)")
    arguments = parser.parse_args()
    try:
        predictions = read_predictions(arguments.predictions) if arguments.predictions else []
        settings = AgentSettings(passage_chars=arguments.passage_chars, read_chars=arguments.read_chars)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "mails.sqlite"
            build_database(parquet_emails(arguments.mails), path)
            database = MailDatabase(path)
            report = load_scenarios(
                arguments.questions,
                None,
                database,
                max_messages=1,
                held_out_fraction=arguments.held_out_fraction,
                seed=arguments.data_seed,
                train_limit=0,
                test_limit=arguments.limit,
            )
            scenarios = [scenario for scenario in report.scenarios if scenario.split == "test"]
            rows = [hit_of(scenario, database, settings) for scenario in scenarios]
            places = {prediction.scenario_id: place_of(prediction, database) for prediction in predictions}
            database.close()
    except (BadMail, ValidationError, ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    figures: dict[str, Any] = {"retrieval": retrieval(rows), "policies": decomposition(predictions, places)}
    columns = ("gold hit", "questions", "share", "with facts", "in passage", "all in it", "in read", "all in first")
    show("The typed question", columns, [(name, *row.values()) for name, row in figures["retrieval"].items()])
    header = ("gold hit", "questions", "right mail", "correct given it", "correct", "share of facts")
    for policy, of_place in figures["policies"].items():
        show(policy, header, [(name, *row.values()) for name, row in of_place.items()])
    print(json.dumps(figures))
    return 0


def read_predictions(file: Path) -> list[Prediction]:
    """Return the predictions without error that compare policies. Raises ValueError if the file has none."""
    text = file.read_text(encoding="utf-8")
    rows = [row for row in text.split("\n") if row.strip()]  # not splitlines, which also splits at U+2028
    if rows and rows[0].startswith('{"class": '):  # a stored artifact, whose first line describes the others
        del rows[0]
    lines = text if text.lstrip().startswith("[") else f"[{','.join(rows)}]"
    try:
        predictions = TypeAdapter(list[Prediction]).validate_json(lines)
    except ValidationError:
        raise ValueError(f"{file} is no evaluation: name the values.jsonl of its predictions") from None
    found = [prediction for prediction in predictions if prediction.sample == 0 and prediction.error is None]
    if not found:
        raise ValueError(f"{file} has no predictions; name the answers of a finished evaluation")
    return found


def place_name(hits: Sequence[int], gold: Iterable[int]) -> str:
    """Return the place of the first gold mail among the hits, counted from 1, or `ELSEWHERE`."""
    wanted = set(gold)
    return next((str(place) for place, hit in enumerate(hits[:PASSAGE_HITS], start=1) if hit in wanted), ELSEWHERE)


def hit_of(scenario: Scenario, database: MailDatabase, settings: AgentSettings) -> dict[str, Any]:
    """Search for a question as typed. Return the place of its mail.

    With it come the facts of its reference, and how many the passage, a read of the mail and one of the first hit state.
    """
    mailbox, gold_ids = open_scenario(scenario, database)
    tools = MailTools(mailbox, settings)
    searched = tools.call(SEARCH, {"keywords": [scenario.question]})
    place = place_name(searched.email_ids, gold_ids)
    passage = "" if place == ELSEWHERE else searched.observation.splitlines()[int(place) - 1]
    texts = {"in_passage": passage}
    for name, email_ids in (("in_read", gold_ids), ("in_first", searched.email_ids)):
        read = [tools.call(READ, {"email_id": tools.number_of(email_id)}).observation for email_id in email_ids[:1]]
        texts[name] = "".join(read)
    stated = {name: count_stated(scenario.question, scenario.answer, text) for name, text in texts.items()}
    return {"place": place, "facts": stated["in_read"][1], **{name: count for name, (count, _) in stated.items()}}


def place_of(prediction: Prediction, database: MailDatabase) -> str:
    """Return the place of the gold mail among the hits of the question as typed.

    Raises BadMail for an inbox that the database does not know, or a bad date.
    """
    mailbox = database.mailbox(prediction.inbox_address, parse_query_date(prediction.query_date))
    gold = [found for message_id in prediction.gold_ids if (found := database.resolve(message_id)) is not None]
    return place_name([hit.id for hit in mailbox.search([prediction.question], max_results=PASSAGE_HITS)], gold)


def _by_place(places: Iterable[str]) -> dict[str, list[int]]:
    """Return the indices of all, and of each place, in order."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        found[place].append(index)
        found[ALL].append(index)
    return dict(sorted(found.items(), key=lambda entry: (entry[0] == ALL, entry[0])))


def retrieval(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the figures of each place. Shares of facts are over questions whose reference has new facts or names."""
    figures = {}
    for place, indices in _by_place(row["place"] for row in rows).items():
        sourced = [rows[index] for index in indices if rows[index]["facts"]]
        figures[place] = {
            "questions": len(indices),
            "share": _mean([1.0] * len(indices), len(rows)),
            "with_facts": len(sourced),
            "in_passage": _mean([row["in_passage"] / row["facts"] for row in sourced]),
            "all_in_passage": _mean([float(row["in_passage"] == row["facts"]) for row in sourced]),
            "in_read": _mean([row["in_read"] / row["facts"] for row in sourced]),
            "all_in_first": _mean([float(row["in_first"] == row["facts"]) for row in sourced]),
        }
    return figures


def decomposition(predictions: Sequence[Prediction], places: dict[str, str]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return for each policy and place: right mail, correct given the right mail, correct, and the share of facts."""
    policies: defaultdict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        policies[prediction.policy].append(prediction)
    figures: dict[str, dict[str, dict[str, Any]]] = {}
    for policy, answers in policies.items():
        figures[policy] = {}
        for place, indices in _by_place(places[answer.scenario_id] for answer in answers).items():
            asked = [answers[index] for index in indices]
            right = [answer for answer in asked if source_recall_of(answer) == 1]
            stated = [share_of_facts(answer.question, answer.reference, answer.answer or "") for answer in asked]
            figures[policy][place] = {
                "questions": len(asked),
                "right_mail": _mean([float(answer in right) for answer in asked]),
                "correct_given_it": _mean([float(answer.correct is True) for answer in right]),
                "correct": _mean([float(answer.correct is True) for answer in asked]),
                "facts": _mean(stated),
            }
    return figures


def _mean(values: Sequence[float], count: int | None = None) -> float | None:
    """Return the mean, or the sum over `count`, with three decimals; None of nothing."""
    if count:
        return round(sum(values) / count, 3)
    return round(statistics.fmean(values), 3) if values else None


if __name__ == "__main__":
    sys.exit(main())
