"""The local service and its supervisor: whichever of the two dies, the other one starts it again.

The process that ZenML starts, and knows by its id, is the supervisor; it starts the same program once more, which serves. A
service that dies after it has served is started again, after a pause that doubles while it keeps dying; one that never served
ends the supervisor too, so that the deployment fails with the cause in its log. Should the supervisor be killed, the service
starts a new one, which takes its place in ZenML's records, and ends. A stop that is asked for (SIGTERM, as `zenml deployment
deprovision` sends it) is announced to the service first, so that it does not take it for a death.

On a cluster the kubelet does all this.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

CHANNEL = "EMAIL_AGENT_SUPERVISOR_CHANNEL"
"""In the environment of the service: the file descriptor on which its supervisor would announce a stop."""
TAKEN_OVER = "EMAIL_AGENT_SUPERVISOR_TAKEN_OVER"
"""In the environment of a supervisor that a service has started after the death of its own."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""After serving this long a service starts again with the first pause."""
STOP_SECONDS = 4.0
"""ZenML kills a service that has not ended five seconds after SIGTERM."""

logger = logging.getLogger(__name__)


def is_service() -> bool:
    """Whether this process was started by a supervisor."""
    return CHANNEL in os.environ


def supervise(command: Sequence[str], *, show_state: Callable[[bool], None]) -> None:
    """Run `command` until a stop is asked for; `show_state` is told whenever it begins or ceases to serve. Raises SystemExit."""
    # ZenML's own handlers end the children of a daemon, but not the daemon.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    pause = FIRST_PAUSE_SECONDS
    served = os.environ.pop(TAKEN_OVER, None) is not None
    if served:
        show_state(False)
    while True:
        child = _Child(command)
        serving_since: float | None = None
        try:
            if child.wait_until_ready():
                served, serving_since = True, time.monotonic()
                show_state(True)
            status = child.process.wait()
        except BaseException:  # a stop is a SystemExit
            child.stop()
            raise
        os.close(child.stop_channel)
        if not served:
            sys.exit(status or 1)
        show_state(False)
        if serving_since is not None and time.monotonic() - serving_since > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        logger.error("service died", extra={"fields": {"status": status, "pause": pause}})
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class _Child:
    """The serving process, with a channel in each direction."""

    def __init__(self, command: Sequence[str]) -> None:
        theirs, self.stop_channel = os.pipe()
        self._ready, says_ready = os.pipe()
        environment = os.environ | {CHANNEL: f"{theirs},{says_ready}"}
        self.process = subprocess.Popen(list(command), env=environment, pass_fds=(theirs, says_ready))
        os.close(theirs)
        os.close(says_ready)

    def wait_until_ready(self) -> bool:
        """False when the process ends before it serves."""
        with open(self._ready, "rb", buffering=0) as channel:
            return channel.read(1) == b"r"

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self.stop_channel, b"s")
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def serve_supervised(supervisor: Sequence[str]) -> Callable[[], None]:
    """To be called in the service: start `supervisor` when the own one dies. Returns what says that it serves."""
    stopping, ready = map(int, os.environ[CHANNEL].split(","))
    for descriptor in (stopping, ready):
        os.set_inheritable(descriptor, False)

    def watch() -> None:
        if os.read(stopping, 1) == b"s":
            return  # SIGTERM comes next
        logger.error("supervisor died")
        environment = {name: value for name, value in os.environ.items() if name != CHANNEL} | {TAKEN_OVER: "1"}
        subprocess.Popen(list(supervisor), env=environment, start_new_session=True)
        # The new supervisor starts a service of its own on this port.
        os.kill(os.getpid(), signal.SIGKILL)

    def say_ready() -> None:
        with contextlib.suppress(OSError):
            os.write(ready, b"r")
        os.close(ready)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
    return say_ready
