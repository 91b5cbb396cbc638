"""The command line of `run.py`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NoReturn

from environment.home import VERSION, as_called
from training.user_paths import path_problem, unwritable

PIPELINES = ["data", "train", "eval", "all", "deploy", "ask", "mcp", "export"]
PIPELINES += ["scenarios", "learn-loop", "stack", "compare"]
SERVICE = "email-search-agent"
_WITH_SETTINGS = tuple(name for name in PIPELINES if name not in ("mcp", "compare"))
_ONLY_FOR = {
    "checkpoint": ("eval", "deploy", "ask", "export"),
    "config": _WITH_SETTINGS,
    "date": ("ask",),
    "format": ("export",),
    "from": ("train", "all", "learn-loop"),
    "dry-run": ("train", "stack", "learn-loop"),
    "inbox": ("ask",),
    "json": ("ask",),
    "mail": ("deploy", "ask"),
    "name": ("deploy", "ask", "mcp"),
    "new-code": ("train",),
    "no-cache": ("data", "train", "eval", "all", "scenarios", "learn-loop"),
    "resume": ("train",),
    "schedule": ("train", "all"),
    "serve": ("learn-loop",),
    "set": _WITH_SETTINGS,
    "steps": ("ask",),
    "summary": ("eval", "all"),
    "task": _WITH_SETTINGS,
    "to": ("export",),
    "unpromoted": ("deploy", "ask"),
    "wait": ("learn-loop",),
}


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line without the usage."""
        self.exit(2, as_called(f"error: {message}; `python run.py --help` explains every option\n"))


