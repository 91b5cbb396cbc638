"""Report failed rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from openai import OpenAIError

from training.errors import BadInput
from training.task import RolloutError

_MAX_REASON_CHARS = 200


def tell_failures(
    failures: Sequence[BaseException], where: str, warn: Callable[[str], None], *, ends_run: str = ""
) -> None:
    """Warn of failed rollouts.

    With `ends_run`, the reason why there were too many, raise BadInput, or the first failure itself if it is a bug. A
    failure that is BadInput is raised always: other rollouts would fail as it did.
    """
    if not failures:
        return
    for failure in failures:
        if not isinstance(failure, Exception) or isinstance(failure, BadInput):
            raise failure
    kinds = ", ".join(f"{count} {name}" for name, count in Counter(type(f).__name__ for f in failures).items())
    first = " ".join(str(failures[0]).split())[:_MAX_REASON_CHARS]
    message = f"{where}: {len(failures)} rollouts failed ({kinds}{': ' + first if first else ''})"
    if not ends_run:
        warn(message)
        return
    if isinstance(failures[0], RolloutError | TimeoutError | OSError | OpenAIError):
        raise BadInput(f"{message}, {ends_run}; the same command resumes after the last finished step") from failures[0]
    raise failures[0]
