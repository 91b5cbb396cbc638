"""The first line of a run: how long it will take on this machine."""

from __future__ import annotations

from cluster.placement import runs_elsewhere
from commands.dry_run import MEASURED
from configs.config import Config
from configs.decisions import mail_decisions
from configs.schema import TrainingConfig
from reports.console import clock, say
from steps.project import RUNS
from training.backends.torch.joint_linear import multiplies_bfloat16
from training.guard.plan import Pace, earlier_pace, plan_run

_PREPARING_SECONDS = 60.0
"""Imports, data and loading the model for each of training and evaluation."""


def begin_clock(config: Config, *, evaluates: bool) -> None:
    """Say how long training, and the evaluation after it, will take here, and let progress lines count towards it.

    A run that is elsewhere or of unknown pace gets no line. The pace is that of the newest run in this checkout, or a
    measured one scaled by the speed of this machine, which takes three seconds to measure.
    """
    clock.stop()
    training = config.for_training()
    if training.backend != "torch" or runs_elsewhere("train_agent", config.step_settings):
        return
    kind = training.base_model, training.backend
    decides = bool(mail_decisions(training))
    pace, machine = earlier_pace(RUNS, *kind, decisions=decides), "at the pace of the last run here"
    measured = MEASURED.get((*kind, decides, multiplies_bfloat16()))
    if pace is None and measured is not None:
        pace, machine = _of_this_machine(measured, training)
    elif pace is not None and measured is not None and pace.seconds_per_validation_rollout is None:
        # A run without validation says nothing about whole answers.
        answers = {"seconds_per_validation_rollout": measured.seconds_per_validation_rollout}
        pace = pace.model_copy(update=answers)
    seconds = _seconds(config, training, pace, evaluates=evaluates) if pace else None
    if seconds is None:
        return
    expected = pace.seconds_per_demonstration or 0.0 if pace else 0.0
    clock.begin(seconds, warm_start=expected * training.warm_start_demonstrations)
    say(f"about {max(1, round(seconds / 60))} minutes on this machine, {machine}; what is finished already is reused")


def _of_this_machine(measured: Pace, training: TrainingConfig) -> tuple[Pace, str]:
    if measured.flops is None:
        return measured, f"at the pace of {measured.source}"
    from training.backends.torch.settings import TorchSettings
    from training.backends.torch.speed import cpu_flops

    flops = cpu_flops(TorchSettings.model_validate(training.torch.model_dump()))
    return measured.at(flops), f"at the {flops / 1e9:.0f} GFLOP/s measured now"


def _seconds(config: Config, training: TrainingConfig, pace: Pace, *, evaluates: bool) -> float | None:
    limits = {"max_turns": training.max_turns, "max_tokens": training.max_tokens}
    planned = plan_run(training, **limits, pace=pace, decisions=mail_decisions(training)).seconds
    if planned is None:
        return None
    seconds = _PREPARING_SECONDS + planned
    if evaluates:
        per_question = pace.seconds_per_validation_rollout or pace.seconds_per_rollout
        seconds += _PREPARING_SECONDS + _questions(config, training) * per_question
    return seconds


def _questions(config: Config, training: TrainingConfig) -> int:
    """Return the number of answers of an evaluation. The limit of all is as many as the data have, at most 200 here."""
    evaluation = config.evaluation
    of_trained = evaluation.eval_limit or 200
    compared = [evaluation.base_limit]
    if training.max_steps and (training.warm_start_demonstrations or training.continue_from):
        compared.append(evaluation.start_limit)
    return of_trained + sum(min(limit or of_trained, of_trained) for limit in compared)
