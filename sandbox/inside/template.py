"""The template process on this machine: forks an init per workspace."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import typing

from sandbox.inside.confinement import enter_namespaces
from sandbox.inside.init import Init
from sandbox.inside.protocol import FAILED, STARTED, send
from sandbox.inside.system_calls import filter_steps, join_new_session_keyring

WORK = "/work"


def template(control: socket.socket) -> None:
    """Fork a workspace for each connection that arrives, until the service is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    join_new_session_keyring()
    while True:
        message, handles, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            return
        with socket.socket(fileno=handles[0]) as connection:
            try:
                child = os.fork()
            except OSError as error:  # too many processes or too little memory: this workspace fails, the others live
                with contextlib.suppress(OSError):
                    _refuse(connection, error)
                continue
            if child == 0:
                control.close()
                try:
                    _serve(connection, json.loads(message))
                finally:
                    os._exit(1)


def _serve(connection: socket.socket, limits: dict[str, typing.Any]) -> None:
    try:
        filter_steps(in_container=False)
        enter_namespaces(WORK, limits["disk_bytes"])
        # With this handle the service ends the workspace from outside, whatever its processes do.
        handle = os.pidfd_open(os.getpid())
        socket.send_fds(connection, [STARTED], [handle])
        os.close(handle)
    except OSError as error:
        _refuse(connection, error)
        os._exit(1)
    Init(connection, limits, WORK, in_container=False).serve()


def _refuse(connection: socket.socket, error: OSError) -> None:
    connection.sendall(FAILED)
    send(connection, {"error": str(error)})
