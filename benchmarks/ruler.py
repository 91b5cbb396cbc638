"""Compare RULER requests for all groups of a step at once, as in the trainer, with requests in sequence.

  python -m benchmarks.ruler [--groups 32] [--rollouts 8] [--latency 0.5]

The judge is an OpenAI-compatible server on loopback that waits `--latency` seconds before each reply. Both ways make the same requests
and must end with the same rewards. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# Otherwise LiteLLM's import waits for a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

import art

from benchmarks.output import progress, show
from training.scoring.ruler import RulerJudge, require_ruler
from training.settings import TrainerSettings


class _Judge(BaseHTTPRequestHandler):
    latency = 0.5

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(self.latency)
        ids = re.findall(r'<trajectory id="(\d+)">', request["messages"][1]["content"])
        scores = [
            {"trajectory_id": id, "explanation": "as good as its number", "score": int(id) / len(ids)} for id in ids
        ]
        message = {"role": "assistant", "content": json.dumps({"scores": scores})}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "judge", "choices": [choice]}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *arguments: object) -> None:
        """Keeps the output to the figures."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


@contextmanager
def judge(latency: float) -> Iterator[str]:
    """Return the base URL of the judge."""
    server = _Server(("127.0.0.1", 0), type("Judge", (_Judge,), {"latency": latency}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def group(number: int, rollouts: int) -> art.TrajectoryGroup:
    """Return rollouts of one question, each with a search, a mail of 1,200 characters and an answer."""
    asked = [
        {"role": "system", "content": "Answer from the mailbox."},
        {"role": "user", "content": f"Question {number}?"},
    ]
    mail = {"role": "tool", "tool_call_id": "call_1", "content": f"Mail {number}: " + "words " * 200}
    return art.TrajectoryGroup(
        art.Trajectory(
            messages_and_choices=[
                *asked,
                {"role": "assistant", "content": f"search({rollout})"},
                mail,
                {"role": "assistant", "content": f"answer {rollout}"},
            ]
        )
        for rollout in range(rollouts)
    )


async def rewards(
    settings: TrainerSettings, groups: list[art.TrajectoryGroup], *, at_once: bool
) -> tuple[float, list[list[float]]]:
    """Return wall seconds, and the scores of each group."""
    with tempfile.TemporaryDirectory() as cache:
        ruler = RulerJudge(settings, Path(cache))
        started = time.monotonic()
        if at_once:
            judged = await asyncio.gather(*(ruler.compare(one) for one in groups))
        else:
            judged = [await ruler.compare(one) for one in groups]
        seconds = time.monotonic() - started
    assert all(scores is not None for scores, _ in judged), "the judge answers every request"
    return seconds, [[score.score for score in scores or []] for scores, _ in judged]


async def measure(settings: TrainerSettings, count: int, rollouts: int) -> dict[str, float]:
    await rewards(settings, [group(-1, rollouts)], at_once=True)  # LiteLLM's first call imports what it needs
    groups = [group(number, rollouts) for number in range(count)]
    progress(f"{count} groups of {rollouts}, all at once")
    at_once, scores = await rewards(settings, groups, at_once=True)
    progress("the same, one after another")
    in_turn, same = await rewards(settings, groups, at_once=False)
    assert scores == same, "both ways give the same rewards"
    return {
        "at_once_s": round(at_once, 3),
        "one_after_another_s": round(in_turn, 3),
        "ratio": round(at_once / in_turn, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--latency", type=float, default=0.5, metavar="SECONDS")
    options = parser.parse_args()
    with judge(options.latency) as address:
        settings = TrainerSettings(scoring="ruler", ruler_model="openai/judge", ruler_api_base=address)
        require_ruler(settings)
        figures = asyncio.run(measure(settings, options.groups, options.rollouts))
    title = f"RULER, {options.groups} groups of {options.rollouts}, a judge that takes {options.latency:g} s"
    rows = [
        ("one after another", figures["one_after_another_s"]),
        ("all at once", figures["at_once_s"]),
        ("ratio", figures["ratio"]),
    ]
    show(title, ("", "seconds"), rows)
    print(
        json.dumps(
            {
                "groups": options.groups,
                "rollouts": options.rollouts,
                "latency_s": options.latency,
                **figures,
                "goal": 0.0625,
            }
        )
    )


if __name__ == "__main__":
    main()