class _Help(argparse.Action):
    """Print this help, or the description of one setting or of a section of settings."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: str | None = None) -> None:
        if values is None:
            parser.print_help()
            parser.exit()
        from configs.description import describe
        from configs.schema import ConfigError
        from reports.console import say

        try:
            say(describe(values))
        except ConfigError as error:
            parser.exit(2, as_called(f"error: {error}\n"))
        parser.exit()


def parse_arguments(words: list[str], description: str) -> argparse.Namespace:
    """Parse the command line without importing anything heavy. `description` begins the help."""
    parser = _Arguments(
        description=as_called(description), formatter_class=argparse.RawDescriptionHelpFormatter, add_help=False
    )
    add = parser.add_argument
    add("-h", "--help", action=_Help, nargs="?", metavar="KEY", help="this help, or a setting or section of settings")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pipeline", choices=PIPELINES, help="what to run; `all` is data, train and eval")
    what.add_argument("--version", action="version", version=f"{SERVICE} {VERSION}", help="the version of this project")
    what.add_argument("--schedule-list", action="store_true", help="every schedule: name, expression, active or paused")
    what.add_argument("--schedule-pause", metavar="NAME", help="start no further runs; a run in progress continues")
    what.add_argument("--schedule-resume", metavar="NAME", help="start runs again, and at once if one is due")
    what.add_argument("--schedule-delete", metavar="NAME", help="delete it, unless it is running; past runs stay")
    add("words", nargs="*", metavar="WORD", help="compare: names of experiments or keys of runs; ask: the question")
    add("--config", type=Path, metavar="FILE", help="YAML file with settings (see configs/); default: the CPU profile")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting; may be repeated")
    add(
        "--task",
        metavar="NAME",
        help="short for --set task=NAME: email-search, coding, workbench, outreach or module:PLUGIN",
    )
    add("--no-cache", action="store_true", help="run every step again: new data, a new training run, new questions")
    add("--resume", metavar="NAME", help="train: continue this run, by name or key; refuses other settings")
    add("--new-code", action="store_true", help="with --resume: continue although the training code has changed")
    add(
        "--from",
        dest="start",
        metavar="RUN|CHECKPOINT",
        help="train, all, learn-loop: a new run that begins with this adapter",
    )
    add("--checkpoint", metavar="PATH", help="eval, deploy, ask, export: this checkpoint folder or artifact id")
    add("--to", type=Path, metavar="FOLDER", help="export: a new folder for the files")
    add("--format", choices=("adapter", "merged", "gguf"), help="export: gguf, for llama.cpp and Ollama, is merged too")
    add("--merged", action="store_const", const="merged", dest="format", help="export: short for --format merged")
    add("--unpromoted", action="store_true", help="deploy, ask: the latest version when none is in production")
    add(
        "--mail",
        choices=("trained", "latest"),
        help="deploy, ask: search the mail of the checkpoint's training (default), or what was prepared last",
    )
    add("--inbox", metavar="ADDRESS", help="ask: whose mail is searched; not needed if there is only one inbox")
    add("--date", metavar="YYYY-MM-DD", help="ask: later mail is not seen (today)")
    add("--steps", action="store_true", help="ask: also print what the agent searches and reads")
    add("--json", action="store_true", help="ask: print answer and cited mails as JSON")
    add("--serve", action="store_true", help="learn-loop: the HTTP service that starts loops, until it is stopped")
    add("--wait", action="store_true", help="learn-loop: begin when no other loop works on the graph any more")
    add("--name", help="deploy: name of the service (email-search-agent); ask, mcp: a running service")
    add("--schedule", metavar="CRON", help='train: data, training, evaluation and gate on a schedule, e.g. "0 2 * * *"')
    add("--dry-run", action="store_true", help="train, stack, learn-loop: check everything and say what would be done")
    add("--summary", type=Path, metavar="FILE", help="eval, all: also write the closing table as JSON")
    arguments = parser.parse_args(words)
    if arguments.words and arguments.pipeline not in ("compare", "ask"):
        parser.error(f"unexpected words: {' '.join(arguments.words)}")
    if arguments.task == "outreach" and arguments.pipeline in ("train", "all"):
        arguments.pipeline = "learn-loop"  # trains and evaluates in one pipeline
    for option, pipelines in _ONLY_FOR.items():
        given = arguments.start if option == "from" else getattr(arguments, option.replace("-", "_"))
        if given not in (None, False, []) and arguments.pipeline not in pipelines:
            *others, last = pipelines
            parser.error(f"--{option} is for --pipeline {' or '.join(filter(None, [', '.join(others), last]))}")
    for option in ("schedule-pause", "schedule-resume", "schedule-delete"):
        given = getattr(arguments, option.replace("-", "_"))
        if given is not None and not given.strip():
            parser.error(f"--{option} {given!r}: is empty; --schedule-list shows the names")
    if arguments.new_code and arguments.resume is None:
        parser.error("--new-code needs --resume NAME")
    if arguments.resume and (arguments.no_cache or arguments.schedule is not None or arguments.start is not None):
        parser.error("--resume continues a run; --no-cache, --schedule and --from start new ones")
    if arguments.start is not None:
        arguments.set.append(f"continue_from={json.dumps(arguments.start, ensure_ascii=False)}")
    if arguments.task is not None:
        arguments.set.append(f"task={json.dumps(arguments.task)}")
    if arguments.no_cache and arguments.schedule is not None:
        parser.error("--no-cache is for a run that starts now: those of a schedule always train anew")
    if arguments.dry_run and arguments.schedule is not None:
        parser.error("--dry-run checks a run that starts now: leave out --schedule")
    if arguments.serve and (arguments.dry_run or arguments.no_cache or arguments.wait):
        parser.error("--serve starts a service, which has no use for --dry-run, --no-cache and --wait")
    if arguments.pipeline == "ask" and not arguments.words:
        parser.error('--pipeline ask needs a question: --pipeline ask "When is the review?" --inbox ADDRESS')
    of_service = arguments.checkpoint or arguments.unpromoted or arguments.mail
    if arguments.pipeline == "ask" and arguments.name is not None and of_service:
        parser.error(
            "--name asks a running service, which has its model and its mail: leave out --checkpoint, --unpromoted and --mail"
        )
    if arguments.pipeline == "export" and arguments.to is None:
        parser.error("--pipeline export needs --to FOLDER")
    if arguments.name is None and arguments.pipeline in ("deploy", "mcp"):
        arguments.name = SERVICE
    for option in ("config", "checkpoint", "to", "summary", "name"):
        if (given := getattr(arguments, option)) is not None and (problem := path_problem(str(given))):
            parser.error(f"--{option} {str(given)[:80]!r}: {problem}")
        if isinstance(given, Path):
            setattr(arguments, option, given.expanduser())
    if arguments.summary is not None and (problem := unwritable(arguments.summary)):
        parser.error(f"--summary {arguments.summary}: {problem}")
    return arguments
