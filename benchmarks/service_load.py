"""Many callers ask a running service for some minutes: throughput, latency, refusals, mix-ups, health and memory.

  python run.py --pipeline deploy --name load
  python -m benchmarks.service_load --url http://127.0.0.1:8080                      64 callers, 10 minutes
  python -m benchmarks.service_load --url http://127.0.0.1:8080 --callers 8 --minutes 1

Each caller asks one question after the other, chosen from the examples that the service names; one that is turned away (429 or
503) asks the same question again after `Retry-After`. Latency is that of the request that was answered. Besides, `/health` is asked
every second, and on the service's own machine the memory of its processes is watched. The last line on stdout is JSON; the exit code
is 1 when there was any other error, a lost or mixed-up answer, or `/health` took more than a second.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

import psutil

from benchmarks.output import progress

REQUEST_SECONDS = 400
HEALTH_LIMIT_SECONDS = 1.0
MEMORY_EVERY_SECONDS = 5


@dataclass
class Tally:
    """What all callers saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    agent_seconds: list[float] = field(default_factory=list)
    overhead_seconds: list[float] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    unanswered_at_end: int = 0
    proven: int = 0
    success: int = 0
    mixed_up: int = 0
    request_ids: Counter[str] = field(default_factory=Counter)
    health_seconds: list[float] = field(default_factory=list)
    health_failures: int = 0
    memory_mb: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Client:
    """Requests to one service."""

    def __init__(self, url: str, key: str | None) -> None:
        self._host = urlsplit(url).netloc
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def request(
        self, method: str, path: str, body: Any = None, timeout: float = REQUEST_SECONDS
    ) -> tuple[int, Any, int]:
        """Status, decoded body, and `Retry-After` in seconds. Raises OSError or http.client.HTTPException."""
        connection = http.client.HTTPConnection(self._host, timeout=timeout)
        try:
            headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content), int(response.headers.get("Retry-After") or 0)
        finally:
            connection.close()


def questions_of(client: Client) -> list[dict[str, str]]:
    """Every example question of the inboxes that have some. Raises SystemExit when there are none."""
    _, listed, _ = client.request("GET", "/inboxes?limit=200")
    _, known, _ = client.request("GET", "/examples")
    inboxes = dict.fromkeys([question["inbox_address"] for question in known["examples"]] + listed["inboxes"])
    questions = []
    for inbox in inboxes:
        questions += client.request("GET", f"/examples?inbox={quote(inbox)}")[1]["examples"]
    if not questions:
        sys.exit(
            "error: the service names no example questions: deploy a checkpoint that was trained in this ZenML store"
        )
    return questions


def caller(client: Client, questions: list[dict[str, str]], seed: int, until: float, tally: Tally) -> None:
    """Asks until the time is up, then waits for the last answer."""
    chosen = random.Random(seed)
    while time.monotonic() < until:
        question = chosen.choice(questions)
        with tally.lock:
            tally.asked += 1
        answered = False
        while not answered and time.monotonic() < until:
            started = time.monotonic()
            try:
                status, reply, retry_after = client.request("POST", "/invoke", {"parameters": question})
            except (OSError, http.client.HTTPException, ValueError) as error:
                with tally.lock:
                    tally.statuses[type(error).__name__] += 1
                time.sleep(1)
                continue
            took = time.monotonic() - started
            answered = status not in (429, 503)
            with tally.lock:
                tally.statuses[str(status)] += 1
                if status == 200:
                    count_answer(tally, question, reply, took)
            if not answered:
                time.sleep(min(retry_after or 1, max(0.0, until - time.monotonic())))
        if not answered:
            with tally.lock:
                tally.unanswered_at_end += 1


