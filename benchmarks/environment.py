"""Compare the mail database and its tools with the obvious design: speed, memory, search quality and tokens.

  python -m benchmarks.environment                      half a million mails, needs data/enron/ (docs/own_mail.md)
  python -m benchmarks.environment --mails 20000        a quick look

The mails are the distinct ones of --emails that both designs keep. If more are needed, they are repeated as mails of further
companies: other people and Message-IDs, an extra line in the body, the same words. Questions are those with one source
mail; a query consists of a question's content words. Figures go to stdout, the last line is JSON; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from agent.settings import AgentSettings
from benchmarks import obvious_mailbox
from benchmarks.mail_corpus import Corpus, TimedSource
from benchmarks.obvious_mailbox import ObviousMailbox
from benchmarks.output import progress, show
from environment.email_db import MailDatabase, build_database
from environment.email_statistics import database_statistics
from environment.errors import BadMail
from environment.models import Scenario
from environment.scenarios import load_scenarios
from environment.tools import FINAL_ANSWER, READ, SEARCH, MailTools
from environment.words import content_words
from training.errors import BadInput

RESULTS = 10
REPEATS = 3
"""Repetitions of each query. The median counts, so that a slow moment of the machine does not distort it."""
COMMON_WORDS = 100
COMMON_SAMPLE = 5_000
CHARS_PER_TOKEN = 4
"""Assumed when there is no tokenizer."""
LATEST = datetime(2039, 12, 31)


def main() -> int:
    """Run all measurements. Return the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--emails", default="data/enron/emails", help="folder or dataset id of mails (default data/enron/emails)")
    add("--questions", default="data/enron/questions", help="of questions about them (default data/enron/questions)")
    add("--mails", type=int, default=500_000, help="size of both databases (default 500,000)")
    add("--queries", type=int, default=200, help="queries per row of the speed table (default 200)")
    add("--scratch", type=Path, help="folder for the databases, 6 kB a mail; default: the system's")
    add("--tokenizer", type=Path, default=Path("models/smollm2-135m-instruct/tokenizer.json"), help="a tokenizer.json")
    arguments = parser.parse_args()
    try:
        if arguments.mails < 1 or arguments.queries < 1:
            raise BadInput("--mails and --queries must be at least 1")
        if arguments.scratch is not None and not arguments.scratch.is_dir():
            raise BadInput(f"--scratch {arguments.scratch} is not a folder")
        with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
            figures = measure(arguments, Path(scratch))
    except (BadInput, BadMail) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    print(json.dumps(figures))
    return 0


