"""Compare the answers of an exported GGUF file in another program with those of the checkpoint here, greedily.

  python -m benchmarks.gguf_answers EXPORT CHECKPOINT --url http://127.0.0.1:8080/v1 [--model NAME]

EXPORT is a folder by `--pipeline export --format gguf`, CHECKPOINT the checkpoint that it was made from. At the URL,
llama.cpp's server, its Python bindings or Ollama serves a file of EXPORT as a chat model. It gets the system message of
the Modelfile, and its replies as it wrote them, so that every prompt is the text that the policy was trained on. The
questions are held-out ones about the synthetic company. Whole episodes are compared: the other program's replies choose
its searches. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from agent.evaluation import Evaluation, select_questions
from agent.judges.exact import ExactJudge
from agent.metrics import Prediction
from agent.settings import AgentSettings
from benchmarks.output import progress
from environment.email_db import MailDatabase, build_database
from environment.models import Scenario
from environment.sources.synthetic import synthetic_company
from training.backends.base_model import resolve_base_model
from training.backends.prompt_template import load_tokenizer
from training.backends.serving import open_policy_server
from training.backends.torch.tool_calls import call_form
from training.checkpoint import Checkpoint
from training.errors import BadInput
from training.task import Policy

MODELS = Path(__file__).parents[1] / "models"


class TextOnly(ThreadingHTTPServer):
    """Between the agent and a server that knows no tools: system message of the Modelfile, calls as text.

    The agent gets the calls of a reply parsed, and with them its text, which it sends back with its next request.
    """

    def __init__(self, arguments: argparse.Namespace, chat_template: str) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        modelfile = (arguments.export / "Modelfile").read_text(encoding="utf-8")
        self.system = {"role": "system", "content": modelfile.split('SYSTEM """')[1].split('"""')[0]}
        self.form = call_form(chat_template)
        self.model = arguments.model
        self.client = httpx.Client(base_url=arguments.url.rstrip("/"), timeout=600, trust_env=False)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def require_answer(self) -> None:
        """Raise BadInput unless the other program answers as the named model."""
        greeting = {"role": "user", "content": "Hello"}
        request = {"model": self.model, "max_tokens": 1, "messages": [self.system, greeting]}
        try:
            self.client.post("/chat/completions", json=request).raise_for_status()
        except httpx.HTTPError as error:
            url = self.client.base_url
            raise BadInput(f"--url {url} does not answer as model {self.model}: {error}; start its server") from error

    def reply(self, asked: dict[str, Any]) -> dict[str, Any]:
        turns = [{"role": turn["role"], "content": turn["content"]} for turn in asked["messages"][1:]]
        request = {"model": self.model, "temperature": 0, "max_tokens": asked["max_completion_tokens"]}
        reply = self.client.post("/chat/completions", json=request | {"messages": [self.system, *turns]})
        found: dict[str, Any] = reply.raise_for_status().json()
        [choice] = found["choices"]
        text = choice["message"]["content"] or ""
        parsed = self.form.split(text, asked["tools"])
        choice["message"] = {"role": "assistant", "content": text, "tool_calls": parsed[1] if parsed else None}
        return found


class _Forward(BaseHTTPRequestHandler):
    server: TextOnly

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            body = json.dumps(self.server.reply(asked)).encode()
        except httpx.HTTPError as error:
            self.send_error(502, "the other program does not answer", str(error))
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> int:
    """Return the exit code: 0 all answers are equal, 1 some differ, 2 bad input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("export", type=Path)
    add("checkpoint", type=Path)
    add("--url", required=True, help="base URL of the other program's OpenAI-compatible server")
    add("--model", default="email-agent", help="name of the model there (default email-agent)")
    add("--questions", type=int, default=50, help="(default 50)")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            predictions = asyncio.run(asked(arguments, Path(folder)))
    except (BadInput, OSError, httpx.HTTPError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return report(*predictions)


async def asked(arguments: argparse.Namespace, scratch: Path) -> tuple[list[Prediction], list[Prediction]]:
    """Return the predictions of the checkpoint and of the other program."""
    company = synthetic_company()
    build_database(company.emails(), scratch / "mails.sqlite")
    checkpoint = Checkpoint.load(arguments.checkpoint)
    trained_with = checkpoint.manifest.config
    known = {name: trained_with[name] for name in AgentSettings.model_fields if name in trained_with}
    settings = AgentSettings.model_validate(known)
    base = resolve_base_model(checkpoint.manifest.base_model_source, MODELS)
    checkpoint.require_base(base)
    theirs = TextOnly(arguments, str(load_tokenizer(base.path).chat_template))
    theirs.require_answer()
    questions = select_questions(company.scenarios(), arguments.questions)
    with contextlib.closing(MailDatabase(scratch / "mails.sqlite")) as database:
        evaluation, slots = Evaluation(database, ExactJudge(), settings), asyncio.Semaphore(4)

        async def answered(name: str, policy: Policy, question: Scenario) -> Prediction:
            async with slots:
                return await evaluation.policy(name, policy, question)

        with open_policy_server(base.path, {"trained": checkpoint.path}, trained_with) as server:
            policy = Policy(base_url=server.base_url, model="trained", temperature=0.0, max_tokens=settings.max_tokens)
            ours = await asyncio.gather(*(answered("ours", policy, question) for question in questions))
        progress("the checkpoint has answered")
        there = policy.model_copy(update={"base_url": theirs.url})
        return ours, await asyncio.gather(*(answered("theirs", there, question) for question in questions))


def report(ours: list[Prediction], theirs: list[Prediction]) -> int:
    """Print a Markdown table of both answers. Return the exit code."""
    print("| question | reference | here | there |\n|---|---|---|---|")
    equal = 0
    for mine, other in zip(ours, theirs, strict=True):
        same = mine.error is other.error is None and same_replies(replies(mine), replies(other))
        equal += same
        there = "the same" if same else cell(other)
        print(f"| {mine.question} | {mine.reference} | {cell(mine)} | {there} |")
    correct = [sum(bool(prediction.correct) for prediction in side) for side in (ours, theirs)]
    print(json.dumps({"questions": len(ours), "equal": equal, "correct here": correct[0], "correct there": correct[1]}))
    return 0 if equal == len(ours) else 1


def replies(prediction: Prediction) -> list[str]:
    """Return what the policy wrote."""
    return [turn["content"] for turn in prediction.transcript if turn["role"] == "assistant"]


def same_replies(here: list[str], there: list[str]) -> bool:
    """Return whether all replies are equal, searches and reads included. The record of the other side repeats parsed calls."""
    pairs = list(zip(here, there, strict=False))
    return len(here) == len(there) and all(b == a or b.startswith(f"{a}\n<tool_call>\n") for a, b in pairs)


def cell(prediction: Prediction) -> str:
    """Return the answer with its verdict and sources, or why there is none."""
    if prediction.answer is None:
        return prediction.error or prediction.outcome or "no answer"
    verdict = "correct" if prediction.correct else "wrong"
    return f"{prediction.answer} ({verdict}, mail {', '.join(map(str, prediction.source_ids)) or 'none'})"


if __name__ == "__main__":
    raise SystemExit(main())