def count_answer(tally: Tally, question: dict[str, str], reply: dict[str, Any], took: float) -> None:
    metadata = reply["metadata"]
    episode = metadata["episode"]
    tally.answered += 1
    tally.seconds.append(took)
    tally.agent_seconds.append(episode["seconds"])
    tally.overhead_seconds.append(took - episode["seconds"] - episode["queued_seconds"])
    tally.proven += reply["proven"]
    tally.success += reply["success"]
    tally.request_ids[metadata["request_id"]] += 1
    tally.mixed_up += metadata["parameters_used"] != question or reply["question"] != question["question"]


def watch_health(client: Client, stop: threading.Event, tally: Tally) -> None:
    while not stop.wait(1):
        started = time.monotonic()
        try:
            status, _, _ = client.request("GET", "/health", timeout=30)
        except (OSError, http.client.HTTPException):
            status = 0
        tally.health_seconds.append(time.monotonic() - started)
        tally.health_failures += status != 200


def watch_memory(process_id: int, stop: threading.Event, tally: Tally) -> None:
    """Resident memory of the service's process and its children."""
    try:
        service = psutil.Process(process_id)
    except psutil.NoSuchProcess:
        return
    while not stop.wait(MEMORY_EVERY_SECONDS):
        total = 0
        for process in [service, *service.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        tally.memory_mb.append(total / 2**20)


def percentile(values: list[float], percent: int) -> float | None:
    if len(values) < 2:
        return round(values[0], 2) if values else None
    return round(statistics.quantiles(values, n=100, method="inclusive")[percent - 1], 2)


def summary(tally: Tally, callers: int, wall: float) -> dict[str, Any]:
    """The figures of a run. Memory is the mean of its second and of its last quarter of samples."""
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
        "success": tally.success,
        "proven": tally.proven,
        "statuses": dict(tally.statuses),
        "p50_seconds": percentile(tally.seconds, 50),
        "p95_seconds": percentile(tally.seconds, 95),
        "agent_p50_seconds": percentile(tally.agent_seconds, 50),
        "overhead_p50_seconds": percentile(tally.overhead_seconds, 50),
        "overhead_p95_seconds": percentile(tally.overhead_seconds, 95),
        "health_max_seconds": None if health is None else round(health, 3),
        "health_failures": tally.health_failures,
        "memory_mb_second_quarter": round(statistics.mean(second)) if second else None,
        "memory_mb_last_quarter": round(statistics.mean(last)) if last else None,
        "ok": not (others or lost or tally.mixed_up or repeated or tally.health_failures)
        and (health or 0) <= HEALTH_LIMIT_SECONDS,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="of the service")
    parser.add_argument("--key", help="access key, where the service has keys")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of questions")
    arguments = parser.parse_args()
    client = Client(arguments.url, arguments.key)
    try:
        status, model, _ = client.request("GET", "/model", timeout=30)
    except OSError as error:
        sys.exit(f"error: --url {arguments.url}: nothing answers there ({error})")
    if status != 200:
        sys.exit(f"error: --url {arguments.url}: {model.get('error')}")
    questions = questions_of(client)
    progress(f"{arguments.callers} callers, {arguments.minutes:g} minutes, {len(questions)} questions")
    tally, stop = Tally(), threading.Event()
    watchers = [
        threading.Thread(target=watch_health, args=(client, stop, tally), daemon=True),
        threading.Thread(target=watch_memory, args=(model["process_id"], stop, tally), daemon=True),
    ]
    started = time.monotonic()
    until = started + 60 * arguments.minutes
    callers = [
        threading.Thread(
            target=caller, args=(client, questions, 1000 * arguments.seed + number, until, tally), daemon=True
        )
        for number in range(arguments.callers)
    ]
    for thread in [*watchers, *callers]:
        thread.start()
    while any(thread.is_alive() for thread in callers):
        time.sleep(10)
        progress(f"{time.monotonic() - started:5.0f} s  {tally.answered} answered  {dict(tally.statuses)}")
    stop.set()
    figures = summary(tally, arguments.callers, time.monotonic() - started)
    print(json.dumps(figures))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
