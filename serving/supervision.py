"""The local service and its supervisor. When one of the two dies, the other one starts it again.

ZenML starts the supervisor and knows its process id. The supervisor starts the same program once more as the service.
If the service dies after it has served, the supervisor starts it again, after a pause that doubles while it keeps
dying. If the service never served, the supervisor ends too, so that the deployment fails with the cause in its log.

If the supervisor dies, the service starts a new supervisor, which takes the old one's place in ZenML's records, and
ends. `zenml deployment deprovision` sends SIGTERM to the supervisor. The supervisor then tells the service that it
stops on purpose, so that the service does not replace it.

The supervisor listens from its start, so that no other program takes the port while the model loads, and hands the
socket to the service and to its own successor. While no service accepts connections, it answers them with 503.

On a cluster the kubelet does all this.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence

CHANNEL = "EMAIL_AGENT_SUPERVISOR_CHANNEL"
"""In the environment of the service: file descriptors to hear of a stop, to report that it serves, and to accept on."""
TAKEN_OVER = "EMAIL_AGENT_SUPERVISOR_TAKEN_OVER"
"""In the environment of a supervisor that replaces a dead one: the file descriptor of the socket."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
TURNED_AWAY_SECONDS = 0.5
"""Time that a client has for its request while no service runs."""
STEADY_SECONDS = 60.0
"""A service that has served this long starts again after the first pause."""
STOP_SECONDS = 4.0
"""Less than the five seconds after which ZenML kills a service."""

logger = logging.getLogger(__name__)


def is_service() -> bool:
    """Return whether a supervisor started this process."""
    return CHANNEL in os.environ


def listen(host: str, port: int) -> socket.socket:
    """Return the socket of the supervisor: a new one, or that of the supervisor that this one replaces.

    Raises OSError if another program has the port.
    """
    if inherited := os.environ.get(TAKEN_OVER):
        return socket.socket(fileno=int(inherited))
    return socket.create_server((host, port), backlog=2048)


def supervise(command: Sequence[str], listening: socket.socket, *, show_state: Callable[[bool], None]) -> None:
    """Run `command` on the socket until SIGTERM. `show_state` is called when it starts and stops serving.

    Raises:
        SystemExit: always.
    """
    # ZenML's own handlers end the children of a daemon, but not the daemon.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    pause = FIRST_PAUSE_SECONDS
    served = os.environ.pop(TAKEN_OVER, None) is not None
    if served:
        show_state(False)
    starting = threading.Event()
    threading.Thread(target=_turn_away, args=(listening, starting), name="turn-away", daemon=True).start()
    while True:
        starting.set()
        child = _Child(command, listening)
        serving_since: float | None = None
        try:
            if child.wait_until_ready():
                starting.clear()
                served, serving_since = True, time.monotonic()
                show_state(True)
            status = child.process.wait()
        except BaseException:  # a stop is a SystemExit
            child.stop()
            raise
        os.close(child.stop_channel)
        starting.set()
        if not served:
            sys.exit(status or 1)
        show_state(False)
        if serving_since is not None and time.monotonic() - serving_since > STEADY_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        logger.error("service died", extra={"fields": {"status": status, "pause": pause}})
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _turn_away(listening: socket.socket, starting: threading.Event) -> None:
    """Answer clients with 503 while `starting` is set."""
    while starting.wait():
        with contextlib.suppress(OSError):  # the client has left, or the service was faster
            if not select.select([listening], [], [], 0.1)[0] or not starting.is_set():
                continue
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(TURNED_AWAY_SECONDS)
                connection.recv(1 << 16)
                connection.sendall(_unavailable())


def _unavailable() -> bytes:
    """Return the response of a service that is starting, with the body that all errors have."""
    request_id = uuid.uuid4().hex
    problem = {"success": False, "error": "the service is starting: ask again later", "request_id": request_id}
    body = json.dumps(problem).encode()
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-ID: {request_id}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


class _Child:
    """The serving process, with a channel in each direction."""

    def __init__(self, command: Sequence[str], listening: socket.socket) -> None:
        theirs, self.stop_channel = os.pipe()
        self._ready, says_ready = os.pipe()
        passed = (theirs, says_ready, listening.fileno())
        environment = os.environ | {CHANNEL: ",".join(map(str, passed))}
        self.process = subprocess.Popen(list(command), env=environment, pass_fds=passed)
        os.close(theirs)
        os.close(says_ready)

    def wait_until_ready(self) -> bool:
        """Return whether the process serves; false when it ends before."""
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


def serve_supervised(supervisor: Sequence[str]) -> tuple[socket.socket, Callable[[], None]]:
    """Start `supervisor` from the service when the current one dies.

    Return the socket to accept on, and the function that reports that the service does so.
    """
    stopping, ready, accepting = map(int, os.environ[CHANNEL].split(","))
    for descriptor in (stopping, ready, accepting):
        os.set_inheritable(descriptor, False)

    def watch() -> None:
        if os.read(stopping, 1) == b"s":
            return  # SIGTERM comes next
        logger.error("supervisor died")
        environment = {name: value for name, value in os.environ.items() if name != CHANNEL}
        environment[TAKEN_OVER] = str(accepting)
        subprocess.Popen(list(supervisor), env=environment, start_new_session=True, pass_fds=(accepting,))
        # The new supervisor starts a service of its own on this socket.
        os.kill(os.getpid(), signal.SIGKILL)

    def say_ready() -> None:
        with contextlib.suppress(OSError):
            os.write(ready, b"r")
        os.close(ready)

    threading.Thread(target=watch, name="supervisor-watch", daemon=True).start()
    return socket.socket(fileno=accepting), say_ready
