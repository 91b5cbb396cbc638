"""Train, evaluate and serve an agent that answers questions about a mailbox.

python run.py --pipeline all                      data, train and eval, one after the other
python run.py --pipeline train --config FILE      one pipeline; those that it depends on run first if needed
python run.py --pipeline train --resume NAME      resume an interrupted run with its original settings
python run.py --pipeline train --from NAME        a new run that starts from the adapter of an earlier one
python run.py --pipeline deploy --name my-agent   the trained agent as an HTTP service
python run.py --pipeline ask QUESTION --inbox ME  the answer, and the words in the mails that prove it
python run.py --pipeline mcp --name my-agent      the service for an MCP client, over stdio
python run.py --pipeline export --to FOLDER       the trained adapter, or with --format merged or gguf the whole model
python run.py --pipeline scenarios --config FILE  questions for mail that has none, written by an LLM
python run.py --pipeline learn-loop               an agent that writes e-mails and learns from replies (docs/outreach.md)
python run.py --pipeline stack --config FILE      a ZenML stack on Kubernetes, checked and registered
python run.py --pipeline compare A B              compare training runs, by name or key
python run.py --schedule-list                     the schedules that `--pipeline train --schedule CRON` made
python run.py --help KEY                          a setting: what it does, allowed values, default, section
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import warnings
from pathlib import Path


def quiet_third_parties() -> None:
    """Set environment variables that libraries read on import, unless they are set, and hide warnings of libraries.

    Runtime warnings of the project itself, such as NaNs in numpy or a coroutine that is never awaited, stay visible.
    """
    for name, value in {
        "ZENML_LOGGING_VERBOSITY": "CRITICAL",  # steps raise errors, and this file reports them
        "ZENML_ENABLE_RICH_TRACEBACK": "false",
        "ZENML_ANALYTICS_OPT_IN": "false",
        "ZENML_ENABLE_REPO_INIT_WARNINGS": "false",
        "ZENML_CUSTOM_SOURCE_ROOT": str(Path(__file__).resolve().parent),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise its import downloads a price list
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "TQDM_DISABLE": "1",  # progress bars of libraries; ours are rich's
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_VERBOSITY": "error",  # its warnings count its retries
        "DATASETS_VERBOSITY": "error",
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
    from commands.arguments import parse_arguments

    quiet_third_parties()
    arguments = parse_arguments(sys.argv[1:] if words is None else words, __doc__ or "")
    from cluster.errors import RunFailed
    from configs.config import with_section
    from configs.schema import ConfigError
    from environment.errors import BadMail
    from environment.home import as_called
    from training.errors import BadInput

    try:
        execute(arguments)
    except (ConfigError, BadMail, BadInput) as error:
        print(as_called(f"error: {with_section(' '.join(str(error).split()))}"), file=sys.stderr)
        return 2
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except Exception as error:
        from commands.failures import explained

        if (line := explained(error)) is None:
            raise
        print(f"error: {' '.join(line.split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        resumes = arguments.pipeline not in ("deploy", "ask", "mcp", "export", "stack", "compare", None)
        usual = "stopped; the same command resumes after the last finished step" if resumes else "stopped"
        print(str(stopped) or usual, file=sys.stderr)
        return 130
    return 0


def read_environment(file: Path) -> None:
    """Set the variables of a .env file that are not set yet. Raises ConfigError, which never quotes the file: it has keys."""
    from dotenv import load_dotenv

    from configs.schema import ConfigError

    try:
        load_dotenv(file, encoding="utf-8-sig")  # editors of Windows begin a file with a mark
    except ValueError:  # bytes of another encoding; a NUL, which no variable can hold
        raise ConfigError(
            f"{file} is not a text file in UTF-8: save it as UTF-8, with a line NAME=VALUE per variable"
        ) from None


def execute(arguments: argparse.Namespace) -> None:
    """Run the chosen pipelines in order."""
    from configs.loading import explicit_values, load_config, require_source
    from configs.prompt import with_prompt
    from configs.schema import ConfigError
    from environment.home import HOME

    read_environment(HOME / ".env")
    if arguments.pipeline is None:
        from commands.schedules import manage_schedules

        manage_schedules(arguments.schedule_pause, arguments.schedule_resume, arguments.schedule_delete)
        return
    if arguments.pipeline == "compare":
        from commands.compare import run_compare

        run_compare(arguments.words)
        return
    if arguments.pipeline == "mcp":
        from commands.mcp import run_mcp

        run_mcp(arguments.name)
        return
    if arguments.pipeline == "learn-loop":
        if arguments.serve:
            from commands.learn_loop_service import serve_learn_loops

            serve_learn_loops(arguments.config, arguments.set)
            return
        from commands.learn_loop import run_learn_loop

        options = {"cache": not arguments.no_cache, "dry_run": arguments.dry_run, "wait": arguments.wait}
        run_learn_loop(arguments.config, arguments.set, **options)
        return
    resumed = None
    if arguments.resume is not None:
        from commands.resume import find_resumable

        resumed = find_resumable(arguments.resume, arguments.config, arguments.set, new_code=arguments.new_code)
    # A resumed run keeps its original prompt, even if its function returns another one by now.
    config = resumed.config if resumed else with_prompt(load_config(arguments.config, arguments.set))
    if arguments.pipeline == "export":
        from commands.export import run_export

        named = explicit_values(arguments.config, arguments.set).get("trainer", {}).get("base_model")
        options = {"form": arguments.format or "adapter", "checkpoint": arguments.checkpoint, "base_model": named}
        run_export(arguments.to, config, **options)
        return
    if config.task == "outreach":
        raise ConfigError(
            "task=outreach: use --pipeline learn-loop, which trains and evaluates it, or --pipeline export"
        )
    if config.task != "email-search" and arguments.pipeline != "deploy":
        from commands.tasks import run_task

        options = {"dry_run": arguments.dry_run, "cache": not arguments.no_cache, "summary": arguments.summary}
        named = explicit_values(arguments.config, arguments.set).get("trainer", {}).get("base_model")
        options |= {"schedule": arguments.schedule, "checkpoint": arguments.checkpoint, "base_model": named}
        options["with_profile"] = arguments.config is not None or resumed is not None
        run_task(config, arguments.pipeline, resumed=resumed, **options)
        return
    if arguments.pipeline == "stack":
        from commands.stack import run_stack

        run_stack(config, dry_run=arguments.dry_run)
        return
    if arguments.pipeline == "ask":
        from commands.ask import Asked, run_ask

        chosen = {name: getattr(arguments, name) for name in ("inbox", "date", "checkpoint", "unpromoted", "mail")}
        named = explicit_values(arguments.config, arguments.set).get("trainer", {}).get("base_model")
        asked = Asked(" ".join(arguments.words), service=arguments.name, base_model=named, **chosen)
        run_ask(asked, steps=arguments.steps, as_json=arguments.json)
        return
    asks = {"scenarios": False, "data": None, "deploy": None}
    require_source(config, questions=asks.get(arguments.pipeline, True))
    if arguments.schedule is not None or config.step_settings or config.settings:
        from commands.stack import require_cluster

        require_cluster(config, arguments.schedule)
    if arguments.dry_run:
        from commands.dry_run import run_plan

        run_plan(config)
        return
    explicit = explicit_values(arguments.config, arguments.set)
    named = explicit.get("trainer", {}).get("base_model")
    cache = not arguments.no_cache
    if arguments.pipeline == "scenarios":
        from commands.scenarios import run_scenarios

        run_scenarios(config, cache=cache)
        return
    if arguments.pipeline == "deploy":
        from commands.deploy import run_deploy

        chosen = {name: getattr(arguments, name) for name in ("checkpoint", "unpromoted", "mail")}
        run_deploy(config, arguments.name, **chosen, base_model=named)
        return

    from commands.clock import begin_clock
    from commands.data import run_data
    from commands.evaluate import find_trained, require_evaluation, run_eval
    from commands.train import require_training, run_train

    if resumed is not None and resumed.data is not None:
        require_training(config)
        resumed.require_same_base()
        run_train(config, resumed.data, cache=True, key=resumed.experiment.run)
        return
    if arguments.pipeline in ("eval", "all"):
        require_evaluation(config)
    if arguments.pipeline == "eval" and (trained := find_trained(explicit, arguments.checkpoint)):
        run_eval(config, trained, cache=cache, summary=arguments.summary, base_model=named)
        return
    if config.trainer.continue_from is not None and arguments.pipeline != "data":
        from commands.continue_from import with_start

        config = with_start(config, scheduled=arguments.schedule is not None)
    if arguments.schedule is not None:
        from commands.schedules import schedule_retraining

        schedule_retraining(config, arguments.schedule)
        return
    if arguments.pipeline != "data":
        require_training(config)
        begin_clock(config, evaluates=arguments.pipeline == "all")
    data = run_data(config, cache=cache)
    if arguments.pipeline == "data":
        return
    trained = run_train(config, data, cache=cache)
    if arguments.pipeline in ("eval", "all"):
        run_eval(config, trained, cache=cache, summary=arguments.summary)


def from_terminal() -> int:
    """Run the command line of this process, and return its exit code. The installed command calls this, too."""
    # Both signals end a run like Ctrl-C, after ZenML's handler. SIGINT does so in a script's background too, where the
    # shell ignores it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        return main()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # `run.py --help | head -1`: nobody reads on
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(from_terminal())
