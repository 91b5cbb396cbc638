"""The init of a workspace in a container of its own."""

from __future__ import annotations

import os
import shutil
import signal
import time

from sandbox.inside.confinement import SET_DUMPABLE, libc
from sandbox.inside.files import digest, texts
from sandbox.inside.init import Init
from sandbox.inside.protocol import receive, send


class Pipes:
    """Standard input and output as a connection."""

    def recv(self, most: int) -> bytes:
        return os.read(0, most)

    def sendall(self, data: bytes) -> None:
        while data:
            data = data[os.write(1, data) :]

    def close(self) -> None:
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)


def container() -> None:
    """Run as the init of a container. The first message has the limits, the folder and the container's maximum age."""
    connection = Pipes()
    order = receive(connection)
    if order is None:
        return
    if os.getpid() != 1:  # this function kills every process that it sees
        send(connection, {"error": "not process 1 of a container"})
        return
    folder = order["folder"]
    until = time.monotonic() + order["seconds"]
    # The workspace may send this signal too, which does no harm.
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0) if time.monotonic() >= until else None)
    signal.setitimer(signal.ITIMER_REAL, order["seconds"], 1.0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(SET_DUMPABLE, 0, 0, 0, 0)
    for name in [name for name in os.environ if name.startswith("KUBERNETES_")]:
        del os.environ[name]
    try:
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        for hidden in order["hidden"]:
            if os.path.isdir(hidden) and not os.path.islink(hidden):
                shutil.rmtree(hidden)
            elif os.path.lexists(hidden):
                os.unlink(hidden)
        init = Init(connection, order["limits"], folder, in_container=True)
        init.original = {path: digest(text) for path, text in texts(folder) if text is not None}
    except OSError as error:
        send(connection, {"error": str(error)})
        return
    init.serve()