def measure(arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Return all figures, and print each when it is measured."""
    corpus = Corpus.of(arguments.emails, arguments.questions, arguments.mails)
    progress(f"{len(corpus.message_ids):,} distinct mails in {arguments.emails}")
    figures: dict[str, Any] = {"mails": arguments.mails, "distinct_mails": len(corpus.message_ids)}
    figures["build"] = measure_build(corpus, scratch)
    database, obvious = MailDatabase(scratch / "ours.sqlite"), ObviousMailbox(scratch / "obvious.sqlite")
    try:
        # A fraction of 0 holds nothing out: all questions are asked.
        questions = load_scenarios(
            arguments.questions,
            None,
            database,
            max_messages=1,
            held_out_fraction=0.0,
            seed=42,
        ).scenarios
        figures["questions"] = len(questions)
        figures["search"] = measure_search(corpus, database, obvious, questions, arguments.queries)
        figures["quality"] = measure_quality(database, obvious, questions)
        figures["tokens"] = measure_tokens(database, obvious, questions, arguments.tokenizer)
    finally:
        database.close()
        obvious.close()
    return figures


# Building


def measure_build(corpus: Corpus, scratch: Path) -> dict[str, Any]:
    """Build each database in a separate process. Return mails per second, peak memory in MB and size."""
    figures: dict[str, Any] = {}
    for design in ("obvious", "ours"):
        progress(f"building: {design}")
        path = scratch / f"{design}.sqlite"
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            kept, seconds, source_seconds, peak_bytes = process.submit(_build, design, corpus, path).result()
        figures[design] = {
            "kept": kept,
            "mails_per_second": round(corpus.mails / seconds),
            "mails_per_second_without_source": round(corpus.mails / (seconds - source_seconds)),
            "peak_memory_mb": round(peak_bytes / 1e6),
            "file_mb": round(path.stat().st_size / 1e6),
        }
    ours, obvious = figures["ours"], figures["obvious"]
    rates = ("mails_per_second", "mails_per_second_without_source")
    figures["ratio"] = {rate: round(ours[rate] / obvious[rate], 2) for rate in rates}
    rows = [(name, ours[name], obvious[name], figures["ratio"].get(name)) for name in ours]
    show("Build (ratio: ours / obvious; goal 3, and below 600 MB)", ("", "ours", "obvious", "ratio"), rows)
    return figures


def _build(design: str, corpus: Corpus, path: Path) -> tuple[int, float, float, int]:
    """Return the mails kept, seconds in all, seconds of these in the source, peak memory in bytes."""
    source = TimedSource(corpus)
    started = time.perf_counter()
    kept = build_database(source, path).kept if design == "ours" else obvious_mailbox.build(source, path)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kept, seconds, source.seconds, peak * (1 if sys.platform == "darwin" else 1024)


# Speed


def measure_search(
    corpus: Corpus, database: MailDatabase, obvious: ObviousMailbox, questions: list[Scenario], queries: int
) -> dict[str, Any]:
    """Return milliseconds per search at p50 and p99, ten results, snippets included.

    Medians are over the queries for which the obvious design finds anything, p99 over all of them.
    """
    chance = random.Random(0)
    words = Counter(
        word
        for email in islice(corpus, COMMON_SAMPLE)
        for word in set(content_words(f"{email.subject} {email.body}"))
        if word.isalpha()
    )
    common = [word for word, _ in words.most_common(COMMON_WORDS)]
    inboxes = sorted({question.inbox_address for question in questions} | set(_large_inboxes(database)))
    asked: dict[str, list[tuple[str, datetime, list[str]]]] = {
        "one common keyword": [(chance.choice(inboxes), LATEST, [chance.choice(common)]) for _ in range(queries)]
    }
    for number in (1, 2, 3, 4):
        drawn = []
        for question in (chance.choice(questions) for _ in range(queries)):
            about = content_words(question.question)
            keywords = chance.sample(about, min(number, len(about)))
            drawn.append((question.inbox_address, question.query_date, keywords))
        asked[f"{number} of a question's words"] = drawn

    figures: dict[str, Any] = {}
    rows = []
    for name, drawn in asked.items():
        progress(f"searching: {name}")
        ours_ms, obvious_ms, found = [], [], []
        for inbox, date, keywords in drawn:
            mailbox = database.mailbox(inbox, date)
            hits, milliseconds = _timed(lambda: obvious.search(inbox, date, keywords))  # noqa: B023
            found.append(bool(hits))
            obvious_ms.append(milliseconds)
            ours_ms.append(_timed(lambda: mailbox.search(keywords, max_results=RESULTS))[1])  # noqa: B023
        row: dict[str, Any] = {"obvious_finds": round(statistics.fmean(found), 3)}
        for design, measured in (("ours", ours_ms), ("obvious", obvious_ms)):
            where_found = [ms for ms, any_hit in zip(measured, found, strict=True) if any_hit] or measured
            row[design] = {
                "p50_ms": round(float(np.quantile(where_found, 0.5)), 3),
                "p99_ms": round(float(np.quantile(measured, 0.99)), 3),
            }
        row["ratio"] = {p: round(row["ours"][p] / row["obvious"][p], 3) for p in ("p50_ms", "p99_ms")}
        figures[name] = row
        rows += [(f"{name}, {p[:3]}", row["ours"][p], row["obvious"][p], row["ratio"][p]) for p in row["ratio"]]
    show(
        "Search, ms (ratio: ours / obvious; goal for one common keyword 0.05 at p99, and below 10 ms)",
        ("", "ours", "obvious", "ratio"),
        rows,
    )
    return figures


def _large_inboxes(database: MailDatabase) -> list[str]:
    return list(database_statistics(database.path).largest_inboxes)


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `call`, and its median time over the repetitions in milliseconds."""
    result, measured = None, []
    for _ in range(REPEATS):
        started = time.perf_counter()
        result = call()
        measured.append((time.perf_counter() - started) * 1_000)
    return result, statistics.median(measured)


# Quality


def measure_quality(
    database: MailDatabase, obvious: ObviousMailbox, questions: list[Scenario]
) -> dict[str, dict[str, float]]:
    """Return the share of the questions whose gold mail is among the first 1, 5 and 10 hits of their content words."""
    progress("asking the questions")
    ranks: dict[str, list[int | None]] = {"ours": [], "obvious": []}
    for question in questions:
        keywords, gold = content_words(question.question), question.message_ids[0]
        mailbox = database.mailbox(question.inbox_address, question.query_date)
        ranks["ours"].append(_rank(gold, [hit.message_id for hit in mailbox.search(keywords, max_results=RESULTS)]))
        hits = obvious.search(question.inbox_address, question.query_date, keywords)
        ranks["obvious"].append(_rank(gold, [hit.message_id for hit in hits]))
    figures = {
        design: {
            f"first_{first}": round(statistics.fmean(rank is not None and rank < first for rank in found), 4)
            for first in (1, 5, 10)
        }
        for design, found in ranks.items()
    }
    rows = []
    for name, ours in figures["ours"].items():
        theirs = figures["obvious"][name]
        rows.append(
            (name.replace("_", " "), f"{ours:.1%}", f"{theirs:.1%}", round(ours / theirs, 2) if theirs else None)
        )
    show(
        f"Gold mail found, {len(questions)} questions (goal 97.5% in the first 5, 98.5% in the first 10)",
        ("", "ours", "obvious", "ratio"),
        rows,
    )
    return figures


def _rank(gold: str, message_ids: list[str]) -> int | None:
    return message_ids.index(gold) if gold in message_ids else None


# Tokens


def measure_tokens(
    database: MailDatabase, obvious: ObviousMailbox, questions: list[Scenario], tokenizer_file: Path
) -> dict[str, Any]:
    """Count the tokens that a model writes and reads: one search with a question's content words, one mail, the answer.

    Only questions for which the obvious design finds the gold mail are played, since it reads nothing for the others; the
    hit rate is over all. Our tools have their default settings. The mail that is read is the gold mail where it was found,
    else the first hit.
    """
    progress("counting tokens")
    tokens, counted_with = _token_counter(tokenizer_file)
    settings = AgentSettings()
    hits_of: dict[str, list[bool]] = {"ours": [], "obvious": []}
    per_result: dict[str, list[float]] = {"ours": [], "obvious": []}
    per_rollout: dict[str, list[int]] = {"ours": [], "obvious": []}
    for question in questions:
        keywords, gold = content_words(question.question), question.message_ids[0]
        mailbox = database.mailbox(question.inbox_address, question.query_date)
        tools = MailTools(mailbox, settings)
        searched = tools.call(SEARCH, {"keywords": keywords})
        gold_id = database.resolve(gold)
        hits_of["ours"].append(gold_id in searched.email_ids)
        hits = obvious.search(question.inbox_address, question.query_date, keywords)
        hits_of["obvious"].append(gold in [hit.message_id for hit in hits])
        if not hits_of["obvious"][-1] or not searched.email_ids:
            continue
        search_call = _call(SEARCH, keywords=keywords)
        to_read = gold_id if gold_id in searched.email_ids else searched.email_ids[0]
        number = tools.number_of(to_read)  # tools know mails by their number in the episode
        read = tools.call(READ, {"email_id": number}).observation
        mine = [search_call, searched.observation, _call(READ, email_id=number), read]
        mine.append(_call(FINAL_ANSWER, answer=question.answer, source_ids=[number]))
        shown = obvious.show(hits)
        theirs = [search_call, shown, _call(READ, message_id=gold), obvious.read(gold)]
        theirs.append(_call(FINAL_ANSWER, answer=question.answer, reference_message_ids=[gold]))
        per_result["ours"].append(tokens(searched.observation) / len(searched.email_ids))
        per_result["obvious"].append(tokens(shown) / len(hits))
        per_rollout["ours"].append(sum(map(tokens, mine)))
        per_rollout["obvious"].append(sum(map(tokens, theirs)))
    figures: dict[str, Any] = {"counted_with": counted_with, "rollouts": len(per_rollout["ours"])}
    for name, measured in (
        ("tokens_per_result", per_result),
        ("tokens_per_rollout", per_rollout),
        ("hit_rate", hits_of),
    ):
        means = {design: float(np.mean(values)) if values else 0.0 for design, values in measured.items()}
        figures[name] = {design: round(mean, 3) for design, mean in means.items()}
        figures[name]["ratio"] = round(means["ours"] / means["obvious"], 3) if means["obvious"] else None
    names = ("tokens_per_result", "tokens_per_rollout", "hit_rate")
    rows = [(name.replace("_", " "), *(figures[name][of] for of in ("ours", "obvious", "ratio"))) for name in names]
    show(
        f"Tokens, counted with {counted_with} in {figures['rollouts']} rollouts; {settings.max_results} hits against"
        f" {obvious_mailbox.MAX_RESULTS} (goal: ratio 0.5 at no lower hit rate)",
        ("", "ours", "obvious", "ratio"),
        rows,
    )
    return figures


def _token_counter(file: Path) -> tuple[Callable[[str], int], str]:
    """Return a token counter, and a description of it."""
    if not file.is_file():
        return lambda text: -(-len(text) // CHARS_PER_TOKEN), f"{CHARS_PER_TOKEN} characters a token (no {file})"
    tokenizer = Tokenizer.from_file(str(file))
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids), file.parent.name


def _call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


if __name__ == "__main__":
    sys.exit(main())
