"""Many callers ask a service for some minutes: throughput, latency, refusals, mix-ups, health and memory.

  python -m benchmarks.service_load --checkpoint FOLDER                  deploy it, 64 callers for 10 minutes, delete it
  python -m benchmarks.service_load --url http://127.0.0.1:8080 --callers 8 --minutes 0.5

Each caller asks one question after the other, chosen from the examples that the service names. After a refusal (429 or
503) it asks the same question again when `Retry-After` says. Two latencies are reported: of the request that was
answered, and from the first attempt to the answer. Meanwhile `/health` is asked every second, and the memory of the
service's processes is read if they run on this machine.

The last line on stdout is JSON. The exit code is 1 after any error other than 429 and 503, a lost or mixed-up answer, a
failed `/health` or one that took more than a second, and when nothing was answered.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks.deployed_service import Service, add_target, target
from benchmarks.output import progress

HEALTH_LIMIT_SECONDS = 1.0
MEMORY_EVERY_SECONDS = 5
PROGRESS_EVERY_SECONDS = 10


@dataclass
class Tally:
    """Results of all callers."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    seconds_with_refusals: list[float] = field(default_factory=list)
    agent_seconds: list[float] = field(default_factory=list)
    overhead_seconds: list[float] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    unanswered_at_end: int = 0
    proven: int = 0
    success: int = 0
    mixed_up: int = 0
    request_ids: Counter[str] = field(default_factory=Counter)
    answers: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    health_seconds: list[float] = field(default_factory=list)
    health_failures: int = 0
    memory_mb: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


def caller(service: Service, questions: list[dict[str, str]], seed: int, until: float, tally: Tally) -> None:
    """Ask until the time is up, then wait for the last answer."""
    chosen = random.Random(seed)
    while time.monotonic() < until:
        question = chosen.choice(questions)
        with tally.lock:
            tally.asked += 1
        first, refused = time.monotonic(), True
        while refused and time.monotonic() < until:
            started = time.monotonic()
            reply = service.request("POST", "/invoke", {"parameters": question})
            now = time.monotonic()
            refused = reply.status in (429, 503)
            with tally.lock:
                tally.statuses[reply.error or str(reply.status)] += 1
                if reply.status == 200:
                    count_answer(tally, question, reply.json, now - started, now - first)
            if refused:
                time.sleep(min(reply.retry_after or 1, max(0.0, until - now)))
        if refused:
            with tally.lock:
                tally.unanswered_at_end += 1


def count_answer(
    tally: Tally, question: dict[str, str], reply: dict[str, Any], took: float, with_refusals: float
) -> None:
    metadata = reply["metadata"]
    episode = metadata["episode"]
    tally.answered += 1
    tally.seconds.append(took)
    tally.seconds_with_refusals.append(with_refusals)
    tally.agent_seconds.append(episode["seconds"])
    tally.overhead_seconds.append(took - episode["seconds"] - episode["queued_seconds"])
    tally.proven += reply["proven"]
    tally.success += reply["success"]
    tally.request_ids[metadata["request_id"]] += 1
    tally.mixed_up += metadata["parameters_used"] != question or reply["question"] != question["question"]
    tally.answers[json.dumps(question)].add(json.dumps([reply["answer"], reply["source_ids"]]))


def watch_health(service: Service, stop: threading.Event, tally: Tally) -> None:
    while not stop.wait(1):
        started = time.monotonic()
        reply = service.request("GET", "/health", timeout=30)
        tally.health_seconds.append(time.monotonic() - started)
        tally.health_failures += reply.status != 200


def watch_memory(process_id: int, stop: threading.Event, tally: Tally) -> None:
    """Read the resident memory of the service's process and its children."""
    while not stop.wait(MEMORY_EVERY_SECONDS):
        try:
            service = psutil.Process(process_id)
            total = sum(process.memory_info().rss for process in (service, *service.children(recursive=True)))
        except psutil.NoSuchProcess:
            continue
        tally.memory_mb.append(total / 2**20)


def percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return round(values[0], 2) if values else None
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 2)


def summary(tally: Tally, callers: int, wall: float) -> dict[str, Any]:
    """Return the figures of a run. Memory: mean of the second and of the last quarter of samples, and peak."""
    quarter = len(tally.memory_mb) // 4
    second, last = tally.memory_mb[quarter : 2 * quarter], tally.memory_mb[-quarter:] if quarter else []
    others = {status for status in tally.statuses if status not in ("200", "429", "503")}
    repeated = sum(count - 1 for count in tally.request_ids.values())
    lost = tally.asked - tally.answered - tally.unanswered_at_end
    health = max(tally.health_seconds, default=None)
    return {
        "callers": callers,
        "minutes": round(wall / 60, 2),
        "cores": os.cpu_count(),
        "questions_per_minute": round(60 * tally.answered / wall, 1),
        "answered": tally.answered,
        "unanswered_at_end": tally.unanswered_at_end,
        "lost": lost,
        "mixed_up": tally.mixed_up,
        "repeated_ids": repeated,
        "different_questions": len(tally.answers),
        "questions_with_differing_answers": sum(len(answers) > 1 for answers in tally.answers.values()),
        "success": tally.success,
        "proven": tally.proven,
        "statuses": dict(tally.statuses),
        "p50_seconds": percentile(tally.seconds, 50),
        "p95_seconds": percentile(tally.seconds, 95),
        "p50_seconds_with_refusals": percentile(tally.seconds_with_refusals, 50),
        "p95_seconds_with_refusals": percentile(tally.seconds_with_refusals, 95),
        "agent_p50_seconds": percentile(tally.agent_seconds, 50),
        "overhead_p50_seconds": percentile(tally.overhead_seconds, 50),
        "overhead_p95_seconds": percentile(tally.overhead_seconds, 95),
        "health_requests": len(tally.health_seconds),
        "health_max_seconds": None if health is None else round(health, 3),
        "health_failures": tally.health_failures,
        "memory_mb_second_quarter": round(statistics.mean(second)) if second else None,
        "memory_mb_last_quarter": round(statistics.mean(last)) if last else None,
        "memory_mb_peak": round(max(tally.memory_mb)) if tally.memory_mb else None,
        "ok": bool(tally.answered)
        and not (others or lost or tally.mixed_up or repeated or tally.health_failures)
        and (health or 0) <= HEALTH_LIMIT_SECONDS,
    }


def load(service: Service, callers: int, minutes: float, seed: int) -> dict[str, Any]:
    """Run the load and return its figures."""
    model, questions = service.model(), service.questions()
    progress(f"{callers} callers, {minutes:g} minutes, {len(questions)} questions")
    tally, stop = Tally(), threading.Event()
    watchers = [
        threading.Thread(target=watch_health, args=(service, stop, tally), daemon=True),
        threading.Thread(target=watch_memory, args=(model["process_id"], stop, tally), daemon=True),
    ]
    started = time.monotonic()
    until = started + 60 * minutes
    threads = [
        threading.Thread(target=caller, args=(service, questions, 1000 * seed + number, until, tally), daemon=True)
        for number in range(callers)
    ]
    for thread in [*watchers, *threads]:
        thread.start()
    reported = started
    for thread in threads:
        while thread.is_alive():
            thread.join(1)
            if time.monotonic() - reported >= PROGRESS_EVERY_SECONDS:
                reported = time.monotonic()
                progress(f"{reported - started:5.0f} s  {tally.answered} answered  {dict(tally.statuses)}")
    stop.set()
    return summary(tally, callers, time.monotonic() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_target(parser)
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of questions")
    arguments = parser.parse_args()
    with target(arguments) as service:
        figures = load(service, arguments.callers, arguments.minutes, arguments.seed)
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
