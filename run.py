"""Train, evaluate and serve an agent that answers questions about a mailbox.

python run.py --pipeline all                      the whole way once: data, train, eval
python run.py --pipeline train --config FILE      one pipeline; what it depends on runs first, unless it has run already
python run.py --pipeline train --resume NAME      a run that was cut off goes on, with the settings that it began with
python run.py --pipeline train --from NAME        a new run that starts from the adapter of an earlier one
python run.py --pipeline deploy --name my-agent   the trained agent as an HTTP service
python run.py --pipeline export --to FOLDER       the trained adapter, or with --merged the whole model, with a model card
python run.py --pipeline scenarios --config FILE  questions for mail that has none, written by an LLM
python run.py --pipeline learn-loop               an agent that writes e-mails and learns from replies (docs/outreach.md)
python run.py --pipeline stack --config FILE      a ZenML stack on Kubernetes, checked and registered
python run.py --pipeline compare A B              training runs side by side, by name or key
python run.py --schedule-list                     the schedules that `--pipeline train --schedule CRON` made
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

PIPELINES = ("data", "train", "eval", "deploy", "export", "scenarios", "stack", "compare", "learn-loop", "all")

_ONLY_FOR = {
    "checkpoint": ("eval", "deploy", "export"),
    "from": ("train", "all"),
    "dry-run": ("train", "stack", "learn-loop"),
    "merged": ("export",),
    "name": ("deploy",),
    "new-code": ("train",),
    "resume": ("train",),
    "schedule": ("train", "all"),
    "serve": ("learn-loop",),
    "summary": ("eval", "all"),
    "to": ("export",),
    "unpromoted": ("deploy",),
}


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print one line without the usage."""
        self.exit(2, f"error: {message}; `python run.py --help` explains every option\n")


