"""`--pipeline learn-loop --serve`: the HTTP service of learn loops, until it is stopped."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import uvicorn

from commands.learn_loop import DEFAULT_CONFIG, graph_key, is_at_work, learn_loop_config, require_settings
from configs.loading import load_config
from reports.console import say
from serving.access import Keys, Origins
from serving.http_protocol import server_config
from serving.key_file import read_keys
from serving.learn_loop_app import learn_loop_app
from serving.learn_loop_runs import LearnLoopRuns
from serving.log import configure
from serving.runner import open_door
from serving.settings import ServingSettings
from steps.learn_loop.world import EVENTS, world_of
from steps.project import LEARN_LOOPS, ROOT
from tasks.outreach.events import EventStore
from training.errors import BadInput

API_KEY = "LEARN_LOOP_API_KEY"


def serve_learn_loops(file: Path | None, overrides: list[str]) -> None:
    """Serve until stopped. Loops use the settings of `file` and `overrides`, which a request may override.

    Raises:
        BadInput: a setting cannot be used, everybody could start loops, or another program has the port.
    """

    def words(settings: Mapping[str, Any]) -> list[str]:
        return [*overrides, *(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items())]

    def check(settings: Mapping[str, Any]) -> str:
        config = learn_loop_config(file, words(settings))
        require_settings(config, world_of(config)[1])
        return graph_key(config)

    def command(run_id: str, settings: Mapping[str, Any]) -> list[str]:
        options = [
            word for setting in [*words(settings), f"experiment={json.dumps(run_id)}"] for word in ("--set", setting)
        ]
        config = ["--config", str((file or DEFAULT_CONFIG).resolve())]
        # A loop that outlived its service by some seconds may hold the graph still.
        return [sys.executable, str(ROOT / "run.py"), "--pipeline", "learn-loop", "--wait", *config, *options]

    check({})
    deployment = load_config(file, overrides).deployment
    key = os.environ.get(API_KEY)
    access_keys = read_keys(Path(deployment.access_keys).expanduser()) if deployment.access_keys else ()
    if found := open_door(deployment.address, key, ServingSettings(keys=access_keys)):
        raise BadInput(
            found.replace("set auth_key, or generate_auth_key: true, in the settings of the deployer", f"set {API_KEY}")
        )
    keys = Keys(key, access_keys)
    try:
        origins = Origins(deployment.address, deployment.allowed_hosts, open_to_any=len(keys) > 0)
    except ValueError as error:
        raise BadInput(f"allowed_hosts: {error}") from None
    app = learn_loop_app(
        LearnLoopRuns(LEARN_LOOPS, check, command, is_at_work),
        EventStore(EVENTS),
        keys=keys,
        origins=origins,
    )
    # Bound before the application opens the loops: those of a service that has the port are its own to resume.
    listening = _listen(deployment.address, deployment.port)
    say(f"learn loops: http://{deployment.address}:{deployment.port}/learn-loop (schema: /docs)")
    configure()
    server = uvicorn.Server(server_config(app, lifespan="on"))
    server.run(sockets=[listening])
    if not server.started:
        sys.exit(3)


def _listen(address: str, port: int) -> socket.socket:
    """Return a socket that listens on this IP address and port. Raises `BadInput` if there can be none."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        raise BadInput(
            f"the service cannot listen: {error.strerror}; stop the program that uses the port, or set another port or address"
        ) from None