def parse_arguments(words: list[str]) -> argparse.Namespace:
    """Parse the command line without importing anything heavy."""
    parser = _Arguments(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--pipeline", choices=PIPELINES, help="what to run; `all` is data, train and eval")
    what.add_argument("--schedule-list", action="store_true", help="every schedule: name, expression, active or paused")
    what.add_argument("--schedule-pause", metavar="NAME", help="no further runs; one that is under way goes on")
    what.add_argument(
        "--schedule-resume", metavar="NAME", help="runs again from the next time on, or at once if just due"
    )
    what.add_argument(
        "--schedule-delete", metavar="NAME", help="delete the schedule, unless a run is under way; past runs stay"
    )
    add("runs", nargs="*", metavar="RUN", help="compare: names of experiments or keys of runs")
    add("--config", type=Path, metavar="FILE", help="YAML file with settings (see configs/); default: the CPU profile")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting; may be repeated")
    add(
        "--no-cache",
        action="store_true",
        help="run every step again: new data versions, a new training run, new questions",
    )
    add(
        "--resume",
        metavar="NAME",
        help="train: go on with this run, by name of the experiment or key; refuses other settings",
    )
    add("--new-code", action="store_true", help="with --resume: go on although the training code has changed since")
    add(
        "--from",
        dest="start",
        metavar="RUN|CHECKPOINT",
        help="train, all: a new run that continues from this one's adapter",
    )
    add("--checkpoint", metavar="PATH", help="eval, deploy, export: this checkpoint folder or artifact id")
    add("--to", type=Path, metavar="FOLDER", help="export: a new folder for the files")
    add(
        "--merged",
        action="store_true",
        help="export: the base model with the adapter merged into it, instead of the adapter",
    )
    add("--unpromoted", action="store_true", help="deploy: the latest version when none is in production")
    add("--serve", action="store_true", help="learn-loop: the HTTP service that starts loops, until it is stopped")
    add("--name", help="deploy: name of the service (email-search-agent)")
    add("--schedule", metavar="CRON", help='train: data, training, evaluation and gate on a schedule, e.g. "0 2 * * *"')
    add("--dry-run", action="store_true", help="train, stack, learn-loop: check everything and say what would be done")
    add("--summary", type=Path, metavar="FILE", help="eval, all: also write the closing table as JSON")
    arguments = parser.parse_args(words)
    if arguments.runs and arguments.pipeline != "compare":
        parser.error(f"unexpected words: {' '.join(arguments.runs)}")
    for option, pipelines in _ONLY_FOR.items():
        given = arguments.start if option == "from" else getattr(arguments, option.replace("-", "_"))
        if given not in (None, False) and arguments.pipeline not in pipelines:
            parser.error(f"--{option} is for --pipeline {' and --pipeline '.join(pipelines)}")
    if arguments.new_code and arguments.resume is None:
        parser.error("--new-code belongs to --resume NAME")
    if arguments.resume is not None and (arguments.no_cache or arguments.schedule is not None):
        parser.error("--resume goes on with a run; --no-cache and --schedule start new ones")
    if arguments.resume is not None and arguments.start is not None:
        parser.error("--resume goes on with the run itself; --from starts a new one from its adapter")
    if arguments.start is not None:
        arguments.set.append(f"continue_from={json.dumps(arguments.start)}")
    if arguments.dry_run and arguments.schedule is not None:
        parser.error("--dry-run is about a run that starts now: leave out --schedule")
    if arguments.pipeline == "export" and arguments.to is None:
        parser.error("--pipeline export needs --to FOLDER")
    if arguments.summary is not None and (problem := _unwritable(arguments.summary)):
        parser.error(f"--summary {arguments.summary}: {problem}")
    return arguments


def _unwritable(file: Path) -> str | None:
    """Why no file can be written there, as far as can be seen before hours of work."""
    if file.is_dir():
        return "is a folder; name a file"
    folder = next(place for place in file.absolute().parents if place.exists())
    return (
        None
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
        else f"{folder} is no folder that can be written to"
    )


def quiet_third_parties() -> None:
    """Set what libraries read when they are imported, unless it is exported already, and hide their warnings.

    Runtime warnings of the project itself, such as NaNs in numpy or a coroutine that is never awaited, stay visible.
    """
    for name, value in {
        "ZENML_LOGGING_VERBOSITY": "CRITICAL",  # steps raise what went wrong, and this file reports it
        "ZENML_ENABLE_RICH_TRACEBACK": "false",
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_ENABLE_REPO_INIT_WARNINGS": "false",
        "ZENML_CUSTOM_SOURCE_ROOT": str(Path(__file__).resolve().parent),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise its import waits for a price list from the network
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "TQDM_DISABLE": "1",  # bars of libraries; our own are rich's
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    packages = [folder.parent.name for folder in Path(__file__).resolve().parent.glob("*/__init__.py")]
    warnings.filterwarnings("default", category=RuntimeWarning, module=rf"({'|'.join(packages)})\b")


def main(words: list[str] | None = None) -> int:
    """Run the command line. Return the exit code: 0 done, 1 failed on another machine, 2 bad input, 130 interrupted."""
    arguments = parse_arguments(sys.argv[1:] if words is None else words)
    quiet_third_parties()
    from cluster.errors import RunFailed
    from configs.schema import ConfigError
    from environment.errors import BadInput as BadMail
    from training.errors import BadInput as BadTraining

    try:
        execute(arguments)
    except (ConfigError, BadMail, BadTraining) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on after the last finished step", file=sys.stderr)
        return 130
    return 0


def execute(arguments: argparse.Namespace) -> None:
    """Run the chosen pipelines in order."""
    from dotenv import load_dotenv

    from configs.schema import explicit_values, load_config, require_source, with_prompt

    load_dotenv(Path(__file__).resolve().parent / ".env")
    if arguments.pipeline is None:
        manage_schedules(arguments)
        return
    if arguments.pipeline == "compare":
        from pipelines.comparison import run_compare

        run_compare(arguments.runs)
        return
    if arguments.pipeline == "learn-loop":
        if arguments.serve:
            from pipelines.learn_loop_service import serve_learn_loops

            serve_learn_loops(arguments.config, arguments.set)
            return
        from pipelines.learning import run_learn_loop

        run_learn_loop(arguments.config, arguments.set, cache=not arguments.no_cache, dry_run=arguments.dry_run)
        return
    resumed = None
    if arguments.resume is not None:
        from pipelines.resuming import find_resumable

        resumed = find_resumable(arguments.resume, arguments.config, arguments.set, new_code=arguments.new_code)
    # A run that goes on has the prompt with which it began, whatever its function returns by now.
    config = resumed.config if resumed else with_prompt(load_config(arguments.config, arguments.set))
    if config.task == "coding":
        from pipelines.coding import run_coding

        options = {"dry_run": arguments.dry_run, "cache": not arguments.no_cache, "summary": arguments.summary}
        run_coding(config, arguments.pipeline, **options)
        return
    if arguments.pipeline == "stack":
        from pipelines.operations import run_stack

        run_stack(config, dry_run=arguments.dry_run)
        return
    if arguments.pipeline == "export":
        from pipelines.exporting import run_export

        named = explicit_values(arguments.config, arguments.set).get("base_model")
        run_export(arguments.to, merged=arguments.merged, checkpoint=arguments.checkpoint, base_model=named)
        return
    require_source(config, questions=arguments.pipeline != "scenarios")
    if arguments.dry_run:
        from pipelines.planning import run_plan

        run_plan(config)
        return
    if arguments.schedule is not None or config.step_settings:
        from pipelines.operations import require_cluster

        require_cluster(config, arguments.schedule)
    explicit = explicit_values(arguments.config, arguments.set)

    from pipelines import runs

    if resumed is not None:
        runs.require_training(config)
        resumed.require_same_weights()
        runs.run_train(config, resumed.data, cache=True, key=resumed.experiment.run)
        return
    cache = not arguments.no_cache
    if arguments.pipeline == "scenarios":
        runs.run_scenarios(config, cache=cache)
        return
    if arguments.pipeline == "deploy":
        name = arguments.name if arguments.name is not None else "email-search-agent"
        chosen = {"checkpoint": arguments.checkpoint, "unpromoted": arguments.unpromoted}
        runs.run_deploy(config, name, **chosen, base_model=explicit.get("base_model"))
        return
    if arguments.pipeline == "eval" and (trained := runs.find_trained(explicit, arguments.checkpoint)):
        runs.run_eval(config, trained, cache=cache, summary=arguments.summary, base_model=explicit.get("base_model"))
        return
    if config.continue_from is not None and arguments.pipeline != "data":
        from pipelines.continuing import with_start

        config = with_start(config, scheduled=arguments.schedule is not None)
    if arguments.schedule is not None:
        runs.schedule_retraining(config, arguments.schedule)
        return
    if arguments.pipeline != "data":
        runs.require_training(config)
    if arguments.pipeline in ("eval", "all"):
        runs.require_baseline(config)
    data = runs.run_data(config, cache=cache)
    if arguments.pipeline == "data":
        return
    trained = runs.run_train(config, data, cache=cache)
    if arguments.pipeline in ("eval", "all"):
        runs.run_eval(config, trained, cache=cache, summary=arguments.summary)


def manage_schedules(arguments: argparse.Namespace) -> None:
    """What the --schedule-… options do, which need no pipeline."""
    from pipelines import operations

    if arguments.schedule_pause:
        operations.set_schedule(arguments.schedule_pause, active=False)
    elif arguments.schedule_resume:
        operations.set_schedule(arguments.schedule_resume, active=True)
    elif arguments.schedule_delete:
        operations.delete_schedule(arguments.schedule_delete)
    else:
        operations.list_schedules()


if __name__ == "__main__":
    # Both end a run like Ctrl-C, after ZenML's own handler, which hears SIGINT in a script's background too, where the shell ignores it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    sys.exit(main())
